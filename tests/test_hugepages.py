"""`pgsweep hugepages` against real servers and the real kernel: exact numbers, and all goes back."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.errors import ClusterError, PgsweepError, UsageError
from pgsweep.host.cgroup import MemoryLimit, huge_page_limit_of
from pgsweep.host.hugepages import Pool, pool_file, read_pools, read_transparent
from pgsweep.host.reserve import Reserver
from pgsweep.hugepages import examine, explain_log
from pgsweep.hugepages_why import Circumstances, reasons_for
from pgsweep.pg.cluster import Cluster
from pgsweep.pg.sharedmemory import ScratchServer
from pgsweep.records.hugepages import HugePagesResult
from tests.fix_hugepages import Pages, available_pages, locked_pages
from tests.fix_process import run_restricted
from tests.test_cli import run
from tests.test_cluster import needs_root

MB = 1 << 20
PAGE = 2 * MB
SMALL = {"shared_buffers": "16MB", "max_connections": "20", "autovacuum": "off"}
SETTINGS = (("128kB", 50), ("48MB", 500), ("512MB", 500))
TOO_FEW = "could not map anonymous shared memory"
needs_2mb = pytest.mark.skipif(
    not any(pool.is_default and pool.size_bytes == PAGE for pool in read_pools()),
    reason="needs a kernel whose huge pages are of 2 MB",
)


def mapped_bytes(cluster: Cluster) -> int:
    """Return the size of the largest shared mapping of the postmaster, read by ourselves."""
    text = Path(f"/proc/{cluster.postmaster_pid}/maps").read_text()
    found = re.findall(r"^(\w+)-(\w+) ..-?.?s .*(?:/dev/zero|/anon_hugepage)", text, re.MULTILINE)
    return max(int(end, 16) - int(start, 16) for start, end in found)


@needs_2mb
def test_the_number_of_a_running_server(server: Cluster) -> None:
    result = examine(server.conninfo())
    exact = -(-mapped_bytes(server) // PAGE)
    assert result.methods.exact == result.huge_pages_needed == exact
    assert result.shared_memory_bytes == mapped_bytes(server)
    assert (result.status, result.huge_pages) == ("off", "off")
    assert (result.methods.vmpeak or 0) > exact
    if server.version_num >= 150000:
        assert result.methods.server in (exact, exact + 1)
    else:
        assert result.methods.server is None
    assert {pool.page_size_bytes: pool.needed for pool in result.pools}[PAGE] == exact
    assert any(step.what == "sysctl" and f"={result.target}" in step.text for step in result.steps)


def test_its_own_settings_asked_of_another_server_are_the_same(server: Cluster) -> None:
    """So what other settings would take is asked with everything else that counts."""
    settings = {"max_locks_per_transaction": "200", "wal_buffers": "3MB", "max_prepared_transactions": "7"}
    libraries = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.max": "20000"}
    with ExitStack() as closing:
        all_settings = {"shared_buffers": "20MB", **settings, **libraries}
        cluster = closing.enter_context(Cluster.create(server.bindir, all_settings))
        now = examine(cluster.conninfo())
        scratch = closing.enter_context(ScratchServer(cluster.binaries, wal_segment_bytes=16 * MB))
        same = examine(cluster.conninfo(), settings={"shared_buffers": "20MB"}, scratch=scratch)
        assert same.shared_memory_bytes == now.shared_memory_bytes
        assert same.methods.exact == now.methods.exact
        assert same.settings == {"shared_buffers": "20MB"}
        more = examine(cluster.conninfo(), settings={"shared_buffers": "40MB"}, scratch=scratch)
        assert more.shared_buffers_bytes == 40 * MB
        assert 20 * MB < (more.shared_memory_bytes or 0) - (now.shared_memory_bytes or 0) < 23 * MB


def test_more_than_this_host_has(server: Cluster) -> None:
    """Nothing is requested from the kernel when it is asked what would be."""
    settings = {"shared_buffers": "4TB", "max_connections": "1000"}
    result = examine(server.conninfo(), settings=settings)
    assert 4.05 * (1 << 40) < (result.shared_memory_bytes or 0) < 4.15 * (1 << 40)
    assert result.methods.exact == result.huge_pages_needed


def test_settings_that_the_server_does_not_take(server: Cluster) -> None:
    with pytest.raises(ClusterError) as refused:
        examine(server.conninfo(), settings={"shared_bufers": "1GB"})
    assert 'unrecognized configuration parameter "shared_bufers"' in (refused.value.cause or "")


@needs_root
@needs_2mb
def test_a_server_starts_with_so_many_and_not_with_one_fewer(server: Cluster) -> None:
    with (
        Cluster.create(server.bindir, {"huge_pages": "on"}, start=False) as tried,
        ScratchServer(server.binaries, wal_segment_bytes=16 * MB) as scratch,
        locked_pages() as pages,
    ):
        needed = 0
        for buffers, connections in SETTINGS:
            settings = {"shared_buffers": buffers, "max_connections": str(connections)}
            # Settings of the shared server that is asked must not matter here.
            number = examine(server.conninfo(), settings={**settings, "autovacuum": "on"}, scratch=scratch)
            assert number.methods.exact is not None, number.reasons
            needed = number.methods.exact
            tried.settings.update(settings)
            start_with(pages, needed, tried)
            assert pages.pool().available == 0
            running = examine(tried.conninfo())
            assert (running.status, running.methods.exact) == ("on", needed)
            tried.stop(immediately=True)
            give(pages, needed - 1)
            with pytest.raises(ClusterError) as refused:
                tried.start()
            assert TOO_FEW in (refused.value.cause or "")
        explained = explain_log(tried.log_path.read_text())
        assert explained is not None
        assert explained.huge_pages_needed == needed
        assert explained.available == needed - 1
        assert "1 too few" in explained.reasons[1]
        done = run("hugepages", "--log", str(tried.log_path), "--json")
        assert json.loads(done.stdout)["huge_pages_needed"] == needed


def start_with(pages: Pages, count: int, cluster: Cluster, settings: dict[str, str] | None = None) -> None:
    """Start a server with just so many pages; once more where another program was faster to take them."""
    for attempt in range(4):
        give(pages, count)
        try:
            cluster.restart(settings)
        except ClusterError:
            if attempt == 3:
                raise
        else:
            return


def give(pages: Pages, count: int) -> None:
    if not pages.make_available(count):
        pytest.skip("not enough memory in one piece for huge pages, or somebody else changes them")


@contextmanager
def touched(cluster: Cluster, backends: int) -> Iterator[None]:
    """Have backends that touched the whole pool."""
    cluster.create_extensions("postgres", "pg_prewarm")
    sessions = [psycopg.connect(cluster.conninfo(), autocommit=True) for _ in range(backends)]
    try:
        sessions[0].execute("CREATE TABLE wide (filler text)")
        sessions[0].execute("ALTER TABLE wide ALTER filler SET STORAGE PLAIN")
        sessions[0].execute("INSERT INTO wide SELECT repeat('x', 8000) FROM generate_series(1, 13000)")
        for session in sessions:
            session.execute("SELECT pg_prewarm('wide', 'buffer')")
            session.execute("SET max_parallel_workers_per_gather = 0")
            session.execute("SELECT sum(length(filler)) FROM wide")
        yield
    finally:
        for session in sessions:
            session.close()


@needs_root
@needs_2mb
def test_page_tables_with_huge_pages_are_as_predicted(server: Cluster) -> None:
    settings = {**SMALL, "shared_buffers": "128MB", "huge_pages": "off"}
    with Cluster.create(server.bindir, settings) as cluster:
        with touched(cluster, 5):
            ordinary = examine(cluster.conninfo())
        assert ordinary.reasons[0] == "huge_pages is off, so the server does not ask for huge pages"
        with locked_pages() as pages:
            start_with(pages, ordinary.huge_pages_needed or 0, cluster, {"huge_pages": "on"})
            with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
                connection.execute("DROP TABLE wide")
            with touched(cluster, 5):
                huge = examine(cluster.conninfo())
    before, after = ordinary.page_tables, huge.page_tables
    assert before is not None
    assert after is not None
    assert before.processes == after.processes
    assert before.now_bytes == before.without_huge_pages_bytes
    assert after.now_bytes == after.with_huge_pages_bytes
    # Of 8 bytes a page of 4 kB: 100 MB of table in each of five backends are 1 MB.
    assert before.now_bytes > after.now_bytes + 0.95 * MB
    # A few pieces of 4 kB in each process depend on where its mappings happen to lie.
    chance = 20 * 1024 * before.processes
    assert before.with_huge_pages_bytes == pytest.approx(after.now_bytes, abs=chance)
    assert after.without_huge_pages_bytes == pytest.approx(before.now_bytes, abs=chance)


@needs_root
@needs_2mb
def test_enough_are_there_but_the_server_was_started_before(server: Cluster) -> None:
    with (
        Cluster.create(server.bindir, {**SMALL, "huge_pages": "try"}, start=False) as cluster,
        locked_pages() as pages,
    ):
        give(pages, 0)
        cluster.start()
        needed = examine(cluster.conninfo()).huge_pages_needed or 0
        give(pages, needed + 3)
        result = examine(cluster.conninfo())
        target = pages.pool().persistent
        assert result.reasons[0].startswith("huge_pages is try, and the kernel had too few")
        assert result.available == needed + 3
        assert f"{needed + 3} huge pages of 2 MB are available now, {needed} are needed" in result.reasons[1]
        assert "restarted" in result.reasons[1]
        assert result.target == target


@needs_root
@needs_2mb
def test_pages_that_are_free_but_reserved_do_not_count(bindir: Path | None) -> None:
    """HugePages_Free less HugePages_Rsvd: a server maps its pages at the start and touches them later."""
    settings = {"shared_buffers": "64MB", "huge_pages": "on"}
    with locked_pages() as pages:
        give(pages, 60)
        with (
            Cluster.create(bindir, settings, start=False) as cluster,
            ScratchServer(cluster.binaries, wal_segment_bytes=16 * MB) as scratch,
        ):
            start_with(pages, 60, cluster)
            result = examine(cluster.conninfo())
            pool = result.pools[0]
            assert pool.reserved > 0
            assert pool.available == pool.free - pool.reserved == 60 - (result.methods.exact or 0)
            assert result.status == "on"
            assert result.available == pool.available
            # Its own pages come back before it takes new ones.
            again = examine(cluster.conninfo(), settings={"shared_buffers": "64MB"}, scratch=scratch)
            assert again.target == pages.pool().persistent
            more = examine(cluster.conninfo(), settings={"shared_buffers": "128MB"}, scratch=scratch)
            missing = (more.methods.exact or 0) - 60
            assert missing > 0
            assert more.target == pages.pool().persistent + missing
            assert f"{missing} too few" in " ".join(more.reasons)


@needs_root
@needs_2mb
def test_apply_and_undo(server: Cluster, tmp_path: Path) -> None:
    state, sysctl = tmp_path / "state", tmp_path / "sysctl.d"
    sysctl.mkdir()
    words = ["hugepages", server.conninfo(), "--state-dir", str(state), "--sysctl-dir", str(sysctl)]
    with locked_pages() as pages:
        give(pages, 0)
        before = pages.pool().persistent
        unasked = run(*words, "--apply")
        assert unasked.returncode == 2
        assert "--yes" in unasked.stderr
        dry = run(*words, "--apply", "--persist", "--dry-run", "--json")
        assert dry.returncode == 0, dry.stderr
        assert "nothing was changed" in dry.stderr
        plan = [step["text"] for step in json.loads(dry.stdout)["plan"]]
        assert pages.pool().persistent == before
        assert not state.exists()
        done = run(*words, "--apply", "--persist", "--yes", "--json")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        target, needed = result["target"], result["huge_pages_needed"]
        assert result["change"]["before"] == before
        assert result["change"]["after"] == target == before + needed
        line = f"vm.nr_hugepages = {target}"
        assert line in (sysctl / "90-pgsweep-hugepages.conf").read_text()
        assert plan[0].endswith(f"nr_hugepages: {target}")
        assert line in plan[2]
        # Nothing is left to do, and the number before is not forgotten.
        again = run(*words, "--apply", "--yes")
        assert again.returncode == 0, again.stderr
        assert "restart the server" in again.stdout
        undone = run("hugepages", "--undo", "--yes", *words[2:])
        assert undone.returncode == 0, undone.stderr
        assert pages.pool().persistent == before
        assert not state.exists()
        assert list(sysctl.iterdir()) == []
        nothing = run("hugepages", "--undo", "--yes", *words[2:])
        assert nothing.returncode == 1
        assert "nothing to undo" in nothing.stderr


@needs_root
@needs_2mb
def test_somebody_else_changed_the_number_since(tmp_path: Path) -> None:
    reserver = Reserver(state_directory=tmp_path / "state", sysctl_directory=tmp_path)
    with locked_pages() as pages:
        pool = pages.pool()
        reserver.reserve(pool, pool.persistent + 2)
        pool_file(PAGE).write_text(str(pool.persistent + 3))
        with pytest.raises(PgsweepError, match="had made it"):
            reserver.undo()
        assert pages.pool().persistent == pool.persistent + 3
        pool_file(PAGE).write_text(str(pool.persistent + 2))
        reserver.undo()
        assert pages.pool().persistent == pool.persistent


class StingyKernel(Reserver):
    """A captured kernel that has memory for a few pages only."""

    has = 7

    def _write(self, pool: Pool, target: int) -> None:
        super()._write(pool, min(target, self.has))


def captured_sys(folder: Path, total: int = 3, free: int = 2, reserved: int = 1, surplus: int = 0) -> Path:
    pool = folder / "sys/kernel/mm/hugepages/hugepages-2048kB"
    pool.mkdir(parents=True)
    names = ("nr_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages")
    for name, value in zip(names, (total, free, reserved, surplus), strict=True):
        (pool / name).write_text(f"{value}\n")
    (pool / "nr_overcommit_hugepages").write_text("5\n")
    (folder / "proc").mkdir()
    (folder / "proc/meminfo").write_text(
        "HugePages_Total: 3\nHugePages_Free: 2\nHugePages_Rsvd: 1\nHugepagesize: 2048 kB\n"
    )
    return folder / "sys"


def test_the_kernel_gives_fewer(tmp_path: Path) -> None:
    sys = captured_sys(tmp_path)
    (pool,) = read_pools(sys, tmp_path / "proc")
    assert (pool.available, pool.persistent, pool.overcommit, pool.is_default) == (1, 3, 5, True)
    compact = tmp_path / "compact_memory"
    reserver = StingyKernel(
        state_directory=tmp_path / "state", sysctl_directory=tmp_path, sys=sys, compact=compact
    )
    with pytest.raises(PgsweepError, match=r"gave 4 of 17 huge pages of 2 MB.*the number is 3 again") as few:
        reserver.reserve(pool, 20, persist=True)
    assert "hugepagesz=2M hugepages=20" in (few.value.hint or "")
    assert compact.read_text() == "1"
    assert pool_file(PAGE, sys).read_text() == "3"
    assert not (tmp_path / "state").exists()
    assert not list(tmp_path.glob("*.conf"))
    assert reserver.reserve(pool, 7).after == 7


@needs_2mb
def test_more_than_there_is_memory_is_not_even_tried(tmp_path: Path) -> None:
    pool = next(pool for pool in read_pools() if pool.size_bytes == PAGE)
    with pytest.raises(PgsweepError, match=r"more huge pages of 2 MB are .* and this host has .* available"):
        Reserver(state_directory=tmp_path / "state").reserve(pool, pool.persistent + (1 << 50) // PAGE)
    now = next(pool for pool in read_pools() if pool.size_bytes == PAGE)
    assert now.persistent == pool.persistent
    assert not (tmp_path / "state").exists()


def test_pages_of_another_size_are_not_kept_by_sysctl(tmp_path: Path) -> None:
    pool = Pool(1 << 30, False, 0, 0, 0, 0, 0)
    with pytest.raises(UsageError) as refused:
        Reserver(state_directory=tmp_path).reserve(pool, 3, persist=True)
    assert refused.value.hint is not None
    assert "hugepagesz=1G hugepages=3" in refused.value.hint
    assert list(tmp_path.iterdir()) == []


def test_pages_of_1_gb(server: Cluster) -> None:
    result = examine(server.conninfo(), page_bytes=1 << 30)
    assert result.huge_pages_needed == 1
    assert result.methods.server is None
    if any(pool.size_bytes == 1 << 30 for pool in read_pools()):
        assert any("hugepages-1048576kB" in step.text for step in result.steps)
        assert any("huge_page_size = '1GB'" in step.text for step in result.steps)
    else:
        assert "no huge pages of 1 GB" in " ".join(result.reasons)


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
        before = [pool.persistent for pool in read_pools()]
        with open_to_all(tmp_path):
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
    """In a PID namespace of our own no process is the server's: its kernel's pages are not told."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = {"shared_buffers": "16MB", "listen_addresses": "127.0.0.1", "port": port}
    from tests.test_cli import PGSWEEP

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
    top = tmp_path / "hugetlb"
    top.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "cgroup", "-o", "hugetlb", "none", str(top)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("needs root and the hugetlb controller in version 1")
    group = top / "pgsweep-test"
    group.mkdir()
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (top / "cgroup.procs").write_text(pid)
        group.rmdir()
        subprocess.run(["umount", str(top)], check=True)


