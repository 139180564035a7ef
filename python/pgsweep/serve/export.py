"""The whole history as one Parquet file: `pgsweep serve --export`."""

from __future__ import annotations

from pathlib import Path

from pgsweep.errors import PgsweepError
from pgsweep.files import write_whole
from pgsweep.serve.history import COLUMNS, LEVELS, read_rows


def export_history(history: Path, output: Path) -> int:
    """Write a row for each server, level and time; return how many.

    The columns are those of the history, with the server's name, `step_seconds` (10, 60 or 900) and `at`, the
    end of the interval.

    Raises:
        HistoryError: the history cannot be read.
        PgsweepError: the file cannot be written.
    """
    import pyarrow as pa
    from pyarrow import parquet

    names = ["server", "step_seconds", "at", *COLUMNS]
    kinds = [pa.string(), pa.int32(), pa.timestamp("s", tz="UTC"), *([pa.float64()] * len(COLUMNS))]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    sink = pa.BufferOutputStream()
    count = 0
    with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        for step in LEVELS:
            for rows in read_rows(history, step):
                count += len(rows)
                columns = zip(*rows, strict=True)
                arrays = [pa.array(column, type=kind) for column, kind in zip(columns, kinds, strict=True)]
                writer.write_table(pa.table(dict(zip(names, arrays, strict=True)), schema=schema))
    try:
        write_whole(output, memoryview(sink.getvalue()))
    except OSError as error:
        raise PgsweepError(f"`{output}` cannot be written", cause=error.strerror) from error
    return count
