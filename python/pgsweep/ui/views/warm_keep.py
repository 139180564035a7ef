"""Keeping relations resident: the progress as a line, the plan as text, the result as text, page and rows."""

from __future__ import annotations

from typing import Final

from pgsweep.plain import relation_label, shown
from pgsweep.records.warm_keep import WarmKeepPlan, WarmKeepRelation, WarmKeepResult, WarmKeepSample
from pgsweep.ui.kit.missing import missing_lines
from pgsweep.ui.kit.numbers import count, counted, format_bytes, known_bytes, percent, seconds, times
from pgsweep.ui.kit.section import Fact, Page, Section
from pgsweep.ui.kit.subject import subject_line
from pgsweep.ui.kit.table import Column, Measured, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import View, listed

_NAMED = 4
_ENDINGS = {"time": "the requested time had passed", "stop": "stopped", "gone": "no relation was left"}
HONESTY = (
    "Touches count as hits of these relations in pg_statio and pg_stat_database: their hit ratio there looks "
    "better than their clients' is."
)


def sample_line(sample: WarmKeepSample) -> str:
    """Return what went on as one line: residence, what was done, what it cost."""
    least = sorted(sample.relations, key=lambda pair: 2.0 if pair[1] is None else pair[1])
    named = sample.relations if len(least) <= _NAMED else least[:_NAMED]
    parts = [f"{shown(name)} {percent(share)}" for name, share in named]
    if len(least) > len(named):
        parts.append(counted(len(least) - len(named), "other"))
    rate = 1 / sample.seconds
    cost = f"{percent(sample.backend_share)} of a backend"
    if sample.access_share is not None:
        cost += f", {percent(sample.access_share)} of all accesses"
    hand = "stands still" if sample.lap_seconds is None else f"goes round in {seconds(sample.lap_seconds)}"
    touched, read = (
        counted(round(sample.touched_blocks * rate), "block"),
        count(round(sample.read_blocks * rate)),
    )
    return (
        f"{sample.at[11:19]} UTC resident: {', '.join(parts)}; "
        f"a second: {counted(sample.rounds * rate, 'round')}, {touched} touched, {read} read; cost {cost}; "
        f"the hand {hand}"
    )


def plan_text(plan: WarmKeepPlan, terminal: Terminal) -> str:
    """Return the bytes and the statements of the first round."""
    rate = format_bytes(plan.rate_bytes_per_second)
    kept = known_bytes(sum(row.kept_bytes for row in plan.relations))
    head = (
        f"{subject_line(plan)}\nWould keep {kept}, budget {format_bytes(plan.budget_bytes)}.\n"
        f"Missing now, to be read: {known_bytes(plan.read_bytes)}, at {rate} a second at most; touches to be "
        f"made at once: {count(plan.touch_blocks)}."
    )
    if not any(row.kept_bytes for row in plan.relations):
        head += "\nNo block of them is in use now; those that clients use will be kept, up to the budget."
    if plan.pool_source == "peek":
        head += "\nThe pool is looked at in the server's memory, without a statement."
    columns = [*_KEPT, Column("resident\nof it", lambda row: percent(row.resident_share_after))]
    statements = "\n\n".join(f"{statement.rstrip(';')};" for statement in plan.statements)
    first = "Statements, as they would be sent; those that read are of the first second:"
    return "\n\n".join([head, Table(columns, plan.relations).text(terminal), first, statements]) + "\n"


def warm_keep_text(result: WarmKeepResult, terminal: Terminal) -> str:
    """Return how resident the relations were, what was done for it, and what it cost."""
    ending = _ENDINGS.get(result.ended_by, result.ended_by)
    head = f"Measured: kept for {seconds(result.seconds)}, until {ending}."
    if result.resident_share_mean is not None:
        before, mean = percent(result.resident_share_before), percent(result.resident_share_mean)
        after = percent(result.resident_share_after)
        head += f"\nResident: {before} before, {mean} on average, {after} at the end."
    parts = [head, "\n".join(cost_lines(result)), _table(result).text(terminal)]
    if result.notes:
        parts.append("\n".join(f"note: {shown(note)}" for note in result.notes))
    parts += missing_lines(result.missing, terminal)
    return "\n\n".join(parts) + "\n"


