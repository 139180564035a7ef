"""A proxy before a real server that changes its answers: PostgreSQL's protocol 3, message by message.

What it changes follows from a seed: values of rows (DataRow), the description of columns, errors, settings
that the server reports (ParameterStatus), ends of statements; seldom also the kind or the length of a
message, or it leaves one out, sends one twice, or is silent from then on. It can also answer without end.
Sessions come by its Unix socket, so it has nothing to do with passwords and encryption.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgsweep.pg.private.cluster import Cluster

DATA_ROW, ROW_DESCRIPTION, ERROR, STATUS, COMPLETE = b"D", b"T", b"E", b"S", b"C"
_CHANGED = {DATA_ROW: 1.0, ROW_DESCRIPTION: 0.6, COMPLETE: 0.2, STATUS: 0.3, ERROR: 1.0, b"Z": 0.1, b"K": 0.1}
"""How readily a kind of message is changed, beside the rate of the plan."""

_VALUES = (
    b"",
    b"0",
    b"-1",
    b"5",
    b"16384",
    b"4294967295",
    b"4294967296",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"999999999999999999999999",
    b"NaN",
    b"Infinity",
    b"1e308",
    b"t",
    b"f",
    b"{}",
    b"{1,2,NULL}",
    b"{",
    b"\\x",
    b"\\xff",
    b"\xff\xfe",
    b"\xc3\x28",
    b"infinity",
    b"-infinity",
    b"2026-13-45 99:99:99",
    b"0001-01-01 00:00:00+00 BC",
    b"\x1b[2J",
    b"new\nline",
    b"'; DROP TABLE t; --",
    b"a" * 100_000,
    bytes(8),
    b"\x7f" + b"\xff" * 7,
    b"\x80" + bytes(7),
)
_STATES = (b"9.6", b"18beta1", b"150000", b"LATIN1", b"SQL_ASCII", b"KOI8R", b"SQL, DMY", b"off", b"on")
_TEXTS = (b"no", b"\xff\xfe", b"\x1b[2Jgone", b"", b"x" * 5000, b"connection failed: FATAL:  ")
_CODES = (b"42P01", b"42601", b"57014", b"53300", b"XX000", b"25P02", b"08006", b"57P01", b"0A000", b"?????")
_OIDS = (0, 16, 17, 19, 20, 21, 23, 25, 26, 114, 700, 701, 1114, 1184, 1700, 1009, 1028, 2278, 2**32 - 1)


@dataclass
class Plan:
    """What is changed: `rate` of the messages, by a generator that begins with `seed`."""

    seed: int
    rate: float = 0.02
    skip: int = 0
    """The number of messages that pass first, so that later statements are reached too."""

    rough: float = 0.05
    """Which part of the changes is of a message's kind, length or order."""

    endless: str | None = None
    """One of `ENDLESS`, instead of changes: from the message after `skip` on it sends this without end."""

    changes: list[str] = field(default_factory=list)


