"""Set aside the huge pages that a result says are needed, or show what that would write."""

from __future__ import annotations

import threading

import msgspec

from pgsweep.errors import MissingAbility, PgsweepError
from pgsweep.host.hugepages import Pool, read_pools
from pgsweep.host.reserve import Reserver
from pgsweep.memory.hugepages.inspect import pool_record
from pgsweep.memory.hugepages.reasons import pool_reasons
from pgsweep.pg.session.connect import connect
from pgsweep.pg.session.conninfo import place_of
from pgsweep.pg.session.refusals import explained
from pgsweep.pg.session.server_identity import read_identity
from pgsweep.records.hugepages import HugePagesChange, HugePagesResult
from pgsweep.records.prediction import PlanStep
from pgsweep.units import format_count


def planned(result: HugePagesResult, reserver: Reserver, *, persist: bool) -> HugePagesResult:
    """Return the result with what `apply` would write; nothing is written.

    Raises:
        MissingAbility: this host's huge pages are not the server's.
        PgsweepError: how many it needs is not known.
        UsageError: sysctl.d cannot keep pages of this size.
    """
    pool, target = _to_change(result)
    lines = reserver.writes(pool, max(target, pool.persistent), persist=persist)
    steps = [PlanStep(what="file", when="with --apply", text=f"{file}: {text}") for file, text in lines]
    return msgspec.structs.replace(result, plan=steps)


def apply(
    result: HugePagesResult,
    reserver: Reserver,
    *,
    persist: bool,
    stop: threading.Event | None = None,
    server: str = "",
) -> HugePagesResult:
    """Set aside the pages that a result says are needed, and return it with what was changed.

    Args:
        result: of the examination.
        reserver: what changes the host.
        persist: over a restart of the host too.
        stop: set by a signal: all is put back.
        server: for which they are.

    Raises:
        KeyboardInterrupt: `stop` was set; the number is as before.
        MissingAbility: not root, or this host's huge pages are not the server's.
        PgsweepError: how many it needs is not known, or the kernel does not give as many.
        UsageError: sysctl.d cannot keep pages of this size.
    """
    pool, target = _to_change(result)
    done = reserver.reserve(pool, target, persist=persist, stop=stop, server=server)
    files = [done.state_file] + ([done.sysctl_file] if done.sysctl_file else [])
    change = HugePagesChange(
        what="reserved",
        page_size_bytes=pool.size_bytes,
        before=done.before,
        after=done.after,
        compacted=done.compacted,
        files=files,
        undo_command=reserver.undo_command,
    )
    pools = read_pools()
    now = next(found for found in pools if found.size_bytes == pool.size_bytes)
    after = msgspec.structs.replace(
        result,
        available=now.available,
        after_stop=now.after_stop(result.own_pages),
        pools=[pool_record(found, result.shared_memory_bytes) for found in pools],
        change=change,
    )
    # These statements about the pool are out of date now.
    outdated = pool_reasons(result)
    reasons = [reason for reason in result.reasons if reason not in outdated]
    if len(reasons) < len(result.reasons):
        reasons += pool_reasons(after)
    return msgspec.structs.replace(after, reasons=reasons)


def server_name(conninfo: str) -> str:
    """Return what names a server on its host: its data directory, or, where that is hidden, its address.

    Another port makes it no other server, and a copy has a directory of its own.
    """
    with connect(conninfo) as connection, explained():
        return read_identity(connection, with_host=False).data_directory or place_of(conninfo)


def _refuse_useless(result: HugePagesResult) -> None:
    """Refuse to set pages aside that the server cannot have, or that kill it when it takes them.

    Raises:
        PgsweepError: its shared memory is not of the kind, or its cgroup allows fewer.
    """
    if result.shared_memory_type != "mmap":
        raise PgsweepError(
            "huge pages would be of no use to this server, so none are set aside",
            cause=f"shared_memory_type is {result.shared_memory_type}, and huge pages are taken for "
            "mmap only",
            hint="set shared_memory_type = mmap, restart the server, and run this again",
        )
    if result.limit_binds:
        raise PgsweepError(
            "the server may not have as many huge pages as it needs, so none are set aside",
            cause=f"{result.binding_limit} allows {format_count(result.allowed_pages or 0)} of "
            f"{format_count(result.huge_pages_needed or 0)}; with them on the host the server might "
            "take them "
            "when it starts, and be killed",
            hint="raise that limit first, or set huge_pages = off",
        )


def _to_change(result: HugePagesResult) -> tuple[Pool, int]:
    _refuse_useless(result)
    pool = next((p for p in read_pools() if p.size_bytes == result.huge_page_size_bytes), None)
    if result.available is None:
        if result.missing:
            raise MissingAbility(
                "huge pages set aside here would not be the server's own",
                cause=result.missing[0].why,
                hint="run the same on its host, as root",
            )
        pool = None
    if pool is None:
        raise MissingAbility(
            "this kernel has no huge pages of the wanted size",
            cause="/sys/kernel/mm/hugepages does not have them",
            hint="see which there are: ls /sys/kernel/mm/hugepages",
        )
    if result.target is None:
        raise PgsweepError(
            "how many huge pages the server needs is not known, so none are set aside",
            cause=result.reasons[-1] if result.reasons else None,
            hint="run it as a role with pg_monitor, on the server's host",
        )
    return pool, result.target
