"""The rounds of keeping relations resident, through one session: take a snapshot, touch, read again, wait."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.pg.catalog.agreement import MAX_USAGE_COUNT
from pgsweep.pg.catalog.buffercache import Snapshot
from pgsweep.pg.catalog.counters import CounterReader
from pgsweep.pg.catalog.counting import Counting
from pgsweep.pg.keep import Place, prepare_session, read_places, touch, touch_statements
from pgsweep.pg.prewarm import require_prewarm
from pgsweep.pg.session.connect import Connection, require_session
from pgsweep.pg.session.failures import (
    DriverError,
    InvalidParameterValue,
    LockNotAvailable,
    SessionLost,
)
from pgsweep.pg.session.refusals import explained
from pgsweep.residency.access import Access
from pgsweep.residency.pool import PoolReader
from pgsweep.warm.keep.choice import choose, hottest, stretches, touches, visits
from pgsweep.warm.keep.ledger import Ledger
from pgsweep.warm.keep.session import Found, Kept, reason
from pgsweep.warm.keep.state import HandSpeed, Tracked

_ROUNDS_A_PASS: Final = 4
_SHORTEST_SECONDS: Final = 0.02
_LONGEST_SECONDS: Final = 1.0
LOOK_SHARE: Final = 0.1
_REST_SHARE: Final = 0.02
"""Share of the time that snapshots may take, and may take while the hand turns slowly: of one of our
processors by peek, of one backend by SQL."""

_MARGIN: Final = 1.5
_GUARD_PASSES: Final = 0.25
"""Blocks up to this far ahead of the hand are touched even while it stands still: a flood may begin at any
time."""

_PLACES_SECONDS: Final = 1.0
_NAMES_SECONDS: Final = 2.0
"""Between two times at which it is asked what the names mean: an index may be rebuilt, a partition added."""

_COUNTERS_SECONDS: Final = 1.0
_ALLOCATIONS_SECONDS: Final = 0.2
"""The interval at which the background writer reports allocations (bgwriter_delay)."""

_LOCKED_SECONDS: Final = 2.0
_BEGIN_SECONDS: Final = 0.1
_BURST_SECONDS: Final = 1.0
"""Seconds' worth of reading that may be done at once: in the first round, and later."""

Work = tuple[Tracked, NDArray[np.int64], NDArray[np.int64]]
"""A relation, blocks of it, and how often each is to be touched."""