def cost_lines(result: WarmKeepResult) -> list[str]:
    """Return what was done and what it cost."""
    read = known_bytes(result.read_blocks * result.block_size_bytes)
    done = (
        f"{counted(result.rounds, 'round')}: "
        f"{counted(result.touched_blocks, 'touch of a block', 'touches of blocks')}, "
        f"{counted(result.read_blocks, 'block')} ({read}) read{_replaced(result)}."
    )
    share = result.statement_seconds / result.seconds if result.seconds > 0 else None
    cost = f"Cost: {seconds(result.statement_seconds)} in the server, {percent(share)} of a backend"
    if result.look_seconds:
        cost += f" ({seconds(result.look_seconds)} of it for looking)"
    own = result.touched_blocks + result.read_blocks
    if result.other_accesses is not None:
        part = percent(own / max(1, own + result.other_accesses))
        cost += f"; {part} of the server's buffer accesses were ours"
    lines = [done, f"{cost}.", HONESTY]
    if result.resident_share_mean is None:
        lines.append(f"There was nothing to keep: {_why_nothing(result)}.")
    elif result.lap_seconds is not None:
        lines.append(f"At its fastest the clock hand went round in {seconds(result.lap_seconds)}.")
    elif result.replacing_blocks:
        lines.append("How fast the clock hand went round was not seen.")
    else:
        lines.append(
            "The clock hand stood still: nothing was evicted, so what was resident stayed by itself."
        )
    if result.reconnects:
        lost = times(result.reconnects)
        lines.append(f"The connection was lost {lost}; until the next sample nothing counts as resident.")
    return lines


def _replaced(result: WarmKeepResult) -> str:
    """Return where the blocks that were read went: into free buffers, or in the place of others."""
    replacing = result.replacing_blocks
    if not result.read_blocks or replacing is None:
        return ""
    if not replacing:
        return ", into free buffers"
    if replacing >= result.read_blocks:
        return ", each in the place of another"
    return f", {count(replacing)} of them in the place of others"


def _why_nothing(result: WarmKeepResult) -> str:
    if all(row.trouble for row in result.relations):
        return "none of the relations could be kept"
    if not any(row.size_bytes for row in result.relations):
        return "the relations have no blocks"
    return "clients used no block of them"


def _label(row: WarmKeepRelation) -> str:
    return shown(relation_label(row.schema, row.relation, row.table_schema, row.table))


_KEPT: Final[list[Column[WarmKeepRelation]]] = [
    Column("relation", _label, left=True),
    Column("kind", lambda row: row.kind, left=True),
    Column("size", lambda row: known_bytes(row.size_bytes)),
    Column("to keep", lambda row: known_bytes(row.kept_bytes)),
]
_DONE: Final[list[Column[WarmKeepRelation]]] = [
    Column("resident\nbefore", lambda row: percent(row.resident_share_before)),
    Column("on\naverage", lambda row: percent(row.resident_share_mean)),
    Column("at the\nend", lambda row: percent(row.resident_share_after)),
    Column("touched", lambda row: count(row.touched_blocks)),
    Column("read", lambda row: count(row.read_blocks)),
]


def _table(result: WarmKeepResult) -> Table[WarmKeepRelation]:
    rows = result.relations
    return Table([*_KEPT, *_DONE], rows, remarks=[shown(row.trouble or "") for row in rows])


def warm_keep_page(result: WarmKeepResult) -> Page:
    """Return residence, work and cost, and the relations."""
    before, mean = percent(result.resident_share_before), percent(result.resident_share_mean)
    title = f"{mean} resident on average, {before} before"
    if result.resident_share_mean is None:
        title = "There was nothing to keep"
    lead = " ".join(cost_lines(result))
    facts = [
        Fact(before, "resident before", Measured),
        Fact(mean, "on average", Measured),
        Fact(percent(result.resident_share_after), "at the end", Measured),
        Fact(count(result.touched_blocks), "touches of blocks", Measured),
        Fact(count(result.read_blocks), "blocks read", Measured),
        Fact(seconds(result.statement_seconds), "in the server", Measured),
    ]
    section = Section("Kept relations", "kept", facts=facts, table=_table(result))
    return Page(title, lead, [section], notes=result.notes)


VIEW = View(WarmKeepResult, warm_keep_text, warm_keep_page, listed(WarmKeepRelation, "relations"))
