"""Write evidence: parts appear whole or not at all, and every failure of the disk is reported in words."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
import numpy as np

from pgsweep.commands import on_server
from pgsweep.errors import EvidenceError
from pgsweep.evidence.schema import (
    ANSWERS,
    DISK_TROUBLE,
    MOST_META_BYTES,
    SCHEMA_NAME,
    TABLES,
    EvidenceMeta,
    needed_tables,
)
from pgsweep.files import is_aside, write_whole
from pgsweep.plain import shell_word
from pgsweep.regular import read_regular

if TYPE_CHECKING:
    from numpy.typing import NDArray

PART_BYTES: Final = 32 << 20
"""Rows of one table (uncompressed) that wait in memory before a part is written."""

FLUSH_SECONDS: Final = 5.0
FLUSH_SHARE: Final = 0.02
FIRST_FLUSH_SECONDS: Final = 1.0
"""The first part is written after this time, each of the next ones when the recording is twice as long..."""

_ANY_OBSERVATIONS: Final = frozenset({"accesses", "snapshots"})

_SPARE: Final = ".spare"
_SPARE_BYTES: Final = 16 << 10
"""Room for the last `meta.json`, kept by a file that is removed just before: some kB are needed."""

_OWN_FILES: Final = ("meta.json", _SPARE, ANSWERS)

_SPACE: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class EvidenceWriter:
    """Writes evidence; not for use by several threads at once.

    At most `PART_BYTES` of rows a table wait in memory. A part is also written when the last one is older
    than five seconds, or than a fiftieth of the recording if that is more, so that a cut loses little and
    parts stay few; in the first seconds after one, two and four seconds.

    Use it as a context manager: leaving by an exception keeps what is whole and marks the evidence as cut;
    if not a single access or snapshot was given, the folder is removed again. While it writes, a spare file
    of 16 kB keeps room for the last `meta.json`, so that a full disk cannot hide why the recording ended.

    Args:
        path: the folder to make; its parents must exist.
        meta: what is known at the beginning.
        overwrite: replace evidence that is there already (never anything else).

    Raises:
        EvidenceError: the folder cannot be made, exists already, or is being written by another process.
    """

    def __init__(self, path: Path, meta: EvidenceMeta, *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self.meta = meta
        self.bytes_written = 0
        self.failed: EvidenceError | None = None
        self._waiting: dict[str, list[dict[str, Any]]] = {}
        self._waiting_rows: dict[str, int] = {}
        self._parts: dict[str, int] = {}
        self._begun = self._flushed = time.monotonic()
        self._closed = False
        self._lock_fd = self._make_folder(overwrite=overwrite)
        try:
            self._write_meta(msgspec.structs.replace(meta, complete=False))
            self._keep_spare()
        except BaseException:
            self._remove()
            raise

    def append(self, table: str, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
        """Add rows to a table: every column of the schema, all of the same length.

        Raises:
            EvidenceError: a part could not be written; what was written before stays readable, and every
                further call raises the same error.
            ValueError: the columns are not those of the schema (an error of the caller).
        """
        rows, count, row_bytes = self._check(table, columns)
        part_rows = max(1, PART_BYTES // row_bytes)
        begin = 0
        while begin < count:
            waiting = self._waiting_rows.get(table, 0)
            end = min(count, begin + part_rows - waiting)
            self._waiting.setdefault(table, []).append(
                {name: column[begin:end] for name, column in rows.items()}
            )
            self._waiting_rows[table] = waiting + end - begin
            if self._waiting_rows[table] == part_rows:
                self._write_part(table)
            begin = end
        now = time.monotonic()
        if now - self._flushed > self._flush_interval(now):
            self.flush()

    def _flush_interval(self, now: float) -> float:
        """Return how old the last parts may be."""
        of_begin = max(FIRST_FLUSH_SECONDS, self._flushed - self._begun)
        return max(min(FLUSH_SECONDS, of_begin), FLUSH_SHARE * (now - self._begun))

    def replace(self, table: str, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
        """Set the whole of a small table, written at once: what a reader finds is the old or the new one.

        Raises:
            EvidenceError: it could not be written; the old one stays.
            ValueError: the columns are not those of the schema (an error of the caller).
        """
        rows, count, _ = self._check(table, columns)
        self._waiting[table] = [rows]
        self._waiting_rows[table] = count
        self._parts.pop(table, None)
        self._write_part(table)

    def flush(self) -> None:
        """Write all waiting rows as parts.

        Raises:
            EvidenceError: a part could not be written.
        """
        for table in list(self._waiting):
            self._write_part(table)
        self._flushed = time.monotonic()

    def close(self, meta: EvidenceMeta | None = None) -> None:
        """Write what waits and the final `meta.json`, marked as complete unless a part failed.

        Raises:
            EvidenceError: something could not be written.
        """
        if self._closed:
            return
        meta = self.meta if meta is None else meta
        try:
            if self.failed is None:
                self._flush_last(meta)
            self._write_last_meta(msgspec.structs.replace(meta, complete=self.failed is None))
        except EvidenceError:
            # As where an error ends the recording: without an observation there is nothing to read in it.
            if not self._observed(self._parts):
                self._remove()
            raise
        finally:
            self._release()

    def discard(self) -> None:
        """Remove the folder, where what was given turns out to be of no use."""
        if not self._closed:
            self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self._closed:
            self.close()
            return
        if not self._observed(self._parts if self.failed else self._parts.keys() | self._waiting.keys()):
            self._remove()
            return
        # The first error is the one that matters: a second one while saving what is left must not hide it.
        with contextlib.suppress(EvidenceError):
            if self.failed is None:
                self.flush()
        reason = "disk" if self.failed else "interrupt" if isinstance(error, KeyboardInterrupt) else "error"
        ended_by = self.meta.ended_by or reason
        with contextlib.suppress(EvidenceError):
            self._write_last_meta(msgspec.structs.replace(self.meta, complete=False, ended_by=ended_by))
        self._release()

    def _observed(self, tables: Iterable[str]) -> bool:
        """Return whether these tables are what a prediction begins with; of other sources, observations."""
        needed = needed_tables(self.meta.source)
        return set(needed) <= set(tables) if needed else not _ANY_OBSERVATIONS.isdisjoint(tables)

    def _check(
        self, table: str, columns: Mapping[str, Sequence[Any] | NDArray[Any]]
    ) -> tuple[dict[str, Any], int, int]:
        """Return the rows as arrays of the schema's types, their number and the bytes of one."""
        if self.failed is not None:
            raise self.failed
        schema = TABLES[table]
        if columns.keys() != schema.keys():
            raise ValueError(f"{table} has columns {list(schema)}, not {list(columns)}")
        # Copies, because recorders reuse their buffers.
        try:
            rows = {
                name: np.array(columns[name], dtype=object if kind == "str" else kind)
                for name, kind in schema.items()
            }
        except OverflowError as error:
            raise EvidenceError(
                f"a number that was observed is too large for the table {table}",
                cause="the server, or what stands between it and pgsweep, answered with nonsense",
                hint=f"record again; {on_server('pgsweep doctor')} shows what answers there",
            ) from error
        lengths = {len(column) for column in rows.values()}
        if len(lengths) != 1:
            raise ValueError(f"columns of {table} differ in length: {lengths}")
        row_bytes = sum(32 if kind == "str" else np.dtype(kind).itemsize for kind in schema.values())
        return rows, lengths.pop(), row_bytes

    def _make_folder(self, *, overwrite: bool) -> int:
        if self.path.is_symlink() or self.path.exists():
            self._clear_old(overwrite=overwrite)
        try:
            made = self._make()
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise self._trouble(error) from error
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(folder)
            raise EvidenceError(
                f"`{self.path}` is being written by another process", hint="choose another name with `-o`"
            ) from error
        # A folder made just now may belong to nobody: a file system of the network that maps root away.
        if not made and os.fstat(folder).st_uid not in {os.geteuid(), 0}:
            os.close(folder)
            raise self._strange()
        return folder

    def _make(self) -> bool:
        """Make the folder; return whether it was not there before."""
        try:
            self.path.mkdir()
        except FileExistsError:
            return False
        return True

    def _strange(self) -> EvidenceError:
        """Return the refusal of a folder in which somebody else could lay links to other places."""
        return EvidenceError(
            f"`{self.path}` belongs to another user",
            cause="what is written there could be led elsewhere by links",
            hint="choose another name with `-o`, in a folder of yours",
        )

    def _clear_old(self, *, overwrite: bool) -> None:
        """Make room where something is already, if that something is evidence and may be replaced."""
        if self.path.is_symlink() or not self.path.is_dir():
            raise EvidenceError(
                f"`{self.path}` exists and is not evidence",
                hint="choose another name with `-o NAME.evidence`",
            )
        try:
            if self.path.lstat().st_uid not in {os.geteuid(), 0}:
                raise self._strange()
            names = {entry.name for entry in self.path.iterdir()}
        except OSError as error:
            raise self._trouble(error) from error
        if not names:
            return
        empty = holds_nothing(self.path)
        if not empty and not _is_evidence(self.path, names):
            raise EvidenceError(
                f"`{self.path}` is a folder with other files in it, it is left untouched",
                hint="choose another name with `-o NAME.evidence`",
            )
        if not overwrite and not empty:
            raise EvidenceError(
                f"`{self.path}` already holds evidence",
                hint=f"choose another name with `-o`, or remove it: rm -r {shell_word(str(self.path))}",
            )
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in TABLES:
                shutil.rmtree(self.path / name, ignore_errors=True)
            for name in names:
                if name in _OWN_FILES or is_aside(name):
                    (self.path / name).unlink(missing_ok=True)
        except BlockingIOError as error:
            raise EvidenceError(
                f"`{self.path}` is being written by another process", hint="choose another name with `-o`"
            ) from error
        except OSError as error:
            raise self._trouble(error) from error
        finally:
            os.close(folder)

    def _write_part(self, table: str) -> None:
        chunks = self._waiting.pop(table, [])
        self._waiting_rows[table] = 0
        if not chunks:
            return
        data = _encode(table, chunks)
        number = self._parts.get(table, 0)
        target = self.path / table / f"part-{number:05d}.parquet"
        try:
            target.parent.mkdir(exist_ok=True)
            # The last flush makes all parts durable: one flush each would load the disk of the server that is
            # watched. If a crash of the host loses a part, the reader finds that it is missing, and says so.
            write_whole(target, data, durable=False)
        except OSError as error:
            self.failed = self._trouble(error)
            raise self.failed from error
        self._parts[table] = number + 1
        self.bytes_written += len(data)

    def _flush_last(self, meta: EvidenceMeta) -> None:
        """Write what waits; where that fails, say so in the last `meta.json` and raise."""
        try:
            self.flush()
            self._sync()
        except EvidenceError:
            with contextlib.suppress(EvidenceError):
                self._write_last_meta(msgspec.structs.replace(meta, complete=False, ended_by="disk"))
            raise

    def _sync(self) -> None:
        """Have the kernel write all parts out: some file systems report a full disk only then."""
        try:
            for table, count in self._parts.items():
                for number in range(count):
                    _sync_path(self.path / table / f"part-{number:05d}.parquet")
                _sync_path(self.path / table)
        except OSError as error:
            self.failed = self._trouble(error)
            raise self.failed from error

    def _write_meta(self, meta: EvidenceMeta) -> None:
        self.meta = meta
        text = msgspec.json.format(msgspec.json.encode(meta), indent=2) + b"\n"
        try:
            write_whole(self.path / "meta.json", text)
        except OSError as error:
            raise self._trouble(error) from error

    def _write_last_meta(self, meta: EvidenceMeta) -> None:
        self._drop_spare()
        self._write_meta(msgspec.structs.replace(meta, parts=dict(self._parts)))

    def _keep_spare(self) -> None:
        try:
            # Random, because a file system that compresses keeps no room for zeros.
            write_whole(self.path / _SPARE, os.urandom(_SPARE_BYTES))
        except OSError as error:
            raise self._trouble(error) from error

    def _drop_spare(self) -> None:
        with contextlib.suppress(OSError):
            (self.path / _SPARE).unlink(missing_ok=True)

    def _trouble(self, error: OSError) -> EvidenceError:
        code = error.errno or 0
        if code in _SPACE:
            hint = "free some space or write elsewhere: `-o /other/disk/NAME.evidence`"
        else:
            hint = "write to a folder that you may write to: `-o /other/place/NAME.evidence`"
        if self._observed(self._parts):
            hint += (
                f"; what was recorded until then is readable: `pgsweep predict {shell_word(str(self.path))}`"
            )
        return EvidenceError(
            f"cannot write evidence to `{self.path}`",
            cause=DISK_TROUBLE.get(code, os.strerror(code)),
            hint=hint,
        )

    def _remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if not self._closed:
            self._closed = True
            self._drop_spare()
            os.close(self._lock_fd)