class Rounds:
    """Keeps relations resident through one session, as long as it lives.

    Args:
        access: the server.
        relations: what is known of them; is kept up to date.
        find: returns what the names mean now.
        adopt: makes of a relation that is new one to keep; None where it is not to be kept.
        ledger: what the rounds have done; is kept up to date.
        budget_blocks: never keep more than that.
        rate_blocks: that may be read again a second.
        interval_seconds: from one round to the next; None adapts it.
        note: called with messages about events.
    """

    def __init__(
        self,
        access: Access,
        relations: list[Tracked],
        ledger: Ledger,
        *,
        find: Callable[[], Found],
        adopt: Callable[[Kept, Place], Tracked | None],
        budget_blocks: int,
        rate_blocks: float,
        interval_seconds: float | None,
        note: Callable[[str], None],
    ) -> None:
        self._access = access
        self._connection: Connection = access.connection
        self._relations = relations
        self._ledger = ledger
        self._find, self._adopt = find, adopt
        self._budget_blocks = budget_blocks
        self._rate_blocks = rate_blocks
        self._fixed_interval = interval_seconds
        self._note = note
        self.prewarm = require_prewarm(self._connection)
        prepare_session(self._connection)
        self.hand = HandSpeed(access.server.shared_buffers_blocks)
        self._counters, self._counting = CounterReader(self._connection, {}, []), Counting()
        self._reader: PoolReader | None = None
        self._read_for: tuple[int, ...] = ()
        self._allocations = 0.0
        self._accesses_before: float | None = None
        self._free_buffers: int | None = None
        self._unplaced_blocks = 0
        self._look_cost = 0.0
        self._round_cost = 0.0
        self._squeeze = 1.0
        self.tokens = _BEGIN_SECONDS * rate_blocks
        self._looked_at: float | None = None
        self._due = dict.fromkeys(("places", "names", "counters", "allocations"), 0.0)
        for relation in relations:
            # After a restart nothing is there: that is not a loss to a flood.
            relation.expected[:] = False

    def keep_on(self, until: float, stop: threading.Event, report: Callable[[], None]) -> str:
        """Go on until that time or the stop; return why it ended: time, stop, or gone (no relation is left).

        Raises:
            PgsweepError: a statement was cancelled or took too long.
        """
        self._try_rights()
        while True:
            begin = time.monotonic()
            ending = stop.is_set() or begin >= until
            if ending:
                self._due["places"] = begin  # what was dropped lately is not resident at the end
            self.look(begin)  # what the last touches brought counts too
            # Checked even if connecting took all the time: that nothing could be kept must be reported.
            if not any(relation.active for relation in self._relations):
                return "gone"
            if ending:
                return "stop" if stop.is_set() else "time"
            for relation, blocks, times in self.due():
                if not stop.is_set():
                    self._touch(relation, blocks, times)
            for relation, blocks, times in self.again():
                if not stop.is_set():
                    self._touch(relation, blocks, times)
            self._ledger.rounds += 1
            self._ledger.at = time.monotonic()
            self._round_cost = self._ledger.at - begin
            self._ledger.interval_seconds = self.interval_seconds
            report()
            stop.wait(
                min(
                    max(0.0, begin + self.interval_seconds - time.monotonic()),
                    max(0.0, until - time.monotonic()),
                )
            )

    @property
    def interval_seconds(self) -> float:
        """Seconds from one round to the next: a quarter of a clock pass, limited by the cost of snapshots."""
        if self._fixed_interval is not None:
            return self._fixed_interval
        shortest = max(_SHORTEST_SECONDS, self._look_cost / LOOK_SHARE)
        longest = max(_LONGEST_SECONDS, self._look_cost / _REST_SHARE)
        if self.hand.looks < 2:
            return max(shortest, _ALLOCATIONS_SECONDS)  # two snapshots show how fast the hand is
        return min(longest, max(shortest, self._squeeze * self.hand.pass_seconds / _ROUNDS_A_PASS))

    def look(self, now: float) -> None:
        """Look at the pool, and choose what to keep."""
        require_session(self._connection)
        with explained():
            if now >= self._due["places"]:
                self._due["places"] = now + _PLACES_SECONDS
                self._find_places()
            if now >= self._due["counters"]:
                self._due["counters"] = now + _COUNTERS_SECONDS
                self._count_accesses()
            pool = self._take()
        now = time.monotonic()
        seconds = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        self.tokens = min(self.tokens + self._rate_blocks * seconds, self.burst)
        self.hand.add(now, pool, self._allocations)
        self._free_buffers = self._access.server.shared_buffers_blocks - pool.used_buffers
        if self._free_buffers == 0:
            self._ledger.replacing_blocks += self._unplaced_blocks
        self._unplaced_blocks = 0
        self._ledger.shortest_pass_seconds = min(self._ledger.shortest_pass_seconds, self.hand.pass_seconds)
        active = [relation for relation in self._relations if relation.active]
        for relation in active:
            relation.see(pool, seconds)
        masks = choose([r.heat.heat for r in active], [r.chosen for r in active], self._budget_blocks)
        lost = kept = 0
        for relation, mask in zip(active, masks, strict=True):
            relation.chosen = mask
            lost += relation.count(seconds)
            kept += int(mask.sum())
        self._ledger.lost_blocks += lost
        self._ledger.see(active, seconds)
        # Blocks that were lost nevertheless show that the hand is faster than estimated.
        self._squeeze = max(0.1, self._squeeze / 2) if lost > 0.005 * kept else min(1.0, 1.1 * self._squeeze)

    def due(self) -> Iterator[Work]:
        """Return the resident blocks that would be evicted before the next round, and their touches."""
        pool_buffers = self._access.server.shared_buffers_blocks
        for relation in self._workable():
            mine = relation.chosen[relation.blocks]
            coming = visits(relation.buffers[mine], self.hand.hand, self._ahead_buffers(), pool_buffers)
            times = touches(relation.usage_counts[mine], coming)
            if times.any():
                yield relation, relation.blocks[mine][times > 0], times[times > 0]

    def again(self) -> Iterator[Work]:
        """Return the blocks that have gone and may be read again now, the hottest of them."""
        workable = self._workable()
        missing = [relation.missing() for relation in workable]
        chosen = hottest([r.heat.heat for r in workable], missing, int(self.tokens))
        # They land behind the hand, a whole pass before it.
        passes = self._ahead_buffers() / self._access.server.shared_buffers_blocks
        once = int(np.clip(math.ceil(passes) - 1, 1, MAX_USAGE_COUNT))
        for relation, blocks in zip(workable, chosen, strict=True):
            if len(blocks):
                self.tokens -= len(blocks)
                yield relation, blocks, np.full(len(blocks), once, dtype=np.int64)

    @property
    def burst(self) -> float:
        """Blocks that may be read again at once, after a while in which none were."""
        return max(self._rate_blocks * _BURST_SECONDS, 1.0)

    def _workable(self) -> list[Tracked]:
        now = time.monotonic()
        return [r for r in self._relations if r.active and now >= r.rest_until and r.place.blocks is not None]

    def _ahead_buffers(self) -> float:
        """Return how many buffers the hand may pass before the touches of the next round are done."""
        buffers = self._access.server.shared_buffers_blocks
        ahead = _MARGIN * self.hand.buffers_per_second * (self.interval_seconds + self._round_cost)
        ahead /= self._squeeze
        return min(max(ahead, _GUARD_PASSES * buffers), MAX_USAGE_COUNT * buffers)

    def _touch(self, relation: Tracked, blocks: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        version_num = self._access.server.version_num
        statements = touch_statements(version_num, self.prewarm, relation.kept.oid, stretches(blocks, times))
        for statement in statements:
            try:
                done = touch(self._connection, statement)
            except LockNotAvailable:
                relation.rest_until = time.monotonic() + _LOCKED_SECONDS
                return
            except InvalidParameterValue:
                return  # truncated just now; the next round knows its size
            except DriverError as error:
                if self._connection.broken or isinstance(error, SessionLost):
                    with explained():
                        raise
                relation.trouble, relation.enable = reason(error, relation.kept, self._connection)
                enable = f"; {relation.enable}" if relation.enable else ""
                self._note(f"{relation.kept.label}: {relation.trouble}; it is kept no more{enable}")
                return
            if done is None:
                # It is gone; at the next look the names may mean another in its place.
                relation.rest_until = time.monotonic() + _LOCKED_SECONDS
                self._due["places"] = self._due["names"] = 0.0
                return
            read = done.blocks - done.hits
            relation.touched_blocks += done.hits
            relation.read_blocks += read
            self._ledger.touched_blocks += done.hits
            self._ledger.read_blocks += read
            self._ledger.replacing_blocks += self._replacing(read)
            self._ledger.own_accesses += done.blocks
            self._ledger.touch_seconds += done.seconds
            self._ledger.statement_seconds += done.seconds
        relation.expected[blocks] = True
        relation.heat.touched(blocks, times)

    def _replacing(self, read: int) -> int:
        """Return for how many of the blocks that were read the pool had no free buffer."""
        if self._free_buffers is None:
            self._unplaced_blocks += read  # the first snapshot shows where they went
            return 0
        free = min(read, self._free_buffers)
        self._free_buffers -= free
        return read - free

    def _try_rights(self) -> None:
        """Touch one block of each relation, so that it is known from the beginning which may be read."""
        for relation in self._workable():
            if len(relation.chosen):
                self._touch(relation, np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64))

    def _find_places(self) -> None:
        active = [relation for relation in self._relations if relation.active]
        with self._timed():
            places = read_places(self._connection, [relation.kept.oid for relation in active])
        if any(relation.kept.oid not in places for relation in active) or (
            time.monotonic() >= self._due["names"]
        ):
            self._due["names"] = time.monotonic() + _NAMES_SECONDS
            places |= self._follow_names(active, places)
        for relation in active:
            place = places.get(relation.kept.oid)
            if place is None:
                self._drop(relation, "dropped")
                continue
            if place.file != relation.place.file:
                self._note(f"{relation.kept.label} was rewritten; its new blocks are kept from now on")
            relation.move(place)

    def _follow_names(self, active: list[Tracked], places: dict[int, Place]) -> dict[int, Place]:
        """Keep what the names mean now; return the places of relations that are new."""
        with self._timed():
            found = self._find()
            known = {relation.kept.oid for relation in self._relations}
            new = read_places(self._connection, [oid for oid in found.kept if oid not in known])
        waiting = {found.kept[oid].label: found.kept[oid] for oid in new}
        for relation in active:
            if relation.kept.oid in found.kept:
                relation.kept = found.kept[relation.kept.oid]  # it may have been renamed
            elif (heir := waiting.get(relation.kept.label)) is not None:
                adopted = self._adopt(heir, new[heir.oid])
                del waiting[heir.label]
                if adopted is None:
                    continue
                relation.kept, relation.rest_until = heir, 0.0
            elif found.whole and relation.kept.oid in places:
                self._drop(relation, "taken out of what the names mean")
        for label, kept in waiting.items():
            if (adopted := self._adopt(kept, new[kept.oid])) is not None:
                self._relations.append(adopted)
                self._note(f"{label} is new; it is kept from now on")
        return new

    def _drop(self, relation: Tracked, how: str) -> None:
        relation.dropped = True
        relation.share = None
        if not any(each.active for each in self._relations):
            self._ledger.share_after = None
        relation.trouble = f"it was {how} meanwhile"
        self._note(f"{relation.kept.label} was {how}")

    def _count_accesses(self) -> None:
        with self._timed():
            counters = self._counters.cumulative()
        block = self._access.server.block_size_bytes
        sums = self._counting.add(counters, at=time.monotonic(), hand_buffers=None, block_bytes=block)
        total, before = sums.hits + sums.reads, self._accesses_before
        self._accesses_before = total
        if before is not None:
            self._ledger.all_accesses = (self._ledger.all_accesses or 0.0) + total - before

    def _take(self) -> Snapshot:
        filenodes = tuple(sorted(r.place.file[2] for r in self._relations if r.active))
        if self._reader is None or filenodes != self._read_for:
            self._reader, self._read_for = PoolReader(self._access, filenodes), filenodes
        begin = time.monotonic()
        if self._access.pool_source == "sql":
            with self._timed():
                pool = self._reader.read()
            self._ledger.look_seconds += time.monotonic() - begin
        else:
            pool = self._reader.read()
        self._look_cost = time.monotonic() - begin
        if pool.hand_buffers is None and begin >= self._due["allocations"]:
            self._due["allocations"] = begin + _ALLOCATIONS_SECONDS
            with self._timed():
                writers = self._counters.writers()
            self._allocations = sum(c.value for c in writers if c.name == "buffers_alloc")
        return pool

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self._ledger.statement_seconds += time.monotonic() - begin
