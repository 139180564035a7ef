"""What keeping relations resident did and cost so far, as sums, and what is new since a copy of them."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pgsweep.records.warm_keep import WarmKeepResult, WarmKeepSample
from pgsweep.residency.access import Access
from pgsweep.warm.keep.state import Tracked


@dataclass
class Ledger:
    """The sums.

    Attributes:
        statement_seconds: of all statements, as this end saw it.
        replacing_blocks: of those read, the ones for which the last snapshot showed no free buffer.
        own_accesses: buffer accesses of touches and reads.
        all_accesses: of all sessions of the server, ours too; None where not known.
        kept, resident: blocks to be kept and those of them resident, times seconds.
    """

    rounds: int = 0
    touched_blocks: int = 0
    read_blocks: int = 0
    replacing_blocks: int = 0
    lost_blocks: int = 0
    statement_seconds: float = 0.0
    look_seconds: float = 0.0
    touch_seconds: float = 0.0
    own_accesses: int = 0
    all_accesses: float | None = None
    kept: float = 0.0
    resident: float = 0.0
    kept_blocks: int = 0
    share_before: float | None = None
    share_after: float | None = None
    shortest_pass_seconds: float = math.inf
    interval_seconds: float = 0.0
    reconnects: int = 0
    notes: list[str] = field(default_factory=list)
    at: float = field(default_factory=time.monotonic)

    def see(self, relations: Sequence[Tracked], seconds: float) -> None:
        """Add the residence of all relations in one snapshot, which holds for the given time."""
        kept = sum(int(r.chosen.sum()) for r in relations)
        resident = sum(int((r.chosen & r.expected).sum()) for r in relations)
        self.share_after = resident / kept if kept else None
        if self.share_before is None:
            self.share_before = self.share_after
        self.kept_blocks = kept
        self.kept += kept * seconds
        self.resident += resident * seconds

    def absent(self, relations: Sequence[Tracked], seconds: float) -> None:
        """Count no block as resident for the given time: no snapshot was possible, or the pool is empty."""
        self.kept += self.kept_blocks * seconds
        for relation in relations:
            relation.absent(seconds)

    def sample(self, before: Ledger, relations: Sequence[Tracked], pass_seconds: float) -> WarmKeepSample:
        """Return what is new since an earlier copy of this ledger."""
        seconds = max(self.at - before.at, 1e-9)
        share = None
        if self.all_accesses is not None and before.all_accesses is not None:
            total = self.all_accesses - before.all_accesses
            share = min(1.0, (self.own_accesses - before.own_accesses) / total) if total > 0 else 0.0
        return WarmKeepSample(
            at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            seconds=seconds,
            rounds=self.rounds - before.rounds,
            relations=[(r.kept.label, r.share) for r in relations if r.active],
            touched_blocks=self.touched_blocks - before.touched_blocks,
            read_blocks=self.read_blocks - before.read_blocks,
            lost_blocks=self.lost_blocks - before.lost_blocks,
            backend_share=(self.statement_seconds - before.statement_seconds) / seconds,
            access_share=share,
            lap_seconds=None if math.isinf(pass_seconds) else pass_seconds,
            interval_seconds=self.interval_seconds,
        )

    def copy(self) -> Ledger:
        """Return a copy of the present sums."""
        return replace(self, notes=[])

    def result(
        self,
        access: Access,
        relations: Sequence[Tracked],
        *,
        budget_bytes: int,
        ended_by: str,
        seconds: float,
    ) -> WarmKeepResult:
        """Return the record of all sums."""
        block = access.server.block_size_bytes
        other = None
        if self.all_accesses is not None:
            other = max(0, round(self.all_accesses) - self.own_accesses)
        return WarmKeepResult(
            server_version=access.server.version,
            database=access.server.database,
            pool_source=access.pool_source,
            block_size_bytes=block,
            shared_buffers_bytes=access.server.shared_buffers_blocks * block,
            budget_bytes=budget_bytes,
            ended_by=ended_by,
            seconds=seconds,
            rounds=self.rounds,
            touched_blocks=self.touched_blocks,
            read_blocks=self.read_blocks,
            replacing_blocks=self.replacing_blocks,
            lost_blocks=self.lost_blocks,
            resident_share_before=self.share_before,
            resident_share_after=self.share_after,
            resident_share_mean=self.resident / self.kept if self.kept > 0 else self.share_after,
            statement_seconds=self.statement_seconds,
            look_seconds=self.look_seconds,
            touch_seconds=self.touch_seconds,
            other_accesses=other,
            lap_seconds=None if math.isinf(self.shortest_pass_seconds) else self.shortest_pass_seconds,
            interval_seconds=self.interval_seconds,
            reconnects=self.reconnects,
            relations=[relation.record(block) for relation in relations],
            notes=list(self.notes),
            missing=access.missing,
        )
