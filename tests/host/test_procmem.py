"""The memory of processes read from /proc: captured trees of several kernels, and this machine's own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import psycopg
import pytest

from pgsweep.host.hugepages import shared_memory
from pgsweep.host.postmaster import listening_sockets, postmasters
from pgsweep.host.procfile import PROC, parse_meminfo, read_host_memory
from pgsweep.host.procmem import (
    count_pages,
    parse_smaps,
    parse_smaps_rollup,
    parse_status,
    private_ranges,
    read_family,
    read_memory,
    read_private,
    read_status,
    shared_memory_resident,
)
from pgsweep.pg.private.cluster import Cluster
from tests.fix_proc import BACKEND, CAPTURED, POSTMASTER
from tests.fix_process import needs_root

KB = 1024


def test_status_of_a_new_kernel() -> None:
    status = parse_status((CAPTURED / str(BACKEND) / "status").read_text())
    assert status is not None
    assert (status.pid, status.inner_pid, status.parent, status.uid) == (4103, 4103, 4100, 101)
    assert status.rss == (status.rss_anon or 0) + (status.rss_file or 0) + (status.rss_shmem or 0)
    assert status.rss_shmem is not None
    assert 4 << 20 < status.rss_shmem < 64 << 20
    assert status.huge_pages == 0
    assert status.swap == 0


def test_what_an_old_kernel_does_not_tell_is_unknown_not_zero(linux_3_10: Path) -> None:
    new = parse_status((CAPTURED / str(BACKEND) / "status").read_text())
    old = parse_status((linux_3_10 / str(BACKEND) / "status").read_text())
    assert new is not None
    assert old is not None
    assert (old.rss_anon, old.rss_file, old.rss_shmem, old.huge_pages) == (None, None, None, None)
    assert old.inner_pid == old.pid == 4103
    # There page directories are on a line of their own; together they are as much.
    assert old.page_tables == new.page_tables > 0


def test_a_process_of_a_container_knows_itself_by_another_number() -> None:
    text = (CAPTURED / str(BACKEND) / "status").read_text().replace("NSpid:\t4103", "NSpid:\t4103\t77\t9")
    status = parse_status(text)
    assert status is not None
    assert (status.pid, status.inner_pid) == (4103, 9)


def test_kernel_threads_and_zombies_have_no_memory() -> None:
    lines = (CAPTURED / str(BACKEND) / "status").read_text().splitlines()
    assert parse_status("\n".join(line for line in lines if not line.startswith(("Vm", "Rss")))) is None


def test_smaps_rollup(linux_4_18: Path) -> None:
    found = parse_smaps_rollup((CAPTURED / str(BACKEND) / "smaps_rollup").read_text())
    assert found is not None
    assert (found.anonymous, found.shmem) == (1580 * KB, 3630 * KB)
    assert parse_smaps_rollup((linux_4_18 / str(BACKEND) / "smaps_rollup").read_text()) is None


@pytest.mark.parametrize("kernel", ["linux_4_18", "linux_3_10", None])
def test_smaps_says_the_same_as_its_sum(kernel: str | None, request: pytest.FixtureRequest) -> None:
    tree = CAPTURED if kernel is None else request.getfixturevalue(kernel)
    whole = parse_smaps_rollup((CAPTURED / str(BACKEND) / "smaps_rollup").read_text())
    assert whole is not None
    found = parse_smaps((tree / str(BACKEND) / "smaps").read_text())
    # smaps rounds each mapping down to kilobytes, and was read a moment later.
    assert found.anonymous == pytest.approx(whole.anonymous, rel=0.05)
    assert found.shmem == pytest.approx(whole.shmem, rel=0.05)


def test_a_family_is_read() -> None:
    family = read_family(POSTMASTER, CAPTURED)
    assert [status.pid for status in family] == [4100, 4101, 4102, 4103]
    assert [status.title for status in family][1:3:2] == ["postgres: checkpointer"]
    assert family[-1].title == "postgres: postgres postgres [local] idle"
    memory = read_memory(family, CAPTURED)
    assert [found.status for found in memory] == family
    assert {found.private.method for found in memory} == {"smaps_rollup"}


@pytest.mark.parametrize("kernel", ["linux_4_18", "linux_3_10"])
def test_an_old_kernel_is_read_by_smaps(kernel: str, request: pytest.FixtureRequest) -> None:
    tree = request.getfixturevalue(kernel)
    (memory,) = read_memory(read_family(POSTMASTER, tree), tree)
    assert memory.status.pid == BACKEND
    assert memory.private.method == "smaps"
    assert memory.private.anonymous == pytest.approx(1580 * KB, rel=0.05)


def test_a_process_that_vanishes_is_left_out(tmp_path: Path) -> None:
    """Between the list of processes and the reading of each, and between its files."""
    tree = tmp_path / "proc"
    shutil.copytree(CAPTURED, tree)
    family = read_family(POSTMASTER, tree)
    shutil.rmtree(tree / "4101")
    (tree / str(BACKEND) / "status").unlink()
    assert [memory.status.pid for memory in read_memory(family, tree)] == [4100, 4102, 4103]
    assert [status.pid for status in read_family(POSTMASTER, tree)] == [4100, 4102]
    assert read_private(4101, tree) is None


def test_a_process_that_is_ending_is_left_out() -> None:
    """It stands in /proc, without memory, until its parent has asked for its end."""
    process = subprocess.Popen(["/bin/sleep", "100"])
    try:
        assert read_private(process.pid) is not None
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert (PROC / str(process.pid) / "stat").read_text().split()[2] == "Z"
        assert read_private(process.pid) is None
        assert read_private(process.pid, fast=True) is None
    finally:
        process.kill()
        process.wait()


def test_nothing_to_read_is_no_number(tmp_path: Path) -> None:
    tree = tmp_path / "proc"
    shutil.copytree(CAPTURED, tree)
    (tree / "4102" / "smaps_rollup").unlink()
    found = read_private(4102, tree)
    assert found is not None
    assert found.anonymous is None
    assert found.refused


def test_meminfo_of_old_and_new_kernels(linux_3_10: Path) -> None:
    new, old = (parse_meminfo((tree / "meminfo").read_text()) for tree in (CAPTURED, linux_3_10))
    assert new.total == old.total == 24684084 * KB
    assert old.available is None
    assert new.available is not None
    assert new.page_tables == old.page_tables > 0
    assert new.huge_pages == 0
    here = read_host_memory()
    assert here.total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_pages_by_their_bits() -> None:
    present, file, own, swapped = 1 << 63, 1 << 61, 1 << 56, 1 << 62
    entries = [0, present, present | own, present | own, present | file | own, swapped | own]
    assert count_pages(np.array(entries, dtype=np.uint64)) == (2, 1)


def test_ranges_of_private_mappings() -> None:
    maps = "\n".join(
        (
            "00400000-00500000 r-xp 00000000 fe:00 12 /bin/x y",
            "00500000-00600000 rw-p 00100000 fe:00 12 /bin/x y",
            "00700000-00800000 ---p 00000000 00:00 0 ",
            "00800000-10800000 r--p 00000000 fe:00 13 /usr/lib/locale/locale-archive",
            "20000000-30000000 rw-s 00000000 00:01 14 /dev/zero (deleted)",
            "30000000-30001000 rw-p 00000000 00:00 0 ",
            "7ffd0000-7ffd4000 r--p 00000000 00:00 0 [vvar]",
        )
    )
    assert private_ranges(maps) == [(0x400000, 0x600000), (0x30000000, 0x30001000)]


def test_memory_of_our_own_is_found_by_every_way() -> None:
    """In a process in which nothing else happens: the heap of this one grows and shrinks by megabytes."""
    script = (
        "import ctypes, json, mmap, os\n"
        "from pathlib import Path\n"
        "from pgsweep.host.procmem import parse_smaps, read_private\n"
        "def look():\n"
        "    return [read_private(os.getpid(), fast=fast) for fast in (False, True)]\n"
        "look()\n"
        "before = look()\n"
        "memory = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(memory)), 1, 32 << 20)\n"
        "after = look()\n"
        "smaps = parse_smaps(Path('/proc/self/smaps').read_text())\n"
        "print(json.dumps([*([w.anonymous for w in way] for way in (before, after)), smaps.anonymous,\n"
        "    [way.method for way in after]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    before, after, smaps, methods = json.loads(done.stdout)
    for old, new in zip(before, after, strict=True):
        assert new - old == pytest.approx(32 << 20, rel=0.02)
    assert methods == ["smaps_rollup", "pagemap"]
    assert smaps == pytest.approx(after[0], rel=0.02)


@needs_root
def test_another_users_process_is_a_reason_not_a_number(wheel18: Cluster) -> None:
    """Who may not look learns so; the status anybody may read is there all the same."""
    script = (
        "import os, sys\n"
        "from pgsweep.host.procmem import read_family, read_memory\n"
        "os.setgroups([]); os.setgid(54321); os.setuid(54321)\n"
        "for memory in read_memory(read_family(int(sys.argv[1]))):\n"
        "    assert memory.status.rss > 0 and memory.status.page_tables > 0\n"
        "    print(memory.private.anonymous, memory.private.refused)\n"
    )
    command = [sys.executable, "-c", script, str(wheel18.postmaster_pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    lines = set(done.stdout.splitlines())
    assert lines == {"None this user may not read it (Permission denied)"}


def test_both_ways_agree_on_a_server(server: Cluster) -> None:
    """Pages shared since the fork are shared by nearly all: so pagemap's sum is that of smaps_rollup."""
    assert server.postmaster_pid is not None
    sessions = [psycopg.connect(server.conninfo(), autocommit=True) for _ in range(8)]
    try:
        for session in sessions:
            session.execute("SELECT count(*) FROM pg_class, pg_attribute")
        family = read_family(server.postmaster_pid)
        slow, fast = (read_memory(family, rollup_budget_bytes=budget) for budget in (1 << 50, 0))
        assert {memory.private.method for memory in slow} == {"smaps_rollup"}
        assert {memory.private.method for memory in fast} == {"pagemap"}
        for one, other in zip(slow, fast, strict=True):
            assert one.status.pid == other.status.pid
            assert other.private.anonymous == pytest.approx(one.private.anonymous, rel=0.05, abs=64 * KB)
        sums = [sum(memory.private.anonymous or 0 for memory in way) for way in (slow, fast)]
        assert sums[1] == pytest.approx(sums[0], rel=0.03)
        if os.geteuid() == 0:
            # All that the processes have of the segment, each page once, and what ended ones left there.
            shares = sum(memory.private.shmem or 0 for memory in slow)
            segment = shared_memory(server.postmaster_pid)
            assert segment is not None
            resident = shared_memory_resident(server.postmaster_pid)
            assert resident is not None
            assert 0.99 * shares < resident < segment.size_bytes + 64 * KB
    finally:
        for session in sessions:
            session.close()


