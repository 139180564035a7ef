"""Tables that are hard to put back: the catalog is equal before and after a load, and after its undoing."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from pgsweep.load.loading import load_files, roll_back
from pgsweep.load.options import LoadOptions
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.load import LoadResult
from tests.fix_cluster import own_database
from tests.fix_load import NASTY, Nasty, content_of, facts_of, leftovers, write_rows

ROWS = 3000
BY_NAME = {nasty.name: nasty for nasty in NASTY}


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def copied(conninfo: str, nasty: Nasty, path: Path) -> tuple[int, str]:
    """Load a file by a plain COPY, return the content, and undo it."""
    with psycopg.connect(conninfo) as connection:
        names = (
            ", ".join('"' + name.strip().strip('"') + '"' for name in nasty.columns.split('","'))
            if ('"' in nasty.columns)
            else nasty.columns
        )
        with connection.cursor() as cursor:
            with cursor.copy(
                f"COPY {nasty.table} ({names}) FROM STDIN (FORMAT csv, HEADER)".encode()
            ) as copy:
                copy.write(path.read_bytes())
            kept = "" if nasty.name == "partitioned" else "ONLY "
            query = (
                "SELECT count(*), coalesce(sum(('x' || substr(md5(t::text), 1, "
                "15))::bit(60)::bigint::numeric), 0)::text"
                f" FROM {kept}{nasty.table} t"
            )
            row = cursor.execute(query.encode()).fetchone()
        connection.rollback()
    assert row is not None
    return int(row[0]), str(row[1])


def loaded(conninfo: str, nasty: Nasty, path: Path, **options: object) -> LoadResult:
    return load_files(conninfo, [str(path)], nasty.table, LoadOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list(BY_NAME))
def test_the_catalog_is_equal_before_and_after(server: Cluster, name: str, tmp_path: Path) -> None:
    nasty = BY_NAME[name]
    path = tmp_path / "rows.csv"
    with own_database(server, f"nasty_{server.version_num}", nasty.setup) as conninfo:
        write_rows(conninfo, nasty, path, ROWS)
        before = facts_of(conninfo, nasty.table)
        assert len(before) > 3
        # The columns filled by the server itself differ between two loads.
        wanted = copied(conninfo, nasty, path) if name not in ("generated", "guarded") else None
        for options in (
            {"indexes": "drop", "jobs": 2, "piece_bytes": 8192, "disable_triggers": name == "guarded"},
            {"indexes": "drop", "single_transaction": True},
            {"indexes": "keep", "jobs": 2, "piece_bytes": 16384, "disable_triggers": name == "guarded"},
        ):
            result = loaded(conninfo, nasty, path, **options)
            assert result.outcome is not None
            assert (result.outcome.ended, result.outcome.unchanged) == ("loaded", True), (
                result.outcome.problems
            )
            assert result.outcome.rows == ROWS
            assert facts_of(conninfo, nasty.table) == before
            content = content_of(conninfo, nasty.table)
            assert content[0] == ROWS
            assert wanted is None or content == wanted
            assert leftovers(conninfo) == []
            with psycopg.connect(conninfo, autocommit=True) as connection:
                connection.execute(f"DELETE FROM {nasty.table}".encode())
                if name == "inherited":
                    connection.execute("INSERT INTO child VALUES (1, 'one', 1, 1)")
    assert not list((tmp_path / "state").rglob("*.json"))


@pytest.mark.parametrize("name", list(BY_NAME))
def test_a_refused_record_undoes_all(wheel18: Cluster, name: str, tmp_path: Path) -> None:
    nasty = BY_NAME[name]
    path = tmp_path / "rows.csv"
    with own_database(wheel18, "nasty_undone", nasty.setup) as conninfo:
        write_rows(conninfo, nasty, path, ROWS, first=ROWS + 1)
        loaded(
            conninfo,
            nasty,
            path,
            indexes="drop",
            jobs=1,
            piece_bytes=8192,
            disable_triggers=name == "guarded",
        )
        before, rows = facts_of(conninfo, nasty.table), content_of(conninfo, nasty.table)
        write_rows(conninfo, nasty, path, ROWS)
        with path.open("ab") as file:
            file.write(b"no number,x\n")
        with pytest.raises(Exception, match="line") as failed:
            loaded(
                conninfo,
                nasty,
                path,
                indexes="drop",
                jobs=2,
                piece_bytes=8192,
                disable_triggers=name == "guarded",
            )
        cause = str(getattr(failed.value, "cause", ""))
        assert "rolled back" in cause or "nothing of the load is in the table" in cause
        assert facts_of(conninfo, nasty.table) == before
        assert content_of(conninfo, nasty.table) == rows
        assert leftovers(conninfo) == []


def test_what_cannot_be_made_again_is_kept_and_said(wheel18: Cluster, tmp_path: Path) -> None:
    from pgsweep.load.loading import plan_load

    path = tmp_path / "rows.csv"
    said = {}
    for name in ("referred to", "replicated", "refers to itself", "partitioned"):
        nasty = BY_NAME[name]
        with own_database(wheel18, "nasty_plans", nasty.setup) as conninfo:
            write_rows(conninfo, nasty, path, 10)
            plan = plan_load(conninfo, [str(path)], nasty.table, LoadOptions(indexes="drop")).plan
            said[name] = {entry.name: (entry.action, entry.reason) for entry in plan.objects}
    assert said["referred to"]["t_pkey"] == ("keep", "foreign keys of other tables need it")
    assert said["referred to"]["t_x"][0] == "drop and make again"
    assert said["replicated"]["t_code"] == ("keep", "it is the replica identity")
    assert said["refers to itself"]["t_broken"] == ("keep", "it is not valid, and left as it is")
    assert said["refers to itself"]["t_up_fkey"][0] == "drop, add and validate"
    assert {action for action, _ in said["partitioned"].values()} == {"keep"}


def test_a_rollback_of_nothing_says_so(wheel18: Cluster) -> None:
    nasty = BY_NAME["everything"]
    with (
        own_database(wheel18, "nasty_nothing", nasty.setup) as conninfo,
        pytest.raises(Exception, match="no load of `t` is unfinished"),
    ):
        roll_back(conninfo, "t")
