"""Nothing that the owner of a database puts there runs with the rights of whoever observes the server."""

from __future__ import annotations

from contextlib import closing

import pytest

from pgsweep.pg.session.connect import _SHOWN_AS_SET, first_statement
from tests.fix_hostile import SPRUNG, HostileServer, enter, enters_others

pytestmark = pytest.mark.slow


def test_no_command_of_a_superuser_runs_what_a_database_owner_made(hostile: HostileServer) -> None:
    assert hostile.traps > 300
    with closing(enter(hostile.cluster, "evil")) as connection:
        begin = len(hostile.log())
        connection.execute("SELECT convert_to('a', 'UTF8')")
        assert SPRUNG in hostile.log(begin), "the traps do not work"
        # The role's own path is as hostile as the database's.
        connection.execute(
            "RESET search_path; ALTER ROLE postgres SET search_path = evil, public, pg_catalog"
        )
    begin = len(hostile.log())
    said = hostile.run_all("evil") | hostile.run_all("shop", chosen=enters_others)
    log = hostile.log(begin)
    assert SPRUNG not in log, [line for line in log.splitlines() if SPRUNG in line][:5]
    sessions = hostile.sessions(begin)
    assert len(sessions) > 60
    # A session that only asks what the user's search_path is reads all settings but that one.
    whole, asks = (first_statement(names).as_string() for names in (_SHOWN_AS_SET, _SHOWN_AS_SET[1:]))
    assert {statements[0] for statements in sessions.values()} == {whole, asks}
    path = "SELECT pg_catalog.current_setting('search_path')"
    assert {tuple(texts[1:]) for texts in sessions.values() if texts[0] == asks} == {(path,)}
    # The trusted extension of the hostile database served.
    assert not {command: words for command, words in said.items() if not words.startswith("0:")}
