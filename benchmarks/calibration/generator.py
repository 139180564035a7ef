"""Draws the specification of a workload from a seed: the same seed gives the same workload, on any machine.

A case has a character (what most of its transactions do), and everything else is drawn beside it, so that
combinations come up which nobody has thought of. Rates are chosen by what statements are expected to
access: light enough for a busy machine, and the same at all sizes, because a load that is as fast as it
can be does more work in a larger pool and so is not the same stretch of its life.

Seeds: even ones are for tuning a method, odd ones for testing it (benchmarks/calibration/README.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from benchmarks.calibration.specification import (
    Kind,
    Popularity,
    Script,
    Specification,
    Statement,
    Stream,
    Table,
)
from pgsweep.units import BLOCK_BYTES

_T = TypeVar("_T")

GENERATOR = 1
"""Raised when the same seed gives another workload than before."""

_MIB = 1 << 20
_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_BETWEEN = (0.7, 1.4, 0.35)
_FEWEST_SIZES = 6
_LEAST_DATA, _MOST_DATA = 56 * _MIB, 300 * _MIB
_MOST_SCANNED_PER_SECOND = 4000.0
"""Blocks that scans read: a processor reads some 30,000 a second, and shares itself among many servers."""

# What the transactions of a character are made of: kinds, and how often each is drawn.
_CHARACTERS: dict[str, dict[Kind, float]] = {
    "reads": {"point": 6, "range": 2, "by_ref": 2, "index_only": 1.5, "join": 1, "toast": 1},
    "bitmaps": {"bitmap": 3, "point": 3, "by_ref": 2, "index_only": 2, "range": 1},
    "mixed": {
        "point": 5,
        "range": 1,
        "by_ref": 1,
        "join": 1,
        "update_hot": 2,
        "update_cold": 0.7,
        "insert": 1.5,
        "upsert": 0.7,
        "delete": 0.3,
    },
    "updates": {"update_hot": 4, "update_cold": 2, "point": 2, "upsert": 1, "by_ref": 1},
    "orders": {"insert": 4, "update_hot": 2, "point": 3, "by_ref": 1, "join": 1, "range": 1},
}
_CHARACTER_WEIGHTS = {"reads": 3, "bitmaps": 2, "mixed": 4, "updates": 2, "orders": 2}


class _Draw:
    """Random choices by one generator."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([GENERATOR, seed])

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def log_uniform(self, low: float, high: float) -> float:
        return math.exp(self.rng.uniform(math.log(low), math.log(high)))

    def one(self, choices: Sequence[_T], weights: Sequence[float] | None = None) -> _T:
        share = None if weights is None else np.asarray(weights, float) / sum(weights)
        return choices[int(self.rng.choice(len(choices), p=share))]


