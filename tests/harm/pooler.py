"""A connection pooler of one server session: clients take turns on it, transaction by transaction.

It stands for poolers that a test cannot start. What they do (read in their sources or manuals):

    Odyssey         gives clients keys of its own (frontend.c: key_pid = id.id_a); deploys the parameters of a
                    client on the session that it gets (maintain_params), DISCARD ALL (pool_discard, default)
    pgcat           keys of its own (client.rs: rand::random()); RESET ROLE and RESET ALL where it saw a SET
                    (server.rs, checkin_cleanup), which it does not see in set_config()
    Supavisor       keys of its own (server.ex, backend_key_data); DISCARD ALL in session mode only
                    (db_handler.ex, cleanup)
    PgBouncer       keys of its own (proto.c, welcome_client); server_reset_query in session mode
    Pgpool-II       hands on the key of the server (pool_auth.c, pool_send_backend_key_data); session mode;
                    reset_query_list, by default ABORT and DISCARD ALL
    RDS Proxy       binds a client that changes a setting to its session until it leaves (Amazon RDS User
                    Guide, "Avoiding pinning"); whether its keys are the server's is not documented

PostgreSQL's protocol 3.0 over Unix sockets, without passwords and encryption.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

QUERY, PARSE, SYNC, CALL, END = b"Q", b"P", b"S", b"F", b"X"
ERROR, KEY, READY, STATUS = b"E", b"K", b"Z", b"S"
_COPY = (b"d", b"c", b"f")
_PROTOCOL, _CANCEL, _SSL, _GSS = 196608, 80877102, 80877103, 80877104
_TRACKED = ("client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings", "application_name")
"""What PgBouncer and Odyssey deploy for the client whose turn it is (PgBouncer's varcache.c)."""
_KNOWN = ("user", "database", "replication", *(name.lower() for name in _TRACKED))
_CHANGES = re.compile(rb"\bset\b|set_config", re.IGNORECASE)


@dataclass(frozen=True)
class Behaviour:
    """What a pooler does.

    Attributes:
        real_key: hands on the BackendKeyData of the server's session; otherwise makes one up.
        startup: what becomes of a client's startup parameters: `ignore`, `apply` those that PgBouncer tracks,
            or `refuse` the client with any other.
        reset: statement after each turn; none by default.
        turn: for how long a client has the session: `transaction`, `session`, or `pinned`: until it leaves,
            from the first statement that changes a setting.
    """

    real_key: bool = False
    startup: Literal["ignore", "apply", "refuse"] = "ignore"
    reset: str = ""
    turn: Literal["transaction", "session", "pinned"] = "transaction"


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body) + 4) + body


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], await reader.readexactly(struct.unpack(">I", head[1:])[0] - 4)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)


@dataclass(eq=False)
class _Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    key: bytes = field(
        default_factory=lambda: struct.pack(">I", secrets.randbits(31)) + secrets.token_bytes(4)
    )
    wanted: dict[str, str] = field(default_factory=dict)
    greedy: bool = False
    """Whether it may need several sessions at a time, as commands of pgsweep do."""
    pinned: bool = False
    pending: int = 0
    """How many ReadyForQuery are still to come."""
    status: bytes = b"I"


