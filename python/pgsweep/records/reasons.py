"""Reasons beside a verdict: each has a code for programs and a sentence for people, and both stand here.

A function is a kind of reason. Its name, with hyphens, is the code; what it returns is the sentence. Sizes
are in bytes, shares and ratios from 0 to 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Final, ParamSpec

import msgspec

from pgsweep.units import (
    format_bytes,
    format_count,
    format_many,
    format_minutes,
    format_percent,
    format_plain,
)

P = ParamSpec("P")

CODES: Final[dict[str, str]] = {}
"""What each code is given for, in the order of this module."""

_TRACE: Final = "take a trace (record --source trace)"
_LONGEST_SECONDS: Final = 30 * 86_400.0
"""Nobody records for longer than a month."""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a prediction deserves caution, or what must be known of it.

    Attributes:
        code: the kind of reason; see docs/reference/verdict.md.
        text: a sentence.
    """

    code: str
    text: str

    def __str__(self) -> str:
        return self.text


def reason_kind(sentence: Callable[P, str]) -> Callable[P, Reason]:
    """Make a function that returns a sentence return the reason with its code."""
    code = sentence.__name__.replace("_", "-")
    CODES[code] = (sentence.__doc__ or "").rstrip(".")

    @functools.wraps(sentence)
    def reason(*args: P.args, **values: P.kwargs) -> Reason:
        return Reason(code=code, text=sentence(*args, **values))

    return reason


def unique(reasons: Iterable[Reason]) -> list[Reason]:
    """Return the reasons without those whose sentence was said before."""
    said: dict[str, Reason] = {}
    for reason in reasons:
        said.setdefault(reason.text, reason)
    return list(said.values())


def percent2(ratio: float) -> str:
    """Return a ratio in percent with two digits."""
    return format_percent(ratio, 2)


def _named(sizes_bytes: Sequence[int]) -> str:
    sizes = [format_bytes(size) for size in sizes_bytes]
    if len(sizes) > 2:
        return f"{len(sizes)} sizes from {sizes[0]} to {sizes[-1]}"
    return " and ".join(sizes)


# Of every prediction


@reason_kind
def evidence(text: str) -> str:
    """The evidence is incomplete, or a rule had to be assumed."""
    return text


@reason_kind
def size_not_known(sizes_bytes: Sequence[int], most_width: float, *, in_order: bool = False) -> str:
    """The interval at some size is too wide for a value to be shown."""
    cure = _TRACE if in_order else "record for longer; nearer to today's size it is known better"
    return f"at {_named(sizes_bytes)} the miss ratio is not known to ± {format_percent(most_width)}: {cure}"


@reason_kind
def size_not_shown(sizes_bytes: Sequence[int], least_seconds: float, most_passes: float) -> str:
    """The clock hand would pass a pool of some size too fast for snapshots."""
    return (
        f"at {_named(sizes_bytes)} the clock hand would pass the pool in less than "
        f"{format_plain(least_seconds)} s, or {format_plain(most_passes)} times as often as today, too fast "
        "for snapshots: record with --source trace"
    )


@reason_kind
def disk_reads_not_predicted(why: str) -> str:
    """The curve is predicted, and what comes from disk is not."""
    return f"what comes from disk is not predicted: {why}"


@reason_kind
def standby() -> str:
    """The server replays WAL."""
    return "the server is a standby: replay of WAL uses the pool too, and its accesses are not counted"


@reason_kind
def server_went_away(how: str) -> str:
    """The server ended or crashed during the recording."""
    return how


@reason_kind
def session_lost(how: str) -> str:
    """The recorder lost its session."""
    return how


# Of counters


@reason_kind
def counters_off() -> str:
    """track_counts is off."""
    return "track_counts is off: the server counts no accesses, and nothing is known of its misses"


@reason_kind
def statistics_reset(text: str) -> str:
    """The statistics were reset during the recording."""
    return text


def _counted(counts: Sequence[tuple[str, float, float]]) -> str:
    parts = [
        f"{format_count(relations)} {kind} against {format_count(all_)}" for kind, relations, all_ in counts
    ]
    return f"the relations and their database count {' and '.join(parts)}"


@reason_kind
def counters_contradict(counts: Sequence[tuple[str, float, float]]) -> str:
    """The counters of relations and of their database do not agree."""
    return (
        f"the server's counters contradict each other: {_counted(counts)}; record again, with "
        "--source trace, or use a newer pgsweep"
    )


