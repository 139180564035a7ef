"""The state from which a simulated pool starts: drawn from what a trace says about each page.

A trace begins in the middle of things. At today's size its own first seconds warm the pool; a pool eight
times as large would need minutes. So each pool starts in a state drawn from a model. The number of visits
that a page had during the trace gives a distribution of its rate (Poisson mixture, empirical Bayes, per
relation; pages never visited included), and in a short trace its state at the beginning does too (short.py).
Its rate and the clock pass at that size give the chance that it lies in the pool, and at which usage_count.
Given the rate, what happened before the trace is independent of what happened in it, so the drawn state may
stand before the trace it was derived from.

Where the pool was seen when the trace began, what it held says what lies in others: a larger one has all of
it, and a smaller one nothing else. That holds for a load whatever its visits, and most of all for one whose
pages come and go.

Scans are apart. At a size where a table's scans go through a ring they leave nothing in the pool. At a size
where they do not, they visit every page of the table in turn: the scans before the trace are drawn from
the gaps between those in it, and each page is followed through them (core/src/model/scans.rs).

Pages made during the trace have no past, but others like them were made before it, and fill a part of the
pool until the hand has passed them often enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.errors import UsageError
from pgsweep.sizing.clock import Clock
from pgsweep.sizing.traces.accesses import DROP, Trace
from pgsweep.sizing.traces.steadiness import Steadiness
from pgsweep.sizing.traces.visits import Scanned, Visits, by_group, scaled
from pgsweep.units import BLOCK_BYTES, format_bytes, format_count

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PoolPages = tuple[NDArray[np.uint32], NDArray[np.uint8]]

_NOTHING: Final[Mapping[int, float]] = {}
_LENGTHS = 160
_MOST_LAWS = 16
"""Laws of groups kept in memory; most groups have the same."""

_SAMPLED_PAGES = 48

_MOST_STRANGERS = 1 << 25
_STRANGERS_ANYWAY = 1 << 20
_STRANGERS_A_ROW = 32
"""Pages drawn into a pool that the trace never names, some 20 bytes each: at most 256 GB of shared_buffers,
and at most this number for each row of the evidence. Otherwise a few accesses to relations of an alleged huge
size could take all memory. A trace says nothing of a pool if it visits a smaller share of its pages."""

_BUFFERS_ANYWAY = 1 << 22
"""Buffers that each have a place of their own in a simulated pool, full or not, whatever the rows are."""

NO_PAGE = 2**32 - 1
"""What an empty buffer holds, in the outcome of a replay."""


@dataclass(frozen=True, kw_only=True)
class _Start:
    """What the pool held when the trace began.

    Attributes:
        held: which pages, shape (pages + 1,): the last is one that the trace never names.
        absent: by group, how likely a page was absent, by row of its states, and how many were lately made.
    """

    held: NDArray[np.bool_]
    absent: dict[int, tuple[Floats, Floats]]


class WarmPools:
    """Draws stationary states of pools of any size.

    Args:
        trace: what is replayed.
        visits: counted from it.
        rules: of the server; they decide which scans have a ring at a size.
        start_blocks: size of the pool that the trace began with, where others are drawn by what it held.

    Attributes:
        most_buffers: the largest pool whose buffers are simulated one by one.
    """

    def __init__(self, trace: Trace, visits: Visits, rules: _native.Rules, *, start_blocks: int = 0) -> None:
        self._trace = trace
        self._visits = visits
        self._rules = rules
        self._clock = Clock.of(rules)
        self._accesses = int(np.count_nonzero((trace.flags & DROP) == 0))
        rows = _STRANGERS_A_ROW * (self._accesses + (0 if trace.start is None else len(trace.start.pages)))
        self._most_strangers = min(max(rows, _STRANGERS_ANYWAY), _MOST_STRANGERS)
        self.most_buffers = max(rows, _BUFFERS_ANYWAY)
        self._pass_seconds = np.geomspace(1e-4, 1e6, _LENGTHS) * max(visits.duration_seconds, 1e-3) / 100
        self._by_group = by_group(trace)
        self._members = {group: named[~trace.new_page[named]] for group, named in self._by_group}
        self._never = {
            group: max(float(trace.group_pages[group]) - len(named), 0.0) for group, named in self._by_group
        }
        self._posteriors: dict[int, tuple[Floats, Ints]] = {}
        self._known: tuple[float, list[tuple[int, Floats, Ints]]] | None = None
        self._start_blocks = 0 if trace.start is None else start_blocks
        resident = np.zeros(_LENGTHS)
        random = np.random.default_rng(0)
        self._scans_add: dict[int, Floats] = {}
        rates = (self._pass_seconds[:, None] * visits.grid[None, :]).ravel()
        laws: dict[bytes, Floats] = {}
        for group, _ in self._by_group:
            batch = visits.batches[group]
            law = laws.get(batch.tobytes())
            if law is None:
                law = self._clock.law(rates, batch)[:, 0].reshape(_LENGTHS, -1)
                if len(laws) == _MOST_LAWS:
                    laws.clear()
                laws[batch.tobytes()] = law
            resident += (1 - law) @ visits.weights[group]
            if group in visits.scanned:
                posterior, index = self._posterior(group, visits.scanned[group].pages)
                by_value = (1 - law) @ posterior[:-1].T
                only = self._only_scanned(group)
                resident -= by_value[:, index[only]].sum(axis=1)
                self._scans_add[group] = self._looping(group, random) - by_value[:, index[~only]].sum(axis=1)
            resident += self._lately_made(group, self._pass_seconds).sum(axis=-1)
        self._resident = resident

    @property
    def trace(self) -> Trace:
        """Return what is replayed."""
        return self._trace

    @property
    def visits(self) -> Visits:
        """Return what is known of rates."""
        return self._visits

    @property
    def steadiness(self) -> Steadiness:
        """Return how far visits come at random times, as every state drawn assumes."""
        return self._visits.steadiness

    @property
    def most_resident(self) -> float:
        """Return how many pages there are to fill a pool with."""
        return float(self._visits.weights.sum())

    def visits_outside_scans(self, pages: Ints) -> Ints:
        """Return how often each of the pages was visited by anything but scans and rings."""
        return self._visits.of_page[pages]

    def loops(self, blocks: int) -> dict[int, Scanned]:
        """Return the groups whose scans use no ring in a pool of that size."""
        return {
            group: scanned
            for group, scanned in self._visits.scanned.items()
            if not self._rules.scan_uses_ring(scanned.blocks, blocks)
        }

    def lingering(self, blocks: int) -> dict[int, Scanned]:
        """Return the groups whose scans use a ring in a pool of that size, and whose pages stay all the same.

        Every new ring takes buffers from the pool and leaves them behind when its scan ends. Where the next
        scan comes before the hand has gone round, it finds those pages and keeps them at usage_count 1, so
        that from scan to scan more of the table stays (freelist.c: GetBufferFromRing; bufmgr.c: PinBuffer).
        """
        pass_seconds = self.pass_seconds(blocks)
        loops = self.loops(blocks)
        return {
            group: scanned
            for group, scanned in self._visits.scanned.items()
            if group not in loops
            and len(scanned.gaps_seconds)
            and np.median(scanned.gaps_seconds) < pass_seconds
        }

    def shares(self, left: _native.ReplayOutcomes) -> dict[int, float]:
        """Return which part of the scanned pages of each group lies in a pool that a replay left."""
        buffers = left["buffer_pages"].astype(np.int64)
        highest = max(int(one.pages.max(initial=0)) for one in self._visits.scanned.values())
        there = np.zeros(highest + 1, bool)
        there[buffers[buffers <= highest]] = True
        return {group: float(there[one.pages].mean()) for group, one in self._visits.scanned.items()}

    def pass_seconds(self, blocks: int, *, gathered: Mapping[int, float] = _NOTHING) -> float:
        """Return the time of a clock pass in a pool of that size; infinite where everything fits.

        Args:
            gathered: by group, which part of the pages that it scans through rings is there all the same.
        """
        loops = self.loops(blocks)
        resident = self._resident.copy()
        for group, add in self._scans_add.items():
            resident += add * (1.0 if group in loops else gathered.get(group, 0.0))
        # Drawn for the scanned tables, and so not quite monotonic.
        resident = np.maximum.accumulate(np.maximum(resident, 1e-9))
        if blocks >= resident[-1]:
            return float("inf")
        return float(np.exp(np.interp(np.log(blocks), np.log(resident), np.log(self._pass_seconds))))

    def draw_pages(
        self, blocks: int, random: np.random.Generator, *, gathered: Mapping[int, float] = _NOTHING
    ) -> PoolPages:
        """Return pages and usage counts of such contents; pages never visited are numbered behind.

        Args:
            gathered: by group, which part of the pages that it scans through rings is there (`lingering`).
        """
        pass_seconds = min(self.pass_seconds(blocks, gathered=gathered), float(self._pass_seconds[-1]))
        drawn = self._all_states(pass_seconds)
        # What is drawn for its own size is compared with what it held (today.py).
        given = self._start if self._start_blocks and blocks != self._start_blocks else None
        # Checked before anything of that size is made.
        self._check_strangers(
            blocks, pass_seconds, {group: float(1 - states[-1][0]) for group, states, _ in drawn}
        )
        trace = self._trace
        loops = self.loops(blocks)
        held = {**loops, **{group: self._visits.scanned[group] for group in gathered}}
        pages: list[NDArray[np.uint32]] = []
        counts: list[NDArray[np.uint8]] = []
        stranger = len(trace.page_group)
        for group, states, index in drawn:
            members = self._members[group]
            draws = random.random(len(members))
            never, made = states[-1], self._lately_made(group, np.array([pass_seconds]))[0]
            if given is not None and group not in self._visits.scanned:
                was_absent, was_made = given.absent[group]
                likely = _given_start(given.held[members], was_absent[:-1][index], states[:-1, 0][index])
                draws = np.where(
                    draws < likely, 1 - (1 - states[:-1, 0][index]) * draws / np.maximum(likely, 1e-9), 0.0
                )
                never = 1 - (1 - never) * _given_start(False, was_absent[-1], never[0]) / max(
                    1 - never[0], 1e-9
                )
                made = np.maximum(made - was_made, 0.0)
            state = np.zeros(len(members), dtype=np.int64)
            for at_most in states[:-1].T:
                state += draws > at_most[index]
            if group in self._visits.scanned and group not in loops:
                # Nothing but its scans ever brought such a page in, and they took it out again.
                state[
                    np.searchsorted(members, self._visits.scanned[group].pages[self._only_scanned(group)])
                ] = 0
            if group in held:
                looping = held[group]
                everyone = np.arange(len(looping.pages))
                followed = self._follow(group, everyone, np.array([pass_seconds]), random)[0]
                at = np.searchsorted(members, looping.pages)
                if group not in loops:
                    # A hit through a ring raises the count to 1 and no further.
                    stayed = random.random(len(at)) < gathered[group]
                    followed = np.maximum(np.where(stayed, np.minimum(followed, 2), 0), state[at])
                state[at] = followed
            inside = state > 0
            pages.append(members[inside].astype(np.uint32))
            counts.append((state[inside] - 1).astype(np.uint8))
            unseen = random.multinomial(int(self._never[group]), np.diff(never, prepend=0.0))[1:]
            unseen = unseen + random.poisson(made)
            pages.append(np.arange(stranger, stranger + int(unseen.sum()), dtype=np.uint32))
            counts.append(np.repeat(np.arange(6, dtype=np.uint8), unseen))
            stranger += int(unseen.sum())
        page = np.concatenate([np.zeros(0, dtype=np.uint32), *pages])
        count = np.concatenate([np.zeros(0, dtype=np.uint8), *counts])
        chosen = np.arange(len(page), dtype=np.uint32)
        random.shuffle(chosen)
        if given is not None:
            # What is known to be there goes before what may be.
            chosen = chosen[
                np.argsort(~given.held[np.minimum(page[chosen], len(given.held) - 1)], kind="stable")
            ]
        chosen = chosen[:blocks]
        return page[chosen], count[chosen]

    @cached_property
    def _start(self) -> _Start:
        """What the pool held when the trace began, and what is expected of a pool of its size."""
        start = self._trace.start
        assert start is not None
        held = np.zeros(len(self._trace.page_group) + 1, dtype=bool)
        held[start.pages] = True
        pass_seconds = min(self.pass_seconds(self._start_blocks), float(self._pass_seconds[-1]))
        absent = {
            group: (states[:, 0], self._lately_made(group, np.array([pass_seconds]))[0])
            for group, states, _ in self._all_states(pass_seconds)
        }
        return _Start(held=held, absent=absent)

    def draw_strangers(self, blocks: int, random: np.random.Generator) -> _native.PoolContents:
        """Return such contents with pages that the trace never names in the place of those that it names.

        The pool of a load that moves: full of pages that are not used again. Scanned pages stay, because
        scans visit them in any case.
        """
        pages, counts = self.draw_pages(blocks, random)
        known = len(self._trace.page_group)
        moves = np.append(np.ones(known, dtype=bool), False)
        for scanned in self._visits.scanned.values():
            moves[scanned.pages] = False
        named = moves[np.minimum(pages, known)]
        behind = max(int(pages.max(initial=0)) + 1, known)
        pages[named] = np.arange(behind, behind + int(named.sum()), dtype=np.uint32)
        return _native.PoolContents(pages, counts)

    def _all_states(self, pass_seconds: float) -> list[tuple[int, Floats, Ints]]:
        """Return each group with its states; the last are kept, as a pool of one size is drawn many times."""
        known = self._known
        if known is None or known[0] != pass_seconds:
            # Many small relations have the same law: those of which too little is known by itself.
            laws: dict[bytes, Floats] = {}
            for group, _ in self._by_group:
                batch = self._visits.batches[group]
                if batch.tobytes() not in laws:
                    laws[batch.tobytes()] = self._clock.law(pass_seconds * self._visits.grid, batch)
            known = (
                pass_seconds,
                [
                    (group, *self._states(group, laws[self._visits.batches[group].tobytes()]))
                    for group, _ in self._by_group
                ],
            )
            self._known = known
        return known[1]

    def _states(self, group: int, law: Floats) -> tuple[Floats, Ints]:
        """Return how likely a page is absent or at most at each count, by row, and the row of each page.

        The last row is that of pages never visited. `law` is the clock's for each rate.
        """
        if group not in self._posteriors:
            self._posteriors[group] = self._posterior(group, self._members[group])
        posterior, index = self._posteriors[group]
        states = np.cumsum(posterior @ law, axis=1)
        states /= states[:, -1:]
        return states, index

    def _check_strangers(self, blocks: int, pass_seconds: float, resident: dict[int, float]) -> None:
        """Refuse a pool that would hold more pages that the trace never names than it can say anything of.

        Args:
            resident: how likely a page of each group lies in the pool that was never visited.

        Raises:
            UsageError: it would.
        """
        expected = 0.0
        for group, share in resident.items():
            expected += self._never[group] * share + float(
                self._lately_made(group, np.array([pass_seconds])).sum()
            )
        if expected <= self._most_strangers:
            return
        cause = f"it would hold {format_count(round(expected))} pages that the trace never accesses"
        hint = "name smaller sizes, for example --sizes 1GB,2GB,4GB"
        if self._most_strangers < _MOST_STRANGERS:
            cause += f", and its {self._accesses} accesses show nothing about them"
            hint += ", or record for longer"
        raise UsageError(
            f"a pool of {format_bytes(blocks * BLOCK_BYTES)} is too large to replay the trace in",
            cause=cause,
            hint=hint,
        )

    @property
    def repeated_row(self) -> int | None:
        """Return a row late in the trace at which scans stand as at its beginning; None without scans."""
        if not self._visits.scanned:
            return None
        largest = max(self._visits.scanned.values(), key=lambda scanned: len(scanned.pages))
        when = largest.last_begin_seconds - float(largest.first_seconds.min())
        return int(np.searchsorted(self._trace.seconds, when)) if when > 0 else None

    def with_scanned_of(
        self,
        drawn: PoolPages,
        later: _native.ReplayOutcomes,
        blocks: int,
        random: np.random.Generator,
    ) -> _native.PoolContents:
        """Return a drawn state with the scanned pages in their buffers, and the hand, as a replay left them.

        What a scan reads lies side by side, so that the hand takes all of it or nothing of it.
        """
        left = later["buffer_pages"]
        named = np.concatenate([one.pages for one in self._visits.scanned.values()])
        highest = max(int(pages.max(initial=0)) for pages in (left[left != NO_PAGE], drawn[0], named))
        scanned = np.zeros(highest + 1, bool)
        scanned[named] = True
        buffers = np.flatnonzero((left != NO_PAGE) & scanned[np.where(left == NO_PAGE, 0, left)])
        taken = np.zeros(blocks, bool)
        taken[buffers] = True
        free = random.permutation(np.flatnonzero(~taken).astype(np.uint32))
        others = random.permutation(np.flatnonzero(~scanned[drawn[0]]))[: len(free)]
        return _native.PoolContents(
            np.concatenate([left[buffers], drawn[0][others]]),
            np.concatenate([later["buffer_usage_counts"][buffers], drawn[1][others]]),
            buffers=np.concatenate([buffers.astype(np.uint32), free[: len(others)]]),
            hand=later["hand"] % blocks,
        )

    def _posterior(self, group: int, members: Ints) -> tuple[Floats, Ints]:
        """Return the law of the rate for all that was seen of pages, last for nothing; each page's row."""
        visits = self._visits
        seen, index = np.unique(visits.seen(members), return_inverse=True)
        # In logarithms: a page may be visited more often than any rate with weight makes likely.
        prior = np.log(np.maximum(visits.weights[group], 1e-300))
        logs = visits.log_likelihood(np.append(seen, 0), group) + prior
        posterior = scaled(logs)
        posterior /= posterior.sum(axis=1, keepdims=True)
        return posterior, index.ravel()

    def _only_scanned(self, group: int) -> NDArray[np.bool_]:
        """Return which of the scanned pages of a group nothing else visited."""
        return np.asarray(self._visits.of_page[self._visits.scanned[group].pages] == 0)

    def _rates(self, group: int, members: Ints, random: np.random.Generator) -> Floats:
        """Draw the rate of each page's visits outside scans, in visits per second."""
        posterior, index = self._posterior(group, members)
        below = np.cumsum(posterior, axis=1)[index]
        point = (random.random(len(members))[:, None] * below[:, -1:] > below).sum(axis=1)
        return np.asarray(self._visits.grid[np.minimum(point, len(self._visits.grid) - 1)])

    def _looping(self, group: int, random: np.random.Generator) -> Floats:
        """Return how many scanned pages of a group are resident by clock pass, if its scans use no ring."""
        scanned = self._visits.scanned[group]
        chosen = random.choice(len(scanned.pages), _SAMPLED_PAGES)
        state = self._follow(group, chosen, self._pass_seconds, random)
        return np.asarray((state > 0).mean(axis=1) * len(scanned.pages))

    def _follow(self, group: int, chosen: Ints, pass_seconds: Floats, random: np.random.Generator) -> Ints:
        """Draw the state of pages that scans visit, when the trace begins: 0 for absent, or 1 + usage_count.

        Their visits come at nearly equal distances, and the law of random visits does not hold for them: a
        page stays for good if the clock pass takes longer than the distance of two scans, and is gone at
        every scan if the pass takes less than half of it. So single pages are followed
        (core/src/model/scans.rs).

        Args:
            group: whose scans use no ring, or are taken to use none.
            chosen: which of the pages that they visit.
            pass_seconds: lengths of a clock pass.

        Returns:
            Shape (lengths, pages).
        """
        scanned = self._visits.scanned[group]
        lengths = len(pass_seconds)
        states = _native.states_before(
            np.tile(scanned.first_seconds[chosen], lengths),
            np.tile(self._rates(group, scanned.pages[chosen], random), lengths),
            np.repeat(pass_seconds, len(chosen)),
            np.ascontiguousarray(scanned.gaps_seconds),
            self._visits.batches[group],
            rounds=scanned.rounds,
            duration_seconds=self._visits.duration_seconds,
            seed=int(random.integers(2**63)),
            usage_cap=self._clock.usage_cap,
            admission=self._clock.admission,
        )
        return states.reshape(lengths, -1).astype(np.int64)

    def _lately_made(self, group: int, pass_seconds: Floats) -> Floats:
        """Return how many pages made before the trace and unused are at usage_count 0 to 5, by clock pass."""
        growth = self._visits.growth.get(group)
        if growth is None:
            return np.zeros((len(pass_seconds), 6))
        at_least = np.cumsum(self._clock.capped(growth.usage_counts)[::-1])[::-1]
        made = growth.pages_per_second * pass_seconds[:, None] * at_least[None, :]
        room = np.minimum(1, self._never[group] / np.maximum(made.sum(axis=1), 1e-9))
        return np.asarray(made * room[:, None])


def _given_start(held: NDArray[np.bool_] | bool, was_absent: Floats, absent: Floats) -> Floats:
    """Return how likely pages lie in a pool, given whether they lay in one of another size.

    The larger of the two holds all that the smaller one does.

    Args:
        held: whether they lay in the other.
        was_absent, absent: how likely they are absent from the other and from this one.
    """
    there = np.minimum((1 - absent) / np.maximum(1 - was_absent, 1e-9), 1.0)
    beside = np.maximum(was_absent - absent, 0.0) / np.maximum(was_absent, 1e-9)
    return np.asarray(np.where(held, there, beside))