def draw(seed: int) -> Specification:
    """Return the workload of a seed."""
    draw = _Draw(seed)
    observed = draw.one((16, 16, 16, 24, 32, 48)) * _MIB // BLOCK_BYTES
    data_blocks = min(
        max(round(observed * draw.log_uniform(2, 40)), _LEAST_DATA // BLOCK_BYTES), _MOST_DATA // BLOCK_BYTES
    )
    tables = _tables(draw, data_blocks)
    popularity = [[_popularity(draw, seed * 100 + n * 2 + k) for k in range(2)] for n in range(len(tables))]
    character = draw.one(list(_CHARACTER_WEIGHTS), list(_CHARACTER_WEIGHTS.values()))
    accesses_per_second = draw.log_uniform(3000, 10000)
    main = _main(draw, character, tables, popularity, accesses_per_second)
    streams = [main]
    if draw.chance(0.35):
        streams.append(_scans(draw, tables, observed, accesses_per_second))
    if draw.chance(0.12):
        streams.append(_analytic(draw, tables))
    if draw.chance(0.3):
        streams.append(_chores(draw, tables))
    settings = {
        "autovacuum": "on" if draw.chance(0.3) else "off",
        "autovacuum_naptime": "10s",
        "checkpoint_timeout": draw.one(("30s", "1h"), (0.4, 0.6)),
        "max_wal_size": "2GB",
        "max_connections": "60",
        "deadlock_timeout": "100ms",
    }
    return Specification(
        seed=seed,
        observed_blocks=observed,
        size_factors=_factors(observed, data_blocks),
        tables=tuple(tables),
        streams=tuple(streams),
        settings=settings,
        tags=tags_of(character, tables, streams, settings),
    )


def table_blocks(table: Table) -> float:
    """Return about how many blocks the table itself has, without indexes and TOAST."""
    row_bytes = 24 + 4 + 8 + 16 + table.filler_bytes + 4 + (18 if table.toast_bytes else 0)
    return table.rows * (row_bytes + 4) / (BLOCK_BYTES * table.fillfactor / 100)


def expected_accesses(statement: Statement, tables: Sequence[Table]) -> float:
    """Return about how many blocks a statement accesses; for rates only."""
    table = tables[statement.table]
    rows, matches = statement.rows, statement.rows * table.rows_per_ref
    by_kind: dict[str, float] = {
        "point": 4,
        "toast": 8 + table.toast_bytes / 2000,
        "range": 4 + rows / 20,
        "by_ref": 4 + table.rows_per_ref,
        "bitmap": 4 + matches,
        "index_only": 5 + matches / 100,
        "join": 4 + 4 * rows,
        "scan": table_blocks(table),
        "analytic": table_blocks(table) + table_blocks(tables[statement.other]),
    }
    return by_kind.get(statement.kind, 9.0)


def expected_per_second(stream: Stream, tables: Sequence[Table]) -> float:
    """Return about how many blocks a stream accesses in a second."""
    weights = np.array([script.weight for script in stream.scripts], dtype=float)
    each = [sum(expected_accesses(s, tables) for s in script.statements) for script in stream.scripts]
    return float(stream.transactions_per_second * (weights * each).sum() / weights.sum())


def tags_of(
    character: str, tables: Sequence[Table], streams: Sequence[Stream], settings: dict[str, str]
) -> tuple[str, ...]:
    """Return the words that cases are sorted by."""
    statements = [s for stream in streams for script in stream.scripts for s in script.statements]
    kinds = {s.kind for s in statements}
    laws = {s.popularity.law for s in statements if s.popularity is not None}
    used = {s.table for s in statements}
    parallel = any(
        stream.parallel_workers > 0 and any(s.kind in {"scan", "analytic"} for s in script.statements)
        for stream in streams
        for script in stream.scripts
    )
    longest = max(len(script.statements) for stream in streams for script in stream.scripts)
    found = {
        f"character:{character}": True,
        "parallel": parallel,
        "serial scans": "scan" in kinds and not parallel,
        "long transactions": longest >= 10,
        "partitions": any(tables[n].partitions for n in used),
        "growing": bool(kinds & {"insert", "copy"}),
        "autovacuum": settings["autovacuum"] == "on",
        "think times": any(script.think_milliseconds for stream in streams for script in stream.scripts),
        **{law: law in laws for law in ("zipf", "uniform", "latest", "classes", "moving", "loop")},
        **{str(kind): kind in kinds for kind in sorted(kinds)},
    }
    return tuple(word for word, there in found.items() if there)


def _factors(observed: int, data_blocks: int) -> tuple[float, ...]:
    """Return the sizes of the truth; beyond the first that holds everything there is nothing to learn."""
    holding = [factor for factor in _FACTORS if factor * observed > 1.5 * data_blocks]
    chosen = [factor for factor in _FACTORS if factor not in holding[1:]]
    chosen += _BETWEEN[: max(_FEWEST_SIZES - len(chosen), 0)]
    return tuple(sorted(chosen))


def _tables(draw: _Draw, data_blocks: int) -> list[Table]:
    count = round(draw.log_uniform(2, 30))
    shares = np.exp(draw.rng.normal(0.0, 1.1, count))
    shares /= shares.sum()
    tables = []
    for number, share in enumerate(shares):
        toast_bytes = int(draw.rng.integers(2500, 7000)) if draw.chance(0.12) else 0
        filler = draw.one((20, 60, 120, 200, 400, 800), (2, 3, 3, 3, 2, 1))
        ref_index = draw.chance(0.65)
        row_bytes = 56 + filler + 22 + 22 * ref_index + toast_bytes * 1.06
        rows = max(int(share * data_blocks * BLOCK_BYTES / row_bytes), 200)
        tables.append(
            Table(
                name=f"t{number}",
                rows=rows,
                filler_bytes=filler,
                fillfactor=draw.one((100, 95, 85, 70), (4, 3, 2, 1)),
                toast_bytes=toast_bytes,
                partitions=int(draw.rng.integers(3, 11)) if rows > 5000 and draw.chance(0.15) else 0,
                ref_index=ref_index,
                covering=ref_index and draw.chance(0.4),
                rows_per_ref=draw.one((1, 1, 2, 4, 8, 20)),
            )
        )
    return tables


def _popularity(draw: _Draw, seed: int) -> Popularity:
    law = draw.one(("zipf", "uniform", "latest", "classes", "moving", "loop"), (10, 2.5, 2.5, 3, 1.2, 0.5))
    if law == "zipf":
        exponent = round(float(draw.rng.uniform(0.5, 1.5)), 2)
        return Popularity(law="zipf", exponent=0.95 if 0.95 < exponent < 1.01 else exponent, seed=seed)
    if law == "latest":
        return Popularity(law="latest", exponent=round(draw.log_uniform(3, 60), 1))
    if law == "classes":
        return Popularity(
            law="classes",
            hot_share=round(draw.log_uniform(0.005, 0.2), 4),
            hot_probability=round(float(draw.rng.uniform(0.5, 0.97)), 3),
            seed=seed,
        )
    if law == "moving":
        return Popularity(
            law="moving",
            exponent=round(float(draw.rng.uniform(1, 6)), 1),
            hot_share=round(draw.log_uniform(0.02, 0.3), 3),
            rows_per_transaction=max(round(draw.log_uniform(0.6, 60)), 1),
        )
    if law == "loop":
        return Popularity(law="loop", rows_per_transaction=round(draw.log_uniform(5, 200)))
    return Popularity(law="uniform", seed=seed)


def _main(
    draw: _Draw,
    character: str,
    tables: Sequence[Table],
    popularity: list[list[Popularity]],
    accesses_per_second: float,
) -> Stream:
    """Return the clients that make most of the load."""
    kinds = _CHARACTERS[character]
    # Few tables take most of the statements, and these are drawn, not the largest.
    order = draw.rng.permutation(len(tables))
    liking = np.zeros(len(tables))
    liking[order] = 1.0 / np.arange(1, len(tables) + 1) ** draw.rng.uniform(0.3, 1.2)
    liking /= liking.sum()
    thinks = draw.chance(0.2)
    scripts = []
    for _ in range(int(draw.rng.integers(1, 6))):
        long = draw.chance(0.45)
        length = round(draw.log_uniform(2, 50)) if long else 1
        statements: list[Statement] = []
        while len(statements) < length:
            table = int(draw.rng.choice(len(tables), p=liking))
            kind = draw.one(list(kinds), list(kinds.values()))
            statements += _statements(draw, kind, table, tables, popularity)
        scripts.append(
            Script(
                statements=_in_order(statements),
                weight=int(draw.rng.integers(1, 10)),
                think_milliseconds=int(draw.rng.integers(1, 20)) if thinks else 0,
            )
        )
    weights = np.array([script.weight for script in scripts], dtype=float)
    expected = np.array([sum(expected_accesses(s, tables) for s in script.statements) for script in scripts])
    lengths = np.array([len(script.statements) for script in scripts], dtype=float)
    mean_accesses = float((weights * expected).sum() / weights.sum())
    mean_length = float((weights * lengths).sum() / weights.sum())
    clients = round(draw.log_uniform(1, 16))
    rate = min(accesses_per_second / mean_accesses, 1000 / mean_length, 1000.0, 120.0 * clients)
    return Stream(
        name="main", clients=clients, transactions_per_second=round(rate, 2), scripts=tuple(scripts)
    )


def _statements(
    draw: _Draw,
    kind: Kind,
    table: int,
    tables: Sequence[Table],
    popularity: list[list[Popularity]],
) -> list[Statement]:
    """Return a statement of a kind, or what stands in for it on a table that does not allow it."""
    there = tables[table]
    law = popularity[table][0 if draw.chance(0.75) else 1]
    if kind in {"by_ref", "bitmap"} and not there.ref_index:
        kind = "range"
    if kind == "index_only" and not there.covering:
        kind = "by_ref" if there.ref_index else "point"
    if kind == "toast" and not there.toast_bytes:
        kind = "point"
    if kind == "update_cold" and not there.ref_index:
        kind = "update_hot"
    if kind == "join":
        # The planner turns to a scan of the other table when the range is long.
        other = int(draw.rng.integers(len(tables)))
        rows = int(draw.rng.integers(2, 20))
        return [Statement(kind="join", table=table, other=other, popularity=law, rows=rows)]
    if kind == "insert":
        return [Statement(kind="insert", table=table)]
    if kind == "delete":
        law = Popularity(law="uniform", seed=table)
    rows = {
        "range": round(draw.log_uniform(5, 800)),
        "bitmap": max(round(draw.log_uniform(30, 600) / there.rows_per_ref), 1),
        "index_only": round(draw.log_uniform(2, 500)),
    }.get(kind, 0)
    found = [Statement(kind=kind, table=table, popularity=law, rows=rows)]
    if kind in {"update_hot", "upsert"} and draw.chance(0.4):
        found.append(Statement(kind="point", table=table, popularity=law, again=True))
    return found


def _in_order(statements: list[Statement]) -> tuple[Statement, ...]:
    """Return the statements with at most four that lock rows which others may lock too, in order of tables.

    Transactions that lock many hot rows in any order end in deadlocks, and measure these.
    """
    kept: list[Statement] = []
    locks = 0
    for statement in statements:
        locking = statement.kind in {"update_hot", "update_cold", "upsert", "delete"}
        locks += locking
        if not locking or locks <= 4:
            kept.append(statement)
        else:
            kept.append(Statement(kind="point", table=statement.table, popularity=statement.popularity))
    return tuple(kept)


def _scans(draw: _Draw, tables: Sequence[Table], observed: int, accesses_per_second: float) -> Stream:
    """Return clients that scan a table or two, over and over, at a rate."""
    sizes = np.array([table_blocks(table) for table in tables])
    # About a ring's threshold (a quarter of the pool) and well above it: both happen.
    suited = [n for n, size in enumerate(sizes) if 0.03 * observed <= size <= 12000]
    chosen = [draw.one(suited or [int(sizes.argmax())]) for _ in range(int(draw.rng.integers(1, 3)))]
    blocks = float(np.mean([sizes[n] for n in chosen]))
    share = draw.rng.uniform(0.08, 0.7)
    wanted = min(share / (1 - share) * accesses_per_second, _MOST_SCANNED_PER_SECOND)
    return Stream(
        name="scans",
        clients=draw.one((1, 1, 2)),
        transactions_per_second=round(min(max(wanted / blocks, 0.2), 20.0), 3),
        scripts=tuple(Script(statements=(Statement(kind="scan", table=n),)) for n in chosen),
        parallel_workers=draw.one((0, 2), (0.5, 0.5)),
    )


def _analytic(draw: _Draw, tables: Sequence[Table]) -> Stream:
    """Return one client that joins and aggregates whole tables, or large parts of them."""
    suited = sorted(range(len(tables)), key=lambda n: tables[n].rows)
    small = [n for n in suited if tables[n].rows <= 250_000] or suited[:1]
    first, second = draw.one(small), draw.one(small)
    return Stream(
        name="analytic",
        clients=1,
        transactions_per_second=round(draw.log_uniform(0.25, 1.0), 3),
        scripts=(Script(statements=(Statement(kind="analytic", table=first, other=second),)),),
        parallel_workers=draw.one((0, 2)),
    )


def _chores(draw: _Draw, tables: Sequence[Table]) -> Stream:
    """Return one client that does what is done now and then: bulk load, VACUUM, temporary tables, DDL."""
    scripts = []
    plain = [n for n, table in enumerate(tables) if not table.toast_bytes and table.filler_bytes <= 400]
    for kind in draw.rng.permutation(["copy", "stage", "vacuum", "temporary", "create"])[
        : int(draw.rng.integers(1, 4))
    ]:
        name: Kind = str(kind)  # type: ignore[assignment]
        table = draw.one(plain or list(range(len(tables))))
        keyed = name in {"temporary", "create"}
        law = Popularity(law="uniform", seed=table) if keyed else None
        rows = round(draw.log_uniform(200, 5000)) if keyed else 0
        scripts.append(Script(statements=(Statement(kind=name, table=table, popularity=law, rows=rows),)))
    return Stream(
        name="chores",
        clients=1,
        transactions_per_second=round(draw.log_uniform(0.25, 2.0), 3),
        scripts=tuple(scripts),
        simple=True,
    )
