"""A trace as it would be under another load: its tables are rewritten, what reads them stays the same.

What is added or spread is drawn from a seed: when scans begin, which of the new blocks a visit goes to. So
the tables are rewritten several times, and the curves that follow from them show what that decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from pgsweep.errors import UsageError
from pgsweep.evidence.schema import FLAG_PINNED, FLAG_SCAN, FLAG_STRATEGY_KNOWN, TABLES, EvidenceMeta
from pgsweep.plain import shown
from pgsweep.sizing.snapshots.observations import file_keys
from pgsweep.sizing.traces.accesses import BULKREAD, EXTENSION, HIT, MISS, STRATEGY, VACUUM
from pgsweep.sizing.traces.visits import VISIT_GAP_SECONDS
from pgsweep.sizing.what_if.grammar import (
    Asked,
    Connections,
    Grows,
    Insert,
    Keep,
    OfRelation,
    Scan,
    Without,
)
from pgsweep.sizing.what_if.relations import Named, find, levels_of, need_rows, need_table
from pgsweep.units import format_count, format_minutes

if TYPE_CHECKING:
    from pgsweep.evidence.exported import TraceTables

Rows = dict[str, NDArray[Any]]

SCAN_BLOCKS_PER_SECOND: Final = 50_000.0
"""How fast an added scan reads, 400 MB/s: assumed. It decides which accesses come while it runs."""

_FEWEST_SCANS: Final = 2.0
_MOST_ADDED_ROWS: Final = 20_000_000
_MOST_BLOCKS: Final = 2**32 - 2
_NEW: Final = -1
"""The row of the recorded trace that an added access comes from."""

_FIRST_PID: Final = 1 << 31


class RewrittenTrace:
    """The tables of a trace after what-ifs.

    Attributes:
        meta: of the recorded trace, with the length that the changed one has.
        warnings: as they were.
        kept_blocks: in the pool at all times; they and their accesses are not in the tables.
        kept_accesses: to them, as the server counts; `kept_misses` of them make new blocks.
    """

    def __init__(self, evidence: TraceTables, asked: Sequence[Asked], random: np.random.Generator) -> None:
        self.meta: EvidenceMeta = evidence.meta
        self.warnings = evidence.warnings
        self.kept_blocks = self.kept_accesses = self.kept_misses = 0
        self._evidence = evidence
        self._random = random
        self._relations: Rows = dict(evidence.table("relations"))
        self._accesses: Rows = dict(evidence.table("accesses"))
        # The misses in the evidence are those of the load that was recorded, not of this one.
        kind = self._accesses["kind"]
        self._accesses["kind"] = np.where(kind == MISS, HIT, kind).astype(kind.dtype)
        self._drops: Rows = dict(evidence.table("drops"))
        self._snapshots: Rows = dict(evidence.table("snapshots"))
        self._origin = np.arange(len(kind), dtype=np.int64)
        self._scans = int(self._accesses["scan"].max(initial=0))
        self._pid = _FIRST_PID
        named = [(one, self._find(one)) for one in asked if isinstance(one, OfRelation)]
        # All names are looked up before anything changes, and in the order in which one rests on another.
        for one in asked:
            if isinstance(one, Connections):
                self._compress(one.factor)
        for one, relation in named:
            if isinstance(one, Grows):
                self._grow(relation, one.factor, one.text)
        for one, relation in named:
            if isinstance(one, Scan):
                self._scan(relation, one)
            elif isinstance(one, Insert):
                self._insert(relation, one)
        for one, relation in named:
            if isinstance(one, Keep):
                self._keep(relation)
        for one, relation in named:
            if isinstance(one, Without):
                self._leave_out(relation)
        self._place_drops()

    def table(self, name: str, columns: Sequence[str] | None = None) -> Rows:
        """Return a table as the evidence would have it."""
        changed = {
            "relations": self._relations,
            "accesses": self._accesses,
            "drops": self._drops,
            "snapshots": self._snapshots,
        }
        rows = changed[name] if name in changed else self._evidence.table(name)
        return rows if columns is None else {column: rows[column] for column in columns}

    def _find(self, one: OfRelation) -> Named:
        return find(one, self._relations, self.meta.database_oid)

    def _seconds(self) -> float:
        last = float(self._accesses["time_ns"].max(initial=0)) / 1e9
        return last if self.meta.ended_by == "limit" else max(self.meta.seconds, last)

    def _of(self, rows: Rows, relation_rows: Sequence[int]) -> NDArray[np.bool_]:
        """Return which rows of a table are of the files of some relations."""
        wanted = {
            name: self._relations[name][np.array(relation_rows, dtype=np.int64)]
            for name in ("spc", "db", "rel")
        }
        keys, ours = file_keys(rows, wanted)
        return np.isin(keys, ours)

    def _take(self, rows: NDArray[np.int64]) -> None:
        self._accesses = {name: column[rows] for name, column in self._accesses.items()}
        self._origin = self._origin[rows]

    def _compress(self, factor: float) -> None:
        """Let everything happen in a shorter time: more sessions make the same accesses sooner."""
        time = self._accesses["time_ns"].astype(np.float64) / factor
        self._accesses["time_ns"] = time.astype(np.uint64)
        self.meta = msgspec.structs.replace(self.meta, seconds=self.meta.seconds / factor)

    def _grow(self, relation: Named, factor: float, text: str) -> None:
        """Spread each visit over the blocks that its block becomes; scans and vacuums read all of these."""
        for row in relation.rows:
            blocks = int(self._relations["blocks_begin"][row])
            if blocks * factor > _MOST_BLOCKS:
                raise UsageError(
                    f"`{shown(text)}` makes a relation of more than 32 TB",
                    cause="PostgreSQL has no more than 4294967294 blocks in one relation",
                    hint="ask for a smaller factor",
                )
            mine = self._of(self._accesses, [row]) & (self._accesses["fork"] == 0)
            block = self._accesses["block"].astype(np.int64)
            old = mine & (block < blocks)
            flags, strategy = self._accesses["flags"], self._accesses["strategy"]
            in_turn = old & (((flags & FLAG_SCAN) > 0) | ((strategy & STRATEGY) == VACUUM))
            # What the server chose for the smaller table says nothing of the larger one.
            self._accesses["flags"] = np.where(mine, flags & ~np.uint8(FLAG_STRATEGY_KNOWN), flags)
            # A block b becomes those from b * factor on, up to those of b + 1.
            first = np.ceil(block * factor).astype(np.int64)
            count = np.where(in_turn, np.ceil((block + 1) * factor).astype(np.int64) - first, 1)
            spread = np.flatnonzero(old & ~in_turn)
            draws = self._random.random(len(spread))[self._visits(spread)]
            block[spread] = np.floor((block[spread] + draws) * factor).astype(np.int64)
            behind = mine & ~old
            block[behind] += round(blocks * factor) - blocks
            block[in_turn] = first[in_turn]
            self._accesses["block"] = block.astype(np.uint32)
            if in_turn.any():
                self._refuse_many(int(count[in_turn].sum()), text)
                repeated = np.repeat(np.arange(len(block)), count)
                step = np.arange(len(repeated)) - np.repeat(np.cumsum(count) - count, count)
                self._take(repeated)
                self._accesses["block"] = self._accesses["block"] + step.astype(np.uint32)
            self._grow_tables(row, factor)

    def _grow_tables(self, row: int, factor: float) -> None:
        """Do the same to what lay in the pool, to what was dropped, and to the sizes."""
        for rows, column in ((self._snapshots, "block"), (self._drops, "first_block")):
            mine = self._of(rows, [row])
            at = rows[column].astype(np.float64)
            draws = self._random.random(len(at)) if column == "block" else np.zeros(len(at))
            moved = mine & (rows["fork"] == 0) if column == "block" else mine
            rows[column] = np.where(moved, np.floor((at + draws) * factor), at).astype(np.uint32)
        added = round(int(self._relations["blocks_begin"][row]) * (factor - 1))
        for name in ("blocks_begin", "blocks_end", "fsm_blocks", "vm_blocks"):
            sizes = self._relations[name].copy()
            main = name.startswith("blocks")
            sizes[row] = sizes[row] + added if main else round(int(sizes[row]) * factor)
            self._relations[name] = sizes

    def _visits(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a number for each row, the same for all rows of a visit of one session to one page."""
        parts = [self._accesses[name][rows] for name in ("block", "pid")]
        time = self._accesses["time_ns"][rows].astype(np.float64)
        pinned = (self._accesses["flags"][rows] & FLAG_PINNED) > 0
        order = np.lexsort((np.arange(len(rows)), *parts))
        begins = np.ones(len(rows), dtype=bool)
        if len(rows):
            same = np.all([part[order][1:] == part[order][:-1] for part in parts], axis=0)
            near = (np.diff(time[order]) <= VISIT_GAP_SECONDS * 1e9) | pinned[order][1:]
            begins[1:] = ~(same & near)
        visit = np.empty(len(rows), dtype=np.int64)
        visit[order] = np.cumsum(begins) - 1
        return visit

    def _scan(self, relation: Named, asked: Scan) -> None:
        """Add scans of the whole table, the first at a random time within one interval."""
        seconds = self._seconds()
        need_table(asked, relation)
        if seconds < _FEWEST_SCANS * asked.every_seconds:
            raise UsageError(
                f"a trace of {format_minutes(seconds)} is too short for `{shown(asked.text)}`",
                cause="a scan depends on what the previous scan left in the pool, so the trace must contain "
                "several scans",
                hint=f"record for about {format_minutes(max(4 * asked.every_seconds, 1))}, or predict "
                "from snapshots (--source peek or sql)",
            )
        blocks = self._blocks(relation)
        lasts = min(blocks / SCAN_BLOCKS_PER_SECOND, asked.every_seconds)
        first = float(self._random.random()) * asked.every_seconds
        # One that began before the trace is still running when the trace begins.
        self._refuse_many(round(blocks * (seconds / asked.every_seconds + 1)), asked.text)
        begins = np.arange(first - asked.every_seconds, seconds, asked.every_seconds)
        at = begins[:, None] + np.arange(blocks)[None, :] * (lasts / max(blocks, 1))
        block = np.broadcast_to(np.arange(blocks, dtype=np.uint32), at.shape)
        scan = np.broadcast_to(self._scans + 1 + np.arange(len(begins))[:, None], at.shape)
        inside = (at >= 0) & (at < seconds)
        self._scans += len(begins)
        self._add(
            relation.row,
            at[inside],
            block[inside],
            scan=scan[inside],
            flags=FLAG_SCAN,
            strategy=BULKREAD,
        )

    def _insert(self, relation: Named, asked: Insert) -> None:
        """Add rows behind the last block, one access each, and a descent of each index for each row."""
        need_rows(asked, relation)
        seconds = self._seconds()
        count = int(seconds * asked.rows_per_second)
        self._refuse_many(count * (1 + sum(self._levels(row) for row in relation.indexes)), asked.text)
        at = (np.arange(count) + float(self._random.random())) / asked.rows_per_second
        behind = np.floor(np.arange(count) / relation.tuples_per_block).astype(np.int64)
        new = np.append(True, np.diff(behind) > 0)[:count]
        block = self._blocks(relation) + behind
        self._add(relation.row, at, block, kind=np.where(new, EXTENSION, HIT))
        ends = self._relations["blocks_end"].copy()
        ends[relation.row] = int(block.max(initial=0)) + 1 if count else ends[relation.row]
        self._relations["blocks_end"] = ends
        for row in relation.indexes:
            mine = np.flatnonzero(self._of(self._accesses, [row]) & (self._accesses["fork"] == 0))
            times = np.repeat(at, self._levels(row))
            if len(mine):
                chosen = self._accesses["block"][mine[self._random.integers(0, len(mine), len(times))]]
            else:
                size = max(int(self._relations["blocks_end"][row]), 1)
                chosen = self._random.integers(0, size, len(times)).astype(np.uint32)
            self._add(row, times, chosen)

    def _levels(self, row: int) -> int:
        return levels_of(int(self._relations["blocks_end"][row]))

    def _blocks(self, relation: Named) -> int:
        return int(
            max(self._relations["blocks_begin"][relation.row], self._relations["blocks_end"][relation.row])
        )

    def _refuse_many(self, rows: int, text: str) -> None:
        if rows > _MOST_ADDED_ROWS:
            raise UsageError(
                f"`{shown(text)}` adds {format_count(rows)} accesses to this trace, too many to replay",
                cause=f"{format_count(_MOST_ADDED_ROWS)} are possible",
                hint="ask for less, record for a shorter time, or predict from snapshots",
            )

    def _add(
        self,
        row: int,
        seconds: NDArray[np.floating[Any]],
        block: NDArray[Any],
        *,
        scan: NDArray[np.int64] | int = 0,
        kind: NDArray[np.int64] | int = HIT,
        flags: int = 0,
        strategy: int = 0,
    ) -> None:
        """Put accesses of a session of its own into the trace by their times."""
        fixed: dict[str, Any] = {
            **{name: int(self._relations[name][row]) for name in ("spc", "db", "rel")},
            "fork": 0,
            "pid": self._pid,
            "scan": scan,
            "kind": kind,
            "flags": flags,
            "strategy": strategy,
            "block": block,
            "time_ns": np.asarray(seconds * 1e9),
        }
        self._pid += 1
        dtypes = TABLES["accesses"]
        added = {
            name: np.broadcast_to(np.asarray(value), len(seconds)).astype(dtypes[name])
            for name, value in fixed.items()
        }
        # The recorded order stays, also where times are not in order.
        recorded = np.maximum.accumulate(self._accesses["time_ns"])
        order = np.argsort(np.concatenate([recorded, added["time_ns"]]), kind="stable")
        self._accesses = {
            name: np.concatenate([column, added[name]])[order] for name, column in self._accesses.items()
        }
        self._origin = np.concatenate([self._origin, np.full(len(seconds), _NEW)])[order]

    def _keep(self, relation: Named) -> None:
        """Take out what is always in the pool: it hits, and the rest has the other buffers."""
        mine = self._of(self._accesses, relation.rows)
        counts_new = self.meta.server_version_num < 160000
        new = mine & (self._accesses["kind"] == EXTENSION)
        self.kept_accesses += int(np.count_nonzero(mine & (~new | counts_new)))
        self.kept_misses += int(np.count_nonzero(new)) if counts_new else 0
        for row in relation.rows:
            main = max(int(self._relations["blocks_begin"][row]), int(self._relations["blocks_end"][row]))
            forks = int(self._relations["fsm_blocks"][row]) + int(self._relations["vm_blocks"][row])
            self.kept_blocks += main + forks
        self._leave_out(relation)

    def _leave_out(self, relation: Named) -> None:
        """Take out what the evidence has of a relation; it stays in the catalog."""
        self._take(np.flatnonzero(~self._of(self._accesses, relation.rows)))
        self._snapshots = _without(self._snapshots, self._of(self._snapshots, relation.rows))
        self._drops = _without(self._drops, self._of(self._drops, relation.rows))

    def _place_drops(self) -> None:
        """Renumber drops so that each still precedes the same access."""
        recorded = np.flatnonzero(self._origin != _NEW)
        at = np.searchsorted(self._origin[recorded], self._drops["row"].astype(np.int64))
        places = np.append(recorded, len(self._origin))
        self._drops["row"] = places[at].astype(np.uint64)


def _without(rows: Rows, left_out: NDArray[np.bool_]) -> Rows:
    return {name: column[~left_out] for name, column in rows.items()}
