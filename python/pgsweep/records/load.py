"""Loading files into a table: the plan, what was done, and the practices compared."""

from __future__ import annotations

import msgspec

from pgsweep.records.common import Provenance


class LoadFile(msgspec.Struct, frozen=True, kw_only=True):
    """One input.

    Attributes:
        path: as given; `-` is standard input.
        size_bytes: on disk; null where it is not known.
        compression: `gz`, `zst`, `xz`, or null.
        records: of the table that it holds, where it is done.
        header: whether its first record was taken for a header; null where the format has none.
        left_out: the places of fields that are not loaded, from 0.
    """

    path: str
    size_bytes: int | None
    compression: str | None = None
    records: int | None = None
    header: bool | None = None
    left_out: list[int] = []


class LoadObject(msgspec.Struct, frozen=True, kw_only=True):
    """An index, a constraint or a trigger of the table, and what the load does with it.

    Attributes:
        kind: `index`, `primary key`, `unique`, `exclusion`, `foreign key`, `trigger`.
        definition: the statement that makes it.
        action: `keep`, `drop and make again`, `drop, add and validate`, `disable and enable`.
        reason: why.
        size_bytes: of an index, before.
        seconds: for making it again, measured; null where that was not done.
    """

    kind: str
    name: str
    definition: str
    action: str
    reason: str
    size_bytes: int | None = None
    seconds: float | None = None


class LoadFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function that may run during the load, with the rights of the role that loads.

    Attributes:
        name: with schema and parameters.
        used_by: the trigger, constraint, default, index or type that calls it; empty where another function
            names it.
        path: the search_path under which it runs.
    """

    name: str
    owner: str
    used_by: str
    path: str


class LoadEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What the load is expected to take.

    Attributes:
        certainty: `measured` where a sample was copied, else `assumed`.
    """

    records: int | None
    bytes: int | None
    seconds: float | None
    wal_bytes: int | None
    certainty: str


class LoadChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One decision of the plan, and its reason."""

    what: str
    choice: str
    reason: str


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is on the table, and how it is going to be loaded.

    Attributes:
        table: schema and name, quoted as SQL has them.
        kind: `table` or `partitioned table`.
        persistence: `logged` or `unlogged`.
        rows: the server's estimate; null where the table has rows and was never analyzed.
        referenced_by: foreign keys of other tables.
        strategy: `pieces` (many transactions with a journal) or `one transaction`.
        given_up: what does not hold while the load runs.
        notes: what else the user should know.
        partition_of: the table that a new partition is attached to; null where none is made.
        bound: of that partition.
        one_statement: each file is one COPY, also where records may be refused.
        functions: code of the database's users that may run.
    """

    table: str
    kind: str
    persistence: str
    rows: int | None
    table_bytes: int
    index_bytes: int
    partitions: int
    published: bool
    replication_slots: int
    wal_level: str
    columns: list[str]
    format: str
    files: list[LoadFile]
    objects: list[LoadObject]
    referenced_by: list[str]
    strategy: str
    jobs: int
    freeze: bool
    maintenance_work_mem_bytes: int
    piece_bytes: int
    choices: list[LoadChoice]
    given_up: list[str]
    estimate: LoadEstimate
    notes: list[str] = []
    partition_of: str | None = None
    bound: str | None = None
    one_statement: bool = False
    functions: list[LoadFunction] = []


class LoadStep(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the work and its time, measured."""

    what: str
    seconds: float


class LoadOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What was done; everything here was measured.

    Attributes:
        ended: `loaded`, `rolled back`, `interrupted`, `incomplete` (an index or a constraint could not be
            made; the load goes on with --resume), `kept as it is` (ended without it), or `forgotten` (the
            journal was removed).
        load_id: names the journal.
        rows: in the table by this load.
        rejected: records that were written to the file of rejects.
        copied_bytes: of the files, uncompressed.
        resumed: the load was begun by an earlier run.
        unchanged: the catalog is equal to what it was before; null where that was not compared.
        journal: the local file, where it stays.
        notes: what is left to the user, with the statements for it.
        headers: the files whose first record was taken for a header.
        copied_rows: of `rows`, by this run; null in older results.
    """

    ended: str
    load_id: str
    rows: int
    rejected: int
    copied_bytes: int
    seconds: float
    wal_bytes: int | None
    jobs: int
    resumed: bool
    unchanged: bool | None
    steps: list[LoadStep]
    problems: list[str] = []
    rejects_file: str | None = None
    journal: str | None = None
    notes: list[str] = []
    headers: list[str] = []
    copied_rows: int | None = None


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """`pgsweep load`: the plan, and with it what was done, unless only the plan was asked for."""

    schema: str = "pgsweep.load/1"
    server_version: str
    database: str
    plan: LoadPlan
    outcome: LoadOutcome | None = None
    provenance: Provenance | None = None


class LoadPractice(msgspec.Struct, frozen=True, kw_only=True):
    """One practice on a copy of the table, measured.

    Attributes:
        seconds: per round, for the rows of the sample.
        rows_per_second: of the median.
        ratio_to_copy: throughput over that of COPY into the table as it stands; above 1 it pays.
    """

    practice: str
    rows: int
    seconds: list[float]
    rows_per_second: float
    ratio_to_copy: float
    remark: str = ""


class LoadCompareResult(msgspec.Struct, frozen=True, kw_only=True):
    """`pgsweep load --compare`: which practices pay for this table, this file and this server."""

    schema: str = "pgsweep.load-compare/1"
    server_version: str
    database: str
    table: str
    sample_rows: int
    sample_bytes: int
    rounds: int
    practices: list[LoadPractice]
    left_out: list[str] = []
    provenance: Provenance | None = None
