"""What a restore reports: restarts, Ctrl-C, what cannot be read; check and save beside it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from msgspec.structs import replace as replace_struct

from pgsweep.condition import parse_condition
from pgsweep.errors import ConnectionFailed, MissingAbility
from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener
from pgsweep.records.heat import WarmCheckResult, WarmRestoreResult
from pgsweep.residency.access import Access, opened
from pgsweep.testbed.cold import empty_caches
from pgsweep.ui.kit.numbers import count, format_bytes
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.results import from_json, read_result, to_text
from pgsweep.ui.views.warm_check import check_text
from pgsweep.ui.views.warm_restore import restore_text
from pgsweep.units import format_time
from pgsweep.warm.heat import restore as restoring
from pgsweep.warm.heat.check import CONDITION_NAMES, check
from pgsweep.warm.heat.file import NOT_IN_POOL, read_heat
from pgsweep.warm.heat.restore import restore
from pgsweep.warm.heat.restore_plan import RestoreOptions
from pgsweep.warm.heat.save import save
from pgsweep.warm.outcome import WorkState
from tests.fix_cli import launch, run
from tests.fix_heated import BLOCK, altered, checked, restored, saved, touch, usage
from tests.fix_process import wait_until


class AtAQuarter(NullListener):
    """Does something in a thread of its own when a quarter is done."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.thread = threading.Thread(target=action)

    def state(self, state: object) -> None:
        assert isinstance(state, WorkState)
        if state.done_bytes > state.total_bytes // 4 and self.thread.ident is None:
            self.thread.start()


