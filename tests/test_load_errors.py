"""What errors of a load say: the true cause, in words that the user knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsweep.errors import PgsweepError
from pgsweep.load.options import LoadOptions
from pgsweep.load.run import load_files
from pgsweep.pg.cluster import Cluster
from tests.fix_load import count_of, said, trouble_database


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def conninfo(wheel18: Cluster) -> Iterator[str]:
    with trouble_database(wheel18) as found:
        yield found


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("most", [None, 10])
def test_a_line_that_ends_copy_is_the_cause(
    debian15: Cluster, tmp_path: Path, single: bool, most: int | None
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,a,name\n1,1,x\n\\.\n2,2,y\n")
    given = LoadOptions(indexes="drop", single_transaction=single, max_rejects=most)
    rejects = tmp_path / "bad" if most else None
    with trouble_database(debian15) as older:
        with pytest.raises(PgsweepError, match="the server took 1 row of 3 records") as failed:
            load_files(older, [str(path)], "t", given, rejects=rejects)
        assert r"a line that is only `\.` ends COPY on servers before 18" in said(failed.value)
        assert ("the load was rolled back" in said(failed.value)) is not single
        assert count_of(older) == 0
