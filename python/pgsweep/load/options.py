"""What the user chooses of a load."""

from __future__ import annotations

from typing import Literal

import msgspec

Format = Literal["csv", "tsv", "jsonl", "parquet", "binary"]


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to read the files, and how to load them.

    Attributes:
        format: None where the names of the files say it.
        header: whether the first record names columns; None to find out.
        columns: of the table, in the order of the file; None for the header's, or all.
        delimiter: of CSV and TSV; None for the format's own.
        quote: of CSV.
        escape: of CSV; None for the quote.
        null: the spelling of NULL.
        empty_is_null: in CSV a quoted NULL spelling is NULL too.
        encoding: of the files, as the server names it; None for UTF-8.
        jobs: sessions that copy at once; None to measure.
        single_transaction: all or nothing, in one session.
        unlogged: the table, which is empty, is UNLOGGED until its rows are copied.
        partition_of: make the table, and attach it as a partition of this one; with `for_values`.
        for_values: its bound, as SQL has it: `FROM (...) TO (...)`, `IN (...)`, `DEFAULT`.
        indexes: drop indexes and foreign keys and make them again, keep them, or what is estimated to be
            faster.
        disable_triggers: the user's triggers on INSERT do not fire.
        freeze: rows are frozen at once, where that is allowed; None where it costs nothing.
        maintenance_work_mem_bytes: for index builds in all; None for a share of the memory.
        max_rejects: how many records may be refused; None for a stop at the first.
        vacuum: at the end, for the visibility map.
        piece_bytes: of a file in one transaction; None for a share of it.
        search_path: schemas in which the table's code looks for names; None for the user's own path, of a
            superuser without those in which others may create.
        keep_on_failure: leave what is copied when a record is refused, for --resume.
    """

    format: Format | None = None
    header: bool | None = None
    columns: list[str] | None = None
    delimiter: str | None = None
    quote: str | None = None
    escape: str | None = None
    null: str | None = None
    empty_is_null: bool = False
    encoding: str | None = None
    jobs: int | None = None
    single_transaction: bool = False
    unlogged: bool = False
    partition_of: str | None = None
    for_values: str | None = None
    indexes: Literal["auto", "keep", "drop"] = "auto"
    disable_triggers: bool = False
    freeze: bool | None = None
    maintenance_work_mem_bytes: int | None = None
    max_rejects: int | None = None
    vacuum: bool = False
    piece_bytes: int | None = None
    keep_on_failure: bool = False
    search_path: list[str] | None = None
