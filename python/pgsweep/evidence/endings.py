"""How recordings end when their session goes: what `ended_by` says then, and the warning in the evidence."""

from __future__ import annotations

from typing import Final

from pgsweep.evidence.schema import SERVER_ENDED

WENT_AWAY: Final = frozenset({"server", "session", "dropped", "connection"})
"""Values of `ended_by` (pg/session/session_end.py): in all but the first the server runs on."""

_WARNINGS: Final = {
    "server": SERVER_ENDED,
    "session": "an administrator ended the recorder's session; the evidence ends there",
    "dropped": "the database was dropped; the evidence ends there",
    "connection": "the connection to the server broke while the server ran on; the evidence ends there",
}


def went_away(ended_by: str) -> str:
    """Return the warning of a recording whose session has gone."""
    return _WARNINGS[ended_by]


def refused(reason: str) -> str:
    """Return the warning of a recording whose statements failed, with a session that is still there.

    Args:
        reason: the server's words.
    """
    return (
        f"the server no longer answers the recorder's statements ({reason}): was pg_buffercache "
        "dropped, or a privilege revoked? The evidence ends there"
    )


CANCELLED: Final = "a statement of the recorder was cancelled: by an administrator, or timeout"
"""A warning in meta.json."""
