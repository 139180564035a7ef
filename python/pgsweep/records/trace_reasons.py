"""Reasons beside the verdict of a trace, and of what-ifs (see reasons.py)."""

from __future__ import annotations

from collections.abc import Sequence

from pgsweep.records.reasons import percent2, reason_kind
from pgsweep.units import format_bytes, format_count, format_many, format_minutes, format_percent


@reason_kind
def blocks_not_tracked(blocks: int) -> str:
    """Dropped relations had more blocks than are tracked."""
    return (
        format_many(blocks, "block of dropped relations was", "blocks of dropped relations were")
        + " not tracked: those in the pool are assumed to stay in it"
    )


@reason_kind
def few_accesses(accesses: int) -> str:
    """The trace holds few accesses."""
    return f"only {format_count(accesses)} accesses of the database: record for longer"


@reason_kind
def events_lost(events: int, share: float) -> str:
    """Accesses were lost while the trace was taken."""
    return f"{format_count(events)} events were lost ({percent2(share)})"


def _most_of_it(relation: str, replayed: int, counted: int) -> str:
    if not relation:
        return ""
    counts = f"{format_count(replayed)} misses instead of {format_count(counted)}"
    return f"; most of it by {relation}: {counts}"


@reason_kind
def replay_off_today(exact: float, measured: float, relation: str, replayed: int, counted: int) -> str:
    """The accesses, replayed from the pool's own contents, do not miss as was counted."""
    return (
        f"replayed from the pool's own contents, {percent2(exact)} miss at today's size, where "
        f"{percent2(measured)} was counted{_most_of_it(relation, replayed, counted)}"
    )


@reason_kind
def proof_outside_today(measured: float, low: float, high: float) -> str:
    """Replayed by a real server, today's size lies outside its interval; of proofs alone."""
    return (
        f"replayed by a real server at today's size {percent2(measured)} miss, outside the interval of "
        f"{percent2(low)} to {percent2(high)}"
    )


@reason_kind
def relations_off_today(share: float, relation: str, replayed: int, counted: int) -> str:
    """Relations do not miss in the replay as they were counted."""
    return (
        f"relations do not miss as they were counted ({percent2(share)} of the accesses at today's size)"
        f"{_most_of_it(relation, replayed, counted)}"
    )


@reason_kind
def start_decides(drawn: float, other: float, record_seconds: float) -> str:
    """How the replay starts decides its result."""
    return (
        f"the trace is too short: how the replay starts decides the result ({percent2(drawn)} or "
        f"{percent2(other)} at today's size); record for {format_minutes(record_seconds)}"
    )


@reason_kind
def scans_meet(share: float) -> str:
    """Several sessions scan a table at the same time."""
    return (
        "several sessions scan the same table at the same time and read for one another: how often they meet "
        f"changes the miss ratio by up to {percent2(share)}"
    )


@reason_kind
def scans_linger(from_bytes: int, relation: str, fresh: float, soon: float, settled: float) -> str:
    """What scans leave behind depends on how long the server has run."""
    return (
        f"from {format_bytes(from_bytes)} on, scans of {relation} leave pages for the next scan: "
        f"{percent2(fresh)} miss just after a restart, {percent2(soon)} a minute later, "
        f"{percent2(settled)} after a long time"
    )


@reason_kind
def vacuums_linger(size_bytes: int, relation: str, least: float, most: float) -> str:
    """What VACUUM leaves behind depends on how long the server has run."""
    return (
        f"at {format_bytes(size_bytes)}, VACUUM of {relation} keeps what its rings left there: between "
        f"{percent2(least)} and {percent2(most)} miss, the less the longer the server runs"
    )


@reason_kind
def scans_seen_once(size_bytes: int, share: float) -> str:
    """A table was scanned once, so it is not known what the next scan finds."""
    return (
        f"at {format_bytes(size_bytes)} it is not known what the next scan finds of tables that were scanned "
        f"once ({percent2(share)} of the accesses): record for longer than scans are apart"
    )


def _may_miss(size_bytes: int, bounds: tuple[float, float] | None) -> str:
    if bounds is None:
        return ""
    low, high = (percent2(bound) for bound in bounds)
    return f"; at {format_bytes(size_bytes)} between {low} and {high} may miss"


