"""What a restore would send: `pgsweep warm restore --dry-run`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pgsweep.plain import shown
from pgsweep.records.warm import WarmTrouble
from pgsweep.warm.files import FileReader
from pgsweep.warm.heat.restore_plan import RestorePlan
from pgsweep.warm.outcome import troubles_of
from pgsweep.warm.session import Failed
from pgsweep.warm.written import Writer


def without_unreadable(
    plan: RestorePlan, writer: Writer, files: FileReader | None
) -> tuple[RestorePlan, list[WarmTrouble]]:
    """Return a plan without what cannot be read in databases that cannot be entered or lack pg_prewarm.

    Args:
        plan: of all blocks.
        writer: for the server.
        files: the server's, where they are on this host.

    Raises:
        PgsweepError: nothing at all can be read; says why.
    """
    failed: list[Failed] = []
    calls = [] if files is not None else list(plan.pages)
    if plan.sums.read_blocks + plan.sums.touches:
        calls += plan.calls("all")
    for call in calls:
        why = writer.refusal(call.database)
        if why is not None:
            failed += [(piece, why.message, why.hint) for piece in call.pieces]
    if not failed:
        return plan, []
    unreadable = frozenset(piece.database for piece, _, _ in failed)
    readable = replace(plan, unreadable=unreadable)
    templates = {database.name for database in plan.access.databases if database.is_template}
    if not readable.sums.read_blocks + readable.sums.touches and not readable.pages:
        why = next(filter(None, map(writer.refusal, sorted(unreadable - templates))), None)
        if why is not None:
            raise why
    return readable, troubles_of(failed)


def statements_of(plan: RestorePlan, writer: Writer, files: FileReader | None) -> Iterator[str]:
    """Yield every statement and system call, with the bytes that it reads.

    Args:
        plan: what is to be done.
        writer: for the server.
        files: the server's, where they are on this host.
    """
    pages_first = plan.pages_first
    if pages_first:
        yield from _page_statements(plan, writer, files)
    server = plan.access.server
    calls = plan.calls("all", pages_read=pages_first)
    for call in calls if plan.sums.read_blocks + plan.sums.touches else ():
        size = call.blocks * server.block_size_bytes
        where = f"-- database {shown(call.database or server.database)}, {size} bytes"
        if call.touches:
            where += ", resident by then: raises usage counts"
        elif files is not None:
            if call.ahead:
                yield files.asking(call.ahead)
        elif len(call.ahead) > 1:
            yield f"{where}\n{writer.text(call.ahead, 'prefetch')}"
        yield f"{where}\n{writer.text(call.pieces, 'buffer')}"
    if not pages_first:
        yield from _page_statements(plan, writer, files)


def _page_statements(plan: RestorePlan, writer: Writer, files: FileReader | None) -> Iterator[str]:
    server = plan.access.server
    for read in plan.pages:
        if files is not None:
            yield files.reading(read.pieces)
        else:
            size = read.blocks * server.block_size_bytes
            text = writer.text(read.pieces, "read")
            yield f"-- database {shown(read.database or server.database)}, {size} bytes\n{text}"
