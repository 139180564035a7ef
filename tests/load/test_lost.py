"""A session that is lost at one of its statements: what stays is said, and which commands end the load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgsweep.errors import PgsweepError
from pgsweep.load.loading import load_files, roll_back
from pgsweep.load.options import LoadOptions
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.answers import CheckedCursor
from tests.fix_load import ask, leftovers, outcome_of, trouble_database

STEP = 3
"""Each third of some 190 statements is tried; each sixth before there is a journal: nothing can stay then."""


class Ender:
    """Ends the session that executes a certain statement before it does."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.has_ended = False

    def execute(self, cursor: CheckedCursor, query: Any, params: Any = None, **options: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            self.has_ended = True
            with psycopg.connect(cursor.connection.info.dsn, autocommit=True) as other:
                pid = cursor.connection.info.backend_pid
                other.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
        return _execute(cursor, query, params, **options)


_execute = CheckedCursor.execute


def test_what_stays_is_said(wheel18: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "x.csv"
    path.write_text("id,a\n" + "".join(f"{n},{n}\n" for n in range(2000)))
    options = LoadOptions(indexes="drop", jobs=2)
    with trouble_database(wheel18, "CREATE TABLE l (id int PRIMARY KEY, a int UNIQUE)") as conninfo:
        stayed = 0
        for at in range(1, 1000, STEP):
            if not stayed and at % (2 * STEP) != 1:
                continue
            ender = Ender(at)
            error: PgsweepError | None = None
            with monkeypatch.context() as patch:
                patch.setattr(CheckedCursor, "execute", lambda *a, ender=ender, **k: ender.execute(*a, **k))
                try:
                    load_files(conninfo, [str(path)], "l", options)
                except PgsweepError as raised:
                    error = raised
            if not ender.has_ended:
                break
            stays = bool(leftovers(conninfo)) and ask(conninfo, "SELECT count(*) FROM pgsweep_load.load") != [
                (0,)
            ]
            told = error is not None and "pgsweep load --rollback public.l" in (error.hint or "")
            assert told == stays, (at, error, error and error.hint)
            if stays:
                stayed += 1
                assert outcome_of(roll_back(conninfo, "l")).unchanged
            ask(conninfo, "TRUNCATE l; DROP SCHEMA IF EXISTS pgsweep_load CASCADE")
        assert stayed > 10
