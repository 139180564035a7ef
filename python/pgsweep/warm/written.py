"""The statements of a dry run: written out for each database as a session there would send them."""

from __future__ import annotations

from collections.abc import Sequence

from pgsweep.errors import PgsweepError
from pgsweep.pg.prewarm import require_prewarm
from pgsweep.pg.session.connect import Connection, enter
from pgsweep.pg.session.refusals import explained
from pgsweep.warm.block_ranges import BlockRange
from pgsweep.warm.session import statement_text


class Writer:
    """Writes statements out; enters each database once, for the schema that pg_prewarm has in it.

    Args:
        connection: to the server.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._schemas: dict[str, str | PgsweepError] = {}

    def refusal(self, database: str) -> PgsweepError | None:
        """Return why nothing can be read in a database through the server; None where it can."""
        found = self._schema(database)
        return found if isinstance(found, PgsweepError) else None

    def text(self, pieces: Sequence[BlockRange], mode: str) -> str:
        """Return the statements that read pieces of one database, as they could be pasted into psql there.

        Raises:
            PgsweepError: nothing can be read there.
        """
        schema = self._schema(pieces[0].database)
        if isinstance(schema, PgsweepError):
            raise schema
        return statement_text(self._connection, pieces, mode, schema)

    def _schema(self, database: str) -> str | PgsweepError:
        if database not in self._schemas:
            try:
                self._schemas[database] = self._find(database)
            except PgsweepError as error:
                self._schemas[database] = error
        return self._schemas[database]

    def _find(self, database: str) -> str:
        # Shared catalogs have no database: any does.
        if database in ("", self._connection.info.dbname):
            with explained():
                return require_prewarm(self._connection)
        with enter(self._connection, database) as connection, explained():
            return require_prewarm(connection)
