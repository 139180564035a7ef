"""Snapshots of pg_buffercache, made cheap for both sides.

One row a relation fork and state is transferred, with the blocks in an array: for a pool of 8192 buffers
about 4 ms of the server's time and 100 kB, of which 1.6 ms are the reading of the buffer headers itself; a
row for each buffer takes the server the same and the client twice as long again. The function takes no
buffer mapping lock and one header spinlock at a time (since PostgreSQL 10), so the effect on other
sessions is small. A row is consistent in itself; the whole is not the state at one instant.

Cost grows with shared_buffers, also where only a sample of the blocks is transferred: all headers are read
and all rows pass through the executor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import psycopg
from numpy.typing import NDArray

from pgsweep.errors import MissingAbility
from pgsweep.pg.catalog.server import require_buffercache
from pgsweep.pg.queries import compose, load
from pgsweep.pg.session.answers import CheckedConnection, decoded
from pgsweep.pg.session.connect import Connection, set_for_session, setting_statement
from pgsweep.pg.session.shapes import OID_MAX

if TYPE_CHECKING:
    from pgsweep._native import PoolTable

ROW_MEMORY_BYTES: Final = 112
"""Memory of one row of pg_buffercache_pages in the executor's tuple store, rounded up."""

WORK_MEMORY_LIMIT_BYTES: Final = 512 << 20


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The used buffers at one time; arrays are parallel, one element a buffer.

    Attributes:
        buffer: bufferid as pg_buffercache has it, from 1.
        used_buffers: number of used buffers in the whole pool, also where the arrays hold a part of it.
        zero_buffers: number of buffers with usage_count 0 in the whole pool.
        hand_buffers: buffers that the clock hand has passed since the server started, where it can be seen.
    """

    buffer: NDArray[np.int32]
    spc: NDArray[np.uint32]
    db: NDArray[np.uint32]
    rel: NDArray[np.uint32]
    fork: NDArray[np.uint8]
    block: NDArray[np.uint32]
    usage_count: NDArray[np.uint8]
    dirty: NDArray[np.bool_]
    pinned: NDArray[np.bool_]
    used_buffers: int
    zero_buffers: int
    hand_buffers: int | None = None


def hand_position(hand: tuple[int, ...] | None, buffers: int) -> int | None:
    """Return how many buffers the clock hand has passed since the server started; None where it is not seen.

    Args:
        hand: next victim and complete passes (BufferStrategyControl, freelist.c).
        buffers: of the pool.
    """
    return None if hand is None else hand[1] * buffers + hand[0]


def snapshot_of(pool: PoolTable) -> Snapshot:
    """Return a snapshot of what was read from the server's memory."""
    return Snapshot(
        buffer=pool["frame"],
        spc=pool["spc"],
        db=pool["db"],
        rel=pool["rel"],
        fork=pool["fork"],
        block=pool["block"],
        usage_count=pool["usage_count"],
        dirty=pool["dirty"],
        pinned=pool["pinned"],
        used_buffers=pool["used"],
        zero_buffers=pool["zero"],
        hand_buffers=hand_position(pool["hand"], pool["buffers"]),
    )


def snapshot_query(version_num: int, schema: str, modulus: int, offsets: tuple[int, ...]) -> str:
    """Return the statement that takes one snapshot; the arguments are those of SnapshotReader."""
    if modulus == 1:
        return compose("snapshot", version_num, schema=schema)
    return compose(
        "snapshot_sample", version_num, schema=schema, modulus=modulus, offsets=_array_text(offsets)
    )


def snapshot_of_query(version_num: int, schema: str, filenodes: tuple[int, ...]) -> str:
    """Return the statement that takes one snapshot with the blocks of these files only."""
    return compose("snapshot_of", version_num, schema=schema, filenodes=_array_text(filenodes))


def _array_text(numbers: Iterable[int]) -> str:
    """Return an array of numbers as array_in reads it."""
    return "{" + ",".join(str(int(number)) for number in numbers) + "}"


