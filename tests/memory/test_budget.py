"""`pgsweep memory budget`: the arithmetic on numbers made by hand, the whole on real servers."""

from __future__ import annotations

import dataclasses
import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.host.pagetables import page_tables_of
from pgsweep.host.procfile import field_bytes, parse_fields
from pgsweep.memory.budget import assumed_elsewhere, budget, measure_own_tables
from pgsweep.memory.budget_parts import connections_of, touched_at_most
from pgsweep.memory.hugepages.inspect import examine
from pgsweep.memory.processes import look, opened
from pgsweep.pg.catalog.memory_settings import read_memory_settings
from pgsweep.pg.catalog.next_start import read_next_start
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.queries import load
from pgsweep.records.budget import BudgetPart, BudgetResult
from pgsweep.records.place import Place, PlaceMemory
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.results import from_json, to_json
from pgsweep.ui.views.budget import budget_page, budget_text
from pgsweep.units import format_bytes
from tests.fix_cli import run
from tests.fix_memory import GB, KB, MB, SETTINGS, budget_of, seen
from tests.fix_process import needs_cgroup, needs_root, wait_until
from tests.fix_results import cells_of


def parts(result: BudgetResult) -> dict[str, BudgetPart]:
    return {part.name: part for part in result.parts}


def test_page_tables_are_an_entry_a_page_in_whole_tables() -> None:
    assert page_tables_of(3 * GB) == 6 * MB + 12 * KB
    assert page_tables_of(3 * GB, 2 * MB) == 12 * KB
    assert page_tables_of(3 * GB, GB) == 0
    assert page_tables_of(1) == 8 * KB


