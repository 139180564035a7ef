"""Reasons beside the verdict of a trace, and of what-ifs (see reasons.py)."""

from __future__ import annotations

from collections.abc import Sequence

from pgsweep.records.reasons import percent2, reason_kind
from pgsweep.units import format_bytes, format_count, format_minutes, format_percent


@reason_kind
def blocks_not_tracked(blocks: int) -> str:
    """Dropped relations had more blocks than are tracked."""
    return (
        f"the dropped relations had {blocks} blocks more than are tracked: those of them that were in the "
        "pool are assumed to stay in it"
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
        f"the accesses replayed from the pool's own contents miss {percent2(exact)} at today's size, where "
        f"{percent2(measured)} was counted{_most_of_it(relation, replayed, counted)}"
    )


@reason_kind
def relations_off_today(share: float, relation: str, replayed: int, counted: int) -> str:
    """Relations do not miss in the replay as they were counted."""
    return (
        f"relations do not miss as they were counted ({percent2(share)} of the accesses at today's size)"
        f"{_most_of_it(relation, replayed, counted)}"
    )


@reason_kind
def start_decides(drawn: float, exact: float | None, measured: float) -> str:
    """How the replay starts decides its result."""
    mark = (
        f"{percent2(measured)} was measured"
        if exact is None
        else f"one that begins with the pool's own contents gives {percent2(exact)}"
    )
    return f"a replay that begins with a drawn warm state gives {percent2(drawn)} at today's size, but {mark}"


@reason_kind
def scans_meet(share: float) -> str:
    """Several sessions scan a table at the same time."""
    return (
        "several sessions scan the same table at the same time and read for one another; how often they meet "
        f"changes with the size: by up to {percent2(share)} of the accesses"
    )


@reason_kind
def scans_linger(from_bytes: int, relation: str, fresh: float, soon: float, settled: float) -> str:
    """What scans leave behind depends on how long the server has run."""
    return (
        f"from {format_bytes(from_bytes)} on, scans of {relation} leave pages behind that the next scan "
        f"still finds: {percent2(fresh)} holds just after a restart, {percent2(soon)} a minute later, "
        f"{percent2(settled)} after a long time"
    )


@reason_kind
def scans_seen_once(size_bytes: int, share: float) -> str:
    """A table was scanned once, so it is not known what the next scan finds."""
    return (
        f"at {format_bytes(size_bytes)} it is not known whether tables that were scanned once are still "
        f"there at the next scan ({percent2(share)} of the accesses): record for longer than scans are apart"
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
        "the load moves from page to page, or visits a page several times and then no more: of the pages "
        f"visited several times, and first in the second half of the trace, {format_percent(share)} would "
        f"have been visited before, if visits came at random times{_may_miss(size_bytes, bounds)}: record "
        "for longer"
    )


@reason_kind
def visits_in_turn(share: float, relation: str, size_bytes: int, bounds: tuple[float, float]) -> str:
    """Pages are visited in turn, as a loop does."""
    of = f", most of them of {relation}" if relation else ""
    return (
        f"{format_percent(share)} of the accesses visit pages in turn, as a loop does{of}: which of them "
        f"stay depends on what the pool held before{_may_miss(size_bytes, bounds)}"
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
        "the trace is long: replayed by samples of its pages, each in a pool that is smaller in proportion; "
        f"the intervals include the sampling error, up to ±{percent2(error)}"
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
    few = "" if scans is None else f" ({scans} scans of one kind were seen)"
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
        "the trace: those sizes rest on estimated rates, not on replay alone"
    )


@reason_kind
def first_accesses(share: float) -> str:
    """A trace of others is counted from an empty pool."""
    return (
        f"counted from an empty pool: {percent2(share)} of the accesses are first ones, and count as misses; "
        "in a server that has run for long they need not miss, and the lower bounds leave them out"
    )


@reason_kind
def foreign_pages_sampled() -> str:
    """A long trace of others was replayed by samples of its pages."""
    return "replayed by samples of the pages, each in a pool that is smaller in proportion"


@reason_kind
def load_not_observed() -> str:
    """A what-if changes the load."""
    return (
        "the changed load was never observed: the intervals take the assumptions as exact and do not cover "
        "their error"
    )


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
