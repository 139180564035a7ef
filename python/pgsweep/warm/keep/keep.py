"""Keep chosen relations resident while others flood the pool: `pgsweep warm keep`.

In rounds: take a snapshot of the pool, touch the blocks that the hand would evict before the next round, read
again those that have gone, the hottest first and at a bounded rate. A block that clients use often is not
touched: they keep it. Nothing outlives the process, and nothing is written.

    result = Keeper("dbname=shop", KeepOptions(names=["orders"], indexes=True)).run(seconds=600)

What it costs: each touch is an access of ours, which the server counts as a hit of that relation; each block
read again pushes out another; the pool is that much smaller for all others.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from pgsweep.commands import on_server
from pgsweep.errors import AtWork, MissingAbility, PgsweepError, UsageError
from pgsweep.pg.catalog.buffercache import memory_statements, snapshot_of_query
from pgsweep.pg.catalog.server import read_unlogged
from pgsweep.pg.keep import (
    Meant,
    Place,
    claim,
    claim_statement,
    lock_timeout_statement,
    places_statement,
    read_places,
    touch_statements,
)
from pgsweep.pg.prewarm import written_out
from pgsweep.pg.session.conninfo import with_name
from pgsweep.pg.session.refusals import explained
from pgsweep.pg.session.retry import Pauses
from pgsweep.records.warm_keep import WarmKeepPlan, WarmKeepResult, WarmKeepSample
from pgsweep.residency.access import Access, PoolSource, opened
from pgsweep.units import BLOCK_BYTES, as_setting, format_bytes, format_percent
from pgsweep.warm.keep.choice import stretches
from pgsweep.warm.keep.ledger import Ledger
from pgsweep.warm.keep.rounds import LOOK_SHARE, Rounds
from pgsweep.warm.keep.session import Found, Kept, find_again, find_kept, refusal
from pgsweep.warm.keep.state import Tracked
from pgsweep.warm.session import UNLOGGED

APPLICATION_NAME: Final = "pgsweep warm keep"

DEFAULT_BUDGET_SHARE: Final = 0.25
MOST_BUDGET_SHARE: Final = 0.75
"""Most of shared_buffers that may be kept: the more is kept, the faster the clock hand passes the rest."""

DEFAULT_RATE_BYTES: Final = 32 << 20

_LONGEST_PAUSE_SECONDS: Final = 5.0

_CLIENT: Final = "SELECT client_addr, usename, backend_start FROM pg_stat_activity"


class KeepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be kept, and how.

    Attributes:
        names: of relations, as `regclass` reads them; of a partitioned one its partitions.
        indexes: with the tables' indexes.
        toast: with their TOAST relations.
        budget_bytes: never keep more than that; None for a quarter of shared_buffers, into which the
            relations must then fit.
        rate_bytes: blocks that have gone are read again at this many bytes a second at most.
        interval_seconds: from one round to the next; None adapts it to the time of a clock pass.
        source: how the pool is read.
        report_seconds: from one report to the next.
    """

    names: list[str]
    indexes: bool = False
    toast: bool = False
    budget_bytes: int | None = None
    rate_bytes: int = DEFAULT_RATE_BYTES
    interval_seconds: float | None = None
    source: PoolSource = "auto"
    report_seconds: float = 10.0