@reason_kind
def visits_move(share: float, size_bytes: int, bounds: tuple[float, float] | None) -> str:
    """The load moves from page to page."""
    return (
        f"the load moves: of the pages visited several times, and first in the second half, "
        f"{format_percent(share)} would have been visited before, if visits came at random"
        f"{_may_miss(size_bytes, bounds)}: record for longer"
    )


@reason_kind
def visits_in_turn(share: float, relation: str, size_bytes: int, bounds: tuple[float, float]) -> str:
    """Pages are visited in turn, as a loop does."""
    of = f", most of them of {relation}" if relation else ""
    return (
        f"{format_percent(share)} of the accesses visit pages in turn, as a loop does{of}"
        f"{_may_miss(size_bytes, bounds)}"
    )


@reason_kind
def order_decides(size_bytes: int, half_width: float) -> str:
    """The order of sessions and vacuums changes the miss ratio."""
    return (
        f"at {format_bytes(size_bytes)} the order of sessions and vacuums changes the miss ratio by "
        f"±{percent2(half_width)}"
    )


@reason_kind
def pages_sampled(error: float) -> str:
    """The trace is long and was replayed by samples of its pages."""
    return (
        "the trace is long, and was replayed by samples of its pages; the intervals include the sampling "
        f"error, up to ±{percent2(error)}"
    )


@reason_kind
def halves_differ(early: float, late: float) -> str:
    """The miss ratio of the second half of the trace differs from that of the first."""
    return f"the miss ratio went from {percent2(early)} in the first half to {percent2(late)} in the second"


@reason_kind
def another_stretch(
    size_bytes: int, seconds: float, width: float, scans: int | None, record_seconds: float, wanted: float
) -> str:
    """Another stretch of the same load may differ."""
    few = ""
    if scans is not None:
        few = f" ({format_many(scans, 'scan of one kind was', 'scans of one kind were')} seen)"
    return (
        f"another stretch of {format_minutes(seconds)} may differ by ±{percent2(width)} at "
        f"{format_bytes(size_bytes)}{few}; record for about {format_minutes(record_seconds)} to have it "
        f"within ±{format_percent(wanted)}"
    )


@reason_kind
def beyond_the_trace(from_bytes: int, seconds: float) -> str:
    """At some sizes a page stays for longer than the trace lasts."""
    return (
        f"from {format_bytes(from_bytes)} on, a page stays for longer than the {format_minutes(seconds)} of "
        "the trace: partly estimated"
    )


@reason_kind
def short_trace(passes: float, seconds: float) -> str:
    """The trace covers few clock passes: large sizes follow from the pool's contents and the visits."""
    seen = f"{passes:.1f} clock passes" if passes >= 0.1 else "less than a tenth of a clock pass"
    return (
        f"the trace covers {seen}: sizes whose clock pass takes more than half of it follow from what the "
        "pool held and the visits, not from replay; their intervals hold all rates that agree with these. "
        f"A clock pass takes {format_minutes(seconds / max(passes, 1e-3))}"
    )


@reason_kind
def short_for_change() -> str:
    """The trace covers less than a clock pass, so that no other load can be made of it."""
    return (
        "the trace covers less than a clock pass: most of what is known of the pages is what the pool held, "
        "which another load would have left otherwise"
    )


@reason_kind
def first_accesses(share: float) -> str:
    """A trace of others is counted from an empty pool."""
    return (
        f"counted from an empty pool: {percent2(share)} of the accesses are first ones, and count as misses; "
        "the lower bounds leave them out"
    )


@reason_kind
def foreign_pages_sampled() -> str:
    """A long trace of others was replayed by samples of its pages."""
    return "the trace is long, and was replayed by samples of its pages"


@reason_kind
def load_not_observed() -> str:
    """A what-if changes the load."""
    return "the changed load was never observed: the intervals do not cover the error of the assumptions"


@reason_kind
def kept_leaves_little(sizes_bytes: Sequence[int]) -> str:
    """Some sizes hold little more than what a what-if keeps in the pool."""
    sizes = ", ".join(format_bytes(size) for size in sizes_bytes[:3])
    return f"at {sizes} little more would fit than what is kept: not predicted"


@reason_kind
def refused_without_change() -> str:
    """The curve without the what-ifs is refused."""
    return "the curve without the what-ifs is refused"


@reason_kind
def changed_from_nothing_evicted() -> str:
    """Nothing was evicted, so nothing follows for another load."""
    return "nothing was evicted while it was observed: what would be under another load is not known"
