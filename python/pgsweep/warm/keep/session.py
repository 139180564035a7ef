"""The relations that are kept resident: which they are by their names, and why one cannot be touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgsweep.errors import UsageError
from pgsweep.pg.catalog.grants import NO_RIGHT, as_command, grant_to_read
from pgsweep.pg.keep import Meant, may_select, read_family, resolve, resolve_again
from pgsweep.pg.session.connect import Connection
from pgsweep.pg.session.failures import DriverError, InsufficientPrivilege, LockNotAvailable, first_line
from pgsweep.plain import relation_label
from pgsweep.residency.rows import kind_word


@dataclass(frozen=True, slots=True)
class Kept:
    """A relation to keep, by its names; of TOAST the schema and name of the table that it serves."""

    oid: int
    schema: str
    name: str
    kind: str
    table: tuple[str, str] = ("", "")

    @property
    def label(self) -> str:
        """Return the readable name."""
        return relation_label(self.schema, self.name, *self.table)


@dataclass(frozen=True, slots=True)
class Found:
    """What names mean at one time.

    Attributes:
        meant: by the names.
        kept: relations with blocks in the pool, by oid.
        whole: none of the names means nothing, or was locked.
    """

    meant: list[Meant]
    kept: dict[int, Kept]
    whole: bool = True


def find_kept(connection: Connection, names: Sequence[str], *, indexes: bool, toast: bool) -> Found:
    """Return the relations that names mean; of a partitioned table or index all partitions.

    Args:
        connection: in autocommit mode.
        names: as `regclass` reads them: `orders`, `shop.orders`, `"Odd Name"`.
        indexes: with the indexes of the tables.
        toast: with their TOAST relations and the indexes of those.

    Raises:
        UsageError: there is no such relation, or it has no blocks in the buffer pool.
    """
    meant = [resolve(connection, name) for name in names]
    found: dict[int, Kept] = {}
    for name, one in zip(names, meant, strict=True):
        family = _family(connection, one.oid, indexes=indexes, toast=toast)
        if not family:
            raise UsageError(
                f"`{name}` has no blocks in shared_buffers",
                cause="it is a view, a foreign table, a temporary table, or has no partitions",
                hint="name tables, indexes, materialized views or partitioned tables",
            )
        found |= family
    return Found(meant, found)


def find_again(connection: Connection, meant: Sequence[Meant], *, indexes: bool, toast: bool) -> Found:
    """Return what was found before as it is now: made anew, with other partitions and indexes."""
    now: list[Meant] = []
    kept: dict[int, Kept] = {}
    whole = True
    for one in meant:
        there = resolve_again(connection, one)
        now.append(there or one)
        try:
            kept |= {} if there is None else _family(connection, there.oid, indexes=indexes, toast=toast)
        except LockNotAvailable:
            there = None
        whole = whole and there is not None
    return Found(now, kept, whole)


def _family(connection: Connection, oid: int, *, indexes: bool, toast: bool) -> dict[int, Kept]:
    family = read_family(connection, oid, indexes=indexes, toast=toast)
    return {r.oid: Kept(r.oid, r.schema, r.name, kind_word(r.kind, r.schema), r.table) for r in family}


def reason(error: DriverError, relation: Kept, connection: Connection) -> tuple[str, str | None]:
    """Return in our words why a relation could not be touched, and what would allow it."""
    if isinstance(error, InsufficientPrivilege):
        return _no_right(relation, connection)
    return first_line(error), None


def refusal(relation: Kept, connection: Connection) -> tuple[str | None, str | None]:
    """Return why a table could not be touched, and what would allow it, without trying.

    Of an index nothing is known: whether its own rights or its table's decide differs by minor version.
    """
    # A table that was dropped meanwhile has no answer; the first snapshot shows that.
    if relation.kind.endswith("index") or may_select(connection, relation.oid) is not False:
        return None, None
    return _no_right(relation, connection)


def _no_right(relation: Kept, connection: Connection) -> tuple[str, str | None]:
    role = connection.info.user
    enable = grant_to_read(role, relation.schema, relation.name, relation.kind)
    return NO_RIGHT, as_command(connection, enable)
