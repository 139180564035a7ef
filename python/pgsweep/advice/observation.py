"""How long to observe a server for a decision: until the interval of the decision is narrow enough.

A recording measures by itself when its data suffice: by clock passes, or a trace by its length. Those
measures do not know the decision. Two sizes that differ little need a longer recording; an idle server does
not. So the advice is computed from the recording, and where a longer one could change it, the server is
recorded further: snapshots are continued, and a trace is repeated with twice its length, because its replay
begins with the pool's contents at its own beginning. The next recording is at least as long as the page cache
keeps a page after a read: pages that are used more rarely are read from disk each time. This ends when the
decision is settled, when the longer recording did not narrow the interval, or at a limit.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pgsweep.advice.shared_buffers import LEAST_WAIT, gains_by_size
from pgsweep.evidence.joined import JoinedEvidence
from pgsweep.files import rename_flushed
from pgsweep.progress import Progress
from pgsweep.records.advice import AdviceResult, Gain, ReadsPoint
from pgsweep.records.prediction import RecordResult
from pgsweep.units import BLOCK_BYTES, format_bytes, format_minutes, format_percent

MOST_SNAPSHOT_SECONDS: Final = 600.0
MOST_TRACE_SECONDS: Final = 160.0
"""A trace costs the server some speed, and each second of it takes space."""

_NARROWED: Final = 0.9
"""With twice the time an interval is 0.7 times as wide where it shows the noise of the observation. If it
stays above this share, it shows the error of the method, which a longer recording does not reduce."""

_SNAPSHOTS: Final = 480
_SAMPLES: Final = 960
_ALL_SECONDS: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Why a decision is not settled.

    Attributes:
        text: the reason, for people to read.
        width: of the interval of the gain that is in doubt; None where nothing is predicted.
        kept_seconds: for how long the page cache keeps what it has read; 0 where that is not known.
    """

    text: str
    width: float | None
    kept_seconds: float = 0.0


def doubt_of(advice: AdviceResult) -> Doubt | None:
    """Return why a longer recording might change the advice on shared_buffers; None where it would not.

    It would not where a size is advised already, where no size may gain enough, and where the interval does
    not depend on the length of the recording: disk reads that are only bounded, or not known.
    """
    decided = next(one for one in advice.settings if one.name == "shared_buffers")
    if decided.action == "set" or advice.disk_reads_from == "unknown":
        return None
    if advice.verdict.level == "refused":
        return Doubt(text="no prediction is possible yet", width=None)
    today = advice.observed.shared_buffers_bytes
    now = next((point for point in advice.points if point.shared_buffers_bytes == today), None)
    if now is None or now.wait_high < LEAST_WAIT or advice.disk_reads_from == "bounded":
        return None
    gains, least = gains_by_size(now, advice.points)
    open_ = {size: gain for size, gain in gains.items() if gain.high >= least and not _certain(gain, least)}
    if not open_:
        return None
    size = max(open_, key=lambda size: open_[size].value)
    gain = open_[size]
    low, high = (format_percent(bound, sign=True) for bound in (gain.low, gain.high))
    return Doubt(
        text=f"{format_bytes(size)} may change the {gain.of} by {low} to {high}",
        width=gain.high - gain.low,
        kept_seconds=max(
            _kept_seconds(advice.memory_bytes, point)
            for point in advice.points
            if point.shared_buffers_bytes in (today, size)
        ),
    )


def _kept_seconds(memory_bytes: int | None, reads: ReadsPoint) -> float:
    """Return in how many seconds as much is read from disk as the page cache holds; 0 where not known."""
    if memory_bytes is None or reads.disk_reads_per_second <= 0:
        return 0.0
    left = max(memory_bytes - reads.shared_buffers_bytes, 0)
    return left / (reads.disk_reads_per_second * BLOCK_BYTES)


def _certain(gain: Gain, least: float) -> bool:
    return gain.low > 0 and gain.value >= least


def observe(
    out: Path,
    record: Callable[[Path, float | None], RecordResult],
    advise: Callable[[Path], AdviceResult],
    *,
    progress: Progress,
    stop: threading.Event,
) -> RecordResult:
    """Record a server until the decision is settled, and return the last recording's result.

    Args:
        out: the folder of the evidence; at the end it holds all that was recorded of snapshots, or the
            longest trace.
        record: records into a folder, for some seconds; None for as long as the recording finds sufficient.
        advise: computes the advice from a folder.
        progress: called with the reason before the server is recorded further.
        stop: ends the recording, and the observation.

    Raises:
        PgsweepError: as `record` and `advise` do.
    """
    result = record(out, None)
    seconds = result.seconds
    before: Doubt | None = None
    while result.ended_by in ("enough", "time") and not stop.is_set():
        progress.stage("computing whether this suffices for a decision")
        doubt = doubt_of(advise(out))
        if doubt is None:
            break
        if before is not None and not _narrowed(before, doubt):
            progress.note(f"{doubt.text}: a longer recording does not narrow this")
            break
        trace = result.source == "trace"
        most = MOST_TRACE_SECONDS if trace else MOST_SNAPSHOT_SECONDS
        further = 2 * result.seconds if trace else seconds
        already = 0.0 if trace else seconds
        if further + already > most * 1.01:
            progress.note(f"{doubt.text}: it stays open after {format_minutes(seconds)} of recording")
            break
        further = max(further, min(doubt.kept_seconds, most) - already)
        how = "recording a longer trace of" if trace else "recording further"
        progress.note(f"{doubt.text}: {how} {format_minutes(further)}")
        result = _further(out, record, further, joined=not trace)
        seconds = result.seconds if trace else seconds + result.seconds
        before = doubt
    return result


def _narrowed(before: Doubt, now: Doubt) -> bool:
    if now.width is None:
        return before.width is not None
    return before.width is None or now.width < before.width * _NARROWED


def _further(
    out: Path, record: Callable[[Path, float | None], RecordResult], seconds: float, *, joined: bool
) -> RecordResult:
    """Record again beside the evidence that is there, and put both, or the later one, in its place."""
    later, both, former = (
        out.with_name(f"{out.stem}.{part}{out.suffix}") for part in ("more", "both", "former")
    )
    try:
        result = record(later, seconds)
        if joined:
            window = JoinedEvidence.of(
                [out, later], _ALL_SECONDS, most_snapshots=_SNAPSHOTS, most_samples=_SAMPLES
            )
            window.write(both)
        # Whatever ends the program here leaves whole evidence, under this name or under one beside it.
        out.rename(former)
        rename_flushed(both if joined else later, out)
    finally:
        for path in (later, both, former):
            if out.exists():
                shutil.rmtree(path, ignore_errors=True)
    return result
