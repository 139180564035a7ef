"""Loads that cannot be rolled back, or not wholly, and how they are ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.load import rebuild
from pgsweep.load.loading import keep_as_is, load_files, resume, roll_back
from pgsweep.load.options import LoadOptions
from pgsweep.pg.load import work as load_work
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.load import LoadResult
from tests.fix_cli import run
from tests.fix_load import (
    At,
    ask,
    count_of,
    facts_of,
    leftovers,
    outcome_of,
    said,
    trouble_database,
    write_trouble,
)

DROP = LoadOptions(indexes="drop", piece_bytes=4096)
KEEP = LoadOptions(indexes="keep", jobs=2, piece_bytes=4096)
ROWS = 5000


@pytest.fixture
def conninfo(wheel18: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with trouble_database(wheel18) as found:
        yield found


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_trouble(tmp_path / "rows.csv", ROWS)


def interrupted(conninfo: str, rows: Path, options: LoadOptions = DROP) -> None:
    """Load, and stop after the first rows."""
    stop = threading.Event()
    found = outcome_of(load_files(conninfo, [str(rows)], "t", options, listener=At(stop.set), stop=stop))
    assert found.ended == "interrupted"
    assert 0 < count_of(conninfo) < ROWS


def test_a_stop_that_comes_with_the_last_step_leaves_nothing_to_do(
    conninfo: str, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, made = threading.Event(), []
    make = load_work.make_object

    def counted(*given: Any, **named: Any) -> None:
        make(*given, **named)
        made.append(given)
        if len(made) == last:
            stop.set()

    monkeypatch.setattr(rebuild, "make_object", counted)
    interrupted(conninfo, rows)
    last = 0
    assert outcome_of(roll_back(conninfo, "t", stop=stop)).ended == "rolled back"
    last = len(made)
    assert last > 1
    made.clear()
    interrupted(conninfo, rows)
    assert outcome_of(roll_back(conninfo, "t", stop=stop)).ended == "rolled back"
    assert stop.is_set()
    assert leftovers(conninfo) == []


CHANGED = "UPDATE t SET a = 1 WHERE ctid = (SELECT min(ctid) FROM t)"
REFERRED = "CREATE TABLE other (id int REFERENCES t); INSERT INTO other SELECT min(id) FROM t"


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (CHANGED, "1 of .* rows of this load were changed"),
        (CHANGED.replace("UPDATE t SET a = 1", "DELETE FROM t"), "1 of .* rows of this load were changed"),
        ("TRUNCATE t; INSERT INTO t VALUES (-1, 1, 'theirs')", "rows of this load were changed"),
        ("UPDATE pgsweep_load.piece SET xid = xid::int8 + (1::int8 << 33)", "can no longer be distinguished"),
        (REFERRED, "rows of this load cannot be removed"),
    ],
)
@pytest.mark.parametrize("then", ["resume", "keep"])
def test_a_load_that_cannot_be_rolled_back_can_be_ended(
    conninfo: str, rows: Path, then: str, work: str, words: str
) -> None:
    before = facts_of(conninfo, "t")
    interrupted(conninfo, rows, KEEP if work == REFERRED else DROP)
    ask(conninfo, work)
    before = facts_of(conninfo, "t") if work == REFERRED else before
    there = count_of(conninfo)
    for _ in range(2):
        with pytest.raises(PgsweepError, match=words) as failed:
            roll_back(conninfo, "t")
        assert "nothing was removed" in said(failed.value)
        assert "pgsweep load --resume public.t" in said(failed.value)
        assert "pgsweep load --keep-as-is public.t --yes" in said(failed.value)
    assert count_of(conninfo) == there
    if then == "resume":
        outcome = outcome_of(resume(conninfo, "t"))
        assert (outcome.ended, outcome.rows) == ("loaded", ROWS)
    else:
        refused = run("load", "--keep-as-is", "t", "-d", conninfo)
        assert refused.returncode == 2
        assert "not all rows of this load were copied into `t`" in refused.stderr
        assert "--keep-as-is public.t --yes" in refused.stderr
        done = run("load", "--keep-as-is", "t", "--yes", "-d", conninfo)
        assert done.returncode == 0, done.stderr
        assert "kept as it is" in done.stdout
        assert "not all rows of the files were copied" in done.stdout
        assert count_of(conninfo) == there
    assert facts_of(conninfo, "t") == before
    assert leftovers(conninfo) == []


def test_what_a_run_has_not_copied_gives_no_rate(conninfo: str, rows: Path) -> None:
    interrupted(conninfo, rows)
    there = count_of(conninfo)
    ask(conninfo, "INSERT INTO t VALUES (99999, 1, 'name 1')")
    outcome = outcome_of(resume(conninfo, "t"))
    assert (outcome.ended, outcome.rows, outcome.copied_rows) == ("incomplete", ROWS, ROWS - there)
    ask(conninfo, "DELETE FROM t WHERE id = 99999")
    done = run("load", "--resume", "t", "-d", conninfo)
    assert "rows loaded into public.t, none of them by this run, in " in done.stdout
    assert "rows/s" not in done.stdout


def test_rows_that_are_referred_to_can_be_removed_later(conninfo: str, rows: Path) -> None:
    interrupted(conninfo, rows, KEEP)
    ask(conninfo, REFERRED)
    with pytest.raises(PgsweepError, match="cannot be removed") as failed:
        roll_back(conninfo, "t")
    assert "remove the rows that refer to them, then: pgsweep load --rollback public.t" in said(failed.value)
    ask(conninfo, "TRUNCATE other")
    assert outcome_of(roll_back(conninfo, "t")).ended == "rolled back"
    assert count_of(conninfo) == 0


def test_a_table_that_was_truncated_is_rolled_back(conninfo: str, rows: Path) -> None:
    before = facts_of(conninfo, "t")
    for work in ("TRUNCATE t", "DELETE FROM t"):
        interrupted(conninfo, rows)
        ask(conninfo, work)
        outcome = outcome_of(roll_back(conninfo, "t", listener=(listener := At())))
        assert (outcome.ended, outcome.unchanged) == ("rolled back", True)
        assert "is empty: other sessions have removed the rows" in " ".join(listener.notes)
        assert (facts_of(conninfo, "t"), leftovers(conninfo)) == (before, [])


def test_a_table_that_was_never_loaded(conninfo: str) -> None:
    for later in (resume, roll_back, keep_as_is):
        with pytest.raises(UsageError, match="no load of `t` is unfinished") as failed:
            later(conninfo, "t")
        assert "database `trouble` has no journal of one: none was begun there, or it has ended" in said(
            failed.value
        )


class Killed(BaseException):
    """In the place of kill -9."""


def die(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.parametrize("then", [resume, roll_back])
def test_a_rollback_that_dies_before_the_rows_are_gone(
    conninfo: str, rows: Path, monkeypatch: pytest.MonkeyPatch, then: Callable[[str, str], LoadResult]
) -> None:
    before = facts_of(conninfo, "t")
    interrupted(conninfo, rows)
    for name in ("lock_statement", "forget_pieces", "set_phase"):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(load_work, name, die)
            roll_back(conninfo, "t")
        assert ask(conninfo, "SELECT phase FROM pgsweep_load.load") == [("copying",)]
    # As earlier versions left it.
    ask(conninfo, "UPDATE pgsweep_load.load SET phase = 'rolling back'")
    assert outcome_of(then(conninfo, "t")).unchanged
    assert count_of(conninfo) == (ROWS if then is resume else 0)
    assert (facts_of(conninfo, "t"), leftovers(conninfo)) == (before, [])


@pytest.mark.parametrize("then", ["again", "corrected", "kept"])
def test_a_rollback_that_ends_after_the_rows_are_gone(conninfo: str, rows: Path, then: str) -> None:
    before = facts_of(conninfo, "t")
    interrupted(conninfo, rows)
    with pytest.raises(Killed):
        roll_back(conninfo, "t", listener=At(die, stage="making indexes"))
    assert count_of(conninfo) == 0
    with pytest.raises(UsageError, match="its rows are gone") as failed:
        resume(conninfo, "t")
    assert "finish that: pgsweep load --rollback public.t" in said(failed.value)
    if then != "again":
        ask(conninfo, "INSERT INTO t VALUES (-1, 1, 'x'), (-2, 1, 'x'), (1, 1, 'X'), (2, 2, 'x')")
        incomplete = outcome_of(roll_back(conninfo, "t"))
        words = " ".join(incomplete.problems)
        assert incomplete.ended == "incomplete"
        assert (
            "correct the rows, then: pgsweep load --rollback public.t; or keep the table without it: "
            in words
        )
        assert "--resume" not in words
    if then == "kept":
        kept = outcome_of(keep_as_is(conninfo, "t"))
        assert (kept.ended, kept.unchanged) == ("rolled back", False)
        assert "missing: index t_name; to make it later: CREATE UNIQUE INDEX" in " ".join(kept.problems)
    else:
        ask(conninfo, "DELETE FROM t")
        assert outcome_of(roll_back(conninfo, "t")).unchanged
        assert facts_of(conninfo, "t") == before
    assert leftovers(conninfo) == []


def test_a_refused_record_of_a_load_that_cannot_be_undone(conninfo: str, rows: Path) -> None:
    before = facts_of(conninfo, "t")
    with rows.open("a") as file:
        file.write("no,1,x\n")
    with pytest.raises(PgsweepError, match=rf"line {ROWS + 2}\b.*invalid input syntax") as failed:
        load_files(conninfo, [str(rows)], "t", DROP, listener=At(lambda: ask(conninfo, CHANGED)))
    assert "the load could not be rolled back: 1 of " in said(failed.value)
    assert "pgsweep load --keep-as-is public.t --yes" in said(failed.value)
    assert outcome_of(keep_as_is(conninfo, "t", partly=True)).ended == "kept as it is"
    assert (facts_of(conninfo, "t"), leftovers(conninfo)) == (before, [])
