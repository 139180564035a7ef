"""How much the load of one recording differs from that of another, by the server's own counters.

The rate of transactions is not a property of the load: it follows from how fast the server is. What a
transaction does is one: how many pages it accesses, in which relations, and how many rows it writes. What
counts as the same load is what two halves of the first recording differ by, three times, and a tenth at
least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pgsweep.records.verification import WorkloadChange
from pgsweep.sizing.observed import Observation, gained
from pgsweep.sizing.snapshots.totals import Totals, read_totals
from pgsweep.units import format_percent

_LEAST: Final = 0.1
_LEAST_WRITES: Final = 0.2
_HALVES: Final = 3.0
_OTHER_TIMES: Final = ("host", "pool")
_ROWS: Final = ("tup_inserted", "tup_updated", "tup_deleted")


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one recording shows of the load.

    Attributes:
        totals: of the counters.
        shares: of the accesses, by relation.
        miss_ratios: of each of them.
        half_difference: the share of the accesses that went elsewhere from one half to the other.
        transactions_per_second: that ended.
        accesses_per_second: of pages.
        accesses_per_transaction: of pages.
        rows_per_transaction: written.
        data_bytes: of the relations of the database.
    """

    totals: Totals
    shares: dict[str, float]
    miss_ratios: dict[str, float]
    half_difference: float
    transactions_per_second: float
    accesses_per_second: float
    accesses_per_transaction: float
    rows_per_transaction: float
    data_bytes: int


def load_of(observation: Observation) -> Load:
    """Return the load that a recording shows."""
    server, counters = observation.server, observation.counters
    # What the recorder reads of the host and of the pool's memory comes at times of its own. With these the
    # server's counters would seem to begin later, and at 0.
    ours = ~np.isin(counters.table["scope"], _OTHER_TIMES)
    relations, names = observation.relations, observation.relation_names
    totals = read_totals(
        {name: column[ours] for name, column in counters.table.items()}, relations, server.database
    )
    shares = _shares(names, totals.relation_accesses)
    misses = _shares(names, totals.relation_misses)
    missed = float(totals.relation_misses.sum()) / max(float(totals.relation_accesses.sum()), 1e-9)
    halves = [_shares(names, half) for half in (totals.first_half_accesses, totals.second_half_accesses)]
    gains = {
        name: gained(counters.series("database", server.database, name)) for name in (*_ROWS, "xact_commit")
    }
    factor = counters.statistics_factor
    transactions = max(gains["xact_commit"], 1.0)
    ours_too = relations["db"] == server.database_oid
    blocks = int(relations["blocks_end"][ours_too].clip(0).sum())
    return Load(
        totals=totals,
        shares=shares,
        miss_ratios={name: misses.get(name, 0.0) * missed / share for name, share in shares.items()},
        half_difference=difference(*halves) if all(halves) else 0.0,
        transactions_per_second=gains["xact_commit"] / max(totals.seconds, 1e-9) * factor,
        accesses_per_second=(totals.hits + totals.misses) / max(totals.seconds, 1e-9) * factor,
        accesses_per_transaction=(totals.hits + totals.misses) / transactions,
        rows_per_transaction=sum(gains[name] for name in _ROWS) / transactions,
        data_bytes=blocks * server.block_size_bytes,
    )


def _shares(names: list[str], accesses: np.ndarray) -> dict[str, float]:
    """Return the share of each relation; none without accesses."""
    total = float(accesses.sum())
    found: dict[str, float] = {}
    for name, count in zip(names, accesses.tolist(), strict=False):
        # The recorder itself reads the catalogs.
        if count > 0 and not name.startswith("pg_catalog."):
            found[name] = found.get(name, 0.0) + count / total
    return found


def difference(one: dict[str, float], other: dict[str, float]) -> float:
    """Return which share of the accesses goes elsewhere: half the sum of the differences."""
    return sum(abs(one.get(name, 0.0) - other.get(name, 0.0)) for name in one.keys() | other.keys()) / 2


@dataclass(frozen=True, kw_only=True)
class Drift:
    """By which factors the load's own movement may have changed what misses, or what is read, per access.

    Attributes:
        low: at most 1.
        high: at least 1.
    """

    low: float
    high: float


def drift_of(before: Load, after: Load) -> Drift:
    """Return how far the load itself moved, by what both recordings counted and no prediction.

    Accesses that went to other relations changed the misses by what these relations miss now. Beyond that,
    the miss ratio moved within each recording, from one half to the other, and pages per transaction and the
    size of the data changed by less than what counts as another load: each is taken for as much of a change.
    """
    now = sum(share * after.miss_ratios[name] for name, share in after.shares.items())
    as_before = sum(share * after.miss_ratios.get(name, now) for name, share in before.shares.items())
    mixed = now / as_before if now > 0 and as_before > 0 else 1.0
    share = max(_moved(one.totals) for one in (before, after))
    share += _difference(before.accesses_per_transaction, after.accesses_per_transaction)
    share += _difference(before.data_bytes, after.data_bytes)
    return Drift(low=max(min(1.0, mixed) * (1 - share), 0.0), high=max(1.0, mixed) * (1 + share))


def _moved(totals: Totals) -> float:
    """Return by which share the miss ratio differs between the halves; 0 where one of them shows none."""
    halves = totals.first_half_miss_ratio, totals.second_half_miss_ratio
    return _difference(*halves) if min(halves) > 0 else 0.0


def _difference(before: float, after: float) -> float:
    """Return by which share of the larger one two numbers differ."""
    largest = max(before, after)
    return abs(after - before) / largest if largest > 0 else 0.0


def compare_loads(before: Load, after: Load) -> list[WorkloadChange]:
    """Return by how much each property of the load differs."""
    mixed = difference(before.shares, after.shares)
    usual = max(_LEAST, _HALVES * before.half_difference)
    return [
        WorkloadChange(
            name="accesses by relation",
            before=None,
            after=None,
            difference=mixed,
            usual=usual,
            changed=mixed > usual,
            detail=_most(before.shares, after.shares),
        ),
        _number(
            "page accesses per transaction",
            before.accesses_per_transaction,
            after.accesses_per_transaction,
            usual=max(_LEAST, usual),
        ),
        _number(
            "rows written per transaction",
            before.rows_per_transaction,
            after.rows_per_transaction,
            usual=_LEAST_WRITES,
            least=0.05,
        ),
        _number("size of the database", float(before.data_bytes), float(after.data_bytes), usual=_LEAST),
    ]


def _number(name: str, before: float, after: float, *, usual: float, least: float = 0.0) -> WorkloadChange:
    found = _difference(before, after) if max(before, after) > least else 0.0
    return WorkloadChange(
        name=name, before=before, after=after, difference=found, usual=usual, changed=found > usual
    )


def _most(before: dict[str, float], after: dict[str, float]) -> str:
    names = before.keys() | after.keys()
    if not names:
        return ""
    name = max(sorted(names), key=lambda name: abs(before.get(name, 0.0) - after.get(name, 0.0)))
    shares = [format_percent(each.get(name, 0.0), 1) for each in (before, after)]
    return f"{name}: {shares[0]} of the accesses before, {shares[1]} after"