class Pooler:
    """The pooler; `run` lives until its task is cancelled."""

    def __init__(self, behaviour: Behaviour, folder: Path, server_socket: Path, database: str) -> None:
        self._does = behaviour
        self._folder = folder
        self._server_socket = server_socket
        self._database = database
        self._turn = asyncio.Lock()
        self._holder: _Client | None = None
        self._shown: dict[str, str] = {}
        self._key = b""
        self._clients: set[_Client] = set()

    async def run(self, listens: Callable[[], object]) -> None:
        await self._connect()
        place = str(self._folder / ".s.PGSQL.5432")
        try:
            async with await asyncio.start_unix_server(self._serve, place):
                listens()
                await asyncio.Event().wait()
        finally:
            self._to.close()
            for client in self._clients:
                client.writer.close()

    async def _connect(self) -> None:
        """Open the one session of the server."""
        self._from, self._to = await self._opened()
        await self._until_ready()

    async def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(str(self._server_socket))
        words = ("user", "postgres", "database", self._database, "")
        body = struct.pack(">I", _PROTOCOL) + b"".join(word.encode() + b"\0" for word in words)
        writer.write(struct.pack(">I", len(body) + 4) + body)
        return reader, writer

    async def _aside(self, client: _Client, first: bytes = b"") -> None:
        """Give a client a session of its own, which ends with it: the one of the pool is taken for long.

        Args:
            first: its first message, if it has been welcomed.
        """
        reader, writer = await self._opened()
        with contextlib.closing(writer):
            if first:
                while (await _read(reader))[0] != READY:
                    pass
                writer.write(first)
            passing = asyncio.create_task(_pass_on(reader, client.writer))
            try:
                await _pass_on(client.reader, writer)
            finally:
                passing.cancel()

    async def _until_ready(self) -> None:
        kind = b""
        while kind != READY:
            kind, body = await _read(self._from)
            self._note(kind, body)

    def _note(self, kind: bytes, body: bytes) -> None:
        if kind == STATUS:
            name, value, _ = body.decode().split("\0")
            self._shown[name] = value
            if self._holder is not None and name in self._holder.wanted:
                self._holder.wanted[name] = value
        elif kind == KEY:
            self._key = body

    async def _ask(self, text: str) -> None:
        self._to.write(message(QUERY, text.encode() + b"\0"))
        await self._until_ready()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(reader, writer)
        try:
            if await self._welcome(client):
                self._clients.add(client)
                await self._requests(client)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._clients.discard(client)
            try:
                # At the end of the pooler its session may be closed already, and this task is cancelled.
                with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                    await self._leave(client)
            finally:
                writer.close()

    async def _welcome(self, client: _Client) -> bool:
        """Read what a client begins with; return whether it stays."""
        while True:
            length, code = struct.unpack(">II", await client.reader.readexactly(8))
            body = await client.reader.readexactly(length - 8)
            if code in (_SSL, _GSS):
                client.writer.write(b"N")
            elif code == _CANCEL:
                await self._cancel(body)
                return False
            else:
                break
        words = [word.decode() for word in body.split(b"\0")]
        given = {name.lower(): value for name, value in zip(words[::2], words[1::2], strict=False) if name}
        if self._does.startup == "refuse" and (unknown := given.keys() - set(_KNOWN)):
            text = f"unsupported startup parameter: {min(unknown)}"
            fields = (b"SFATAL", b"VFATAL", b"C08P01", b"M" + text.encode(), b"")
            client.writer.write(message(ERROR, b"\0".join(fields) + b"\0"))
            return False
        if self._does.startup != "ignore":
            client.wanted = {name: given.get(name.lower(), self._shown[name]) for name in _TRACKED}
        client.greedy = given.get("application_name", "").startswith("pgsweep")
        if self._does.turn == "session":
            if client.greedy and self._turn.locked():
                await self._aside(client)
                return False
            await self._take(client)
        shown = {**self._shown, **client.wanted}
        client.writer.write(message(b"R", struct.pack(">I", 0)))
        for name, value in shown.items():
            client.writer.write(message(STATUS, f"{name}\0{value}\0".encode()))
        client.writer.write(message(KEY, self._key if self._does.real_key else client.key))
        client.writer.write(message(READY, b"I"))
        return True

    async def _cancel(self, key: bytes) -> None:
        """Hand a request to cancel on, if it is for the client whose turn it is."""
        holder = self._holder
        if holder is not None and key == (self._key if self._does.real_key else holder.key):
            _, writer = await asyncio.open_unix_connection(str(self._server_socket))
            writer.write(struct.pack(">II", 8 + len(self._key), _CANCEL) + self._key)
            await writer.drain()
            writer.close()

    async def _requests(self, client: _Client) -> None:
        while True:
            kind, body = await _read(client.reader)
            if kind == END:
                return
            if kind in _COPY and not client.pending:
                continue  # of a COPY that has failed; the server would pass over it too
            if self._holder is not client:
                if client.greedy and self._holder is not None and self._holder.pinned:
                    await self._aside(client, message(kind, body))
                    return
                await self._take(client)
            if kind in (QUERY, PARSE) and self._does.turn == "pinned" and _CHANGES.search(body):
                client.pinned = True
            if kind in (QUERY, SYNC, CALL):
                client.pending += 1
            self._to.write(message(kind, body))

    async def _take(self, client: _Client) -> None:
        """Wait for a client's turn, and give it the session with its parameters."""
        await self._turn.acquire()
        for name, value in client.wanted.items():
            if self._shown[name] != value:
                await self._ask(f"SET {name} = '{value}'")
        self._holder = client
        client.pinned = self._does.turn == "session"
        self._answering = asyncio.create_task(self._answers(client))

    async def _answers(self, client: _Client) -> None:
        """Pass on answers until the client's turn is over."""
        while True:
            kind, body = await _read(self._from)
            self._note(kind, body)
            client.writer.write(message(kind, body))
            if kind == READY:
                client.pending -= 1
                client.status = body
                if not client.pending and body == b"I" and not client.pinned:
                    await self._give_back(client)
                    return

    async def _give_back(self, client: _Client) -> None:
        self._holder = None
        if self._does.reset:
            await self._ask(self._does.reset)
        self._turn.release()

    async def _leave(self, client: _Client) -> None:
        """Make the session of a client that has gone fit for the next: its transaction is rolled back."""
        if self._holder is not client:
            return
        client.pinned = True
        if client.pending:
            await self._cancel(self._key if self._does.real_key else client.key)
        while client.pending:
            # A COPY from the client ends so; otherwise the server passes over it.
            self._to.write(message(b"f", b"the client has gone\0"))
            await asyncio.sleep(0.01)
        if self._holder is client:
            self._answering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._answering
            if client.status != b"I":
                await self._ask("ROLLBACK")
            await self._give_back(client)


async def _turns() -> None:
    """Let the loop do what it has put off: accept a connection, begin to serve it, close it."""
    for _ in range(10):
        await asyncio.sleep(0)


@contextlib.contextmanager
def pooling(behaviour: Behaviour, folder: Path, server_socket: Path, database: str) -> Iterator[None]:
    """Have a pooler listen in a folder, in a thread of its own."""
    loop = asyncio.new_event_loop()
    listens = threading.Event()
    pooler = Pooler(behaviour, folder, server_socket, database)
    running: Coroutine[Any, Any, None] = pooler.run(listens.set)
    task = loop.create_task(running)

    def work() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        # A task that is cancelled before it has begun closes nothing: of a client that has just come.
        loop.run_until_complete(_turns())
        for left in asyncio.all_tasks(loop):
            left.cancel()
            with contextlib.suppress(asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
                loop.run_until_complete(left)
        loop.run_until_complete(_turns())
        loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        assert listens.wait(30), "the pooler does not come up"
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(30)
