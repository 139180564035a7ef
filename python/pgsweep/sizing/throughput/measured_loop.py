"""The closed loop of the sessions as it is today, from counters over a recording."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pgsweep.evidence.schema import STATISTICS_RESET
from pgsweep.records.prediction import DiskLatency
from pgsweep.sizing.throughput.closed_loop import ClosedLoop
from pgsweep.sizing.throughput.timed_reads import waited_per_second
from pgsweep.units import format_percent

if TYPE_CHECKING:
    from pgsweep.sizing.observed import Observation, Rate, Server

MOST_SESSIONS: Final = 10_000

_MOST_OTHERS: Final = 0.5
"""The share of the processors' time from which on others saturate them."""

_FEWEST_TRANSACTIONS: Final = 100
_SESSIONS: Final = "client backend/relation/normal"
_COPIES_OF_A_WRITE: Final = 10
"""What a write of a block takes of a processor at most, as a multiple of a copy. It copies the block into the
page cache and enters its pages there; what takes longer waits, as where too much of the page cache is dirty
(Linux mm/page-writeback.c, balance_dirty_pages). Four to five copies in benchmarks/advise."""

_DATABASE_COUNTERS: Final = ("xact_commit", "xact_rollback", "active_time", "session_time", "blk_read_time")


class Refused(Exception):
    """There is no prediction; the text says why."""


@dataclass(frozen=True, kw_only=True)
class MeasuredLoop:
    """The closed loop of today, measured.

    Attributes:
        sessions: connected, on average.
        transactions_per_second: of all of them.
        active_seconds: of a transaction, from the client's request to the answer.
        demand_seconds: processor time of a transaction, what the recording cost it included.
        recording_seconds: of that, what the recording cost.
        processors: that the server may use: all, less what others use, or those that its cgroup and its
            affinity mask leave it, where these are fewer; may be fractional.
        limited: it may not use all that others leave.
        others: processors that other programs use; the clients, where they run on the host, among them.
        read_seconds: of waiting for reads in one second, page cache and disk.
        writes_timed: how long sessions wrote is known.
        write_seconds: processor time of writing pages that leave the pool in one second, by sessions.
        write_wait_seconds: what these writes take besides.
        copy_seconds: of one read from the page cache.
        cold_read_seconds: processor time of the reader of one block from disk; None where not measured.
        dirty_share: of the pages that leave the pool, those that were written out for it.
        latencies: of the disk by depth; none where they were not measured.
        no_latencies: why not.
    """

    sessions: float
    transactions_per_second: float
    active_seconds: float
    demand_seconds: float
    recording_seconds: float
    processors: float
    limited: bool
    others: float
    read_seconds: float
    writes_timed: bool
    write_seconds: float
    write_wait_seconds: float
    copy_seconds: float
    cold_read_seconds: float | None
    dirty_share: float
    latencies: list[DiskLatency]
    no_latencies: str

    def delay_seconds(self) -> float | None:
        """Return what a transaction takes outside the processors; None where these alone are too slow."""
        loop = ClosedLoop(delay_seconds=0.0, demand_seconds=self.demand_seconds, processors=self.processors)
        return loop.delay_for(self.transactions_per_second, self.sessions)

    def with_clients(self) -> MeasuredLoop:
        """Return the loop whose transactions take the time of the other programs too, as clients' do.

        A server that is limited leaves them other processors.
        """
        if self.limited:
            return self
        return replace(
            self,
            demand_seconds=self.demand_seconds + self.others / self.transactions_per_second,
            processors=self.processors + self.others,
            others=0.0,
        )


