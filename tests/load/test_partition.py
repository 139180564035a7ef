"""New partitions that are made, filled and attached in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.load.loading import load_files, plan_load
from pgsweep.load.options import LoadOptions
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cluster import own_database
from tests.fix_load import ask, leftovers

pytestmark = pytest.mark.one_server

SETUP = """
CREATE TABLE parent (id int PRIMARY KEY); INSERT INTO parent SELECT generate_series(0, 9);
CREATE SCHEMA "my schema";
CREATE TABLE "my schema".sales
  (dropped int, id int NOT NULL, at date, a int REFERENCES parent, note text DEFAULT 'x',
  up text GENERATED ALWAYS AS (upper(note)) STORED, CONSTRAINT positive CHECK (id >= 0), PRIMARY KEY (id, at))
  PARTITION BY RANGE (at);
ALTER TABLE "my schema".sales DROP COLUMN dropped;
CREATE INDEX ON "my schema".sales (lower(note), id DESC) WHERE id > 5;
CREATE TABLE "my schema".before PARTITION OF "my schema".sales
  FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
CREATE TABLE "my schema".rest PARTITION OF "my schema".sales DEFAULT;
"""
NEW = '"my schema"."Year 2021"'
PARENT = '"my schema".sales'
GIVEN = LoadOptions(partition_of=PARENT, for_values="FROM ('2021-01-01') TO ('2022-01-01')")
ROWS = 3000


@pytest.fixture
def conninfo(server: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with own_database(server, "attached", SETUP) as found:
        yield found


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    lines = (f"{n},2021-{n % 12 + 1:02}-03,{n % 10},note {n}\n" for n in range(ROWS))
    path.write_text("id,at,a,note\n" + "".join(lines))
    return path


def shape(conninfo: str, partition: str) -> list[tuple[object, ...]]:
    """Return indexes, constraints and columns of a partition without its name."""
    return ask(
        conninfo,
        f"""
        SELECT 'index', regexp_replace(pg_get_indexdef(indexrelid), '^.* USING', ''), indisprimary,
               (SELECT inhparent::regclass::text FROM pg_inherits WHERE inhrelid = indexrelid)
        FROM pg_index WHERE indrelid = '{partition}'::regclass
        UNION ALL
        SELECT 'constraint', pg_get_constraintdef(oid), convalidated, (conparentid <> 0)::text || coninhcount
        FROM pg_constraint WHERE conrelid = '{partition}'::regclass
        UNION ALL
        SELECT 'column', attname || format_type(atttypid, atttypmod), attnotnull,
               coalesce(pg_get_expr(adbin, adrelid), '') || attgenerated::text
        FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE attrelid = '{partition}'::regclass AND attnum > 0 AND NOT attisdropped
        ORDER BY 1, 2, 4
        """,
    )


def test_it_is_as_one_made_by_create_table(conninfo: str, rows: Path) -> None:
    plan = plan_load(conninfo, [str(rows)], NEW, GIVEN).plan
    assert (plan.strategy, plan.freeze, plan.jobs) == ("one transaction", True, 1)
    assert (plan.partition_of, plan.kind) == (PARENT, f"new partition of {PARENT}")
    assert {entry.action for entry in plan.objects} == {"make after the rows", "add and validate"}
    assert ask(conninfo, f"SELECT to_regclass('{NEW}')") == [(None,)]
    outcome = load_files(conninfo, [str(rows)], NEW, GIVEN).outcome
    assert outcome is not None
    assert (outcome.ended, outcome.rows, outcome.unchanged, outcome.problems) == ("loaded", ROWS, True, [])
    # Attached, with all rows, and equal to a partition that SQL makes.
    assert ask(conninfo, f"SELECT count(*) FROM {PARENT} WHERE at >= '2021-01-01'") == [(ROWS,)]
    assert shape(conninfo, NEW) == shape(conninfo, '"my schema".before')
    assert leftovers(conninfo) == []
    with pytest.raises(UsageError, match="already exists"):
        plan_load(conninfo, [str(rows)], NEW, GIVEN)
    with pytest.raises(psycopg.errors.CheckViolation):
        ask(conninfo, f"INSERT INTO {NEW} (id, at) VALUES (1, '2023-01-01')")


def test_a_record_outside_the_bound_is_rejected_in_words(conninfo: str, rows: Path, tmp_path: Path) -> None:
    """The constraint that refuses it is ours: nobody would find it."""
    rows.write_text(rows.read_text() + "9000,2022-05-05,1,x\n")
    found = tmp_path / "rejects.csv"
    options = msgspec.structs.replace(GIVEN, max_rejects=5)
    outcome = load_files(conninfo, [str(rows)], NEW, options, rejects=found).outcome
    assert outcome is not None
    assert outcome.rows == ROWS
    assert "outside the bound of the new partition" in found.read_text()
    assert "pgsweep_bound" not in found.read_text()


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("other bound", "outside the bound of the new partition .Failing row"),
        ("duplicate", "cannot be made again|duplicate|could not create unique index"),
        ("missing key", "violates foreign key"),
        ("overlap", "would overlap"),
        ("rows in default", "default partition"),
        ("no bound", r"is not one of .*: invalid bound specification for a range partition$"),
        ("empty bound", r'is not one of .*: empty range bound specified for partition "Year 2021"$'),
        ("column", r"is not one of .*: cannot use column reference in partition bound expression$"),
        ("two statements", "is not one of|multiple commands"),
        ("triggers", "fire on INSERT"),
        ("published", "is published"),
    ],
)
def test_whatever_ends_it_leaves_nothing(conninfo: str, rows: Path, why: str, words: str) -> None:
    given = GIVEN
    text = rows.read_text()
    if why == "other bound":
        rows.write_text(text + "9000,2022-05-05,1,x\n")
    elif why == "duplicate":
        rows.write_text(text + "1,2021-02-03,1,x\n")
    elif why == "missing key":
        rows.write_text(text + "9000,2021-02-03,77,x\n")
    elif why == "overlap":
        given = LoadOptions(partition_of=PARENT, for_values="FROM ('2020-06-01') TO ('2022-01-01')")
    elif why == "rows in default":
        ask(conninfo, f"INSERT INTO {PARENT} (id, at) VALUES (1, '2021-05-05')")
    elif why == "no bound":
        given = LoadOptions(partition_of=PARENT, for_values="IN (1)")
    elif why == "empty bound":
        given = LoadOptions(partition_of=PARENT, for_values="FROM ('2022-01-01') TO ('2021-01-01')")
    elif why == "column":
        given = LoadOptions(partition_of=PARENT, for_values="FROM (at) TO ('2021-01-01')")
    elif why == "two statements":
        given = LoadOptions(partition_of=PARENT, for_values="DEFAULT; DROP TABLE parent CASCADE")
    elif why == "triggers":
        ask(
            conninfo,
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; "
            f"CREATE TRIGGER g BEFORE INSERT ON {PARENT} FOR EACH ROW EXECUTE FUNCTION f()",
        )
    else:
        ask(conninfo, f"CREATE PUBLICATION p FOR TABLE {PARENT}")
    before = ask(conninfo, "SELECT relname, relkind FROM pg_class WHERE relnamespace >= 2200 ORDER BY 1, 2")
    with pytest.raises(PgsweepError, match=words) as failed:
        load_files(conninfo, [str(rows)], NEW, given)
    if why == "other bound":
        assert f"line {ROWS + 2}" in failed.value.message
    after = ask(conninfo, "SELECT relname, relkind FROM pg_class WHERE relnamespace >= 2200 ORDER BY 1, 2")
    assert after == before


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ("FROM (300) TO (400", "a parenthesis is not closed in the bound"),
        ("FROM 300) TO (400)", "a parenthesis is closed that was not opened"),
        ("FROM ('2021-01-01) TO ('2022-01-01')", "a quote is not closed"),
        ("FROM ('(') TO ('it''s )')", ""),
        (r"FROM (E'\')') TO ($$($$)", ""),
    ],
)
def test_the_plan_refuses_a_bound_that_is_not_closed(
    conninfo: str, rows: Path, bound: str, words: str
) -> None:
    given = LoadOptions(partition_of=PARENT, for_values=bound)
    if words:
        with pytest.raises(UsageError, match=words):
            plan_load(conninfo, [str(rows)], NEW, given)
    else:  # What it means is the server's to say, when the load begins.
        assert plan_load(conninfo, [str(rows)], NEW, given).plan.bound == f"FOR VALUES {bound}"
