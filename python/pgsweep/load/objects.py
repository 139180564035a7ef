"""Which indexes and foreign keys are dropped for a load, why others are kept, and how each is made again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pgsweep.load.options import LoadOptions
from pgsweep.pg.load.catalog import Catalog, IndexFacts, KeyFacts
from pgsweep.pg.load.journal import VALIDATED, JournalObject
from pgsweep.units import parse_bytes

# Assumed, of a server whose data fit its memory; --compare measures them here.
COPY_BYTES_PER_SECOND: Final = 80e6
REWRITE_BYTES_PER_SECOND: Final = 200e6
INDEX_INSERT_SECONDS: Final = 2.5e-6
INDEX_BUILD_SECONDS: Final = 0.8e-6
KEY_VALIDATE_SECONDS: Final = 0.4e-6
_KEY_CHECK_SECONDS: Final = 8e-6
_BATCHED_CHECK_SECONDS: Final = 4e-6
"""From 19 on. 500,000 rows of integers, in turns: 9.8 to 11.9 microseconds on 18, 4.2 to 6.1 on 19rc1."""

_OUT_OF_MEMORY: Final = 4.0
"""How much more an insert costs where the index does not fit into shared_buffers."""

INDEX_BYTES_PER_ROW: Final = 24
_LEAST_GAIN_SECONDS: Final = 0.5
"""For a smaller gain no object is dropped, because dropping needs a strong lock."""

KINDS: Final = {"p": "primary key", "u": "unique", "x": "exclusion", None: "index"}


def which_indexes(
    catalog: Catalog, options: LoadOptions, records: int | None
) -> list[tuple[IndexFacts, str | None]]:
    """Return each index with the reason to keep it; None where it is dropped."""
    table = catalog.table
    buffers = parse_bytes(table.shared_buffers) if table.shared_buffers else 0
    found: list[tuple[IndexFacts, str | None]] = []
    for index in catalog.indexes:
        reason = index.kept
        if reason is None and options.indexes == "keep":
            reason = "as asked"
        if reason is None and index.constraint_type == "x":
            reason = "a build compares row by row too, and would not say which record it refuses"
        if reason is None and not table.owned:
            reason = "only the owner of the table may drop it"
        if reason is None and table.kind == "p":
            reason = "it belongs to a partitioned table"
        if reason is None and index.is_unique and any(key.to_itself and key.kept for key in catalog.keys):
            reason = "a foreign key of the table itself needs it, and is kept"
        if reason is None and options.indexes == "auto":
            rows = 10_000_000 if records is None else records
            size = index.bytes + rows * INDEX_BYTES_PER_ROW
            insert = rows * INDEX_INSERT_SECONDS * (_OUT_OF_MEMORY if size > buffers else 1.0)
            build = (rows + (table.rows_estimate or 0)) * INDEX_BUILD_SECONDS
            if insert <= build:
                reason = "building it again would take longer than the inserts"
            elif insert - build < _LEAST_GAIN_SECONDS:
                reason = "making it again would gain less than half a second"
        found.append((index, reason))
    return found


def check_seconds(key: KeyFacts) -> float:
    """Return what the check of a row takes."""
    return _BATCHED_CHECK_SECONDS if key.batched else _KEY_CHECK_SECONDS


def which_keys(
    catalog: Catalog, options: LoadOptions, records: int | None, dropped: set[str]
) -> list[tuple[KeyFacts, str | None]]:
    """Return each foreign key with the reason to keep it; None where it is dropped."""
    table = catalog.table
    rows = 10_000_000 if records is None else records
    found: list[tuple[KeyFacts, str | None]] = []
    for key in catalog.keys:
        reason = key.kept
        if reason is None and options.indexes == "keep" and not (key.to_itself and dropped):
            reason = "as asked"
        if reason is None and not table.owned:
            reason = "only the owner of the table may drop it"
        gain = rows * check_seconds(key) - (rows + (table.rows_estimate or 0)) * KEY_VALIDATE_SECONDS
        slower = gain < _LEAST_GAIN_SECONDS
        if reason is None and options.indexes == "auto" and slower and not (key.to_itself and dropped):
            reason = "validating it again would gain less than half a second"
        found.append((key, reason))
    return found


def journal_indexes(indexes: Sequence[tuple[IndexFacts, str | None]]) -> list[JournalObject]:
    """Return the indexes that are dropped, with their constraints and the statements that make each."""
    objects = []
    for index, reason in indexes:
        if reason is not None:
            continue
        of_constraint = index.constrained is not None
        objects.append(
            JournalObject(
                kind=KINDS[index.constraint_type],
                name=index.name,
                definition=index.definition,
                drop=index.drop,
                make=[index.definition, *index.index_extras, *([] if of_constraint else index.last_extras)],
                tablespace=index.tablespace,
                stage=0,
                size_bytes=index.bytes,
            )
        )
        if index.constrained is not None:
            objects.append(
                JournalObject(
                    kind="constraint",
                    name=index.name,
                    definition=index.constrained,
                    make=[index.constrained, *index.last_extras],
                    stage=1,
                )
            )
    return objects


def objects_of(catalog: Catalog) -> set[tuple[str, str]]:
    """Return name and definition of all that a table has now, as a journal would have them."""
    indexes = journal_indexes([(index, None) for index in catalog.indexes if index.is_valid])
    keys = journal_keys([(key, None) for key in catalog.keys])
    return {(entry.name, entry.definition) for entry in [*indexes, *keys]}


def journal_keys(keys: Sequence[tuple[KeyFacts, str | None]]) -> list[JournalObject]:
    """Return the foreign keys that are dropped, with the statements that make each again."""
    objects = []
    for key, reason in keys:
        if reason is not None:
            continue
        comment = [key.comment] if key.comment else []
        objects.append(
            JournalObject(
                kind="foreign key",
                name=key.name,
                definition=key.add,
                drop=key.drop,
                make=[key.add, *comment],
                stage=2,
            )
        )
        if key.validate is not None:
            objects.append(
                JournalObject(
                    kind=VALIDATED,
                    name=key.name,
                    definition=key.add.removesuffix(" NOT VALID"),
                    make=[key.validate],
                    stage=3,
                )
            )
    return objects
