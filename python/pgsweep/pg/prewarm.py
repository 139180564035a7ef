"""What pg_prewarm is asked: whether this session may use it, and the statements that read blocks by it.

Blocks come as stretches of one fork each, many of them in one statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import numpy as np
import psycopg
from numpy.typing import NDArray

from pgsweep.pg.queries import compose, load
from pgsweep.pg.session.answers import unexpected
from pgsweep.pg.session.connect import Connection, set_for_session
from pgsweep.pg.session.rows import one_row
from pgsweep.pg.session.trust import require_extension
from pgsweep.pg.session.userpath import resolve_relation
from pgsweep.units import format_count

Blocks = NDArray[np.int64]

_INDEX_BY_TABLE_SINCE: Final = {14: 140020, 15: 150015, 16: 160011, 17: 170007, 18: 180001}
"""Since these releases pg_prewarm asks for SELECT on an index's table rather than on the index itself (commit
208927e6569, November 2025)."""


class Stretch(Protocol):
    """Successive blocks of one fork of one relation."""

    @property
    def oid(self) -> int:
        """Of the relation."""

    @property
    def fork(self) -> str:
        """One of main, fsm and vm."""

    @property
    def first_block(self) -> int:
        """Where it begins."""

    @property
    def end_block(self) -> int:
        """The block after the last."""


class Prewarm:
    """Reads stretches of blocks through one session by pg_prewarm.

    Args:
        connection: in autocommit mode, outside a transaction.
        mode: of pg_prewarm: buffer, read or prefetch.
        schema: of pg_prewarm, quoted, where `require_prewarm` has returned it already. For statements that
            are only written out it may be that of another database.

    Raises:
        MissingAbility: pg_prewarm is not there, or not for this role.
    """

    def __init__(self, connection: Connection, mode: str, schema: str | None = None) -> None:
        self._connection = connection
        self._mode = mode
        version_num = connection.info.server_version
        schema = require_prewarm(connection) if schema is None else schema
        self._query = compose("prewarm", version_num, schema=schema).encode()
        self._fork_query = compose("prewarm_fork", version_num, schema=schema).encode()

    def read(self, stretches: Sequence[Stretch]) -> list[tuple[int, int | None]]:
        """Read stretches of any relations.

        Returns:
            The number of each, from 1, and how many of its blocks were read; None where it was dropped.

        Raises:
            UnexpectedAnswer: the server answers for other stretches.
        """
        rows = self._connection.execute(self._query, self._arguments(stretches)).fetchall()
        if sorted(number for number, _ in rows) != list(range(1, len(stretches) + 1)):
            raise unexpected(
                self._connection,
                f"{format_count(len(rows))} rows for {format_count(len(stretches))} stretches of blocks",
            )
        return [(number, blocks) for number, blocks in rows]

    def read_fork(self, oid: int, fork: str, first_blocks: Blocks, last_blocks: Blocks) -> int | None:
        """Read stretches of one fork; return how many blocks were read, None where it was dropped.

        It takes half as long a stretch as `read`, but cannot say which of them failed.
        """
        arguments = self._fork_arguments(oid, fork, first_blocks, last_blocks)
        row = self._connection.execute(self._fork_query, arguments).fetchone()
        return None if row is None or row[0] is None else int(row[0])

    def written_out(self, stretches: Sequence[Stretch]) -> str:
        """Return the statement of `read`, as it could be pasted into psql."""
        return written_out(self._connection, (self._query, self._arguments(stretches)))

    def fork_written_out(self, oid: int, fork: str, first_blocks: Blocks, last_blocks: Blocks) -> str:
        """Return the statement of `read_fork`, as it could be pasted into psql."""
        arguments = self._fork_arguments(oid, fork, first_blocks, last_blocks)
        return written_out(self._connection, (self._fork_query, arguments))

    def _arguments(self, stretches: Sequence[Stretch]) -> list[Any]:
        return [
            self._mode,
            _array(each.oid for each in stretches),
            _array(each.fork for each in stretches),
            _array(each.first_block for each in stretches),
            _array(each.end_block - 1 for each in stretches),
        ]

    def _fork_arguments(self, oid: int, fork: str, first_blocks: Blocks, last_blocks: Blocks) -> list[Any]:
        return [oid, self._mode, fork, _array(first_blocks.tolist()), _array(last_blocks.tolist())]


def _array(values: Iterable[int | str]) -> str:
    """Return numbers or names of forks as the text of an array; psycopg adapts a list six times as slowly."""
    return "{" + ",".join(map(str, values)) + "}"


def written_out(connection: Connection, statement: tuple[bytes, Any]) -> str:
    """Return a statement with its arguments filled in, as it could be pasted into psql."""
    with psycopg.ClientCursor(connection) as cursor:
        return cursor.mogrify(*statement).strip()


def read_without_workers(connection: Connection) -> None:
    """Let a session read by itself, where others would be asked to (io_method `worker`, since 18)."""
    # Since 18 a read goes to one of a few I/O workers (io_workers, 3 by default, for the whole server; since
    # 19 io_min_workers to io_max_workers) and back, unless no look-ahead is allowed (read_stream.c,
    # read_stream_begin_impl: READ_BUFFERS_SYNCHRONOUSLY). Several warming sessions that read by themselves
    # are faster, one and a half times for whole tables and twice for single blocks in the page cache, and
    # leave the workers to the queries.
    if connection.info.server_version < 180000:
        return
    row = connection.execute("SELECT pg_catalog.current_setting('io_method')").fetchone()
    if row is not None and row[0] == "worker":
        set_for_session(connection, maintenance_io_concurrency="0")


def mark_as_warming(connection: Connection) -> int:
    """Mark a session as a warming one; return how many other sessions of the server carry the mark."""
    row = connection.execute(load("warmers", connection.info.server_version)).fetchone()
    return 0 if row is None else int(row[0])


def read_warmable(connection: Connection) -> set[int]:
    """Return the oids of the relations that pg_prewarm reads for this role."""
    version_num = connection.info.server_version
    by_table = version_num >= _INDEX_BY_TABLE_SINCE.get(version_num // 10000, 0)
    rows = connection.execute(load("warmable", version_num), [by_table]).fetchall()
    return {oid for (oid,) in rows}


def read_named(connection: Connection, name: str) -> tuple[str, str, list[int]]:
    """Return kind and persistence of a relation as pg_class has them, and its oid or those of its partitions.

    Raises:
        UsageError: there is no such relation.
    """
    oid = resolve_relation(connection, name)
    row = one_row(connection, "chosen", [oid])
    kind, persistence, leaves, oid = row
    return kind, persistence, leaves if kind in "pI" else [oid]


def require_prewarm(connection: Connection) -> str:
    """Return the quoted schema of pg_prewarm, after checking that this session may use it.

    Raises:
        MissingAbility: the extension is not created here, is not installed, may not be used by this role, or
            is not trusted.
    """
    return require_extension(
        connection, "pg_prewarm", instead="on the server's host `--into page-cache` needs no extension"
    )
