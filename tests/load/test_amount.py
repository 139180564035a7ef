"""How many records files have, as plans know it: an index is dropped for many rows only."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgsweep.errors import PgsweepError
from pgsweep.load.amount import amount_of_parquet
from pgsweep.load.input.source import find_inputs
from pgsweep.load.loading import load_files, plan_load
from pgsweep.load.options import LoadOptions
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.load import LoadPlan
from tests.fix_load import count_of, outcome_of, trouble_database


@pytest.fixture
def conninfo(wheel18: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with trouble_database(wheel18) as found:
        yield found


def planned(conninfo: str, *files: Path, **options: object) -> LoadPlan:
    given = LoadOptions(**options)  # type: ignore[arg-type]
    return plan_load(conninfo, [str(file) for file in files], "t", given).plan


def actions(plan: LoadPlan) -> set[str]:
    return {entry.action for entry in plan.objects}


def test_the_footer_of_parquet_has_the_number_of_rows(conninfo: str, tmp_path: Path) -> None:
    one = tmp_path / "one.parquet"
    pq.write_table(pa.table({"id": [1], "a": [1], "name": ["x"]}), one)
    plan = planned(conninfo, one)
    assert (plan.estimate.records, actions(plan)) == (1, {"keep"})
    assert plan.estimate.seconds is not None
    many = tmp_path / "many.parquet"
    pq.write_table(pa.table({"id": pa.array(range(3_000_000), pa.int32())}), many)
    plan = planned(conninfo, many)
    assert plan.estimate.records == 3_000_000
    assert "drop and make again" in actions(plan)
    # A footer that cannot be read says nothing; the file is refused when its columns are looked at.
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(one.read_bytes()[:-10])
    [entry] = find_inputs([str(torn)], LoadOptions())
    assert amount_of_parquet(entry).records is None
    with pytest.raises(PgsweepError, match="is not a Parquet file"):
        planned(conninfo, torn)


def test_for_no_records_nothing_is_dropped(conninfo: str, tmp_path: Path) -> None:
    names = ["none.csv", "none.tsv", "none.jsonl"]
    for name in names:
        (tmp_path / name).touch()
        plan = planned(conninfo, tmp_path / name)
        assert (plan.estimate.records, actions(plan)) == (0, {"keep"}), name
    (tmp_path / "also none.csv").touch()
    (tmp_path / "header.csv").write_text("id,name\n")
    files = [tmp_path / name for name in ("none.csv", "also none.csv", "header.csv")]
    plan = planned(conninfo, *files)
    assert (plan.estimate.records, plan.columns, actions(plan)) == (0, ["id", "name"], {"keep"})
    assert outcome_of(load_files(conninfo, [str(f) for f in files], "t", LoadOptions())).rows == 0


@pytest.mark.parametrize(
    ("name", "text", "records"),
    [
        ("header.csv", "id,a,name\n1,1,x\n2,2,y\n", 2),
        ("no end.csv", "id,a,name\n1,1,x\n2,2,y", 2),
        ("mark.csv", "\ufeffid,a,name\n1,1,x\n", 1),
        ("lines.csv", '1,1,"x\ny"\n2,2,z\n', 2),
        ("rows.jsonl", '{"id": 1, "a": 1}\n\n{"id": 2, "a": 2}', 2),
        ("rows.tsv", "1\t1\tx\n2\t2\ty\n3\t3\tz\n", 3),
    ],
)
def test_what_was_read_whole_was_counted(
    conninfo: str, tmp_path: Path, name: str, text: str, records: int
) -> None:
    path = tmp_path / name
    path.write_text(text)
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert planned(conninfo, path).estimate.records == records
    assert planned(conninfo, packed).estimate.records == records
    load_files(conninfo, [str(path)], "t", LoadOptions())
    assert count_of(conninfo) == records


def test_of_a_large_file_the_number_is_an_estimate(conninfo: str, tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    path.write_text("".join(f"{n},1,{'x' * 90}\n" for n in range(1_000_000, 1_030_000)))
    records = planned(conninfo, path).estimate.records
    assert records is not None
    assert 29_900 < records < 30_100
