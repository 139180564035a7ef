"""`pgsweep hugepages` against real servers and the real kernel: exact numbers, and all goes back."""

from __future__ import annotations

import gettext
import io
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import psycopg
import pytest

from pgsweep.errors import ClusterError, UsageError
from pgsweep.host.hugepages import read_pools, read_transparent, shared_memory
from pgsweep.host.procmem import read_family
from pgsweep.host.server_memory import read_server_memory
from pgsweep.memory.hugepages.inspect import _of_running, examine
from pgsweep.memory.hugepages.log import explain_log, read_log
from pgsweep.memory.hugepages.reasons import Circumstances, reasons_for
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.private.sharedmemory import ScratchServer, read_facts
from pgsweep.pg.session.connect import connect
from pgsweep.records.hugepages import HugePagesResult
from tests.fix_cli import run
from tests.fix_hugepages import MB, PAGE, Pages, give, locked_pages, needs_2mb, start_with
from tests.fix_process import needs_root, wait_until

SMALL = {"shared_buffers": "16MB", "max_connections": "20", "autovacuum": "off"}
SETTINGS = (("128kB", 50), ("48MB", 500), ("512MB", 500))
TOO_FEW = "could not map anonymous shared memory"


def mapped_bytes(cluster: Cluster) -> int:
    """Return the size of the largest shared mapping of the postmaster, read by ourselves."""
    text = Path(f"/proc/{cluster.postmaster_pid}/maps").read_text()
    found = re.findall(r"^(\w+)-(\w+) ..-?.?s .*(?:/dev/zero|/anon_hugepage)", text, re.MULTILINE)
    return max(int(end, 16) - int(start, 16) for start, end in found)


def test_the_servers_own_number_may_be_one_too_many_up_to_18(server: Cluster) -> None:
    with connect(server.conninfo()) as session:
        facts = msgspec.structs.replace(read_facts(session), requested_bytes=None)
    size = _of_running(facts, None, PAGE)
    if server.version_num < 150000:
        assert size.likely_bytes is None
    else:
        assert size.likely_bytes == (facts.server_pages or 0) * PAGE
        assert any("one too many" in note for note in size.notes) == (server.version_num < 190000)


