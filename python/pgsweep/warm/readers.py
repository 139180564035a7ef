"""Readers of calls: through sessions of the server, or past it through its files."""

from __future__ import annotations

import random
import re
import threading
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from pgsweep.errors import ConnectionFailed, MissingAbility, PgsweepError
from pgsweep.warm.block_ranges import BlockRange, Call
from pgsweep.warm.files import FileReader
from pgsweep.warm.session import Lost, PrewarmSession, Read

_SESSIONS = 4
"""Databases whose sessions a reader keeps open."""

_FOR_GOOD = re.compile(
    r"does not exist|permission denied for|not permitted|not currently accepting|pg_hba|authentication",
    re.IGNORECASE,
)
"""The errors of a database that cannot be connected to, however long we wait
(src/backend/utils/init/postinit.c, src/backend/libpq/auth.c)."""


def is_lasting(error: ConnectionFailed) -> bool:
    """Return whether waiting will not help: the server is there and refuses."""
    return _FOR_GOOD.search(error.message) is not None


class PrewarmReader:
    """Reads by pg_prewarm; a session for each database, made when it is first needed.

    Args:
        conninfo: of any database of the server.
        mode: of pg_prewarm: buffer, read or prefetch.
        server_started: called at each connection with the server's start time, in its own microseconds.

    Raises:
        ConnectionFailed: the server cannot be reached.
    """

    def __init__(
        self, conninfo: str, mode: str, *, server_started: Callable[[int], None] | None = None
    ) -> None:
        self._conninfo = conninfo
        self._mode = mode
        self._server_started = server_started
        self._sessions: OrderedDict[str, PrewarmSession] = OrderedDict()
        self._refused: dict[str, PgsweepError] = {}
        self._busy: PrewarmSession | None = None
        self._lock = threading.Lock()

    def open(self, database: str) -> None:
        """Open a session in the database; one that cannot be connected to fails when it is read.

        Raises:
            ConnectionFailed: the server cannot be reached now.
        """
        if database in self._refused:
            return
        try:
            self._session(database)
        except MissingAbility as error:
            self._refused[database] = error
        except ConnectionFailed as error:
            if not is_lasting(error):
                raise
            self._refused[database] = error

    def read(self, call: Call) -> Read:
        """Read a call; if its database cannot be connected to, all of it fails.

        Raises:
            Lost: the session has gone.
        """
        self.open(call.database)
        refused = self._refused.get(call.database)
        if refused is not None:
            return Read(0, [(piece, refused.message, refused.hint) for piece in call.pieces])
        self._busy = self._sessions[call.database]
        try:
            return self._busy.read(call.pieces)
        finally:
            self._busy = None

    def _session(self, database: str) -> PrewarmSession:
        session = self._sessions.get(database)
        if session is None:
            session = PrewarmSession(self._conninfo, database, self._mode)
            if self._server_started is not None:
                self._server_started(session.started_us)
            with self._lock:
                self._sessions[database] = session
                if len(self._sessions) > _SESSIONS:
                    self._sessions.popitem(last=False)[1].close()
        else:
            self._sessions.move_to_end(database)
        return session

    def cancel(self) -> None:
        """End the statement that another thread waits for."""
        busy = self._busy
        if busy is not None:
            busy.cancel()

    def close(self) -> None:
        """End the sessions."""
        with self._lock:
            for session in self._sessions.values():
                session.close()
            self._sessions.clear()


class PageCacheReader:
    """Reads by the kernel, past the server.

    Args:
        files: shared by all threads.
    """

    def __init__(self, files: FileReader) -> None:
        self._files = files

    def open(self, database: str) -> None:
        """Do nothing: files need no session."""

    def read(self, call: Call) -> Read:
        """Have the kernel read a call."""
        return self._files.read(call.pieces)

    def cancel(self) -> None:
        """Do nothing: a call is short, and the kernel cannot be interrupted."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


class LatencyProbe:
    """Reads one block, as a query would that misses: for `--max-latency`.

    Through the server it is pg_prewarm in mode read, which leaves the buffer pool alone; where nothing is
    left to read, a statement that does nothing.

    Args:
        conninfo: of any database of the server.
        files: reads past the server; nothing for reads through it.
    """

    def __init__(self, conninfo: str, files: FileReader | None = None) -> None:
        self._conninfo = conninfo
        self._files = files
        self._sessions: dict[str, PrewarmSession] = {}

    def __call__(self, piece: BlockRange | None) -> None:
        """Read one block.

        Raises:
            Exception: any error; it counts as late.
        """
        if self._files is not None:
            if piece is not None:
                self._files.read([_one_block(piece)])
            return
        if piece is None:
            for session in self._sessions.values():
                session.ping()
            return
        try:
            session = self._sessions.get(piece.database) or PrewarmSession(
                self._conninfo, piece.database, "read"
            )
            self._sessions[piece.database] = session
            session.read([_one_block(piece)])
        except Lost:
            self._sessions.pop(piece.database).close()
            raise

    def close(self) -> None:
        """End the sessions."""
        for session in self._sessions.values():
            session.close()


def _one_block(piece: BlockRange) -> BlockRange:
    at = random.randrange(piece.blocks)  # noqa: S311 - no secret
    return msgspec.structs.replace(piece, first_block=piece.first_block + at, blocks=1)