@reason_kind
def counters_of_dropped(counts: Sequence[tuple[str, float, float]], changed: float) -> str:
    """Relations that were dropped took their counters with them."""
    return (
        f"{_counted(counts)}: {format_many(changed, 'relation was', 'relations were')} made or dropped "
        "meanwhile, and what is dropped takes its counters with it"
    )


@reason_kind
def temporary_relations(share: float, kind: str) -> str:
    """Part of the accesses are those of temporary relations."""
    return (
        f"{format_percent(share)} of the {kind} are those of temporary relations, outside shared_buffers: "
        "the same at any size"
    )


@reason_kind
def temporary_hide_hits(temporary: float, hits: float) -> str:
    """Hits of temporary relations that are reported late may be more than all hits of shared_buffers."""
    return (
        f"{format_count(temporary)} of {format_count(temporary + hits)} hits are those of temporary "
        "relations, and the two counters are up to a second apart: how many are hits of shared_buffers is "
        "not known; record for longer"
    )


# Of snapshots


@reason_kind
def no_miss() -> str:
    """No miss was counted."""
    return "no miss was counted: the pool holds all that is used, smaller sizes cannot be judged"


@reason_kind
def few_snapshots(snapshots: int) -> str:
    """There are too few snapshots."""
    found = "is only one snapshot" if snapshots == 1 else f"are only {snapshots} snapshots"
    return f"there {found}: record for longer"


@reason_kind
def short_recording(passes: float, snapshots: int, record_seconds: float | None) -> str:
    """The recording covers too little of a clock pass."""
    seen = f"{passes:.1f} clock passes" if passes >= 0.1 else "less than a tenth of a clock pass"
    known = record_seconds is not None and record_seconds <= _LONGEST_SECONDS
    how_long = f"for {format_minutes(record_seconds)}" if record_seconds and known else "for much longer"
    return f"the recording is short, {seen} in {format_many(snapshots, 'snapshot')}: record {how_long}"


@reason_kind
def one_look(passes: float, record_seconds: float) -> str:
    """The recording covers less than a clock pass: the curve is what one look at the pool allows."""
    seen = f"{passes:.1f} of a clock pass" if passes >= 0.1 else "less than a tenth of a clock pass"
    return (
        f"only {seen} was recorded: the intervals are as wide as one look at the pool allows, and whether "
        f"the load moves is not seen; record for {format_minutes(record_seconds)} to narrow them"
    )


@reason_kind
def load_shifted(relation: str, before: float, after: float) -> str:
    """Accesses moved from one relation to another."""
    return (
        f"the load changed: `{relation}` had {format_percent(before)} of the accesses in the first half, "
        f"{format_percent(after)} in the second"
    )


@reason_kind
def load_drifted(first: float, second: float) -> str:
    """The miss ratio of the second half differs from that of the first."""
    return (
        f"the load drifted: miss ratio {percent2(first)} in the first half, {percent2(second)} in the second"
    )


@reason_kind
def halves_not_compared() -> str:
    """There are too few snapshots to see whether the load moves."""
    return "there are too few snapshots to see whether the load moves: record for longer"


@reason_kind
def load_moves(apart: float) -> str:
    """Pages that are often used today are others than before."""
    return (
        "the load moves, or the recording is too short: at twice the size its halves predict a miss ratio "
        f"{format_percent(apart, 1)} away from that of the whole"
    )


def _scans(share: float) -> str:
    return f"{format_percent(share)} of the accesses are those of sequential scans"


@reason_kind
def scans(share: float) -> str:
    """Part of the accesses are those of sequential scans."""
    return f"{_scans(share)}: what they find at another size depends on when they run"


@reason_kind
def scans_not_known(share: float, relation: str) -> str:
    """How much scans find at another size is not known."""
    return (
        f"{_scans(share)}: how much of `{relation}` they find at another size, snapshots do not show; "
        f"{_TRACE}"
    )


@reason_kind
def in_order(share: float) -> str:
    """Misses fall on pages that come in the order of their blocks."""
    return (
        f"{format_percent(share)} of the misses came in the order of their blocks: such pages stay or go "
        f"together, which snapshots do not show; {_TRACE}"
    )


@reason_kind
def one_after_the_other(relations: Sequence[str], size_bytes: int, off: float) -> str:
    """Neighbouring pages of a relation rise and fall together."""
    others = f" and of {len(relations) - 1} more" if len(relations) > 1 else ""
    return (
        f"the pages of `{relations[0]}`{others} are visited one after the other and stay or go together, "
        f"which snapshots do not show: it may be ±{format_percent(off, 1)} at {format_bytes(size_bytes)}; "
        f"{_TRACE}"
    )


