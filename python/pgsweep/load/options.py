"""What the user chooses of a load."""

from __future__ import annotations

from typing import Literal

import msgspec

from pgsweep.errors import UsageError

Format = Literal["csv", "tsv", "jsonl", "parquet", "binary"]


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to read the files, and how to load them.

    Attributes:
        format: None where the names of the files say it.
        header: whether the first record names columns; None to find out.
        columns: of the table, in the order of the file; None for the header's, or all. Of JSON and Parquet
            those that are loaded.
        leave_out: names in the header, keys or columns of the files that are not loaded.
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
        max_record_bytes: the longest record; the server takes none of 1 GB.
        keep_on_failure: leave what is copied when a record is refused, for --resume.
    """

    format: Format | None = None
    header: bool | None = None
    columns: list[str] | None = None
    leave_out: list[str] | None = None
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
    max_record_bytes: int = 1 << 30
    keep_on_failure: bool = False
    search_path: list[str] | None = None


_OF_TEXT = ("header", "delimiter", "null", "encoding")
_OF_CSV = ("quote", "escape", "empty_is_null")
_OF_NO_BINARY = ("leave_out", "max_rejects")
_WORDS = {"max_rejects": "--rejects", "empty_is_null": "--empty-is-null", "leave_out": "--leave-out"}


def check_options(kind: Format, options: LoadOptions) -> None:
    """Refuse options that a format does not take.

    Raises:
        UsageError: one is given.
    """
    refused: tuple[str, ...] = ()
    if kind not in ("csv", "tsv"):
        refused += _OF_TEXT
    if kind != "csv":
        refused += _OF_CSV
    if kind == "binary":
        refused += _OF_NO_BINARY
    plain = LoadOptions()
    given = [name for name in refused if getattr(options, name) != getattr(plain, name)]
    if given:
        words = ", ".join(_WORDS.get(name, f"--{name}") for name in given)
        raise UsageError(
            f"files of the format {kind} do not take {words}", hint="leave it out, or name another --format"
        )
