"""Which commands work with a server from here, derived from its abilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pgsweep.records.doctor import Ability, Runnable

WORKS, IN_PART, NOT = "works", "in part", "not"

_READABLE = "the server reads only the tables that the role may read"
_OWN = ("import", "predict", "prove", "demo", "lab", "convert", "report", "mcp", "completion")
"""Commands that need no server of the user's."""

_FROM_EVIDENCE = "advise, verify"
"""Commands that record a server, or take evidence that was recorded elsewhere."""

_REFUSED = (
    ("connection", "the server is not reached"),
    ("version", "the server is too old"),
    ("session", "the session is refused"),
)
"""Abilities without which there is no session, and what is then said of every command that needs one."""


def runnable(abilities: Sequence[Ability], *, in_recovery: bool = False) -> list[Runnable]:
    """Return one line a command: whether it works, in part or not, and what is missing or used.

    Args:
        abilities: of the server and of this host.
        in_recovery: the server is a standby.
    """
    same_host = next((ability.available for ability in abilities if ability.name == "same_host"), None)
    able = {ability.name: ability.available is True for ability in abilities}
    missing = {ability.name for ability in abilities if ability.available is False}
    why_not = next((why for name, why in _REFUSED if name in missing), None)
    reached = why_not is None
    found = [
        _record(able),
        _advise(able, reached=reached),
        *(_both_caches(name, able) for name in ("cache", "top", "footprint", "warm save", "warm check")),
        *(_reading(name, able) for name in ("warm plan", "warm run", "warm restore")),
        _keep(able),
        _serve(able),
        _load(in_recovery=in_recovery),
        *(_processes(name, able) for name in ("memory", "memory budget")),
        _kernel(same_host, reached=reached),
        _hugepages(able),
        Runnable(command=", ".join(_OWN), state=WORKS, why="no server is needed"),
    ]
    if why_not is None:
        return found
    alone = ("memory kernel", _FROM_EVIDENCE, found[-1].command)
    return [
        line if line.command in alone else Runnable(command=line.command, state=NOT, why=why_not)
        for line in found
    ]


def _sources(able: Mapping[str, bool]) -> list[str]:
    """Return the sources that `record` has here."""
    sql = able.get("pg_buffercache") and able.get("pg_monitor")
    ways = {"peek": able.get("peek"), "sql": sql, "trace": able.get("trace")}
    return [name for name, there in ways.items() if there]


def _record(able: Mapping[str, bool]) -> Runnable:
    sources = _sources(able)
    if not sources:
        why = "needs pg_buffercache and pg_monitor, or the server's host as its user or root"
        return Runnable(command="record", state=NOT, why=why)
    state = IN_PART if sources == ["trace"] else WORKS
    return Runnable(command="record", state=state, why=f"--source {', '.join(sources)}")


def _advise(able: Mapping[str, bool], *, reached: bool) -> Runnable:
    if reached and _sources(able):
        return Runnable(command=_FROM_EVIDENCE, state=WORKS, why="recording first, or from evidence")
    why = "from evidence only: the server cannot be recorded from here"
    return Runnable(command=_FROM_EVIDENCE, state=IN_PART, why=why)


def _serve(able: Mapping[str, bool]) -> Runnable:
    if not (able.get("peek") or able.get("pg_buffercache")):
        why = "counters and sessions; the buffer pool needs pg_buffercache, or the server's host"
        return Runnable(command="serve", state=IN_PART, why=why)
    if not able.get("page_cache"):
        return Runnable(command="serve", state=IN_PART, why="shared_buffers only, not the page cache")
    return Runnable(command="serve", state=WORKS, why="shared_buffers and the page cache")


def _load(*, in_recovery: bool) -> Runnable:
    if in_recovery:
        return Runnable(command="load", state=NOT, why="the server is a standby: load on its primary")
    return Runnable(command="load", state=WORKS, why="into tables that the role may write")


def _kernel(same_host: bool | None, *, reached: bool) -> Runnable:
    if reached and same_host is False:
        return Runnable(command="memory kernel", state=NOT, why="the server is not on this host")
    return Runnable(command="memory kernel", state=WORKS, why="this host's kernel")


def _both_caches(command: str, able: Mapping[str, bool]) -> Runnable:
    if not (able.get("peek") or able.get("pg_buffercache")):
        why = "the buffer pool cannot be read: needs pg_buffercache, or the server's host"
        return Runnable(command=command, state=NOT, why=why)
    if not able.get("page_cache"):
        return Runnable(command=command, state=IN_PART, why="shared_buffers only, not the page cache")
    return Runnable(command=command, state=WORKS, why="shared_buffers and the page cache")


def _reading(command: str, able: Mapping[str, bool]) -> Runnable:
    pool, files = able.get("pg_prewarm"), able.get("page_cache")
    if not (pool or files):
        why = "needs pg_prewarm, or the server's files"
        return Runnable(command=command, state=NOT, why=why)
    into = "into shared_buffers or the page cache"
    if not (pool and files):
        into = "into shared_buffers only" if pool else "--into page-cache only: pg_prewarm is missing"
    if pool and not able.get("tables", True):
        return Runnable(command=command, state=IN_PART, why=f"{into}; {_READABLE}")
    return Runnable(command=command, state=WORKS if pool and files else IN_PART, why=into)


def _keep(able: Mapping[str, bool]) -> Runnable:
    lacking = [] if able.get("pg_prewarm") else ["pg_prewarm"]
    if not (able.get("peek") or able.get("pg_buffercache")):
        lacking.append("pg_buffercache, or the server's host")
    if lacking:
        return Runnable(command="warm keep", state=NOT, why=f"needs {' and '.join(lacking)}")
    if not able.get("tables", True):
        return Runnable(command="warm keep", state=IN_PART, why=_READABLE)
    return Runnable(command="warm keep", state=WORKS, why="")


def _processes(command: str, able: Mapping[str, bool]) -> Runnable:
    if able.get("same_host") and able.get("same_user"):
        return Runnable(command=command, state=WORKS, why="")
    if able.get("same_host") and command == "memory":
        return Runnable(command=command, state=IN_PART, why="without private memory: needs the server's user")
    if command == "memory budget":
        why = "with --ram, what processes take is assumed; else it needs the server's host"
        return Runnable(command=command, state=IN_PART, why=why)
    return Runnable(command=command, state=NOT, why="needs the server's host, as its user or root")


def _hugepages(able: Mapping[str, bool]) -> Runnable:
    if able.get("same_host"):
        return Runnable(command="hugepages", state=WORKS, why="")
    why = "how many are needed; not what the server's host has"
    return Runnable(command="hugepages", state=IN_PART, why=why)
