"""What is carried out is the plan that was agreed, or nothing."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgsweep.errors import PgsweepError
from pgsweep.load.input.source import find_inputs
from pgsweep.load.loading import agree, carry_out, load_files, roll_back
from pgsweep.load.options import LoadOptions
from pgsweep.pg.load.journal import make_journal
from pgsweep.pg.private.cluster import Cluster
from tests.fix_load import ask, leftovers, outcome_of, trouble_database

pytestmark = pytest.mark.one_server

MADE = """
CREATE FUNCTION twice(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 2 * i; END';
CREATE TABLE p (id int CHECK (twice(id) > 0), note text);
"""

CHANGES = {
    "code": "CREATE OR REPLACE FUNCTION twice(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS"
    " 'BEGIN RETURN i; END'",
    "owner": "CREATE ROLE other_owner; ALTER FUNCTION twice OWNER TO other_owner",
    "column": "ALTER TABLE p ADD more int",
    "trigger": "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
    "CREATE TRIGGER late BEFORE INSERT ON p FOR EACH ROW EXECUTE FUNCTION f()",
    "key": "ALTER TABLE p ADD PRIMARY KEY (id)",
}


@pytest.fixture
def conninfo(server: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with trouble_database(server, MADE) as found:
        yield found
    ask(server.conninfo(), "DROP ROLE IF EXISTS other_owner")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "x.csv"
    path.write_text("id,note\n1,a\n2,b\n")
    return path


@pytest.mark.parametrize("how", [{"single_transaction": True}, {"jobs": 2}], ids=["one", "pieces"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_since_is_not_loaded(
    conninfo: str, rows: Path, change: str, how: dict[str, int]
) -> None:
    options = LoadOptions(**how)  # type: ignore[arg-type]
    agreed = agree(conninfo, find_inputs([str(rows)], options), "p", options)
    ask(conninfo, CHANGES[change])
    with pytest.raises(PgsweepError, match="changed between plan and load"):
        carry_out(conninfo, agreed)
    assert ask(conninfo, "SELECT count(*) FROM p") == [(0,)]
    assert leftovers(conninfo) == []


@pytest.mark.parametrize("form", ["stdin", "pipe"])
def test_what_can_be_read_once_is_read_once(
    conninfo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    text = "id,note\n" + "".join(f"{n},note {n}\n" for n in range(1, 200_000))
    name = "-" if form == "stdin" else str(tmp_path / "pipe.csv")
    if form == "stdin":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    else:
        os.mkfifo(name)
        threading.Thread(target=Path(name).write_text, args=[text], daemon=True).start()
    options = LoadOptions()
    agreed = agree(conninfo, find_inputs([name], options), "p", options)
    assert outcome_of(carry_out(conninfo, agreed)).rows == 199_999


def test_grants_on_columns_suffice(server: Cluster, conninfo: str, rows: Path) -> None:
    ask(server.conninfo(), "CREATE ROLE clerk LOGIN")
    try:
        ask(conninfo, "ALTER TABLE p ADD secret int; GRANT INSERT (id, note) ON p TO clerk")
        theirs = f"{conninfo} user=clerk"
        assert outcome_of(load_files(theirs, [str(rows)], "p", LoadOptions())).rows == 2
        rows.write_text("id,secret\n1,2\n")
        with pytest.raises(PgsweepError, match="permission denied"):
            load_files(theirs, [str(rows)], "p", LoadOptions())
        assert ask(conninfo, "SELECT count(*) FROM p") == [(2,)]
    finally:
        ask(conninfo, "REVOKE ALL (id, note) ON p FROM clerk")
        ask(server.conninfo(), "DROP ROLE clerk")


def test_a_journal_without_a_load_is_removed(conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        make_journal(connection)
    assert leftovers(conninfo) != []
    with pytest.raises(PgsweepError, match="is unfinished"):
        roll_back(conninfo, "p")
    assert leftovers(conninfo) == []