@needs_root
@needs_2mb
def test_try_does_not_help_where_the_cgroup_allows_none(hugetlb_group: Path, bindir: Path | None) -> None:
    """The trap of Kubernetes: the kernel grants the pages and kills the server when it touches them."""
    with Cluster.create(bindir, {"shared_buffers": "16MB", "huge_pages": "off"}) as cluster:
        for pid in (cluster.postmaster_pid, parent(cluster.postmaster_pid)):
            (hugetlb_group / "cgroup.procs").write_text(str(pid))
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


def parent(pid: int | None) -> int:
    return int(re.findall(r"^PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[0])


@pytest.mark.parametrize("version", [1, 2])
def test_limits_of_captured_kernels(tmp_path: Path, version: int) -> None:
    kind, options = ("cgroup", "rw,hugetlb") if version == 1 else ("cgroup2", "rw")
    (tmp_path / "self").mkdir()
    (tmp_path / "7").mkdir()
    top = tmp_path / "cgroup"
    (top / "pod/server").mkdir(parents=True)
    (tmp_path / "self/mountinfo").write_text(f"30 20 0:26 / {top} rw - {kind} none {options}\n")
    number = "12:hugetlb" if version == 1 else "0:"
    (tmp_path / "7/cgroup").write_text(f"{number}:/pod/server\n")
    assert huge_page_limit_of(7, PAGE, tmp_path) is None
    file = "hugetlb.2MB.limit_in_bytes" if version == 1 else "hugetlb.2MB.max"
    (top / "pod/server" / file).write_text("0\n")
    (top / "pod" / file).write_text("4194304\n")
    # None at all is less than the limit of the group above.
    assert huge_page_limit_of(7, PAGE, tmp_path) == MemoryLimit(top / "pod/server", 0, None)
    (top / "pod/server" / file).write_text("9223372036854771712\n" if version == 1 else "max\n")
    assert huge_page_limit_of(7, PAGE, tmp_path) == MemoryLimit(top / "pod", 4194304, None)
    assert huge_page_limit_of(7, 1 << 30, tmp_path) is None


def test_a_kernel_without(tmp_path: Path, wheel18: Cluster) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1024 kB\n")
    assert read_pools(tmp_path, tmp_path) == []
    assert read_transparent(tmp_path) == {}
    import msgspec

    without = msgspec.structs.replace(examine(wheel18.conninfo()), huge_pages="try", pools=[], available=None)
    assert any("this kernel has no huge pages" in r for r in reasons_for(without, Circumstances(here=True)))


@needs_root
def test_less_memory_than_shared_buffers() -> None:
    with Cluster.create(settings={"shared_buffers": "256MB"}, memory_limit_bytes=200 * MB) as cluster:
        reasons = " ".join(examine(cluster.conninfo()).reasons)
    assert "limited to 200 MB, less than its shared memory" in reasons


def test_every_form_of_the_result(wheel18: Cluster, tmp_path: Path) -> None:
    words = ["-o", "x.html", "-o", "x.csv", "-o", "x.json", "--shared-buffers", "1GB"]
    done = run("hugepages", wheel18.conninfo(), *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    back = run("report", "--from", "x.html", "--json", cwd=tmp_path)
    assert back.stdout == (tmp_path / "x.json").read_text()
    result = json.loads(back.stdout)
    assert result["schema"] == "pgsweep.hugepages/1"
    assert str(result["huge_pages_needed"]) in (tmp_path / "x.csv").read_text()
    assert "if shared_buffers = 1048576kB" in done.stdout.replace("\n", " ")
    assert f"vm.nr_hugepages={result['target']}" in (tmp_path / "x.html").read_text()


def test_options_that_contradict_each_other(tmp_path: Path) -> None:
    for words in (["--apply", "--undo"], ["--dry-run"], ["--persist"], ["--set", "work_mem"]):
        assert run("hugepages", *words, "--yes").returncode == 2
    (tmp_path / "server.log").write_text("LOG:  database system is ready to accept connections\n")
    done = run("hugepages", "--log", str(tmp_path / "server.log"))
    assert done.returncode == 1
    assert "does not say that huge pages were missing" in done.stderr


def test_a_log_without_the_size() -> None:
    """The server names no size where the kernel's error was another one than too little memory."""
    result = explain_log("FATAL:  could not map anonymous shared memory: Operation not permitted\n")
    assert isinstance(result, HugePagesResult)
    assert result.huge_pages_needed is None
    assert os.linesep not in result.reasons[0]