@pytest.mark.parametrize("files", [True, False])
def test_the_server_restarts_half_way(
    heated: tuple[Cluster, str, Path], files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, conninfo, path = heated
    empty_caches(cluster)
    if not files:
        # As from another host: the server itself is asked to read ahead, by sessions of their own.
        monkeypatch.setattr(restoring, "server_files", lambda plan: None)

    def restart() -> None:
        cluster.stop(immediately=True)
        cluster.start()

    listener = AtAQuarter(restart)
    options = RestoreOptions(rate_bytes_per_second=1 << 20, into="pool", connections=2)
    result = restore(conninfo, path, read_heat(path), options, stop=threading.Event(), listener=listener)
    listener.thread.join()
    assert result.restarts >= 1
    assert result.after is not None
    assert result.after.resident == 1.0


def test_the_server_is_still_away_when_all_is_read(
    heated: tuple[Cluster, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, conninfo, path = heated
    empty_caches(cluster)
    carry_out = restoring._carry_out
    failures: list[str] = []

    def carry_out_and_stop(*arguments: Any) -> None:
        carry_out(*arguments)
        if not failures:
            cluster.stop()

    @contextmanager
    def opened_or_failed(*arguments: Any) -> Iterator[Access]:
        """Start the server after the first attempt that fails."""
        with ExitStack() as closing:
            try:
                access = closing.enter_context(opened(*arguments))
            except ConnectionFailed as error:
                failures.append(error.message)
                if len(failures) == 1:
                    cluster.start()
                raise
            yield access

    monkeypatch.setattr(restoring, "_carry_out", carry_out_and_stop)
    monkeypatch.setattr(restoring, "opened", opened_or_failed)
    result = restored(conninfo, path, into="pool")
    assert len(failures) == 1
    assert result.restarts == 1
    assert result.after is not None
    assert result.after.resident == 1.0


def test_ctrl_c_keeps_what_was_read_and_the_same_command_goes_on(heated: tuple[Cluster, str, Path]) -> None:
    cluster, conninfo, path = heated
    empty_caches(cluster)
    words = ("warm", "restore", str(path), conninfo, "--into", "pool", "--json")
    with launch(*words, "--rate", "50kB") as process:
        wait_until(lambda: len(usage(conninfo, "hot")) > 4)
        process.send_signal(signal.SIGINT)
        said, reported = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command reads what is missing" in reported
    first = json.loads(said)
    assert first["stopped"]
    assert 0 < first["after"]["resident"] < 1
    again = json.loads(run(*words).stdout)
    assert again["to_pool_bytes"] < first["to_pool_bytes"]
    assert again["after"]["resident"] == 1.0


def test_what_a_pool_in_use_pushes_out_again_is_reported(heated: tuple[Cluster, str, Path]) -> None:
    cluster, conninfo, path = heated
    empty_caches(cluster)
    result = restored(conninfo, path)
    assert "evicted again" not in restore_text(result, Terminal())
    assert result.after is not None
    half = result.after.resident_bytes // 2
    less = replace_struct(result, after=replace_struct(result.after, resident_bytes=half))
    failed = sum(row.target_bytes - row.resident_bytes for row in result.relations if row.error)
    gone = format_bytes(result.after.target_bytes - half - result.left_out_bytes - failed)
    assert f"{gone} were evicted again" in restore_text(less, Terminal())
    assert "evicted again" not in restore_text(replace_struct(less, stopped=True), Terminal())


def test_rounds_name_what_had_left_the_pool_where_something_had(heated: tuple[Cluster, str, Path]) -> None:
    _, conninfo, path = heated
    result = restored(conninfo, path)
    twice = replace_struct(result, rounds=2, ranges=1, connections=1, touches=1)
    text = restore_text(twice, Terminal())
    assert (
        "2 rounds, as the pool was in use: after the first usage counts were lower than the saved ones\n"
        in text
    )
    assert "; 1 range, 1 connection\n" in text
    assert "1 extra read restores usage counts\n" in text
    text = restore_text(replace_struct(twice, pushed_out_bytes=1 << 20), Terminal())
    assert "after the first 1 MB had left it again, and usage counts were lower than the saved ones\n" in text


def test_a_pool_that_was_not_asked_for_has_pushed_nothing_out(
    heated: tuple[Cluster, str, Path],
) -> None:
    cluster, conninfo, path = heated
    empty_caches(cluster)
    result = restored(conninfo, path, into="page-cache")
    assert result.after is not None
    assert result.to_pool_bytes == 0
    assert result.after.resident < 0.9
    assert "evicted again" not in restore_text(result, Terminal())


def test_what_many_files_share_is_reported_once_a_database(heated: tuple[Cluster, str, Path]) -> None:
    _, conninfo, path = heated
    result = restored(conninfo, path)
    why = "the extension pg_prewarm does not exist"
    rows = [replace_struct(row, database="elsewhere", error=why) for row in result.relations] * 10
    text = restore_text(replace_struct(result, relations=rows), Terminal())
    assert f"not read: elsewhere: {count(len(rows))} files: {why}" in text
    assert text.count("not read:") == 1


def test_restore_and_check_count_the_same_catalogs(
    heated: tuple[Cluster, str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of which the pool had nothing do not count, whether they can be read or not."""
    cluster, conninfo, _ = heated
    path = tmp_path / "x.heat"
    with altered(cluster, "lacking", "DROP EXTENSION pg_prewarm") as lacking:
        with psycopg.connect(lacking) as connection:
            files = connection.execute("SELECT pg_relation_filepath(oid) FROM pg_class WHERE relkind = 'r'")
            paths = [cluster.data_directory / name for (name,) in files if name is not None]
        empty_caches(cluster)
        touch(conninfo, "hot", range(400))
        for file in paths:
            file.read_bytes()
        saved(conninfo, path)
        # As from another host: the page cache is read through the server, which needs the extension.
        monkeypatch.setattr(restoring, "server_files", lambda plan: None)
        empty_caches(cluster)
        result = restored(conninfo, path)
        unread = [row for row in result.relations if row.error]
        assert {row.database for row in unread} == {"lacking"}
        assert any(row.table_schema == "pg_catalog" and not row.target_bytes for row in unread)
        text, again = restore_text(result, Terminal()), check_text(checked(conninfo, path), Terminal())
        assert f": saved {format_time(result.source.at)}, " in text
        assert (
            f"not read: lacking: {count(len(unread))} files: the extension pg_prewarm does not exist" in text
        )
        label = re.compile(r"\(system catalogs: \d+ files\) +[\d.]+ [kM]B")
        assert label.findall(text) == label.findall(again) != []


def test_where_most_is_there_what_cannot_be_read_is_no_failure(
    heated: tuple[Cluster, str, Path], tmp_path: Path
) -> None:
    cluster, conninfo, _ = heated
    path = tmp_path / "all.heat"
    empty_caches(cluster)
    touch(conninfo, "hot", range(400))
    with psycopg.connect(cluster.conninfo("template1")) as connection:
        connection.execute("SELECT count(*) FROM pg_attribute")
    heat = saved(conninfo, path)
    # Of two relations, all resident, that in a database without pg_prewarm lacks accesses.
    lacking = np.array([part.database == "template1" for part in heat.parts])[heat.part] & heat.pooled
    there = np.array([part.relation == "hot" for part in heat.parts])[heat.part] & heat.pooled
    lacking[np.flatnonzero(lacking)[10:]] = False  # so few of all that they are touched before the rest
    assert 0 < np.count_nonzero(lacking) <= 0.2 * np.count_nonzero(there)
    counts = np.where(lacking, 5, np.where(there, 0, NOT_IN_POOL)).astype(np.uint8)
    heat = replace(heat, usage_count=counts, page_cache=np.zeros_like(heat.page_cache))
    result = restore(conninfo, path, heat, RestoreOptions(), stop=threading.Event())
    assert result.after is not None
    assert result.after.resident > 0.9
    errors = {row.database: row.error for row in result.relations if row.error}
    assert list(errors) == ["template1"]
    assert "pg_prewarm does not exist" in errors["template1"]


def test_a_dry_run_shows_the_statements_and_reads_nothing(heated: tuple[Cluster, str, Path]) -> None:
    cluster, conninfo, path = heated
    empty_caches(cluster)
    done = run("warm", "restore", str(path), conninfo, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert "nothing was read" in done.stderr
    assert usage(conninfo, "hot") == {}
    assert plan["after"] is None
    past = [statement.startswith(("posix_fadvise(", "sendfile(")) for statement in plan["statements"]]
    if os.geteuid() == 0:
        assert past[0], "the page cache comes before the pool"
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in plan["statements"]:
            if not statement.startswith(("posix_fadvise(", "sendfile(")):
                connection.execute(statement.encode())
    assert len(usage(conninfo, "hot")) == 100 + 100 + len(range(400, 800, 7)), "they are what it says"
    # The text has the largest, and says how many there are besides.
    rows = [len(plan["relations"]), len(plan["statements"])]
    short = run(
        "warm", "restore", str(path), conninfo, "--dry-run", "--top", "1", "-o", str(path) + ".txt"
    ).stdout
    left = [
        int(found.replace("\xa0", ""))
        for found in re.findall(r"and ([\d\s]+) (?:row|statement)s? more", short)
    ]
    assert left
    assert all(0 < number < max(rows) for number in left)
    assert len(short) < len(Path(str(path) + ".txt").read_text())


def test_a_dry_run_shows_what_each_database_can_run(
    heated: tuple[Cluster, str, Path], tmp_path: Path
) -> None:
    cluster, conninfo, _ = heated
    path = tmp_path / "x.heat"
    elsewhere = ("DROP EXTENSION pg_prewarm", "CREATE SCHEMA ext", "CREATE EXTENSION pg_prewarm SCHEMA ext")
    with altered(cluster, "elsewhere", *elsewhere) as other:
        touch(conninfo, "hot", range(300))
        with psycopg.connect(other) as connection:
            connection.execute("SELECT count(*) FROM hot")
        with psycopg.connect(cluster.conninfo("template1")) as connection:
            connection.execute("SELECT count(*) FROM pg_attribute")
        saved(conninfo, path)
        empty_caches(cluster)
        done = run("warm", "restore", str(path), conninfo, "--into", "pool", "--dry-run", "--json")
        assert done.returncode == 0, done.stderr
        dry = from_json(done.stdout.encode(), "stdout")
        assert isinstance(dry, WarmRestoreResult)
        text = to_text(dry, Terminal())
        assert "-- database template1, " not in text
        assert re.search(
            r"^not read: template1: \d+ files: the extension pg_prewarm does not", text, re.MULTILINE
        )
        empty_caches(cluster)
        by_database: dict[str, list[str]] = {"shop": [], "elsewhere": []}
        for statement in dry.statements:
            if not statement.startswith("posix_fadvise("):
                by_database[statement.split(",")[0].removeprefix("-- database ")].append(statement)
        for database, statements in by_database.items():
            with psycopg.connect(cluster.conninfo(database), autocommit=True) as connection:
                for statement in statements:
                    connection.execute(statement.encode())
        assert len(usage(conninfo, "hot")) == 300
        [hot] = [row for row in dry.relations if (row.database, row.relation) == ("elsewhere", "hot")]
        assert len(usage(other, "hot")) == hot.saved_bytes // BLOCK > 0
        empty_caches(cluster)
        real = restored(conninfo, path, into="pool")
    unread = [
        {row.relation for row in result.relations if row.error and row.database == "template1"}
        for result in (dry, real)
    ]
    assert "pg_attribute" in unread[0] & unread[1]
    assert {row.database for row in dry.relations if row.error} <= {"template1", "postgres"}
    readable = [row for row in dry.relations if not row.error]
    assert dry.to_pool_bytes == sum(row.target_bytes - row.resident_bytes for row in readable)


def test_a_template_that_cannot_be_read_is_no_failure(
    heated: tuple[Cluster, str, Path], tmp_path: Path
) -> None:
    cluster, conninfo, _ = heated
    path = tmp_path / "x.heat"
    empty_caches(cluster)
    with psycopg.connect(cluster.conninfo("template1")) as connection:
        connection.execute("SELECT count(*) FROM pg_attribute")
    heat = saved(conninfo, path)
    template = np.array([part.database == "template1" for part in heat.parts])[heat.part] & heat.pooled
    heat = replace(heat, usage_count=np.where(template, 1, NOT_IN_POOL).astype(np.uint8))
    empty_caches(cluster)
    result = restore(conninfo, path, heat, RestoreOptions(into="pool"), stop=threading.Event())
    assert result.to_pool_bytes > 0
    text = restore_text(result, Terminal())
    assert "not read: template1: " in text
    assert "CREATE EXTENSION" not in text


def test_fail_if_says_which_condition_failed(heated: tuple[Cluster, str, Path], tmp_path: Path) -> None:
    cluster, conninfo, path = heated
    empty_caches(cluster)
    conditions = ("resident<90%", "matched<0.1", "resident_hot < 1")
    options = [word for condition in conditions for word in ("--fail-if", condition)]
    cold = run("warm", "check", str(path), conninfo, *options)
    assert cold.returncode == 5
    said = [line for line in (cold.stdout + cold.stderr).splitlines() if "--fail-if" in line]
    assert [re.findall(r"--fail-if (\w+).* (\w+) is [\d.]+%$", line) for line in said] == [
        [("resident", "resident")],
        [("resident_hot", "resident_hot")],
    ], "each once, with the measured value"
    piped = run("warm", "check", str(path), conninfo, *options, "--json")
    assert [line for line in piped.stderr.splitlines() if "--fail-if" in line] == said
    # The result says it, so it is there with -q and in files too.
    words = ["warm", "check", "-q", str(path), conninfo, "--fail-if", "resident<90%", "-o", "x.html"]
    quiet = run(*words, cwd=tmp_path)
    assert (quiet.returncode, quiet.stderr) == (5, "")
    assert re.search(r"^--fail-if resident<90% .*[\d.]+%$", quiet.stdout, re.MULTILINE)
    assert "resident&lt;90% holds" in (tmp_path / "x.html").read_text()


def test_check_counts_what_is_worth_having(heated: tuple[Cluster, str, Path], tmp_path: Path) -> None:
    """A steady load replaces blocks of usage count 0 and 1 all the time: a gate on them fails by itself."""
    cluster, conninfo, path = heated
    restored(conninfo, path)
    heat = read_heat(path)
    hot = np.array([part.relation == "hot" for part in heat.parts])[heat.part] & heat.pooled
    away = hot & (np.arange(len(heat.part)) % 2 == 0)
    assert away.sum() > 50
    for level, worth in ((1, True), (2, False)):
        usage_count = np.where(away, level, np.where(hot, 5, heat.usage_count)).astype(np.uint8)
        gone = replace(heat, usage_count=usage_count)
        empty_caches(cluster)
        there = replace(gone, usage_count=np.where(away, NOT_IN_POOL, usage_count).astype(np.uint8))
        restore(conninfo, path, there, RestoreOptions(into="pool"), stop=threading.Event())
        with opened(conninfo, "sql") as access:
            state = check(access, path, gone, [parse_condition("worth<0.9", CONDITION_NAMES)]).state
        assert state.resident < 0.9
        assert state.worth is not None
        assert (state.worth > 0.99) == worth, (level, state.worth)


def test_check_is_a_gate(heated: tuple[Cluster, str, Path], tmp_path: Path) -> None:
    cluster, conninfo, path = heated
    empty_caches(cluster)
    cold = run("warm", "check", str(path), conninfo, "--fail-if", "resident<90%")
    assert cold.returncode == 5
    assert re.search(r"^shop: hot +table +same blocks .*MB +0 +0.00%", cold.stdout, re.MULTILINE)
    assert "(system catalogs: " in cold.stdout
    assert usage(conninfo, "hot") == {}, "nothing is read by asking"
    restored(conninfo, path)
    warm = run("warm", "check", str(path), conninfo, "--fail-if", "resident<90%", "--json")
    assert warm.returncode == 0, warm.stderr
    assert json.loads(warm.stdout)["state"]["resident"] == 1.0
    files = [str(tmp_path / f"x.{suffix}") for suffix in ("html", "csv", "json")]
    done = run("warm", "check", str(path), conninfo, *(word for file in files for word in ("-o", file)))
    assert done.returncode == 0, done.stderr
    assert isinstance(read_result(tmp_path / "x.html"), WarmCheckResult)
    assert read_result(tmp_path / "x.html") == read_result(tmp_path / "x.json")
    assert (tmp_path / "x.csv").read_text().startswith("database,schema,relation,")
    for wrong in ("residnet<1", "worth<2"):
        assert run("warm", "check", str(path), conninfo, "--fail-if", wrong).returncode == 2
    assert run("warm", "check", str(path) + ".no", conninfo).returncode == 2


def inode_of(path: Path) -> int | None:
    """Return which file has a name; None for the moment in which none has, as names are passed on."""
    with suppress(FileNotFoundError):
        return path.stat().st_ino
    return None


def test_save_every_keeps_some_and_stops_at_a_signal(
    heated: tuple[Cluster, str, Path], tmp_path: Path
) -> None:
    _, conninfo, _ = heated
    path = tmp_path / "x.heat"
    words = ("warm", "save", str(path), conninfo, "--every", "200ms", "--keep", "3", "-q")
    with launch(*words, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: inode_of(tmp_path / "x.heat.2") is not None)
        oldest = inode_of(tmp_path / "x.heat.2")
        wait_until(
            lambda: inode_of(tmp_path / "x.heat.2") not in (None, oldest), why="no further one was saved"
        )
        process.send_signal(signal.SIGTERM)
        _, reported = process.communicate(timeout=60)
    assert process.returncode == 0, reported
    assert {file.name for file in tmp_path.iterdir()} == {"x.heat", "x.heat.1", "x.heat.2"}
    for file in tmp_path.iterdir():
        assert read_heat(file).meta.pool_blocks > 0


def test_a_pool_that_is_still_cold_does_not_replace_the_file(
    heated: tuple[Cluster, str, Path], tmp_path: Path
) -> None:
    cluster, conninfo, _ = heated
    empty_caches(cluster)
    touch(conninfo, "hot", range(800))
    touch(conninfo, "cold", range(400))
    mine = tmp_path / "x.heat"
    heat = saved(conninfo, mine)
    cluster.restart()
    with opened(conninfo) as access:
        result = save(access, mine)
    assert "was restarted" in (result.skipped or "")
    refused = run("warm", "save", str(mine), conninfo)
    assert (refused.returncode, (refused.stdout + refused.stderr).count("was restarted")) == (1, 1)
    as_json = run("warm", "save", str(mine), conninfo, "--json")
    assert (as_json.returncode, "was restarted" in json.loads(as_json.stdout)["skipped"]) == (1, True)
    assert np.array_equal(read_heat(mine).block, heat.block)


def test_without_pg_prewarm_it_says_how_to_get_it(heated: tuple[Cluster, str, Path], tmp_path: Path) -> None:
    cluster, _, _ = heated
    with altered(cluster, "bare", "DROP EXTENSION pg_prewarm") as conninfo:
        with psycopg.connect(conninfo) as connection:
            connection.execute("SELECT count(*) FROM cold")
        saved(conninfo, tmp_path / "x.heat")
        empty_caches(cluster)
        with pytest.raises(MissingAbility, match="nothing could be read") as caught:
            restored(conninfo, tmp_path / "x.heat", into="pool")
    assert "pg_prewarm does not exist in database `bare`" in (caught.value.cause or "")
    assert "CREATE EXTENSION pg_prewarm" in (caught.value.hint or "")