class Proxy:
    """Listens on a Unix socket; what it does to answers is set by `plan`."""

    def __init__(self, folder: Path, server_socket: Path) -> None:
        self.plan = Plan(0, 0.0)
        self._server_socket = server_socket
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen(64)
        self._ends = threading.Event()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._ends.set()
        _end(self._listener)  # which ends the waiting for a session
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End all sessions."""
        _end(*self._open.copy())

    def _accept(self) -> None:
        while not self._ends.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self._server_socket))
            except OSError:
                client.close()
                server.close()
                continue
            threading.Thread(target=self._pass_on, args=(client, server, self.plan), daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket, plan: Plan) -> None:
        self._open |= {client, server}
        requests = threading.Thread(target=self._requests, args=(client, server), daemon=True)
        requests.start()
        self._answers(client, server, plan)
        requests.join()
        self._open -= {client, server}
        client.close()
        server.close()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := client.recv(65536):
                server.sendall(piece)
        _end(client, server)

    def _answers(self, client: socket.socket, server: socket.socket, plan: Plan) -> None:
        chance = random.Random(plan.seed)
        passed = 0
        with contextlib.suppress(OSError, EOFError), server.makefile("rb") as file:
            while True:
                kind = file.read(1)
                head = file.read(4)
                if len(head) < 4:
                    break
                wanted = struct.unpack(">I", head)[0] - 4
                body = file.read(wanted)
                if len(body) < wanted:
                    break
                passed += 1
                if plan.endless is not None and passed > plan.skip:
                    plan.changes.append(plan.endless)
                    self._go_on(client, plan.endless, kind + head + body)
                    break
                if passed <= plan.skip or chance.random() >= plan.rate * _CHANGED.get(kind, 0.05):
                    client.sendall(kind + head + body)
                    continue
                pieces, what = _changed(kind, body, chance, plan.rough)
                plan.changes.append(f"{kind.decode('latin-1')}: {what}")
                for piece in pieces:
                    client.sendall(piece)
                while what == "silent" and file.read(4096):
                    pass
        _end(client, server)

    def _go_on(self, client: socket.socket, how: str, message: bytes) -> None:
        pause_seconds = 0.0
        pieces: Iterator[bytes] = _endless(how)
        if how == "drip":
            pieces, pause_seconds = (message[at : at + 1] for at in range(len(message))), 1.0
        elif how == "slow notices":
            pause_seconds = 0.5
        for piece in pieces:
            client.sendall(piece)
            if self._ends.wait(pause_seconds) or self._ends.is_set():
                return
        self._ends.wait(300)


ENDLESS = (
    *("rows", "nulls", "wide", "value", "error", "notices", "one notice", "settings", "notifications"),
    *("drip", "slow notices", "silence", "columns", "copy", "results"),
)
"""What the proxy can send without end, or in a single message of a gigabyte: see `_endless`."""


def _endless(how: str) -> Iterator[bytes]:
    text = _message(
        ROW_DESCRIPTION, struct.pack(">H", 1) + b"a\0" + struct.pack(">IhIhih", 0, 0, 25, -1, -1, 0)
    )
    match how:
        case "rows":
            yield text
            piece = _message(DATA_ROW, struct.pack(">Hi", 1, 4) + b"1259") * 4000
        case "nulls":
            yield text
            piece = _message(DATA_ROW, struct.pack(">Hi", 1, -1)) * 4000
        case "wide":
            column = b"\0" + struct.pack(">IhIhih", 0, 0, 25, -1, -1, 0)
            yield _message(ROW_DESCRIPTION, struct.pack(">H", 65535) + column * 65535)
            piece = _message(DATA_ROW, struct.pack(">H", 65535) + struct.pack(">i", -1) * 65535)
        case "columns":
            column = b"c" * 10000 + b"\0" + struct.pack(">IhIhih", 0, 0, 25, -1, -1, 0)
            yield ROW_DESCRIPTION + struct.pack(">IH", 2**30, 65535)
            piece = column
        case "value":
            yield text + DATA_ROW + struct.pack(">IHi", 2**30 + 10, 1, 2**30)
            piece = b"x" * (1 << 20)
        case "error":
            yield ERROR + struct.pack(">I", 2**30) + b"SERROR\0VERROR\0CXX000\0M"
            piece = b"x" * (1 << 20)
        case "one notice":
            yield b"N" + struct.pack(">I", 2**30) + b"SNOTICE\0VNOTICE\0C00000\0M"
            piece = b"x" * (1 << 20)
        case "notices" | "slow notices":
            piece = _message(b"N", b"SNOTICE\0VNOTICE\0C00000\0Mhello\0\0")
            piece *= 1 if how == "slow notices" else 1000
        case "settings":
            for number in range(2**40):
                yield b"".join(_message(STATUS, b"a.%d\0x\0" % (1000 * number + i)) for i in range(1000))
            return
        case "notifications":
            piece = _message(b"A", struct.pack(">I", 1) + b"c\0\0") * 2000
        case "copy":
            yield _message(b"H", struct.pack(">bH", 0, 0))
            piece = _message(b"d", b"x" * 1000) * 50
        case "results":
            yield text
            piece = _message(COMPLETE, b"SELECT 0\0") + text
        case _:
            return
    while True:
        yield piece


def _end(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body) + 4) + body


def _changed(kind: bytes, body: bytes, chance: random.Random, rough: float) -> tuple[list[bytes], str]:
    """Return what is sent in place of a message, and in a word what was done to it."""
    if chance.random() < rough:
        return _rough(kind, body, chance)
    if kind == DATA_ROW:
        return [_message(kind, _row(body, chance))], "row"
    if kind == ROW_DESCRIPTION:
        return [_message(kind, _description(body, chance))], "columns"
    if kind == STATUS:
        name, value, *_ = body.split(b"\0")
        value = chance.choice((*_VALUES[:12], *_STATES))
        return [_message(kind, name + b"\0" + value + b"\0")], f"status {name.decode()}"
    if kind == ERROR:
        return [_message(kind, _error(chance))], "error"
    return [_message(kind, _bytes(body, chance))], "bytes"


def _rough(kind: bytes, body: bytes, chance: random.Random) -> tuple[list[bytes], str]:
    whole = _message(kind, body)
    match chance.randrange(8):
        case 0:
            return [], "left out"
        case 1:
            return [whole, whole], "twice"
        case 2:
            return [whole[: chance.randrange(len(whole))]], "silent"
        case 3:
            length = chance.choice((0, 3, 4, len(body) + 3, len(body) + 5, 2**31 - 1, 2**32 - 1))
            return [kind + struct.pack(">I", length) + body], "length"
        case 4:
            return [_message(bytes([chance.choice(b"12CDEGHINRSTVWZnst")]), body)], "kind"
        case 5:
            return [_message(ERROR, _error(chance)), _message(b"Z", b"I")], "error in place"
        case 6:
            return [_message(ERROR, _error(chance))], "error in place, not ready"
        case _:
            return [_message(kind, chance.randbytes(chance.randrange(64)))], "noise"


def _error(chance: random.Random) -> bytes:
    text = chance.choice(
        (b"no", b"\xff\xfe", b"\x1b[2Jgone", b"", b"x" * 5000, b"connection failed: FATAL:  ")
    )
    severity = chance.choice((b"ERROR", b"FATAL", b"PANIC", b"?"))
    fields = [(b"S", b"ERROR"), (b"V", severity), (b"C", chance.choice(_CODES)), (b"M", text), (b"H", text)]
    chance.shuffle(fields)
    return b"".join(code + value + b"\0" for code, value in fields[: chance.randrange(6)]) + b"\0"


def _bytes(body: bytes, chance: random.Random) -> bytes:
    if not body:
        return chance.randbytes(4)
    at = chance.randrange(len(body))
    return body[:at] + chance.randbytes(1) + body[at + 1 :]


def _row(body: bytes, chance: random.Random) -> bytes:
    """Change one value of a row, or the number of values."""
    count = struct.unpack(">H", body[:2])[0]
    values: list[bytes | None] = []
    at = 2
    for _ in range(count):
        length = struct.unpack(">i", body[at : at + 4])[0]
        at += 4
        values.append(None if length < 0 else body[at : at + length])
        at += max(0, length)
    if chance.random() < 0.05:
        values = [*values, b"1"] if chance.random() < 0.5 else values[:-1]
    for _ in range(chance.choice((1, 1, 1, 2, count))):
        if values:
            index = chance.randrange(len(values))
            values[index] = _value(values[index], chance)
    cells = (struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for v in values)
    return struct.pack(">H", len(values)) + b"".join(cells)


_LONGEST = 4 << 20
"""Bytes of a value, four times what is taken for a text; the proxy holds some copies."""


def _value(value: bytes | None, chance: random.Random) -> bytes | None:
    what = chance.randrange(6)
    if what == 0:
        return None
    if value and what == 1:
        return _bytes(value, chance)
    if value and what == 2:
        return value[: chance.randrange(len(value))]
    if value and what == 3:
        # The same value may be drawn again and again.
        return (value * chance.choice((2, 3, 1000)))[:_LONGEST]
    if value and what == 4 and value.lstrip(b"-").isdigit():
        factor = chance.choice((-1, 0, 2, 10, 1000, 10**6, 10**12, 10**18))
        return str(int(value[:30]) * factor + chance.randrange(-2, 3)).encode()
    return chance.choice(_VALUES)


def _description(body: bytes, chance: random.Random) -> bytes:
    """Change one column's name, type or format, or the number of columns."""
    count = struct.unpack(">H", body[:2])[0]
    columns = []
    at = 2
    for _ in range(count):
        end = body.index(b"\0", at)
        columns.append((body[at:end], list(struct.unpack(">IhIhih", body[end + 1 : end + 19]))))
        at = end + 19
    if not columns:
        return struct.pack(">H", chance.randrange(4))
    index = chance.randrange(count)
    numbers = columns[index][1]
    match chance.randrange(5):
        case 0:
            columns[index] = (chance.choice((b"", b"\xff", b"object", b"x" * 200)), numbers)
        case 1 | 2:
            numbers[2] = chance.choice(_OIDS)
        case 3:
            numbers[5] = chance.choice((0, 1, 2, -1))
        case _:
            columns = columns[:-1] if chance.random() < 0.5 else [*columns, columns[index]]
    return struct.pack(">H", len(columns)) + b"".join(
        name + b"\0" + struct.pack(">IhIhih", *numbers) for name, numbers in columns
    )


@contextmanager
def proxy_before(cluster: Cluster) -> Iterator[tuple[Proxy, str]]:
    """Give a proxy before the server, and the conninfo of a session through it."""
    parts = conninfo_to_dict(cluster.conninfo())
    server_socket = Path(str(parts["host"])) / f".s.PGSQL.{parts.get('port', 5432)}"
    with tempfile.TemporaryDirectory(prefix="pgsweep-proxy-") as folder:
        proxy = Proxy(Path(folder), server_socket)
        try:
            yield (
                proxy,
                make_conninfo("", **{**parts, "host": folder, "port": "5432", "connect_timeout": "3"}),
            )
        finally:
            proxy.close()