@needs_2mb
def test_the_number_of_a_running_server(server: Cluster) -> None:
    result = examine(server.conninfo())
    exact = -(-mapped_bytes(server) // PAGE)
    assert result.methods.exact == result.huge_pages_needed == exact
    assert result.shared_memory_bytes == mapped_bytes(server)
    assert (result.status, result.huge_pages) == ("off", "off")
    assert (result.methods.vmpeak or 0) > exact
    if server.version_num >= 190000:
        assert result.methods.server == exact
    elif server.version_num >= 150000:
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


def test_long_segments_of_wal_are_asked_about_as_they_are(server: Cluster) -> None:
    """The size of wal_buffers follows from them."""
    settings = {"shared_buffers": "16MB"}
    with Cluster.create(server.bindir, settings, wal_segment_bytes=64 * MB) as cluster:
        now = examine(cluster.conninfo())
        same = examine(cluster.conninfo(), settings=settings)
    assert same.shared_memory_bytes == now.shared_memory_bytes
    assert same.methods.exact == now.methods.exact is not None


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


def explained_with(pages: Pages, count: int, log: str) -> HugePagesResult:
    """Return what a log says while just so many pages are available; servers of others come and go."""
    for _ in range(10):
        give(pages, count)
        explained = explain_log(log)
        assert explained is not None
        if explained.available == count:
            return explained
    raise AssertionError("other programs take huge pages all the time")


def examined_with(pages: Pages, count: int, cluster: Cluster) -> tuple[HugePagesResult, int]:
    """Return what is said of a server while just so many pages are available, and how many there are."""
    for _ in range(10):
        give(pages, count)
        result = examine(cluster.conninfo())
        if result.available == count:
            return result, pages.pool().persistent
    raise AssertionError("other programs take huge pages all the time")


def start_with_just(pages: Pages, count: int, cluster: Cluster) -> None:
    """Start a server that leaves none of so many pages; servers of others come and go."""
    for _ in range(10):
        start_with(pages, count, cluster)
        if pages.pool().available == 0:
            return
        assert pages_of(cluster) == count  # so the pages that are left are those of a server that ended
    raise AssertionError("other programs give huge pages back all the time")


def refused_with(pages: Pages, count: int, cluster: Cluster) -> str:
    """Return why a server does not start with so many pages; servers of others come and go."""
    for _ in range(10):
        give(pages, count)
        try:
            cluster.start()
        except ClusterError as refused:
            return refused.cause or ""
        assert pages_of(cluster) > count  # so a server of others has ended meanwhile
        cluster.stop(immediately=True)
    raise AssertionError("other programs give huge pages back all the time")


def pages_of(cluster: Cluster) -> int:
    """Return how many huge pages a running server has mapped."""
    assert cluster.postmaster_pid is not None
    memory = shared_memory(cluster.postmaster_pid)
    assert memory is not None
    assert memory.huge
    return memory.size_bytes // PAGE


@needs_root
@needs_2mb
def test_a_server_starts_with_so_many_and_not_with_one_fewer(server: Cluster) -> None:
    with (
        locked_pages() as pages,
        Cluster.create(server.bindir, {"huge_pages": "on"}, start=False) as tried,
        ScratchServer(server.binaries, wal_segment_bytes=16 * MB) as scratch,
    ):
        needed = 0
        for buffers, connections in SETTINGS:
            settings = {"shared_buffers": buffers, "max_connections": str(connections)}
            # Settings of the shared server that is asked must not matter here.
            number = examine(server.conninfo(), settings={**settings, "autovacuum": "on"}, scratch=scratch)
            assert number.methods.exact is not None, number.reasons
            needed = number.methods.exact
            tried.settings.update(settings)
            start_with_just(pages, needed, tried)
            running = examine(tried.conninfo())
            assert (running.status, running.methods.exact) == ("on", needed)
            tried.stop(immediately=True)
            assert TOO_FEW in refused_with(pages, needed - 1, tried)
        explained = explained_with(pages, needed - 1, tried.log_path.read_text())
        assert explained.huge_pages_needed == needed
        assert "1 too few" in explained.reasons[1]
        done = run("hugepages", "--log", str(tried.log_path), "--json")
        assert json.loads(done.stdout)["huge_pages_needed"] == needed


def client_backends(cluster: Cluster) -> int:
    """Return how many processes of the server serve a client."""
    assert cluster.postmaster_pid is not None
    return sum("[local]" in process.title for process in read_family(cluster.postmaster_pid))


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
        # Those of sessions that were closed before end a little later.
        wait_until(lambda: client_backends(cluster) == backends)
        yield
    finally:
        for session in sessions:
            session.close()


@pytest.mark.one_server
@needs_root
@needs_2mb
def test_page_tables_with_huge_pages_are_as_predicted(server: Cluster) -> None:
    settings = {**SMALL, "shared_buffers": "128MB", "huge_pages": "off"}
    with Cluster.create(server.bindir, settings) as cluster:
        assert cluster.postmaster_pid is not None
        with touched(cluster, 5):
            ordinary = examine(cluster.conninfo())
            # What evidence says, so predict: the same computation.
            recorded = read_server_memory(cluster.postmaster_pid).page_tables_saved_bytes
        assert ordinary.reasons[0] == "huge_pages is off, so the server does not ask for huge pages"
        with locked_pages() as pages:
            start_with(pages, ordinary.huge_pages_needed or 0, cluster, {"huge_pages": "on"})
            with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
                connection.execute("DROP TABLE wide")
            with touched(cluster, 5):
                huge = examine(cluster.conninfo())
            cluster.stop(immediately=True)
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
    assert recorded == pytest.approx(before.now_bytes - after.now_bytes, abs=chance)
    assert recorded == pytest.approx(
        before.without_huge_pages_bytes - before.with_huge_pages_bytes, abs=chance
    )
    assert before.with_huge_pages_bytes == pytest.approx(after.now_bytes, abs=chance)
    assert after.without_huge_pages_bytes == pytest.approx(before.now_bytes, abs=chance)


@needs_root
@needs_2mb
def test_enough_are_there_but_the_server_was_started_before(server: Cluster) -> None:
    with (
        locked_pages() as pages,
        Cluster.create(server.bindir, {**SMALL, "huge_pages": "try"}, start=False) as cluster,
    ):
        give(pages, 0)
        cluster.start()
        needed = examine(cluster.conninfo()).huge_pages_needed or 0
        result, target = examined_with(pages, needed + 3, cluster)
        assert result.reasons[0].startswith("huge_pages is try, and the kernel had too few")
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
            # Another server that has pages just now gives them back.
            left = 60 - pages_of(cluster)
            wait_until(lambda: pages.pool().available == left)
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
def test_a_private_server_takes_no_pages_while_it_is_made() -> None:
    """The servers that initdb starts would take those that another server needs to start again."""
    with locked_pages() as pages, ThreadPoolExecutor(1) as executor:
        give(pages, 200)
        for _ in range(5):  # an older initdb of another test takes some
            least = pages.pool().available
            made = executor.submit(Cluster.create, None, {}, start=False)
            while not made.done():
                least = min(least, pages.pool().available)
            made.result().close()
            if least == 200:
                return
    raise AssertionError("initdb took huge pages")


def test_pages_of_1_gb(server: Cluster) -> None:
    result = examine(server.conninfo(), page_bytes=1 << 30)
    assert result.huge_pages_needed == 1
    assert result.methods.server is None
    if any(pool.size_bytes == 1 << 30 for pool in read_pools()):
        assert any("hugepages-1048576kB" in step.text for step in result.steps)
        assert any("huge_page_size = '1GB'" in step.text for step in result.steps)
    else:
        assert "no huge pages of 1 GB" in " ".join(result.reasons)


def test_a_kernel_without(tmp_path: Path, wheel18: Cluster) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1024 kB\n")
    assert read_pools(tmp_path, tmp_path) == []
    assert read_transparent(tmp_path) == {}
    import msgspec

    without = msgspec.structs.replace(examine(wheel18.conninfo()), huge_pages="try", pools=[], available=None)
    unknown = msgspec.structs.replace(without, status="unknown")
    text = " ".join(reasons_for(unknown, Circumstances(may_be_here=True)))
    assert "not on this host" not in text
    assert "may not see whether its process runs on this host" in text
    assert any("this kernel has no huge pages" in r for r in reasons_for(without, Circumstances(here=True)))


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


def test_a_log_in_another_language_and_of_ordinary_pages(tmp_path: Path) -> None:
    """Names of settings are in no language; a size that is no whole number of pages was no huge one."""
    german = (
        "TIPP:  Dieser Fehler bedeutet gewöhnlich, dass das von PostgreSQL angeforderte "
        "Shared-Memory-Segment den "
        "verfügbaren Speicher übersteigt (aktuell {} Bytes), kontrollieren Sie »shared_buffers« oder "
        "»max_connections«.\n"
    )
    found = explain_log(german.format(76 * PAGE))
    assert found is not None and found.huge_pages_needed == 76
    assert explain_log(german.format(76 * PAGE + 4096)) is None
    (tmp_path / "x.log").write_text(german.format(148471808))
    done = run("hugepages", "--log", str(tmp_path / "x.log"))
    assert done.returncode == 1
    assert "no whole number of huge pages" in done.stderr
    for odd in (3 << 20, 4 << 20):
        with pytest.raises(UsageError, match="there are no huge pages of"):
            explain_log(german.format(2 << 30), odd)
    large = explain_log(german.format(2 << 30), 1 << 30)
    assert large is not None and large.huge_pages_needed == 2


@pytest.mark.parametrize(
    "line",
    [
        "LOG:  server process (PID 7) was terminated by signal 7: Bus error\n",
        'ERROR:  could not read blocks 1..1 in file "base/5/16384": read only 5120 of 8192 bytes\n',
    ],
)
def test_a_log_of_a_server_that_was_cut_short(line: str) -> None:
    found = explain_log(line)
    assert found is not None
    assert "hugetlb" in found.reasons[0] and found.steps == []


def _catalogs() -> dict[str, gettext.GNUTranslations]:
    """Return the server's messages in each language that is installed, as Debian's packages have them."""
    found = {}
    for path in Path("/usr/share/locale").glob("*/LC_MESSAGES/postgres-15.mo"):
        with path.open("rb") as file:
            found[path.parts[4]] = gettext.GNUTranslations(file)
    return found


def _rendered(text: str, *values: object) -> str:
    """Fill a message of C; a translation may have the values in another order."""
    values_left = iter(values)

    def fill(place: re.Match[str]) -> str:
        return str(values[int(place[1]) - 1] if place[1] else next(values_left))

    # elog.c puts a tab at the begin of each further line.
    return re.sub(r"%(?:(\d)\$)?z?[usd]", fill, text).replace("\n", "\n\t")


def test_a_log_in_every_language_of_the_server() -> None:
    """The server's own catalogs say what it would write; nothing of them is known to what reads it."""
    catalogs = _catalogs()
    if not catalogs:
        pytest.skip("the server's messages in other languages are not installed (Debian's postgresql-15)")
    started = "%s (PID %d) was terminated by signal %d: %s"
    read = 'could not read block %u in file "%s": read only %d of %d bytes'
    ended = "%s (PID %d) exited with exit code %d"
    for language, catalog in catalogs.items():
        hint = next(
            text
            for text in catalog._catalog  # type: ignore[attr-defined]
            if isinstance(text, str) and "huge pages" in text and "max_connections" in text
        )

        def line(text: str, *values: object, catalog: gettext.GNUTranslations = catalog) -> str:
            return f"2026-11-28 10:00:00.123 UTC [1234567] X:  {_rendered(catalog.gettext(text), *values)}\n"

        calm = line("database system is ready to accept connections")
        log = calm + line("could not map anonymous shared memory: %m") + line(hint, 76 * PAGE) + calm
        found = explain_log(read_log(io.BytesIO(log.encode())))
        assert found is not None, language
        assert found.huge_pages_needed == 76, language
        for said in (
            line(started, "x", 4711, 7, "Bus"),
            line(read, 13, "base/5/16384", 5120, 8192),
            line(read, 1024, "pg_tblspc/16385/PG_15_202209061/5/16384.1", 512, 8192),
        ):
            found = explain_log(read_log(io.BytesIO((calm + said).encode())))
            assert found is not None, (language, said)
            assert "hugetlb" in found.reasons[0]
        for said in (
            line(started, "x", 4711, 9, "Killed"),
            line(ended, "x", 4711, 7),
            line(read, 13, "base/5/16384", 0, 8192),
        ):
            assert explain_log(read_log(io.BytesIO((calm + said).encode()))) is None, (language, said)


def test_a_log_without_the_size() -> None:
    """The server names no size where the kernel's error was another one than too little memory."""
    result = explain_log("FATAL:  could not map anonymous shared memory: Operation not permitted\n")
    assert isinstance(result, HugePagesResult)
    assert result.huge_pages_needed is None
    assert os.linesep not in result.reasons[0]
