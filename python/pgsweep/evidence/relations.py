"""The relations that a recording knows: those of its beginning, and those that were made meanwhile.

A recording reads the catalog before it begins and when it ends. In between it reads it anew only where
somebody changed it, which the counters of pg_class itself show: a table that is created and loaded would
otherwise be counted for the database and for no relation, and a file that was rewritten would have no name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from pgsweep.evidence.observe import CounterLog, relation_columns
from pgsweep.evidence.writer import EvidenceWriter
from pgsweep.pg.catalog.server import (
    Relation,
    estimated_sizes,
    read_databases,
    read_relations,
    read_temporary,
)
from pgsweep.pg.session.connect import Connection

_PG_CLASS: Final = "1259"
_PG_DATABASE: Final = 1262
"""Oids that never change (pg_class.h, pg_database.h)."""

_SHARE: Final = 0.02
"""At most this share of the time is spent on reading the catalog of a database that changes all the time."""

_CHANGES: Final = ("tup_inserted", "tup_updated", "tup_deleted")
"""What commands that change the catalog do to it. VACUUM and ANALYZE write in place, which is not counted."""


class KnownRelations:
    """Reads the relations of a session's database, and keeps all that were ever there.

    Args:
        connection: a session for inspection.
        database_oid: of its database.

    Attributes:
        databases: names by oid, as they were read last.
    """

    def __init__(self, connection: Connection, database_oid: int) -> None:
        self._connection = connection
        self._database_oid = database_oid
        self.databases = read_databases(connection)
        self.begin = self._now = read_relations(connection)
        self.estimated = estimated_sizes(self.begin)
        self._made: dict[tuple[int, int, int], Relation] = {}
        self._changes: float | None = None
        self._database_changes: float | None = None
        self._due = 0.0
        self._cost_seconds = math.inf

    def counted(self) -> list[int]:
        """Return the oids of the relations whose counters add up to the database's: temporary ones too."""
        own = [r.oid for r in self._now if r.database_oid == self._database_oid]
        return own + read_temporary(self._connection)

    def columns(self) -> dict[str, list[Any]]:
        """Return the rows of the table `relations`: as they were at the beginning, and as they are now."""
        made = (msgspec.structs.replace(r, main_blocks=0) for r in self._made.values())
        return relation_columns([*self.begin, *made], self._now, self.databases)

    def follow(self, log: CounterLog, writer: EvidenceWriter) -> None:
        """Read the catalog anew where the counters of the last sample say that somebody changed it.

        Raises:
            DriverError: the connection was lost, or a statement was cancelled.
            EvidenceError: the evidence cannot be written.
        """
        begin = time.monotonic()
        if begin < self._due:
            return
        changes = sum(log.value("relation", name, _PG_CLASS) for name in _CHANGES)
        of_databases = sum(c.value for c in log.reader.each_relation([_PG_DATABASE], _CHANGES))
        before = self._changes, self._database_changes
        self._changes, self._database_changes = changes, of_databases
        if before[1] not in (None, of_databases):
            self.databases = log.reader.database_names = read_databases(self._connection)
        if before[0] not in (None, changes):
            self.finish(log, writer, self._now)
            end = time.monotonic()
            # Other work on the host makes one reading longer than it is.
            self._cost_seconds = min(self._cost_seconds, end - begin)
            self._due = end + self._cost_seconds / _SHARE
        log.spent_seconds += time.monotonic() - begin

    def finish(self, log: CounterLog, writer: EvidenceWriter, known: Iterable[Relation] = ()) -> None:
        """Read the relations as they are now, and the counters of those that are new, into the last sample.

        Args:
            log: that counts them from now on.
            writer: takes the table.
            known: whose sizes are not read again.

        Raises:
            DriverError, EvidenceError: as `follow`.
        """
        self._now = read_relations(self._connection, known=known)
        first = {(r.tablespace_oid, r.database_oid, r.filenode) for r in self.begin}
        for relation in self._now:
            key = (relation.tablespace_oid, relation.database_oid, relation.filenode)
            if key not in first:
                self._made[key] = relation
        log.count(self.counted())
        writer.replace("relations", self.columns())
