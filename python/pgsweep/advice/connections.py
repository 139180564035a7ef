"""max_connections: how many fit beside the size advised, by the budget of `pgsweep memory budget`."""

from __future__ import annotations

from typing import Final

from pgsweep.advice.shared_buffers import undo_of
from pgsweep.advice.situation import Situation
from pgsweep.commands import on_server
from pgsweep.records.advice import AdvisedSetting
from pgsweep.units import format_count

_ROOM: Final = 1.5
"""max_connections is not advised below this many times the connections of now."""


def advise_connections(situation: Situation) -> AdvisedSetting:
    """Return the advice; the budget is already for the size of shared_buffers that is advised."""
    budget, today = situation.budget, situation.number("max_connections")
    if budget is None or today is None:
        command = on_server("pgsweep memory budget")
        why = f"how many fit is counted on the server's host, with a session there: {command}"
        return _advice(today, None, why, unknown=True)
    many = (
        f"{format_count(budget.possible_connections)} connections like today's fit, or "
        f"{format_count(budget.safe_connections)} that take all that the settings allow"
    )
    if budget.verdict != "will be killed":
        return _advice(today, None, many)
    most = budget.possible_connections
    if most < budget.connections * _ROOM or most < 1:
        why = (
            f"{many}: the memory does not suffice, and max_connections cannot be lowered that far below the "
            "connections of today; use a connection pooler, or more memory"
        )
        return _advice(today, None, why)
    why = (
        f"{many}: with more, processes are killed. Lower it on the primary first and on its standbys "
        "last, which "
        "need as many as it has"
    )
    return _advice(today, most, why)


def _advice(today: int | None, value: int | None, why: str, *, unknown: bool = False) -> AdvisedSetting:
    return AdvisedSetting(
        name="max_connections",
        where="server",
        today=None if today is None else str(today),
        value=None if value is None else str(value),
        action="unknown" if unknown else "leave" if value is None else "set",
        kind="predicted",
        reason=why,
        purpose="" if unknown else "it limits the memory that sessions can take together",
        takes_effect="" if value is None else "restart",
        undo="" if value is None else undo_of("max_connections", str(today)),
    )