def test_a_process_whose_name_is_not_utf8_is_no_trouble() -> None:
    """Any user may have one; a line feed alone ends a line, whatever else the name holds."""
    code = (
        "import ctypes, sys\n"
        "ctypes.CDLL(None).prctl(15, b'\\xff\\r\\xe2\\x80\\xa8PPid:\\t7', 0, 0, 0)\n"
        "print(flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        list(postmasters())
        status = read_status(process.pid)
        assert status is not None
        assert status.parent == os.getpid()
        process.communicate(b"")


@needs_root
def test_a_mount_point_whose_name_is_not_utf8_is_no_trouble(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\nfrom pgsweep.host.cgroup import find_parent\n"
        "from pgsweep.host.limits import memory_limits\n"
        "from pgsweep.host.page_cache_rules import _file_system\n"
        "find_parent(); memory_limits(1); _file_system(0, Path('/proc'))\nprint('read')"
    )
    mount = b'mkdir "$1" && mount -t tmpfs none "$1" && shift && exec "$@"'
    words = [b"unshare", b"--mount", b"sh", b"-c", mount, b"sh", os.fsencode(tmp_path) + b"/m\xff x"]
    done = subprocess.run(
        [*words, sys.executable.encode(), b"-c", code.encode()], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr


def test_a_socket_whose_path_has_a_line_feed_is_no_trouble(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(f"{tmp_path}/a\nb 1 2 not-a-number 4 5 6 c")
        odd.listen()
        listening_sockets()
