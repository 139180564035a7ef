"""How many records the files have: what decides whether an index is dropped, and how long a load takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pgsweep.load.input.source import Input
from pgsweep.load.input.split import Head, splitter_for
from pgsweep.load.options import LoadOptions

COMPRESSION: Final = 4.0
"""Assumed: how much larger a compressed file of text is when it is read."""


@dataclass(frozen=True)
class Amount:
    """What one file has.

    Attributes:
        records: without the header; None where that is not known.
        read_bytes: uncompressed; None where that is not known.
    """

    records: int | None
    read_bytes: int | None


def amount_of_text(entry: Input, head: Head, options: LoadOptions, *, header: bool) -> Amount:
    """Return what a file of text has: counted where all of it was read, else estimated from its beginning.

    Args:
        header: whether the first record is one.
    """
    text = head.data
    ends = splitter_for(entry.format, options, head.terminator).ends(text)
    if head.whole:
        if entry.format == "jsonl":
            counted = sum(1 for line in text.split(b"\n") if line.strip())
        else:
            # The last record may have no line end.
            counted = len(ends) + (len(text) > (int(ends[-1]) if len(ends) else 0))
        return Amount(max(0, counted - header), len(text))
    if entry.size_bytes is None:
        return Amount(None, None)
    size = round(entry.size_bytes * (COMPRESSION if entry.compression else 1.0))
    mean = float(ends[-1]) / len(ends) if len(ends) else float(len(text))
    return Amount(max(1, round(size / mean)), size)


def amount_of_parquet(entry: Input) -> Amount:
    """Return what the footer of a Parquet file says; nothing is known where it cannot be read."""
    try:
        footer = pq.read_metadata(entry.path)
    except (pa.ArrowException, OSError):
        return Amount(None, None)
    unpacked = sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
    return Amount(footer.num_rows, max(unpacked, entry.size_bytes or 0))