def _encode(table: str, chunks: list[dict[str, Any]]) -> memoryview:
    """Return the chunks as one Parquet file in memory.

    The file is made in memory (it is small, being compressed) so that writing it is plain `write` calls,
    whose errors keep their number.
    """
    import pyarrow as pa
    from pyarrow import parquet

    schema = TABLES[table]
    arrays = {
        name: pa.array(
            np.concatenate([chunk[name] for chunk in chunks]), type=pa.string() if kind == "str" else None
        )
        for name, kind in schema.items()
    }
    # Times only grow, so their differences are small; a dictionary of them would be as large as the column.
    growing = [name for name in ("time_ns",) if name in schema]
    sink = pa.BufferOutputStream()
    parquet.write_table(
        pa.table(arrays),
        sink,
        compression="zstd",
        use_dictionary=[name for name in schema if name not in growing],
        column_encoding=dict.fromkeys(growing, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
    )
    return memoryview(sink.getvalue())


def _sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def holds_nothing(path: Path) -> bool:
    """Return whether a folder is all that is left of a recording killed before its first observation."""
    try:
        if path.is_symlink() or not _only_ours({entry.name for entry in path.iterdir()}):
            return False
        meta = path / "meta.json"
        found = (
            msgspec.json.decode(read_regular(meta, MOST_META_BYTES)) if meta.exists() else {"complete": False}
        )
        if not isinstance(found, dict) or found.get("complete") is not False:
            return False
        if any(any((path / table).glob("part-*")) for table in _observations(found.get("source"))):
            return False
    except (OSError, msgspec.DecodeError, RecursionError):
        return False
    return not is_being_written(path)


def is_being_written(path: Path) -> bool:
    """Return whether a recorder holds a folder of evidence: the kernel frees it of one that was killed."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(folder)
    return False


def _observations(source: object) -> Iterable[str]:
    """Return the tables of which one with a part makes evidence worth keeping."""
    return needed_tables(str(source))[:1] or _ANY_OBSERVATIONS


def _only_ours(names: set[str]) -> bool:
    return all(name in _OWN_FILES or name in TABLES or is_aside(name) for name in names)


def _is_evidence(path: Path, names: set[str]) -> bool:
    """Return whether a folder holds evidence and nothing else: only then may it be replaced."""
    if not _only_ours(names):
        return False
    try:
        found = msgspec.json.decode(read_regular(path / "meta.json", MOST_META_BYTES))
    except (OSError, msgspec.DecodeError, RecursionError):
        return False
    return isinstance(found, dict) and str(found.get("schema", "")).startswith(SCHEMA_NAME + "/")