def measure_loop(observation: Observation) -> MeasuredLoop:
    """Return the loop that the counters show.

    Raises:
        Refused: they do not show one.
    """
    server = observation.server
    timing = server.io_is_timed
    waited = None if timing else waited_per_second(observation)
    if not timing and waited is None:
        raise Refused(
            "how long sessions wait for reads was not measured (ALTER SYSTEM SET track_io_timing = on; a "
            "reload, then record again; or, as root on the server's host, pgsweep record --time-reads)"
        )
    copy = server.copy_seconds
    count = _processors(server)
    if copy is None:
        raise Refused(
            "what a copy from the page cache takes was not measured (record on the server's host, with "
            "--source peek or trace)"
        )
    if count is None:
        raise Refused("the evidence was recorded by an earlier pgsweep, which measured no processor times")
    counters = observation.counters
    counted = [counters.series("database", server.database, name) for name in _DATABASE_COUNTERS]
    if STATISTICS_RESET in server.warnings or any((np.diff(values) < 0).any() for values in counted):
        raise Refused(f"{STATISTICS_RESET}, so what was counted shortly before that is lost")
    rate = counters.rate
    base = {name: rate("database", server.database, name) for name in _DATABASE_COUNTERS}
    own, busy = (rate("host", "", f"{name}_cpu_seconds") for name in ("server", "host"))
    if own is None or busy is None or base["active_time"] is None or base["session_time"] is None:
        raise Refused("the processor time of the server or the time of its sessions was not measured")
    commits = (base["xact_commit"] or 0.0) + (base["xact_rollback"] or 0.0)
    if commits * server.seconds < _FEWEST_TRANSACTIONS:
        raise Refused("too few transactions ended while it was observed")
    active = base["active_time"] / 1000
    sessions = max(base["session_time"] / 1000, active)
    others = max(0.0, busy - own)
    allowed = _server_processors(server.host, count)
    if count - others < (1 - _MOST_OTHERS) * allowed:
        raise Refused(f"others use {format_percent(others / count)} of the processors")
    if sessions > MOST_SESSIONS or active <= 0:
        raise Refused("the times of the sessions are impossible")
    pages, written = _written_by_sessions(rate, server.database)
    writing = min(written, pages * copy * _COPIES_OF_A_WRITE)
    return MeasuredLoop(
        sessions=sessions,
        transactions_per_second=commits,
        active_seconds=active / commits,
        demand_seconds=min(own, count) / commits,
        recording_seconds=_recording_seconds(server) / commits,
        processors=max(min(count - others, allowed), own),
        limited=allowed < count - others,
        others=others,
        read_seconds=(base["blk_read_time"] or 0.0) / 1000 if waited is None else waited,
        writes_timed=timing,
        write_seconds=writing,
        write_wait_seconds=written - writing,
        copy_seconds=copy,
        cold_read_seconds=server.host_seconds("cold_read_nanoseconds"),
        dirty_share=_dirty_share(rate, pages),
        latencies=server.latencies,
        no_latencies=server.no_latencies,
    )


def _processors(server: Server) -> int | None:
    """Return how many processors the host has; None where that was not recorded."""
    text = server.host.get("processors", "")
    return int(text) if text.isdecimal() and 0 < int(text) < 10_000 else None


def _server_processors(host: dict[str, str], count: int) -> float:
    """Return how many of the host's processors the server may use; all where that was not recorded."""
    text = host.get("server_processors", "")
    known = text.replace(".", "", 1).isdecimal() and len(text) < 9 and float(text) > 0
    return min(float(text), count) if known else float(count)


def _written_by_sessions(rate: Rate, database: str) -> tuple[float, float]:
    """Return how many pages sessions write in a second to make room in the pool, and the seconds it takes.

    From pg_stat_io on 16 and later; before, of all writes of sessions, new blocks and rings among them.
    """
    pages, milliseconds = rate("io", _SESSIONS, "writes"), rate("io", _SESSIONS, "write_time")
    if pages is None:
        pages = rate("bgwriter", "", "buffers_backend")
        milliseconds = rate("database", database, "blk_write_time")
    return pages or 0.0, (milliseconds or 0.0) / 1000


def _dirty_share(rate: Rate, written_by_sessions: float) -> float:
    """Return which share of the pages that leave the pool was written for it, by sessions or the writer.

    From pg_stat_io on 16 and later; before, each read and each new page takes the place of one.
    """
    gone = rate("io", _SESSIONS, "evictions")
    clean = rate("io", "background writer/relation/normal", "writes")
    if not gone:
        gone, clean = rate("bgwriter", "", "buffers_alloc"), rate("bgwriter", "", "buffers_clean")
    return min((written_by_sessions + (clean or 0.0)) / gone, 1.0) if gone else 0.0


def others_share(observation: Observation) -> float | None:
    """Return which share of the processors other programs used; None where it was not measured."""
    count, rate = _processors(observation.server), observation.counters.rate
    own, busy = (rate("host", "", f"{name}_cpu_seconds") for name in ("server", "host"))
    return None if own is None or busy is None or count is None else max(0.0, busy - own) / count


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """What sessions do of themselves, whatever the server does.

    Attributes:
        count: connected, on average.
        pause_seconds: of a session outside of statements, for each transaction.
        transaction_seconds: of a session, from one transaction to the next.
    """

    count: float
    pause_seconds: float
    transaction_seconds: float


def sessions_of(observation: Observation) -> Sessions | None:
    """Return how many sessions there were and how long they paused; None where it was not counted."""
    connected, active, ended = (
        observation.counters.rate("database", observation.server.database, name)
        for name in ("session_time", "active_time", "xact_commit")
    )
    if not connected or active is None or not ended:
        return None
    return Sessions(
        count=connected / 1000,
        pause_seconds=max(0.0, connected - active) / 1000 / ended,
        transaction_seconds=connected / 1000 / ended,
    )


def _recording_seconds(server: Server) -> float:
    """Return the processor time that the probes took of the server in one second; 0 where it is not known."""
    known = server.overhead.get("event_cost_seconds", 0.0) * server.overhead.get("events", 0.0)
    # The events are those until the probes were gone; older evidence takes that to be its length.
    return float(known / max(server.overhead.get("probed_seconds", server.seconds), 1e-9))
