"""What a recording would send to the server, without recording: `pgsweep record --dry-run`.

The session is opened, because the statements depend on the server's version; nothing is asked of it. The
texts are those of pg/queries, the very files that a recording sends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pgsweep.pg.connect import connect
from pgsweep.pg.queries import load
from pgsweep.records import PlanStep, RecordPlan

_ONCE: Final = "once, before the observation"
_STEPS: Final[tuple[tuple[str, str, int], ...]] = (
    # Query, when it is sent, the oldest version it is sent to.
    ("buffercache", _ONCE, 140000),
    ("server", _ONCE, 140000),
    ("settings", _ONCE, 140000),
    ("databases", _ONCE, 140000),
    ("relations", "once before and once after the observation", 140000),
    ("sizes", "after each of them, for up to 1000 relations at a time", 140000),
    ("snapshot", "at random times, one in each interval", 140000),
    ("count_databases", "with every snapshot", 140000),
    ("count_relations", "with every snapshot", 140000),
    ("count_writers", "with every snapshot", 140000),
    ("count_io", "with every snapshot", 160000),
)


def plan_sql(conninfo: str, output: Path) -> RecordPlan:
    """Return the statements that recording snapshots would send, in their order.

    Args:
        conninfo: as libpq understands it.
        output: the folder that would be written.

    Raises:
        ConnectionFailed: the server cannot be reached.
        MissingAbility: the server is too old.
    """
    with connect(conninfo) as connection:
        version_num = connection.info.server_version
        target = f"{connection.info.dbname} at {connection.info.host or 'the local socket'}"
    steps = [
        PlanStep(what=query, when=when, text=load(query, version_num).rstrip())
        for query, when, oldest in _STEPS
        if version_num >= oldest
    ]
    return RecordPlan(source="sql", server=target, output=str(output), steps=steps)