class Keeper:
    """Keeps relations of one database resident.

    Args:
        conninfo: as libpq understands it.
        options: what and how.
        report: called at each report with what was done.
        note: called with messages about events: a lost connection, a relation that cannot be kept.
    """

    def __init__(
        self,
        conninfo: str,
        options: KeepOptions,
        *,
        report: Callable[[WarmKeepSample], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self._conninfo = with_name(conninfo, APPLICATION_NAME)
        self._options = options
        self._report, self._tell = report, note
        self._relations: list[Tracked] = []
        self._meant: list[Meant] = []
        self._ledger = Ledger()
        self._reported = self._ledger.copy()
        self._budget_bytes = 0

    def run(self, *, seconds: float | None = None, stop: threading.Event | None = None) -> WarmKeepResult:
        """Keep the relations resident until `seconds` or `stop` ends it.

        A server that goes away is waited for; its pool is then filled again, the hottest blocks first.

        Args:
            seconds: end after that time.
            stop: set it to end.

        Raises:
            UsageError: no such relation, or larger than the budget.
            ConnectionFailed: the server cannot be reached at the beginning.
            MissingAbility: the pool cannot be read, no pg_prewarm, or no relation may be read.
            PgsweepError: another keeper has one of the relations.
        """
        stop = stop or threading.Event()
        begin = time.monotonic()
        until = math.inf if seconds is None else begin + seconds
        ended_by, rounds_before, pauses = "", 0, Pauses(_LONGEST_PAUSE_SECONDS)
        access: Access | None = None
        away_since: float | None = None
        while not ended_by:
            try:
                with self._session() as (access, rounds):
                    if away_since is not None:
                        self._ledger.absent(self._relations, time.monotonic() - away_since)
                        away_since = None
                    ended_by = rounds.keep_on(until, stop, lambda: self._tell_of(rounds))
                    self._check_rights(ended_by)
            except PgsweepError as error:
                if access is None or self._ledger.rounds == 0:
                    raise
                self._note(f"{error.message}; trying again")
                away_since = away_since or time.monotonic()
                if self._ledger.rounds > rounds_before:
                    pauses.start_again()
                    self._ledger.reconnects += 1
                rounds_before = self._ledger.rounds
                pauses.wait(stop, until - time.monotonic())
                if stop.is_set() or time.monotonic() >= until:
                    ended_by = "stop" if stop.is_set() else "time"
        assert access is not None
        if away_since is not None:
            self._ledger.absent(self._relations, time.monotonic() - away_since)
        return self._ledger.result(
            access,
            self._relations,
            budget_bytes=self._budget_bytes,
            ended_by=ended_by,
            seconds=time.monotonic() - begin,
        )

    def plan(self) -> WarmKeepPlan:
        """Return what the first round would do; take one snapshot and do nothing else.

        Raises:
            PgsweepError: as `run`.
        """
        with self._session(claiming=False) as (access, rounds):
            connection, server = access.connection, access.server
            for relation in self._relations:
                if relation.trouble is not None:
                    continue
                relation.trouble, relation.enable = refusal(relation.kept, connection)
                if relation.trouble is not None:
                    self._note(f"{relation.kept.label}: {relation.trouble}; {relation.enable}")
            rounds.look(time.monotonic())
            if not any(relation.active for relation in self._relations):
                self._check_rights("gone")
            missing = sum(len(relation.missing()) for relation in self._relations)
            rounds.tokens = rounds.burst
            oids = [relation.kept.oid for relation in self._relations]
            statements = [written_out(connection, lock_timeout_statement(connection))]
            statements += [written_out(connection, claim_statement(connection, oid)) for oid in oids]
            statements.append(written_out(connection, places_statement(connection, oids)))
            if access.pool_source == "sql":
                assert access.buffercache is not None
                filenodes = tuple(sorted(relation.place.file[2] for relation in self._relations))
                memory = memory_statements(connection, server.shared_buffers_blocks)
                statements += [written_out(connection, statement) for statement in memory]
                statements.append(
                    snapshot_of_query(server.version_num, access.buffercache, filenodes).strip()
                )
            due, again = list(rounds.due()), list(rounds.again())
            for relation, blocks, times in [*due, *again]:
                for statement in touch_statements(
                    server.version_num, rounds.prewarm, relation.kept.oid, stretches(blocks, times)
                ):
                    statements.append(written_out(connection, statement))
            touched = sum(int(times.sum()) for _, _, times in due)
            return WarmKeepPlan(
                server_version=server.version,
                database=server.database,
                pool_source=access.pool_source,
                budget_bytes=self._budget_bytes,
                rate_bytes_per_second=self._options.rate_bytes,
                read_bytes=missing * server.block_size_bytes,
                touch_blocks=touched,
                relations=[relation.record(server.block_size_bytes) for relation in self._relations],
                statements=statements,
                notes=list(self._ledger.notes),
            )

    @contextmanager
    def _session(self, *, claiming: bool = True) -> Iterator[tuple[Access, Rounds]]:
        """Connect; the first time find the relations, each time claim them."""
        options = self._options
        with opened(self._conninfo, options.source) as access:
            with explained():
                if not self._relations:
                    self._find(access)
                if claiming:
                    self._claim(access)
                block = access.server.block_size_bytes
                rounds = Rounds(
                    access,
                    self._relations,
                    self._ledger,
                    find=lambda: self._found_again(access),
                    adopt=lambda kept, place: self._adopted(access, kept, place),
                    budget_blocks=self._budget_bytes // block,
                    rate_blocks=options.rate_bytes / block,
                    interval_seconds=options.interval_seconds,
                    note=self._note,
                )
            if access.pool_source == "sql" and not self._ledger.rounds:
                self._note(f"{access.cost_note()}; no more than {format_percent(LOOK_SHARE)} of its time")
            yield access, rounds

    def _find(self, access: Access) -> None:
        options = self._options
        found = find_kept(access.connection, options.names, indexes=options.indexes, toast=options.toast)
        self._meant = found.meant
        places = read_places(access.connection, list(found.kept))
        self._relations = [Tracked(found.kept[oid], place) for oid, place in places.items()]
        server = access.server
        unlogged: set[int] = set()
        if server.in_recovery:
            with explained():
                unlogged = read_unlogged(access.connection)
        for tracked in self._relations:
            if tracked.kept.oid in unlogged:
                tracked.trouble, tracked.enable = UNLOGGED, "keep it on the primary"
                self._note(f"{tracked.kept.label}: {UNLOGGED}")
        pool_bytes = server.shared_buffers_blocks * server.block_size_bytes
        size_bytes = sum(len(relation.chosen) for relation in self._relations) * server.block_size_bytes
        self._budget_bytes = budget(options.budget_bytes, pool_bytes, size_bytes)

    def _found_again(self, access: Access) -> Found:
        """Return what the names mean now."""
        options = self._options
        found = find_again(access.connection, self._meant, indexes=options.indexes, toast=options.toast)
        self._meant = found.meant
        return found

    def _adopted(self, access: Access, kept: Kept, place: Place) -> Tracked | None:
        """Return a relation that the names mean since a while, claimed; None where another has it."""
        ours, _ = claim(access.connection, kept.oid)
        if not ours:
            self._note(f"{kept.label} is new; another pgsweep keeps it")
            return None
        return Tracked(kept, place)

    def _claim(self, access: Access) -> None:
        for relation in self._relations:
            if relation.dropped:
                continue
            ours, holder = claim(access.connection, relation.kept.oid)
            if not ours:
                where = f"-c '{_CLIENT} WHERE pid = {holder}'"
                raise AtWork(
                    f"`{relation.kept.label}` is being kept already",
                    cause="by another pgsweep"
                    + (f", through the server's process {holder}" if holder else ""),
                    # A session that is ended there is opened again.
                    hint="name other relations, or end that one with Ctrl-C where it runs"
                    + (f"; from where: {on_server('psql', where)}" if holder else ""),
                )

    def _check_rights(self, ended_by: str) -> None:
        """Fail where no relation could be kept from the beginning.

        Raises:
            MissingAbility: none may be read.
        """
        refused = next((r for r in self._relations if not r.dropped and r.trouble is not None), None)
        if ended_by == "gone" and self._ledger.own_accesses == 0 and refused is not None:
            raise MissingAbility(
                f"`{refused.kept.label}` cannot be kept", cause=refused.trouble, hint=refused.enable
            )

    def _tell_of(self, rounds: Rounds) -> None:
        if self._report is None or self._ledger.at - self._reported.at < self._options.report_seconds:
            return
        self._report(self._ledger.sample(self._reported, self._relations, rounds.hand.pass_seconds))
        self._reported = self._ledger.copy()

    def _note(self, text: str) -> None:
        if text not in self._ledger.notes:
            self._ledger.notes.append(text)
        if self._tell is not None:
            self._tell(text)


def budget(wanted_bytes: int | None, pool_bytes: int, size_bytes: int) -> int:
    """Return how much may be kept.

    Args:
        wanted_bytes: as the user said, or None.
        pool_bytes: shared_buffers.
        size_bytes: of the relations.

    Raises:
        UsageError: more than the pool should give, or the relations do not fit and nobody said what then.
    """
    most, default = (_whole_blocks(pool_bytes * share) for share in (MOST_BUDGET_SHARE, DEFAULT_BUDGET_SHARE))
    if wanted_bytes is not None and wanted_bytes < BLOCK_BYTES:
        raise UsageError(
            f"a budget of {format_bytes(wanted_bytes)} is less than a block",
            cause="a number without a unit is bytes",
            hint=f"--budget {as_setting(default)} is a quarter of this pool",
        )
    if wanted_bytes is None:
        if size_bytes > default:
            raise UsageError(
                f"the relations have {format_bytes(size_bytes)}, a quarter of shared_buffers is "
                f"{format_bytes(default)}",
                cause="without --budget the limit is a quarter of shared_buffers",
                hint=f"--budget {as_setting(default)} keeps their hottest blocks; --budget may be up to "
                f"{as_setting(most)} here",
            )
        return default
    if wanted_bytes > most:
        raise UsageError(
            f"a budget of {format_bytes(wanted_bytes)} is too much of a pool of {format_bytes(pool_bytes)}",
            cause="with more than three quarters held, all others would have next to nothing",
            hint=f"--budget {as_setting(most)} at most",
        )
    return wanted_bytes


def _whole_blocks(size_bytes: float) -> int:
    return int(size_bytes) // BLOCK_BYTES * BLOCK_BYTES
