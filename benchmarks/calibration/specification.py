"""The specification of a generated workload: frozen records that JSON carries both ways.

A case of the calibration is repeated from its specification alone: tables, statements, popularity, streams of
transactions, settings. `generator` draws one from a seed, `scripts` writes it as SQL and pgbench scripts.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Law = Literal["zipf", "uniform", "latest", "classes", "moving", "loop"]
"""How keys are chosen.

- zipf: by Zipf's law with an exponent, its ranks scattered over the table.
- uniform: all alike.
- latest: the newest rows most, falling exponentially.
- classes: a share of the rows takes a given part of the draws.
- moving: a window of rows that moves on with every transaction.
- loop: one row after the other, from the first again after the last.
"""

Kind = Literal[
    "point",
    "toast",
    "range",
    "by_ref",
    "bitmap",
    "index_only",
    "join",
    "update_hot",
    "update_cold",
    "insert",
    "delete",
    "upsert",
    "scan",
    "analytic",
    "copy",
    "stage",
    "vacuum",
    "temporary",
    "create",
]


class Popularity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the keys of a statement are chosen.

    Attributes:
        law: see `Law`.
        exponent: of Zipf's law, 0.5 to 1.5; of the exponential of `latest` and `moving`.
        hot_share: share of the rows that are hot (`classes`), or in the window (`moving`).
        hot_probability: part of the draws that they take (`classes`).
        rows_per_transaction: how far a window or a loop moves with each transaction of a client.
        seed: of the scattering.
    """

    law: Law
    exponent: float = 1.0
    hot_share: float = 0.0
    hot_probability: float = 0.0
    rows_per_transaction: int = 0
    seed: int = 0


class Table(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A table `t0`, `t1`, ... with columns id, ref, grp, val, n, filler, body and a primary key on id.

    Attributes:
        rows: at the beginning.
        filler_bytes: width of the column that makes rows wide.
        fillfactor: of the table; below 100 updates can stay on their page.
        toast_bytes: length of `body`, stored apart and not compressed; 0 is none.
        partitions: by range of id; 0 is a plain table.
        ref_index: index on ref, whose order has nothing to do with that of the rows.
        covering: that index has val as a second column.
        rows_per_ref: how many rows share a value of ref.
    """

    name: str
    rows: int
    filler_bytes: int
    fillfactor: int = 100
    toast_bytes: int = 0
    partitions: int = 0
    ref_index: bool = False
    covering: bool = False
    rows_per_ref: int = 1


class Statement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One statement of a transaction.

    Attributes:
        kind: see `Kind`.
        table: position in the specification's tables.
        other: the other table of a join.
        popularity: of its keys, where it has any.
        rows: how many rows a range spans, or are copied at once.
        again: it takes the key of the statement before it.
    """

    kind: Kind
    table: int
    other: int = 0
    popularity: Popularity | None = None
    rows: int = 0
    again: bool = False


class Script(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kind of transaction: its statements in their order.

    Attributes:
        weight: how often it is chosen, relative to the stream's other scripts.
        think_milliseconds: how long its client waits afterwards.
        text: a script for pgbench, in the place of statements (benchmarks/jobs).
    """

    statements: tuple[Statement, ...] = ()
    weight: int = 1
    think_milliseconds: int = 0
    text: str = ""


class Stream(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Clients that run scripts at a rate: one pgbench.

    Attributes:
        transactions_per_second: of all its clients together.
        parallel_workers: max_parallel_workers_per_gather of its sessions.
        simple: statements go as text (what cannot be prepared needs that).
        reconnects: each transaction has a connection of its own.
        on_primary: in a case of a standby, its primary runs them.
    """

    name: str
    clients: int
    transactions_per_second: float
    scripts: tuple[Script, ...]
    parallel_workers: int = 0
    simple: bool = False
    reconnects: bool = False
    on_primary: bool = False


class Specification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole case.

    Attributes:
        seed: it was drawn from, and seeds what is random in its run.
        observed_blocks: shared_buffers under observation.
        size_factors: the sizes of the truth, relative to that, ascending; 1.0 is among them.
        settings: of the server.
        tags: words for what is in it, to sort cases by.
        setup: statements that make tables beside `tables`.
        standby: what is observed and measured is a standby, which streams from a primary.
    """

    seed: int
    observed_blocks: int
    size_factors: tuple[float, ...]
    tables: tuple[Table, ...]
    streams: tuple[Stream, ...]
    settings: dict[str, str]
    tags: tuple[str, ...]
    setup: tuple[str, ...] = ()
    standby: bool = False

    def sizes_blocks(self) -> tuple[int, ...]:
        """Return the sizes of the truth in blocks, ascending."""
        return tuple(round(self.observed_blocks * factor) for factor in self.size_factors)
