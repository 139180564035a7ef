"""The whole history as Parquet files: `pgsweep serve --export`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgsweep.errors import PgsweepError
from pgsweep.files import write_whole
from pgsweep.serve.consumers import COLUMNS as CONSUMER_COLUMNS
from pgsweep.serve.history import COLUMNS
from pgsweep.serve.history_reads import consumer_rows, curve_rows, sample_rows
from pgsweep.serve.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa


def export_history(store: Store, output: Path) -> dict[Path, int]:
    """Write samples, consumers and curves, a file each; return how many rows each has.

    NAME.parquet has a row for each server, level and time: the columns of the history, with the server's
    name, `step_seconds` (10, 60 or 900) and `at`, the end of the interval. NAME-consumers.parquet has one for
    each user, database, statement and backend in addition, and NAME-curves.parquet one for each point of the
    curves that were kept.

    Raises:
        PgsweepError: the history cannot be read, or a file cannot be written.
    """
    import pyarrow as pa

    text, number, time = pa.string(), pa.float64(), pa.timestamp("s", tz="UTC")
    begin = [("server", text), ("step_seconds", pa.int32()), ("at", time)]
    samples = [*begin, *((name, number) for name in COLUMNS)]
    consumers = [
        *begin,
        *((name, text) for name in ("kind", "user", "database", "id")),
        *((name, number) for name in ("covered_seconds", *CONSUMER_COLUMNS)),
    ]
    curves = [
        ("server", text),
        ("at", time),
        ("window_seconds", pa.int32()),
        ("verdict", text),
        ("shared_buffers_bytes", pa.int64()),
        *((name, number) for name in ("miss_ratio", "low", "high")),
        ("advised_bytes", pa.int64()),
    ]
    beside = output.with_name
    return {
        output: _write(output, samples, sample_rows(store)),
        (path := beside(f"{output.stem}-consumers{output.suffix}")): _write(
            path, consumers, consumer_rows(store)
        ),
        (path := beside(f"{output.stem}-curves{output.suffix}")): _write(path, curves, curve_rows(store)),
    }


def _write(
    output: Path, columns: Sequence[tuple[str, pa.DataType]], batches: Iterable[list[tuple[Any, ...]]]
) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema(list(columns))
    sink = pa.BufferOutputStream()
    count = 0
    with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        for rows in batches:
            count += len(rows)
            found = zip(columns, zip(*rows, strict=True), strict=True)
            writer.write_table(
                pa.table({name: pa.array(values, type=kind) for (name, kind), values in found}, schema=schema)
            )
    try:
        write_whole(output, memoryview(sink.getvalue()))
    except OSError as error:
        raise PgsweepError(f"`{output}` cannot be written", cause=error.strerror) from error
    return count