def _memory_setting(connection: Connection, shared_buffers_blocks: int) -> dict[str, str]:
    """Return what lets one pass over pg_buffercache write no file; nothing where that is in force."""
    needed_kb = min(shared_buffers_blocks * ROW_MEMORY_BYTES, WORK_MEMORY_LIMIT_BYTES) >> 10
    row = connection.execute(_work_memory(connection)).fetchone()
    assert row is not None
    return {"work_mem": f"{needed_kb}kB"} if row[0] >> 10 < needed_kb else {}


def _work_memory(connection: Connection) -> str:
    return load("work_memory", connection.info.server_version)


def memory_statements(connection: Connection, shared_buffers_blocks: int) -> list[tuple[bytes, list[int]]]:
    """Return the statements of `grant_memory`, with their parameters."""
    setting = _memory_setting(connection, shared_buffers_blocks)
    sets = (setting_statement(**setting).as_bytes(connection), [connection.info.backend_pid])
    return [(_work_memory(connection).encode(), []), *([sets] if setting else [])]


def grant_memory(connection: Connection, shared_buffers_blocks: int) -> None:
    """Give the session the memory that one pass over pg_buffercache needs, so that no file is written."""
    if isinstance(connection, CheckedConnection):
        connection.pool_blocks = shared_buffers_blocks
    setting = _memory_setting(connection, shared_buffers_blocks)
    if setting:
        set_for_session(connection, **setting)


class SnapshotReader:
    """Takes snapshots through one session.

    Args:
        connection: in autocommit mode.
        schema: where pg_buffercache lives, quoted as an identifier.
        shared_buffers_blocks: to give the session the memory that one snapshot needs, so that the
            server writes no temporary file.
        modulus: length of the stretches into which relations are divided for sampling; 1 takes everything.
        offsets: the drawn offsets within every stretch.
        filenodes: of the files whose blocks are transferred; None for all.
    """

    def __init__(
        self,
        connection: Connection,
        schema: str,
        shared_buffers_blocks: int,
        *,
        modulus: int = 1,
        offsets: tuple[int, ...] = (),
        filenodes: tuple[int, ...] | None = None,
    ) -> None:
        self._connection = connection
        version_num = connection.info.server_version
        self._query = (
            snapshot_query(version_num, schema, modulus, offsets)
            if filenodes is None
            else snapshot_of_query(version_num, schema, filenodes)
        )
        self.server_memory_bytes = shared_buffers_blocks * ROW_MEMORY_BYTES
        grant_memory(connection, shared_buffers_blocks)

    def take(self) -> Snapshot:
        """Take one snapshot.

        Raises:
            psycopg.Error: the connection was lost or the statement was cancelled.
        """
        with self._connection.cursor(binary=True) as cursor:
            cursor.execute(self._query, prepare=True)
            result = cursor.pgresult
            assert result is not None
            with decoded(self._connection, "a snapshot of pg_buffercache"):
                return _unpack(
                    [[result.get_value(row, column) for column in range(9)] for row in range(result.ntuples)]
                )


def count_by_relation(connection: Connection, schema: str) -> NDArray[np.int64]:
    """Return the used buffers counted by relation file, or fork of one.

    Args:
        connection: in autocommit mode.
        schema: where pg_buffercache lives, quoted as an identifier.

    Returns:
        A row each: tablespace, database, relfilenode; buffers at usage_count 0 to 5, dirty, pinned.
    """
    query = compose("pool_relations", connection.info.server_version, schema=schema)
    with connection.cursor(binary=True) as cursor:
        cursor.execute(query.encode(), prepare=True)
        result = cursor.pgresult
        assert result is not None
        cells = b"".join(
            result.get_value(row, column) or b"" for row in range(result.ntuples) for column in range(11)
        )
    with decoded(connection, "the relations of pg_buffercache"):
        rows = np.frombuffer(cells, dtype=">i8").astype(np.int64).reshape(-1, 11)
        if (rows < 0).any() or (rows[:, :3] > OID_MAX).any() or (rows[:, 3:] >= 2**30).any():
            raise ValueError("a relation or a number of buffers out of range")
    return rows


