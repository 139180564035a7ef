"""`pgsweep warm` from the command line, on real servers: warmed, verified, interrupted, resumed."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.errors import UsageError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.warm import WarmRelation, WarmResult
from pgsweep.ui.kit.numbers import format_bytes, known_bytes
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.results import from_json
from pgsweep.ui.views.warm import warm_text
from pgsweep.warm.block_ranges import calls_of
from pgsweep.warm.run.journal import Header, Journal, read_journal
from tests.fix_cli import Command, launch
from tests.fix_cli import run as pgsweep
from tests.fix_process import needs_root, wait_until
from tests.fix_warm import as_reader, drop_files, evict_all, piece_of, resident_blocks


def state_in(folder: Path) -> dict[str, str]:
    """Return variables with which pgsweep keeps its state in a folder."""
    return {"XDG_STATE_HOME": str(folder / "state")}


def journals(folder: Path) -> list[Path]:
    """Return the journals in that state, without one that is still written aside."""
    return sorted(path for path in state_files(folder) if path.suffix == ".journal")


def state_files(folder: Path) -> list[Path]:
    """Return all files in that state."""
    return list((folder / "state" / "pgsweep").glob("*"))


def warm(conninfo: str, *words: str, folder: Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
    done = pgsweep("warm", *words, "-d", conninfo, cwd=folder, env=state_in(folder))
    assert done.returncode == expect, done.stderr
    assert "Traceback" not in done.stderr
    return done


def result_of(done: subprocess.CompletedProcess[str]) -> WarmResult:
    result = from_json(done.stdout.encode(), "stdout")
    assert isinstance(result, WarmResult)
    return result


def test_a_run_is_verified_block_by_block(server: Cluster, towarm: str, tmp_path: Path) -> None:
    evict_all(towarm)
    done = warm(towarm, "run", "--relations", "orders,notes", "--json", folder=tmp_path)
    result = result_of(done)
    assert result.work is not None
    assert result.verified is not None
    assert result.work.read_bytes == result.work.asked_bytes == result.asked_bytes > 0
    assert result.verified.pool_before_bytes is not None
    assert result.verified.pool_before_bytes < 0.2 * result.asked_bytes
    assert result.verified.pool_bytes == result.verified.pool_asked_bytes == result.asked_bytes
    assert result.work.troubles == []
    assert resident_blocks(towarm, "orders") == piece_of(towarm, "orders").blocks
    assert state_files(tmp_path) == [], "a finished run leaves no journal"
    assert {row.relation: row.read_bytes for row in result.relations} == {
        row.relation: row.size_bytes for row in result.relations
    }


def test_a_plain_client_warms_without_superuser_or_monitor(towarm: str, tmp_path: Path) -> None:
    evict_all(towarm)
    done = warm(as_reader(towarm), "run", "--schema", "public", "--source", "sql", "--json", folder=tmp_path)
    result = result_of(done)
    assert result.work is not None
    assert result.work.troubles == []
    assert {trouble.relation for trouble in result.refused} >= {"secret", "scratch"}
    assert resident_blocks(towarm, "orders") == piece_of(towarm, "orders").blocks
    assert resident_blocks(towarm, "orders_pkey") == piece_of(towarm, "orders_pkey").blocks
    assert "the buffer pool" in [entry.what for entry in result.missing]


@needs_root
def test_the_page_cache_is_warmed_past_the_server(server: Cluster, towarm: str, tmp_path: Path) -> None:
    evict_all(towarm)
    drop_files(server, towarm, "orders", "orders_pkey")
    words = ("run", "--relations", "orders", "--into", "page-cache", "--json")
    result = result_of(warm(towarm, *words, folder=tmp_path))
    assert result.mode == "kernel"
    assert result.verified is not None
    assert result.verified.page_cache_bytes == result.asked_bytes
    assert result.verified.page_cache_before_bytes is not None
    assert result.verified.page_cache_before_bytes < 0.3 * result.asked_bytes
    assert resident_blocks(towarm, "orders") < piece_of(towarm, "orders").blocks / 2


@needs_root
@pytest.mark.parametrize("mode", ["read", "prefetch"])
def test_the_page_cache_is_warmed_through_the_server(
    mode: str, wheel18: Cluster, warm_databases: Callable[[Cluster], str], tmp_path: Path
) -> None:
    conninfo = warm_databases(wheel18)
    evict_all(conninfo)
    drop_files(wheel18, conninfo, "orders")
    words = (
        "run",
        "--relations",
        "orders",
        "--into",
        "page-cache",
        "--mode",
        mode,
        "--budget",
        "1GB",
        "--json",
    )
    result = result_of(warm(conninfo, *words, folder=tmp_path))
    assert result.verified is not None
    # Asynchronous reads of mode prefetch may still be under way when the statement ends.
    assert (result.verified.page_cache_bytes or 0) >= (0.95 if mode == "prefetch" else 1) * result.asked_bytes


def test_a_dry_run_prints_statements_that_work_and_reads_nothing(towarm: str, tmp_path: Path) -> None:
    evict_all(towarm)
    before = resident_blocks(towarm, "orders")
    done = warm(towarm, "run", "--relations", "orders", "--dry-run", folder=tmp_path)
    assert "dry run: nothing was read" in done.stderr
    assert resident_blocks(towarm, "orders") == before
    asked = result_of(warm(towarm, "run", "--relations", "orders", "-n", "--json", folder=tmp_path))
    assert sum(statement.size_bytes for statement in asked.statements) == asked.asked_bytes
    with psycopg.connect(towarm, autocommit=True) as connection:
        read = 0
        for statement in asked.statements:
            read += sum(row[1] for row in connection.execute(statement.text.encode()).fetchall())
    assert read * 8192 == asked.asked_bytes


def test_interrupted_it_leaves_a_journal_and_resume_does_the_rest(
    wheel18: Cluster, warm_databases: Callable[[Cluster], str], tmp_path: Path
) -> None:
    conninfo = warm_databases(wheel18)
    evict_all(conninfo)
    # So slow that it is still at work when the commands beside it have ended, on any machine.
    words = ("warm", "run", "--relations", "orders", "--rate", "10kB", "--json", "-d", conninfo)
    process = started(words, tmp_path)
    # Another run of the same goes on without a journal, of something else with its own.
    twice = warm(conninfo, "run", "--relations", "orders", "--budget", "80kB", folder=tmp_path)
    assert "another run of the same is at work and keeps the journal" in twice.stderr
    other = warm(conninfo, "run", "--relations", "notes", folder=tmp_path)
    assert "could not be resumed" not in other.stderr
    [journal] = journals(tmp_path)
    held = warm(conninfo, "run", "--resume", folder=tmp_path, expect=2)
    assert "kept by another run" in held.stderr
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert said.rstrip().endswith(f"kept: {journal}; go on with --resume")
    stopped: dict[str, Any] = json.loads(out)
    assert stopped["work"]["stopped"]
    assert 0 < stopped["work"]["read_bytes"] < stopped["work"]["asked_bytes"]
    assert sum(row["read_bytes"] for row in stopped["relations"]) == stopped["work"]["read_bytes"]
    reported = from_json(out.encode(), "stdout")
    assert isinstance(reported, WarmResult)
    read = next(row.read_bytes for row in reported.relations if row.relation == "orders")
    [line] = [line for line in warm_text(reported, Terminal()).splitlines() if " orders  " in line]
    size = known_bytes(read).split()  # 0 has no unit
    assert line.split()[4 : 4 + len(size)] == size, "what was read, not what was planned"
    rest = result_of(warm(conninfo, "run", "--resume", "--json", folder=tmp_path))
    assert rest.work is not None
    assert rest.work.asked_bytes + stopped["work"]["read_bytes"] == stopped["work"]["asked_bytes"]
    assert rest.work.read_bytes == rest.work.asked_bytes
    sizes = {row["relation"]: row["size_bytes"] for row in stopped["relations"]}
    assert all(row.size_bytes == sizes[row.relation] for row in rest.relations), "not what was left of it"
    assert not journal.exists()
    assert resident_blocks(conninfo, "orders") == piece_of(conninfo, "orders").blocks
    assert state_files(tmp_path) == []
    assert "no stopped run" in warm(conninfo, "run", "--resume", folder=tmp_path, expect=2).stderr


def started(words: Sequence[str], folder: Path) -> Command:
    """Start a run, and return when its journal knows of a call that is done."""
    process = launch(*words, cwd=folder, env=state_in(folder))
    wait_until(lambda: any(b'"done"' in one.read_bytes() for one in journals(folder)))
    return process


def test_a_journal_cut_after_its_calls_is_read_as_far_as_it_goes(
    wheel18: Cluster, warm_databases: Callable[[Cluster], str], tmp_path: Path
) -> None:
    path = tmp_path / "a.journal"
    piece = piece_of(warm_databases(wheel18), "orders")
    header = Header(server="18.1", started_us=7, block_size_bytes=8192, into="pool", mode="buffer")
    calls = list(calls_of([piece], 50))
    journal = Journal(path, header, calls)
    journal.done(calls[0], 50)
    journal.done(calls[2], 50)
    journal.close(remove=False)
    left = read_journal(path, 7)
    assert sum(part.blocks for part in left.pool) == piece.blocks - 100
    assert left.done_blocks == 100
    assert sum(part.blocks for part in read_journal(path, 8).pool) == piece.blocks, "another start: all again"
    whole = path.read_bytes()
    calls_end = whole.index(b'{"done"')
    for size in range(calls_end, len(whole), 7):
        path.write_bytes(whole[:size])
        assert sum(part.blocks for part in read_journal(path, 7).pool) <= piece.blocks
    for size in range(whole.index(b"\n") + 1, calls_end - 1, 97):
        path.write_bytes(whole[:size])
        with pytest.raises(UsageError, match="is cut short"):
            read_journal(path, 7)
    path.write_bytes(whole[:20])
    with pytest.raises(UsageError, match="not a journal"):
        read_journal(path, 7)
    path.write_bytes(whole.replace(b"warm-journal/1", b"warm-journal/9", 1))
    with pytest.raises(UsageError, match="does not know"):
        read_journal(path, 7)


def test_text_csv_and_page_hold_the_plan(towarm: str, tmp_path: Path) -> None:
    words = ("plan", "--relations", "orders", "--assume-rate", "100MB", "-o", "plan.html", "-o", "plan.csv")
    done = warm(towarm, *words, folder=tmp_path)
    assert "assumed" in done.stdout
    assert "orders_pkey" in done.stdout
    assert "index; " in done.stdout
    head, *lines = (tmp_path / "plan.csv").read_text().splitlines()
    assert head.split(",") == list(WarmRelation.__struct_fields__)
    assert any(line.split(",")[3] == "orders" for line in lines)
    assert "orders_pkey" in (tmp_path / "plan.html").read_text()


def test_system_catalogs_are_one_line_of_text(towarm: str, tmp_path: Path) -> None:
    done = warm(towarm, "plan", "--assume-rate", "100MB", folder=tmp_path)
    assert "orders_pkey" in done.stdout
    assert "pg_attribute" not in done.stdout
    [line] = [line for line in done.stdout.splitlines() if line.startswith("System catalogs")]
    rows = result_of(warm(towarm, "plan", "--assume-rate", "100MB", "--json", folder=tmp_path)).relations
    own = [row for row in rows if "public" in (row.schema, row.table_schema)]
    assert f" {len(rows) - len(own)} relations" in line


def test_the_first_of_a_plan_are_shown_also_where_all_are_catalogs(
    server: Cluster, towarm: str, tmp_path: Path
) -> None:
    given = ("plan", "--assume-rate", "100MB", "--top", "4")
    with psycopg.connect(server.conninfo(), autocommit=True) as owner:
        owner.execute("CREATE ROLE reads_catalogs LOGIN")
        try:
            found = make_conninfo(towarm, user="reads_catalogs")
            rows = result_of(warm(found, *given, "--json", folder=tmp_path)).relations
            text = warm(found, *given, folder=tmp_path).stdout
        finally:
            owner.execute("DROP ROLE reads_catalogs")
    assert len(rows) == 4
    for row in rows:
        assert row.relation in text
    assert "relations more; without --top: all" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--every-database", "--relations", "orders"), "names choose"),
        (("run", "--mode", "read"), "is for the page cache"),
        (("run", "--relations", ",", "--json"), "names no relation"),
        (("run", "--resume", "--budget", "1GB"), "what the journal says"),
        (("run", "--relations", "absent"), "there is no relation `absent`"),
        (("run", "--journal", "/absent/file"), "may not be written"),
    ],
)
def test_mistakes_are_reported(
    words: tuple[str, ...],
    message: str,
    wheel18: Cluster,
    warm_databases: Callable[[Cluster], str],
    tmp_path: Path,
) -> None:
    done = warm(warm_databases(wheel18), *words, folder=tmp_path, expect=2)
    assert message in done.stderr
    assert "hint:" in done.stderr


def test_what_was_pushed_out_again_is_reported(towarm: str, tmp_path: Path) -> None:
    result = result_of(warm(towarm, "run", "--relations", "orders", "--json", folder=tmp_path))
    assert "evicted again" not in warm_text(result, Terminal())
    assert result.verified is not None
    half = result.verified.pool_asked_bytes // 2
    left = msgspec.structs.replace(result, verified=msgspec.structs.replace(result.verified, pool_bytes=half))
    gone = format_bytes(result.verified.pool_asked_bytes - half)
    assert f"{gone} were read into shared_buffers and evicted again" in warm_text(left, Terminal())


def test_relations_of_users_come_first_among_those_that_may_not_be_read(towarm: str, tmp_path: Path) -> None:
    said = warm(as_reader(towarm), "plan", "--assume-rate", "1GB", folder=tmp_path).stdout
    refused = [line for line in said.splitlines() if line.startswith("not read:")]
    assert "not read: secret, " in said
    assert "not read: notes (TOAST), " in said
    assert "pg_toast" not in said
    assert "pg_catalog." not in "".join(refused)
    assert refused[-1].endswith("--json lists them")
    assert " system catalogs, " in refused[-1]