@reason_kind
def today_not_explained(predicted: float, measured: float) -> str:
    """The miss ratio predicted for today's size is not the measured one."""
    return (
        f"the method does not explain this load: at today's size it gives a miss ratio of "
        f"{format_percent(predicted, 1)}, where {format_percent(measured, 1)} was measured"
    )


@reason_kind
def misses_not_explained(relation: str, expected: float, counted: float) -> str:
    """A relation misses more or less than its usage counts explain."""
    return (
        f"the usage counts do not explain `{relation}`: they give {format_count(expected)} misses/s, the "
        f"server counted {format_count(counted)}"
    )


@reason_kind
def contents_not_explained(relation: str, expected: float, seen: float) -> str:
    """A relation has more or fewer pages in the pool than its rates explain."""
    return (
        f"its rates do not explain `{relation}`: they give {format_count(expected)} pages in the pool, "
        f"{format_count(seen)} were seen"
    )


@reason_kind
def other_databases(share: float) -> str:
    """Part of the pool holds pages of other databases."""
    return (
        f"{format_percent(share)} of the pool holds pages of other databases (`pgsweep cache --by database` "
        "shows them): what they would take of another size is not known"
    )


@reason_kind
def unknown_relations(share: float) -> str:
    """Part of the pool holds pages of relations that the catalog does not name."""
    return (
        f"{format_percent(share)} of the pool holds pages of relations that were created, rewritten or "
        "dropped during the recording: their sizes are not known"
    )


@reason_kind
def wide_interval(size_bytes: int, half_width: float) -> str:
    """The interval is wide at a size that is shown."""
    return (
        f"at {format_bytes(size_bytes)} the miss ratio is known to ± {format_percent(half_width, 1)} only: "
        "record for longer; nearer to today's size it is known better"
    )


# Of a pool from which nothing is evicted


@reason_kind
def still_filling(most_bytes: int, pool_bytes: int, filling_bytes: int) -> str:
    """The pool is not full yet."""
    return (
        f"the pool is still filling: {format_bytes(most_bytes)} of {format_bytes(pool_bytes)} held pages at "
        f"most, {format_bytes(filling_bytes)} of them new in the second half of the recording; record again "
        "when that no longer grows"
    )


@reason_kind
def never_full(snapshots: int, most_bytes: int, pool_bytes: int) -> str:
    """The pool was never full."""
    return (
        f"shared_buffers was never full: in {format_many(snapshots, 'snapshot')} at most "
        f"{format_bytes(most_bytes)} of {format_bytes(pool_bytes)} held pages"
    )


@reason_kind
def still_grows(grown_bytes: int, seconds: float, for_seconds: float) -> str:
    """The pool is not full, and a little more is used all the time."""
    return (
        f"what it holds still grows, by {format_bytes(grown_bytes)} in the last {format_count(seconds)} s: "
        f"room for {format_minutes(for_seconds)} of that is left to it"
    )


@reason_kind
def nothing_evicted() -> str:
    """The pool is full, and nothing was evicted."""
    return "shared_buffers is full, but nothing was evicted: all that is used fits into it"


@reason_kind
def full_for_a_time(evicted: float) -> str:
    """Pages were evicted between snapshots."""
    return (
        f"yet {format_count(evicted)} buffers were evicted or passed by the clock hand: between snapshots "
        "the pool was full for a time; record again, with shorter pauses between large loads and drops"
    )


@reason_kind
def smaller_not_known(known_from_bytes: int | None) -> str:
    """Nothing is known of smaller sizes."""
    if known_from_bytes is None:
        return "of smaller sizes nothing is known: to learn more, make it smaller and record again"
    return (
        f"no page had to leave, so nothing is known below {format_bytes(known_from_bytes)}: to learn more, "
        "set shared_buffers to about that size and record again"
    )


@reason_kind
def rings_end(relation: str, from_bytes: int) -> str:
    """From some size on scans would no longer use a ring."""
    return (
        f"scans of {relation} go through a ring, but from {format_bytes(from_bytes)} on they would not: "
        "nothing is known of those sizes"
    )


@reason_kind
def few_snapshots_of_unfilled(snapshots: int) -> str:
    """There are too few snapshots of a pool from which nothing is evicted."""
    return f"{format_many(snapshots, 'snapshot is', 'snapshots are')} few: record for longer"


@reason_kind
def filled_meanwhile(short: int, snapshots: int) -> str:
    """The pool was full in some snapshots only."""
    return (
        f"shared_buffers was not full in {short} of {snapshots} snapshots: it filled up, or relations were "
        "dropped; record again while it is full"
    )