def used_buffers(connection: Connection) -> int | None:
    """Return how many buffers hold a page by pg_buffercache_summary: a quick count, from 16 on.

    None where it is not there or may not be used.
    """
    version_num = connection.info.server_version
    if version_num < 160000:
        return None
    try:
        schema = require_buffercache(connection)
    except MissingAbility:
        return None
    try:
        row = connection.execute(summary_query(version_num, schema)).fetchone()
    except (psycopg.errors.UndefinedFunction, psycopg.errors.InsufficientPrivilege):
        # The extension was created by an older server and never updated.
        return None
    assert row is not None
    return int(row[0])


def summary_query(version_num: int, schema: str) -> bytes:
    """Return the statement that counts the used buffers."""
    return compose("summary", version_num, schema=schema).encode()


def _unpack(rows: list[list[bytes | None]]) -> Snapshot:
    heads = np.zeros((len(rows), 5), dtype=np.int64)
    flags = np.zeros((len(rows), 2), dtype=np.bool_)
    buffers = []
    for number, row in enumerate(rows):
        heads[number] = np.frombuffer(b"".join(cell or b"" for cell in row[:5]), dtype=">i8")
        flags[number] = [row[5] == b"\x01", row[6] == b"\x01"]
        buffers.append(int.from_bytes(row[7] or b"", "big"))
    return assembled(heads, flags, buffers, [_array(row[8]) for row in rows])


def assembled(
    heads: NDArray[np.int64],
    flags: NDArray[np.bool_],
    buffers: Sequence[int],
    packed: Sequence[NDArray[np.uint64]],
) -> Snapshot:
    """Return the snapshot that rows of the query `snapshot` hold.

    Args:
        heads: tablespace, database, relfilenode, fork and usage_count, a row each.
        flags: dirty and pinned.
        buffers: how many each row stands for.
        packed: the block (upper 32 bits) and buffer of those of them that were asked for.

    Raises:
        ValueError: a number is out of its range.
    """
    lengths = np.array([len(values) for values in packed], dtype=np.int64)
    values = np.concatenate(packed) if packed else np.zeros(0, dtype=np.uint64)
    _check(heads, values)
    spread = np.repeat(np.arange(len(heads)), lengths)
    return Snapshot(
        buffer=(values & np.uint64(0xFFFFFFFF)).astype(np.int32),
        spc=heads[spread, 0].astype(np.uint32),
        db=heads[spread, 1].astype(np.uint32),
        rel=heads[spread, 2].astype(np.uint32),
        fork=heads[spread, 3].astype(np.uint8),
        block=(values >> np.uint64(32)).astype(np.uint32),
        usage_count=heads[spread, 4].astype(np.uint8),
        dirty=flags[spread, 0],
        pinned=flags[spread, 1],
        used_buffers=sum(buffers),
        zero_buffers=sum(count for count, head in zip(buffers, heads, strict=True) if head[4] == 0),
    )


def _check(heads: NDArray[np.int64], values: NDArray[np.uint64]) -> None:
    """Check that the numbers of a snapshot are in range: oids, a fork, a usage_count, a buffer.

    Raises:
        ValueError: one is out of its range.
    """
    most = np.array([2**32 - 1, 2**32 - 1, 2**32 - 1, 3, 5])
    if (heads < 0).any() or (heads > most).any():
        raise ValueError("a relation, fork or usage_count out of range")
    buffers = values & np.uint64(0xFFFFFFFF)
    if values.size and (buffers.min() < 1 or buffers.max() >= 2**30):
        raise ValueError("a buffer out of range")


def _array(cell: bytes | None) -> NDArray[np.uint64]:
    """Return the elements of an int8[] in binary form (array_send, arrayfuncs.c).

    The header is dimensions, null flag, element type, length and lower bound, 4 bytes each; an element is
    its size (4 bytes) and 8 bytes, most significant first. Nothing stands for an array of no element.
    """
    if cell is None:
        return np.zeros(0, dtype=np.uint64)
    elements = np.frombuffer(cell, dtype=np.dtype([("size", ">i4"), ("value", ">u8")]), offset=20)
    return elements["value"].astype(np.uint64)
