"""Settings that a standby must have at least as large as its primary, and the order in which they change.

With less than its primary has, a hot standby pauses its recovery, and does not start (xlogrecovery.c,
`RecoveryRequiresIntParameter`; the manual, "Hot Standby: Administrator's Overview").
"""

from __future__ import annotations

from typing import Any

import psycopg

from pgsweep.pg.queries import load


def count_standbys(connection: psycopg.Connection[Any]) -> int:
    """Return how many standbys follow a server now; one that is not connected is not counted."""
    row = connection.execute(load("standbys", connection.info.server_version)).fetchone()
    return 0 if row is None else int(row[0])


def order_of_change(connection: psycopg.Connection[Any], name: str, before: int, after: int) -> str | None:
    """Return what must be known where a setting is changed on a primary with standbys; None where nothing.

    Args:
        connection: a session on the primary.
        name: of the setting, one of those that standbys need as large.
        before: its value.
        after: its new value.
    """
    if before == after or (many := count_standbys(connection)) == 0:
        return None
    whom = "1 standby" if many == 1 else f"{many} standbys"
    follow = "follows" if many == 1 else "follow"
    if after > before:
        return (
            f"{whom} {follow} this server: raise {name} there first and restart them, then here. A standby "
            "with less than its primary pauses its recovery, and does not start"
        )
    return f"{whom} {follow} this server: lower {name} here first, and there when they have followed that"
