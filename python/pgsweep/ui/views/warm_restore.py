"""What a restore did, or would do: as text, as a page, as rows."""

from __future__ import annotations

from pgsweep.commands import on_server
from pgsweep.records.heat import HeatRelation, WarmRestoreResult
from pgsweep.ui.kit.missing import missing_lines
from pgsweep.ui.kit.numbers import count, counted, format_bytes, known_bytes, percent, seconds, times
from pgsweep.ui.kit.section import Page
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import View, listed
from pgsweep.ui.views.heat import (
    lost_lines,
    relations_page,
    relations_text,
    source_text,
    state_facts,
    state_text,
)
from pgsweep.ui.views.warm import PUSHED_OUT_SHARE, pasted


def restore_text(result: WarmRestoreResult, terminal: Terminal) -> str:
    """Return what was read, what is resident now, and what could not be matched."""
    parts = [source_text(result.source, result.server_version), _work_text(result)]
    if result.after is not None:
        parts.append(state_text(result.after, result.before))
    elif result.before is not None:
        parts.append(state_text(result.before))
    parts.append(relations_text(result.relations, terminal))
    parts += lost_lines(result.relations, terminal)
    parts += missing_lines(result.missing, terminal)
    if result.statements:
        shown = result.statements[: terminal.rows]
        parts.append("statements:\n" + "\n".join(filter(None, map(pasted, shown))))
        if len(shown) < len(result.statements):
            left = counted(len(result.statements) - len(shown), "statement")
            parts.append(f"... and {left} more: --top, --json")
    return "\n\n".join(part for part in parts if part) + "\n"


def _work_text(result: WarmRestoreResult) -> str:
    does = "would read" if result.dry_run else "asked to be read"
    lines = [
        f"{does}: {known_bytes(result.to_pool_bytes)} into the buffer pool, hottest first, "
        f"{known_bytes(result.to_page_cache_bytes)} into the page cache; "
        f"{counted(result.ranges, 'range')}, {counted(result.connections, 'connection')}"
    ]
    if result.touches_left_out:
        lines.append(
            "usage counts are left to the queries: they evict what was read, so the clock hand moves"
        )
    elif result.touches:
        lines.append(counted(result.touches, "extra read restores", "extra reads restore") + " usage counts")
    if result.left_out_bytes:
        lines.append(f"no room in this pool for the coldest {format_bytes(result.left_out_bytes)}")
    if not result.dry_run:
        lines.append(f"took {seconds(result.seconds)}" + (", ended early" if result.stopped else ""))
    if result.rounds > 1:
        left = f"{format_bytes(result.pushed_out_bytes)} had left it again, and "
        lines.append(
            f"{count(result.rounds)} rounds, as the pool was in use: after the first "
            + (left if result.pushed_out_bytes else "")
            + "usage counts were lower than the saved ones"
        )
    if result.restarts:
        lines.append(f"the server was gone {times(result.restarts)}; what was lost was read again")
    gone = _pushed_out_bytes(result)
    if gone:
        lines.append(
            f"{format_bytes(gone)} were evicted again: the pool is full, and the other blocks in it were "
            f"used more often; `{on_server('pgsweep cache')}` shows what it holds"
        )
    return "\n".join(lines)


def _pushed_out_bytes(result: WarmRestoreResult) -> int:
    """Return what is missing though there is room for it and it could be read; 0 where that is little."""
    after = result.after
    if after is None or result.dry_run or result.stopped or not result.to_pool_bytes:
        return 0
    failed = sum(row.target_bytes - row.resident_bytes for row in result.relations if row.error)
    gone = after.target_bytes - after.resident_bytes - result.left_out_bytes - failed
    return gone if gone > PUSHED_OUT_SHARE * after.target_bytes else 0


def restore_page(result: WarmRestoreResult) -> Page:
    """Return what was read, the shares, and every relation."""
    state = result.after or result.before
    title = (
        "What a restore would read" if result.after is None else f"{percent(result.after.resident)} restored"
    )
    done = "; ".join(_work_text(result).splitlines())
    lead = f"{source_text(result.source, result.server_version)}. {done[:1].upper()}{done[1:]}."
    facts = [] if state is None else state_facts(state)
    return Page(title, lead, [relations_page(result.relations, facts, result.missing)])


VIEW = View(WarmRestoreResult, restore_text, restore_page, listed(HeatRelation, "relations"))