def test_every_part_is_what_the_settings_and_measurements_say() -> None:
    found = parts(budget_of(seen()))
    assert (found["shared memory"].now_bytes, found["shared memory"].high_bytes) == (512 * MB, 1024 * MB)
    assert "24 MB around it" in found["shared memory"].why
    tables = found["page tables"]
    assert tables.now_bytes == 11 * 200 * KB
    assert tables.low_bytes == 101 * 200 * KB
    # The pool's pages, and 116 bytes of descriptor and lookup table for each.
    touched = 1000 * MB + 128000 * 116
    assert tables.high_bytes == 101 * (80 * KB + (-(-touched // (2 * MB)) + 1) * 4 * KB)
    assert (found["connections"].now_bytes, found["connections"].low_bytes) == (20 * MB, 200 * MB)
    assert found["background processes"].high_bytes == MB
    assert found["work_mem"].high_bytes == (100 + 8) * 2 * 8 * MB
    assert found["temp_buffers"].high_bytes == 800 * MB
    assert found["autovacuum"].high_bytes == 3 * 64 * MB
    assert found["maintenance"].high_bytes == 64 * MB
    assert found["everything else"].now_bytes == 300 * MB
    kinds = {part.kind for part in found.values()}
    assert kinds == {"measured", "predicted", "assumed"}


def test_huge_pages_take_the_page_tables_away() -> None:
    huge, ordinary = (parts(budget_of(seen(huge=huge)))["page tables"].high_bytes for huge in (True, False))
    assert huge == pytest.approx(101 * 84 * KB, rel=0.01)
    assert huge < ordinary / 20


@pytest.mark.parametrize("own", [80 * KB, 2 * MB])
def test_what_stays_of_the_page_tables_is_said(own: int) -> None:
    """Each process has 2.01 MB for the pool, and what it has for other memory, which no huge pages take."""
    found = budget_of(seen(16 * GB), 100_000, own_tables_bytes=own)
    [said] = [reason for reason in found.reasons if "huge pages" in reason]
    assert format_bytes(parts(found)["page tables"].high_bytes) in said
    assert format_bytes(100_001 * (own + 4 * KB)) in said
    huge = budget_of(seen(huge=True), 100_000, own_tables_bytes=own)
    assert not [reason for reason in huge.reasons if "huge pages" in reason]


def test_vacuum_took_a_gigabyte_at_most_before_17() -> None:
    settings = dataclasses.replace(SETTINGS, maintenance_work_mem=4 * GB)
    assert settings.vacuum(160000) == GB
    assert settings.vacuum(170000) == 4 * GB
    assert dataclasses.replace(settings, autovacuum_work_mem=32 * MB).vacuum(170000) == 32 * MB


@pytest.mark.parametrize(
    ("memory", "connections", "verdict"),
    [
        (16 * GB, 100, "fits"),
        (4 * GB, 100, "tight"),  # not if each takes what the settings allow
        (4700 * MB, 100, "tight"),  # just so, without page cache
        (2 * GB, 100, "tight"),
        (2 * GB, 1000, "will be killed"),
    ],
)
def test_the_verdict(memory: int, connections: int, verdict: str) -> None:
    result = budget_of(seen(memory), connections)
    assert result.verdict == verdict
    # The numbers of connections are where the verdicts turn.
    possible, safe = result.possible_connections, result.safe_connections
    assert safe <= possible
    assert budget_of(seen(memory), possible).verdict != "will be killed"
    assert budget_of(seen(memory), possible + 1).verdict == "will be killed"
    assert budget_of(seen(memory), max(1, safe)).page_cache_bytes[2] >= 0
    assert budget_of(seen(memory), safe + 1).page_cache_bytes[2] < 0


def test_the_limit_of_a_cgroup_counts_instead_of_the_host() -> None:
    """700 MB used there are page cache and shared memory, the rest is the server's and 100 MB of others."""
    memory = seen(limit=2 * GB)
    private = (memory.totals.private_bytes or 0) + memory.totals.page_tables_bytes
    memory = seen(limit=2 * GB, used=700 * MB + private + 100 * MB, cached=188 * MB)
    result = budget_of(memory)
    assert (result.capacity_bytes, result.limit_bytes) == (2 * GB, 2 * GB)
    assert parts(result)["everything else"].now_bytes == 100 * MB
    assert result.verdict == "tight"
    # A limit above the host's memory limits nothing.
    assert budget_of(seen(limit=32 * GB)).capacity_bytes == 16 * GB


def test_above_memory_high_processes_are_slowed_down_and_not_killed() -> None:
    for left, slow in ((4 * GB, False), (100 * MB, True)):
        memory = PlaceMemory(host_bytes=16 * GB, limited="yes", high_bytes=2 * GB, high_available_bytes=left)
        place = Place(kind="systemd", memory=memory)
        result = budget_of(msgspec.structs.replace(seen(), place=place))
        assert result.verdict == ("tight" if slow else "fits")
        assert ("slowed down" in result.reasons[-1]) == slow


@pytest.mark.parametrize("swap", [0, GB])
def test_what_a_cgroup_swaps_first_is_said(swap: int) -> None:
    host = msgspec.structs.replace(seen().host, limit_bytes=2 * GB, limit_taken_bytes=GB, swap_bytes=8 * GB)
    memory = PlaceMemory(host_bytes=16 * GB, limited="yes", limit_bytes=2 * GB, swap_bytes=swap)
    limited = msgspec.structs.replace(seen(), host=host, place=Place(kind="pod", memory=memory))
    found = budget_of(limited, connections=10_000)
    assert found.verdict == "will be killed"
    assert ["1 GB of swap" in reason for reason in found.reasons].count(True) == (1 if swap else 0)
    assert not any("8 GB of swap" in reason for reason in found.reasons)


@pytest.mark.parametrize("together", [False, True])
def test_where_all_are_killed_together_that_is_said(together: bool) -> None:
    memory = PlaceMemory(host_bytes=16 * GB, limited="yes", killed_together=together)
    place = msgspec.structs.replace(seen(), place=Place(kind="pod", memory=memory))
    assert ["memory.oom.group" in reason for reason in budget_of(place).reasons] == [False]
    too_many = budget_of(place, connections=100_000)
    assert too_many.verdict == "will be killed"
    assert any("memory.oom.group" in reason for reason in too_many.reasons) == together


def test_settings_are_read_in_bytes(server: Cluster) -> None:
    with psycopg.connect(server.conninfo()) as connection:
        settings = read_memory_settings(connection)
    assert settings.shared_buffers == 16 * MB
    assert settings.work_mem == 4 * MB
    assert settings.temp_buffers == 8 * MB
    assert settings.maintenance_work_mem == 64 * MB
    assert settings.autovacuum_work_mem == -1
    assert settings.max_connections == 30
    assert settings.hash_mem_multiplier == (2.0 if server.version_num >= 150000 else 1.0)
    if server.version_num >= 150000:
        assert settings.shared_memory is not None
        assert 16 * MB < settings.shared_memory < 64 * MB


def test_a_work_mem_of_ones_own_is_reported(server: Cluster) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        for statement in (
            'CREATE ROLE "re\'port"',
            'ALTER ROLE "re\'port" SET work_mem = 262144',
            "ALTER ROLE \"re'port\" IN DATABASE postgres SET work_mem = '1GB'",
            "ALTER DATABASE template1 SET work_mem = '64kB'",
        ):
            connection.execute(statement.encode())
        try:
            own = read_memory_settings(connection).own_work_mem
        finally:
            connection.execute("ALTER DATABASE template1 RESET work_mem")
            connection.execute('ALTER ROLE "re\'port" IN DATABASE postgres RESET ALL')
            connection.execute('DROP ROLE "re\'port"')
    assert own == [
        ('role "re\'port" in database postgres', 1024 * MB),
        ('role "re\'port"', 256 * MB),
    ]
    result = budget_of(seen(), settings=dataclasses.replace(SETTINGS, own_work_mem=own))
    assert any(
        'role "re\'port" has a work_mem of 256 MB, the server 4 MB' in reason for reason in result.reasons
    )


def test_page_tables_of_a_whole_pool_are_predicted() -> None:
    """From one fresh connection, within 10% of what it has after it touched nearly all of the pool."""
    settings = {"shared_buffers": "256MB", "huge_pages": "off", "autovacuum": "off"}
    settings["max_parallel_workers_per_gather"] = "0"
    with (
        Cluster.create(settings=settings) as cluster,
        psycopg.connect(cluster.conninfo(), autocommit=True) as admin,
    ):
        for name in "abcd":
            admin.execute(f"CREATE TABLE {name} (x text)".encode())
            admin.execute(f"ALTER TABLE {name} ALTER x SET STORAGE PLAIN".encode())
            admin.execute(
                f"INSERT INTO {name} SELECT repeat('x', 7000) FROM generate_series(1, 7800)".encode()
            )
        with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
            session.execute("SELECT 1")
            pid = session.info.backend_pid
            with opened(cluster.conninfo()) as server:
                result = budget(server)
                before = look(server)
            own = measure_own_tables([p for p in connections_of(before) if p.server_pid == pid])
            for name in "abcd":
                session.execute(f"SELECT count(*) FROM {name}".encode())
            with opened(cluster.conninfo()) as server:
                after = look(server)
            asked = examine(cluster.conninfo(), connections=3).page_tables
    (now,) = (p for p in after.processes if p.server_pid == pid)
    size = after.totals.shared_memory_size_bytes or 0
    predicted = own + page_tables_of(touched_at_most(256 * MB, size))
    assert now.page_tables_bytes == pytest.approx(predicted, rel=0.10)
    # `hugepages` says the same of a connection that has touched all.
    assert asked is not None
    assert asked.connections_ordinary_bytes == pytest.approx(3 * now.page_tables_bytes, rel=0.10)
    assert asked.connections_ordinary_bytes >= 3 * now.page_tables_bytes
    assert result.verdict in ("fits", "tight")


@needs_root
@needs_cgroup
def test_the_number_of_connections_that_fit_is_about_right() -> None:
    """In a cgroup of 160 MB: as many as are said to fit can be opened, and use what was said."""
    settings = {"shared_buffers": "16MB", "max_connections": "150", "autovacuum": "off", "huge_pages": "off"}
    with ExitStack() as closing:
        cluster = closing.enter_context(Cluster.create(settings=settings, memory_limit_bytes=160 * MB))

        def session() -> psycopg.Connection[Any]:
            made = closing.enter_context(psycopg.connect(cluster.conninfo(), autocommit=True))
            made.execute("SELECT count(*) FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid")
            return made

        for _ in range(8):
            session()
        with opened(cluster.conninfo()) as server:
            few = budget(server)
        assert few.limit_bytes == 160 * MB
        assert few.capacity_bytes == 160 * MB
        assert few.verdict == "will be killed"
        assert 40 < few.possible_connections < 140
        half = few.possible_connections // 2
        for _ in range(half - 8):
            session()
        with opened(cluster.conninfo()) as server:
            many = budget(server)
        needed = sum(part.now_bytes for part in many.parts[1:])
        with opened(cluster.conninfo()) as server:
            said = budget(server, max_connections=half)
        # Predicted from eight connections, measured with half of those that fit.
        low = sum(part.low_bytes for part in said.parts[1:])
        assert needed == pytest.approx(low, rel=0.15)
        assert many.possible_connections == pytest.approx(few.possible_connections, rel=0.15)


def test_up_to_the_numbers_that_are_said_the_verdict_is_fits() -> None:
    result = budget_of(seen(8 * GB))
    most = result.fitting_work_mem_bytes
    assert most is not None
    assert result.fitting_connections is not None
    assert result.work_mem_bytes == SETTINGS.work_mem
    for work_mem, connections, verdict in (
        (most, 100, "fits"),
        (most + 64 * KB, 100, "tight"),
        (SETTINGS.work_mem, result.fitting_connections, "fits"),
        (SETTINGS.work_mem, result.fitting_connections + 1, "tight"),
    ):
        settings = dataclasses.replace(SETTINGS, work_mem=work_mem)
        assert budget_of(seen(8 * GB), connections, settings).verdict == verdict, (work_mem, connections)
    assert budget_of(seen(GB)).fitting_work_mem_bytes is None
    assert f"up to {result.fitting_connections} connections" in budget_text(result, Terminal())


def test_what_does_not_fit_is_said_and_what_postgres_does_not_take_is_not_proposed() -> None:
    none = budget_of(seen(GB))
    said = " ".join(budget_text(none, Terminal()).split())
    assert none.fitting_connections == 0
    assert "With work_mem 4 MB no number of connections would be judged fits; no work_mem makes" in said
    assert "up to 0 connections" not in said
    vast = budget_of(seen(1 << 54))
    assert vast.fitting_connections == 262143
    assert vast.fitting_work_mem_bytes == (2**31 - 1) * KB
    some = budget_of(seen(8 * GB), 700)
    assert (some.fitting_connections or 0) > 0
    assert some.fitting_work_mem_bytes is None
    assert "; no work_mem makes 700 connections fit." in " ".join(budget_text(some, Terminal()).split())


def test_shared_memory_is_what_hugepages_says_and_pgsweep_is_no_client(wheel18: Cluster) -> None:
    with psycopg.connect(wheel18.conninfo()) as connection:
        # A client's last statement may be over before its process is.
        clients = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        wait_until(lambda: connection.execute(clients).fetchone() == (1,))
    done = run("memory", "budget", wheel18.conninfo(), "--json", "--max-connections", "3000")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    found = {part["name"]: part for part in data["parts"]}
    asked = examine(wheel18.conninfo(), settings={"max_connections": "3000"})
    assert asked.methods.exact is not None
    # The slope is a fraction of bytes.
    assert found["shared memory"]["high_bytes"] == pytest.approx(asked.shared_memory_bytes, abs=8192)
    assert found["shared memory"]["kind"] == "predicted"
    assert data["connections"] == 0
    assert found["connections"]["now_bytes"] == 0
    assert "a session that has just begun" in found["connections"]["why"]
    # pgsweep's own session has read much, a new one has not.
    own = json.loads(run("memory", wheel18.conninfo(), "--json").stdout)
    mine = next(process for process in own["processes"] if process["own"])
    assert 0 < found["connections"]["low_bytes"] / 3000 < mine["private_bytes"]


def test_the_command(wheel18: Cluster) -> None:
    done = run(
        "memory", "budget", wheel18.conninfo(), "--json", "--max-connections", "77", "--plan-nodes", "0"
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["schema"] == "pgsweep.budget/1"
    assert data["max_connections"] == 77
    assert {part["name"]: part["high_bytes"] for part in data["parts"]}["work_mem"] == 0
    assert isinstance(from_json(done.stdout.encode(), "-"), BudgetResult)
    csv = run("memory", "budget", wheel18.conninfo(), "--csv").stdout.splitlines()
    assert csv[0] == "name,now_bytes,low_bytes,high_bytes,kind,why"


@pytest.mark.parametrize("unicode", [True, False])
def test_the_bar_is_as_long_as_the_memory(unicode: bool) -> None:
    result = budget_of(seen(4 * GB))
    text = budget_text(result, Terminal(width=80, unicode=unicode))

    def lines(name: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith(name)]

    bars = [lines(name)[0].split()[1] for name in ("now", "low", "high")]
    assert {len(bar) for bar in bars} == {50}
    assert bars[0].count("·" if unicode else ".") > bars[1].count("·" if unicode else ".") > 0
    assert bars[2].count("·" if unicode else ".") == 0
    assert "too much" in lines("high")[0]
    assert from_json(to_json(result).encode(), "-") == result


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    result = budget_of(seen(4 * GB))
    text = budget_text(result, Terminal(width=width, interactive=True))
    assert max(len(line) for line in text.splitlines()[1:]) <= width, text
    words = text.split()
    for part in result.parts:
        assert set(part.why.split()) <= set(words), part.name


def test_the_page_has_the_sums_of_the_table() -> None:
    result = budget_of(seen())
    sums = [cell.text for cell in cells_of(budget_page(result).sections[0])[-1]][:4]
    assert sums[0] == "together"
    line = next(line for line in budget_text(result, Terminal()).splitlines() if line.startswith("together"))
    assert re.split(r" {2,}", line.strip()) == sums


def test_a_memory_that_is_named_is_not_measured() -> None:
    measured = budget_of(seen())
    for result, kinds in ((measured, ["measured"]), (assumed_elsewhere(measured, "as named"), [""])):
        assert [fact.kind for fact in budget_page(result).sections[0].facts][:1] == kinds
    named = budget_text(assumed_elsewhere(measured, "as named"), Terminal())
    assert "measured" in budget_text(measured, Terminal()).split("shared memory  ")[0]
    assert "measured" not in named.split("shared memory  ")[0]


def test_settings_in_blocks_are_read_at_any_block_size(wheel18: Cluster) -> None:
    """No package has a server with other blocks, so pg_settings is what such a server would show."""
    of_16k = """(VALUES ('shared_buffers', '16kB', '8192'), ('work_mem', 'kB', '4096'),
        ('temp_buffers', '8kB', '1024'), ('max_connections', NULL, '100'),
        ('hash_mem_multiplier', '', '2'), ('shared_memory_size', 'MB', '3'))
        AS pg_settings (name, unit, setting)"""
    query = load("budget", 180000).replace("pg_catalog.pg_settings", of_16k)
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        found: dict[str, float] = dict(connection.execute(query.encode()).fetchall())
    assert found == {
        "shared_buffers": 128 * MB,
        "work_mem": 4 * MB,
        "temp_buffers": 8 * MB,
        "max_connections": 100,
        "hash_mem_multiplier": 2,
        "shared_memory_size": 3 * MB,
        "logical slots": 0,
    }


def test_without_a_client_as_many_connections_fit_as_with_fresh_ones() -> None:
    """pgsweep's own session, which is twice as large as a fresh one, is not what a client is taken to be."""
    with Cluster.create(None, {"shared_buffers": "64MB", "max_connections": "200"}) as cluster:
        with opened(cluster.conninfo()) as local:
            alone = budget(local, ram_bytes=GB)
        with ExitStack() as stack:
            for _ in range(10):
                session = stack.enter_context(psycopg.connect(cluster.conninfo()))
                session.execute("SELECT 1")
            with opened(cluster.conninfo()) as local:
                among = budget(local, ram_bytes=GB)
    assert (alone.connections, among.connections) == (0, 10)
    # Nothing else was measured in a memory that is only named.
    assert (parts(alone)["everything else"].kind, parts(alone)["everything else"].now_bytes) == ("assumed", 0)
    assert alone.possible_connections == pytest.approx(among.possible_connections, rel=0.12)


def test_what_the_next_start_brings_is_said() -> None:
    with Cluster.create(settings={"max_connections": "30"}) as cluster, opened(cluster.conninfo()) as local:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET max_connections = 321")
            admin.execute("ALTER SYSTEM SET work_mem = '5MB'")
            admin.execute("SELECT pg_reload_conf()")
            query = "SELECT pending_restart FROM pg_settings WHERE name = 'max_connections'"
            wait_until(lambda: admin.execute(query).fetchone() == (True,))
        found = budget(local, ram_bytes=GB)
        assert found.max_connections != 321
        assert [reason for reason in found.reasons if "--max-connections 321" in reason]
        asked = budget(local, max_connections=321, ram_bytes=GB)
        assert not [reason for reason in asked.reasons if "next restart" in reason]


def test_a_role_that_may_not_read_the_files_learns_which_grants_it_lacks(bindir: Path | None) -> None:
    with (
        Cluster.create(bindir, {"max_connections": "30"}) as cluster,
        psycopg.connect(cluster.conninfo(), autocommit=True) as admin,
    ):
        admin.execute("CREATE ROLE norights LOGIN")
        admin.execute("ALTER SYSTEM SET max_connections = 321")
        admin.execute("ALTER SYSTEM SET shared_buffers = '99MB'")
        admin.execute("SELECT pg_reload_conf()")
        query = "SELECT count(*) FROM pg_settings WHERE pending_restart"
        wait_until(lambda: admin.execute(query).fetchone() == (2,))
        with opened(make_conninfo(cluster.conninfo(), user="norights")) as local:
            waits = [r for r in budget(local, ram_bytes=GB).reasons if "next restart" in r]
            assert len(waits) == 1 and "max_connections" in waits[0] and "shared_buffers" in waits[0]
            unseen = read_next_start(local.connection).unseen
            grants = re.findall(r"GRANT .*? TO \w+", (unseen or "").replace('"', ""))
            assert len(grants) == 2
            for grant in grants:
                admin.execute(grant)
            now = read_next_start(local.connection)
            assert (now.unseen, now.pending["max_connections"]) == (None, "321")


@needs_root
def test_a_slot_that_decodes_a_large_transaction_takes_what_the_budget_says(bindir: Path | None) -> None:
    settings = {"wal_level": "logical", "logical_decoding_work_mem": "32MB", "autovacuum": "off"}
    with Cluster.create(bindir, settings) as cluster, ExitStack() as held:
        admin, decoder = (
            held.enter_context(psycopg.connect(cluster.conninfo(), autocommit=True)) for _ in range(2)
        )
        local = held.enter_context(opened(cluster.conninfo()))
        assert not [part for part in budget(local, ram_bytes=GB).parts if part.name == "logical decoding"]
        admin.execute("SELECT pg_create_logical_replication_slot('s', 'test_decoding')")
        admin.execute(
            "CREATE TABLE t AS SELECT n, repeat('x', 100) AS x FROM generate_series(1, 500000) AS n"
        )
        status = Path(f"/proc/{decoder.info.backend_pid}/status")
        before = field_bytes(parse_fields(status.read_text()), "VmHWM")
        decoder.execute("SELECT count(*) FROM pg_logical_slot_peek_changes('s', NULL, 1)")
        after = parse_fields(status.read_text())
        peak, shared = field_bytes(after, "VmHWM"), field_bytes(after, "RssShmem")
        assert before is not None and peak is not None and shared is not None
        parts = {part.name: part for part in budget(local, ram_bytes=GB).parts}
        assert parts["logical decoding"].high_bytes == 32 * MB
        # Shared memory that it touched counts to the peak, and is not its own.
        assert 0.8 * 32 * MB < peak - before < 1.5 * 32 * MB + shared


@pytest.mark.parametrize(("given", "code"), [("65536", 0), ("64kB", 0), ("1", 2), ("63kB", 2)])
def test_work_mem_is_read_as_postgresql_reads_it(wheel18: Cluster, given: str, code: int) -> None:
    """A number without a unit is kB."""
    done = run("memory", "budget", wheel18.conninfo(), "--ram", "64GB", "--work-mem", given, "--json")
    assert done.returncode == code, done.stderr
    if given == "65536":
        assert json.loads(done.stdout)["work_mem_bytes"] == 64 * MB
    if code:
        assert "at least 64kB" in done.stderr
