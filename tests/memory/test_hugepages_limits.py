"""What keeps huge pages from being seen, given or used: users, namespaces, cgroups."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.errors import ClusterError
from pgsweep.host.hugepages import read_pools
from pgsweep.host.limits import HugeLimit, huge_page_limits
from pgsweep.memory.hugepages.inspect import examine
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import PGSWEEP
from tests.fix_hugepages import MB, PAGE, available_pages, locked_pages, needs_2mb
from tests.fix_place import group_in, joined, mounted_v1
from tests.fix_process import needs_root, run_restricted


@needs_root
def test_neither_root_nor_the_servers_user(tmp_path: Path) -> None:
    """The number is still exact; what needs root says so."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = {"shared_buffers": "16MB", "listen_addresses": "127.0.0.1", "port": port}
    with Cluster.create(settings=settings):
        target = make_conninfo(host="127.0.0.1", port=port, user="postgres", dbname="postgres")
        # As root once, so that all modules are loaded before they may not be read any more.
        code = """
        import os
        from pgsweep.cli.app import run
        words = ["hugepages", "-d", sys.argv[1]]
        run([*words, "-o", sys.argv[2] + "/root.json"])
        run([*words, "--apply", "--dry-run"])
        os.chmod(sys.argv[2], 0o777)
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        os.chdir(sys.argv[2])
        run([*words, "-o", "nobody.json"])
        os.dup2(1, 2)
        print("code", run([*words, "--apply", "--yes"]))
        """
        with locked_pages(), open_to_all(tmp_path):
            before = [pool.persistent for pool in read_pools()]
            said = run_restricted(code, target, tmp_path)
            assert [pool.persistent for pool in read_pools()] == before
        by_root, by_nobody = (
            json.loads((tmp_path / f"{who}.json").read_text()) for who in ("root", "nobody")
        )
        assert by_nobody["methods"]["exact"] == by_root["methods"]["exact"] > 8
        assert by_nobody["missing"][0]["what"] == "huge pages of the host"
        assert "code 4" in said


@contextmanager
def open_to_all(folder: Path) -> Iterator[None]:
    """Let every user pass through the folders above; pytest's own are for its user only."""
    closed = [path for path in folder.parents if not path.stat().st_mode & 1]
    modes = [path.stat().st_mode for path in closed]
    for path in closed:
        path.chmod(0o711)
    try:
        yield
    finally:
        for path, mode in zip(closed, modes, strict=True):
            path.chmod(mode)


@needs_root
def test_a_server_that_is_not_seen_from_here() -> None:
    """In a PID namespace of our own no process is the server's: its kernel's pages are not reported."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = {"shared_buffers": "16MB", "listen_addresses": "127.0.0.1", "port": port}
    inside = ["unshare", "--pid", "--fork", "--mount-proc", PGSWEEP, "hugepages"]
    with Cluster.create(settings=settings):
        words = ["-h", "127.0.0.1", "-p", port, "-U", "postgres", "-d", "postgres"]
        done = subprocess.run([*inside, *words, "--json"], capture_output=True, text=True, check=False)
        if "unshare" in done.stderr:
            pytest.skip("needs PID namespaces")
        result = json.loads(done.stdout)
        assert result["available"] is None
        assert result["page_tables"] is None
        assert result["methods"]["vmpeak"] is None
        assert result["methods"]["exact"] == result["huge_pages_needed"] > 8
        assert result["missing"][0]["what"] == "huge pages of the host"
        refused = subprocess.run(
            [*inside, *words, "--apply", "--yes"], capture_output=True, text=True, check=False
        )
        assert refused.returncode == 4
        assert "would not be the server's own" in refused.stderr


@pytest.fixture
def hugetlb_group(tmp_path: Path) -> Iterator[Path]:
    """A cgroup of version 1 with the hugetlb controller."""
    with mounted_v1("hugetlb", tmp_path) as top, group_in(top) as group:
        yield group


@needs_root
@needs_2mb
def test_try_does_not_help_where_the_cgroup_allows_none(hugetlb_group: Path, bindir: Path | None) -> None:
    """The trap of Kubernetes: the kernel grants the pages and kills the server when it touches them."""
    with ExitStack() as closing:
        settings = {"shared_buffers": "16MB", "huge_pages": "off"}
        cluster = closing.enter_context(Cluster.create(bindir, settings))
        closing.enter_context(joined(cluster, hugetlb_group))
        (hugetlb_group / "hugetlb.2MB.limit_in_bytes").write_text("0")
        result = examine(cluster.conninfo())
        assert "hugetlb cgroup allows none" in result.reasons[-1] + result.reasons[-2]
        with available_pages((result.huge_pages_needed or 0) + 5):
            with pytest.raises(ClusterError) as killed:
                cluster.restart({"huge_pages": "try"})
            assert "signal 7" in (killed.value.cause or "")
        (hugetlb_group / "hugetlb.2MB.limit_in_bytes").write_text("-1")
        cluster.restart({"huge_pages": "off"})
        assert "hugetlb" not in " ".join(examine(cluster.conninfo()).reasons[:1])


@pytest.mark.parametrize("version", [1, 2])
def test_limits_of_captured_kernels(tmp_path: Path, version: int) -> None:
    kind, options = ("cgroup", "rw,hugetlb") if version == 1 else ("cgroup2", "rw")
    (tmp_path / "self").mkdir()
    (tmp_path / "7").mkdir()
    top = tmp_path / "cgroup"
    (top / "pod/server").mkdir(parents=True)
    (top / "pod/server/cgroup.procs").touch()
    (tmp_path / "self/mountinfo").write_text(f"30 20 0:26 / {top} rw - {kind} none {options}\n")
    number = "12:hugetlb" if version == 1 else "0:"
    (tmp_path / "7/cgroup").write_text(f"{number}:/pod/server\n")
    assert huge_page_limits(7, PAGE, tmp_path).touched is None
    file = "hugetlb.2MB.limit_in_bytes" if version == 1 else "hugetlb.2MB.max"
    (top / "pod/server" / file).write_text("0\n")
    (top / "pod" / file).write_text("4194304\n")
    # None at all is less than the limit of the group above.
    assert huge_page_limits(7, PAGE, tmp_path).touched == HugeLimit(top / "pod/server" / file, 0, 0)
    (top / "pod/server" / file).write_text("9223372036854771712\n" if version == 1 else "max\n")
    assert huge_page_limits(7, PAGE, tmp_path).touched == HugeLimit(top / "pod" / file, 4194304, 0)
    assert huge_page_limits(7, 1 << 30, tmp_path)[:2] == (None, None)


@needs_root
def test_less_memory_than_shared_buffers() -> None:
    with Cluster.create(settings={"shared_buffers": "256MB"}, memory_limit_bytes=200 * MB) as cluster:
        reasons = " ".join(examine(cluster.conninfo()).reasons)
    assert "limited to 200 MB, less than its shared memory" in reasons
