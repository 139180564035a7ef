"""Tables that are UNLOGGED while rows are copied: after a crash of the server, and where it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.load.crash import SETTINGS
from pgsweep.errors import PgsweepError, UsageError
from pgsweep.load.copying import CopyState, NullLoadListener
from pgsweep.load.loading import load_files, plan_load, resume, roll_back
from pgsweep.load.options import LoadOptions
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.load import LoadOutcome, LoadResult
from tests.fix_load import ask, facts_of, leftovers

TABLE = """
CREATE TABLE parent (id int PRIMARY KEY); INSERT INTO parent SELECT generate_series(0, 9);
CREATE TABLE t (id int PRIMARY KEY, a int REFERENCES parent, name text);
CREATE INDEX t_name ON t (name);
"""
GIVEN = LoadOptions(unlogged=True, indexes="drop", jobs=2, piece_bytes=2000)
ROWS = 2000


@pytest.fixture(scope="module")
def crashing() -> Iterator[Cluster]:
    with Cluster.create(None, SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def conninfo(crashing: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    ask(crashing.conninfo(), "DROP SCHEMA public CASCADE; CREATE SCHEMA public; " + TABLE)
    return crashing.conninfo()


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.csv"
    path.write_text("id,a,name\n" + "".join(f"{n},{n % 10},name {n}\n" for n in range(ROWS)))
    return str(path)


class Crash(NullLoadListener):
    """Stops the server at once when a stage begins, or when so many rows are copied."""

    def __init__(self, cluster: Cluster, *, stage: str = "", rows: int = 1 << 30) -> None:
        self._cluster = cluster
        self._stage = stage
        self._rows = rows
        self.done = False

    def stage(self, title: str, total_seconds: float | None = None) -> None:
        if title == self._stage:
            self._crash()

    def state(self, state: object) -> None:
        assert isinstance(state, CopyState)
        if state.rows >= self._rows:
            self._crash()

    def _crash(self) -> None:
        if not self.done:
            self.done = True
            self._cluster.stop(immediately=True)
            self._cluster.start()


def outcome_of(result: LoadResult) -> LoadOutcome:
    assert result.outcome is not None
    return result.outcome


def test_the_table_is_logged_again_and_as_before(conninfo: str, rows: str) -> None:
    before = facts_of(conninfo, "t")
    plan = plan_load(conninfo, [rows], "t", GIVEN).plan
    assert [choice.choice for choice in plan.choices if choice.what == "log"] == [
        "UNLOGGED while rows are copied, then LOGGED"
    ]
    assert any("a crash of the server empties it" in line for line in plan.given_up)
    outcome = outcome_of(load_files(conninfo, [rows], "t", GIVEN))
    assert (outcome.ended, outcome.rows, outcome.unchanged) == ("loaded", ROWS, True)
    assert any(step.what == "table public.t made LOGGED" for step in outcome.steps)
    assert facts_of(conninfo, "t") == before
    assert leftovers(conninfo) == []


@pytest.mark.parametrize("then", ["resume", "rollback"])
@pytest.mark.parametrize("at", ["copying", "making the table logged", "making constraints"])
def test_a_crash_that_empties_the_table_is_noticed(
    crashing: Cluster, conninfo: str, rows: str, at: str, then: str
) -> None:
    before = facts_of(conninfo, "t")
    crash = Crash(crashing, rows=ROWS // 4) if at == "copying" else Crash(crashing, stage=at)
    with pytest.raises(PgsweepError):
        load_files(conninfo, [rows], "t", GIVEN, listener=crash)
    assert crash.done
    there = ask(conninfo, "SELECT count(*), (SELECT count(*) FROM pgsweep_load.piece) FROM t")
    if at == "making constraints":
        assert there[0][0] == ROWS
    else:
        assert there[0][0] == 0
        assert there[0][1] > 0
    outcome = outcome_of((resume if then == "resume" else roll_back)(conninfo, "t"))
    assert outcome.unchanged
    assert facts_of(conninfo, "t") == before
    wanted = (ROWS, ROWS) if then == "resume" else (0, 0)
    assert ask(conninfo, "SELECT count(*), count(DISTINCT id) FROM t") == [wanted]
    assert leftovers(conninfo) == []


def test_a_load_is_rolled_back_after_its_rows_were_written_anew(conninfo: str, rows: str) -> None:
    """Making the table LOGGED gives all rows another transaction number."""
    Path(rows).write_text(Path(rows).read_text() + "0,0,again\n")
    before = facts_of(conninfo, "t")
    assert outcome_of(load_files(conninfo, [rows], "t", GIVEN)).ended == "incomplete"
    ask(conninfo, "INSERT INTO t VALUES (-1, 0, 'theirs')")
    assert outcome_of(roll_back(conninfo, "t")).unchanged
    assert ask(conninfo, "SELECT id FROM t") == [(-1,)]
    assert facts_of(conninfo, "t") == before


def test_it_is_refused_where_rows_could_be_lost_or_missed(conninfo: str, rows: str) -> None:
    def refused(words: str, options: LoadOptions = GIVEN) -> None:
        with pytest.raises(UsageError) as found:
            load_files(conninfo, [rows], "t", options)
        assert words in f"{found.value.message} {found.value.cause}"

    ask(conninfo, "CREATE PUBLICATION p FOR TABLE t")
    refused("it is published")
    ask(conninfo, "DROP PUBLICATION p; SELECT pg_create_physical_replication_slot('s')")
    refused("standbys or replication slots")
    ask(conninfo, "SELECT pg_drop_replication_slot('s'); CREATE TABLE other (id int REFERENCES t)")
    refused("refer to it")
    ask(conninfo, "DROP TABLE other")
    refused("the server undoes a crash itself", LoadOptions(unlogged=True, single_transaction=True))
    # The statistics do not know the row yet; it is seen under the lock.
    ask(conninfo, "INSERT INTO t VALUES (-1, 0, 'old')")
    before = facts_of(conninfo, "t")
    refused("has rows")
    assert facts_of(conninfo, "t") == before
    assert leftovers(conninfo) == []
    ask(conninfo, "ANALYZE t")
    with pytest.raises(UsageError, match="has rows"):
        plan_load(conninfo, [rows], "t", GIVEN)
