"""How many connections clients may hold, and for how long: uvicorn alone ends none whose client never ends.

A connection waits for its client while a request is not there in full, or an answer is not taken. That has a
deadline which bytes sent one by one do not move. Where too many connections are open, those give way that
have waited longest: so who holds connections without asking cannot keep out who asks. Where none waits, a new
one is for the paths of `ALWAYS` alone. Every connection that is ended with something unsent is aborted: a
closed one stays until its client has read all, which may be never.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

import h11
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

ALWAYS: Final = ("/healthz", "/metrics")
"""What is answered also while other requests are refused."""

REQUEST_SECONDS: Final = 10.0
"""From the connection, or from the first byte of a later request, until the request is there in full."""

KEEP_ALIVE_SECONDS: Final = 20
"""From one request to the next."""

UNREAD_SECONDS: Final = 30.0
"""In this time a client takes `_LEAST_READ` of an answer, or the rest of it."""

_LEAST_READ: Final = 1 << 16
_MOST_UNREAD: Final = 64 << 20
"""What all answers that wait for their clients may hold of memory together."""

_MOST_HEADER: Final = 1 << 14
_RESERVE: Final = 32
"""Connections beyond the limit, for `ALWAYS` alone."""

_MOST_BODY: Final = 4096
"""Of a request: what signing in takes."""

_SEND_BUFFER: Final = 1 << 17
_RECEIVE_BUFFER: Final = 1 << 15
_RESET: Final = struct.pack("ii", 1, 0)
"""Linger for no time."""


UVICORN: Final[dict[str, Any]] = {
    "timeout_keep_alive": KEEP_ALIVE_SECONDS,
    # It counts idle connections, and refuses whatever is asked then.
    "limit_concurrency": None,
    # asyncio accepts so many before it reads from any, so no more than that give way to others unread.
    "backlog": 16,
    "ws": "none",
    "proxy_headers": False,
}
"""What uvicorn has of limits."""


def bound_buffers(listening: socket.socket) -> None:
    """Bound what the kernel keeps for each connection, and for how long it waits for a peer that is gone.

    Connections that are accepted inherit it. With buffers of the kernel's own choice, which are of several
    megabytes, it is not seen here for minutes whether a client reads.
    """
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    # Linux alone has it. The beats of a stream to a machine that was switched off are sent anew for a quarter
    # of an hour otherwise.
    if (option := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        listening.setsockopt(socket.IPPROTO_TCP, option, int(UNREAD_SECONDS * 1000))


def address_of(host: str) -> str:
    """Return what connections are counted by: the address, or of IPv6 the network of 64 bits that one has."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


class Room:
    """All open connections; used in the loop alone.

    Args:
        most: connections.
        most_of_one: connections of one address.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._open: set[Connection] = set()

    def protocol(self) -> type[asyncio.Protocol]:
        """Return the protocol of the connections in this room, for `uvicorn.Config(http=)`."""
        return type("Connection", (Connection,), {"room": self})

    def enter(self, new: Connection) -> None:
        """Take in a connection; where there is no room, those that have waited longest for clients give way.

        It is limited to `ALWAYS` where no other one waits, and ended where even the reserve is full.
        """
        now = time.monotonic()
        same = [one for one in self._open if one.address == new.address]
        limited = len(same) >= self._most_of_one and not _give_way(same, now)
        if len(self._open) >= self._most:
            waiting = [one for one in self._open if one.waits_since(now) is not None]
            counts = Counter(one.address for one in waiting).most_common(1)
            limited |= not (
                counts and _give_way((one for one in waiting if one.address == counts[0][0]), now)
            )
        if len(self._open) >= self._most + _RESERVE:
            new.transport.abort()
            return
        if limited:
            new.app = only_always(new.app)
        self._open.add(new)

    def leave(self, one: Connection) -> None:
        """Forget a connection that has ended, or is about to."""
        self._open.discard(one)

    def end_overdue(self) -> None:
        """End the connections whose clients are too late; to be called every second."""
        now = time.monotonic()
        for one in list(self._open):
            if one.is_overdue(now):
                one.end()

    def bound_unread(self) -> None:
        """End connections until what is unread is not too much: those of which nothing was read longest."""
        unread = [one for one in self._open if one.unread]
        unread.sort(key=lambda one: one.unread_since)
        total = sum(one.unread for one in unread)
        while total > _MOST_UNREAD:
            total -= unread[0].unread
            unread.pop(0).end()


def _give_way(some: Iterable[Connection], now: float) -> bool:
    """End the connection that has waited longest for its client, and return whether there is one."""
    waiting = [(since, id(one), one) for one in some if (since := one.waits_since(now)) is not None]
    if not waiting:
        return False
    min(waiting)[2].end()
    return True


class _Requests(h11.Connection):
    """Takes requests without a body, or with a short one whose length is said.

    h11 needs a third of a second of processor time for 64 kB of chunks of one byte, while all others wait.
    """

    def next_event(self) -> Any:
        """Return what has come next."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            for name, value in event.headers:
                # h11 has made sure that it is a number, of 20 digits at most.
                if name == b"transfer-encoding" or (name == b"content-length" and int(value) > _MOST_BODY):
                    raise h11.RemoteProtocolError(f"the body is chunked, or longer than {_MOST_BODY} bytes")
        return event


class Connection(H11Protocol):
    """One connection, with deadlines."""

    room: Room
    address: str = ""
    unread_since: float = 0.0
    _noted: int = 0
    _since: float = 0.0
    _is_between: bool = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        self.conn = _Requests(h11.SERVER, _MOST_HEADER)
        super().connection_made(transport)
        self.address = "" if self.client is None else address_of(self.client[0])
        self._since = time.monotonic()
        self.room.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of all: after a reset uvicorn keeps it until the time between requests is over."""
        self.room.leave(self)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Take what has come of a request."""
        if self._is_between:
            self._is_between, self._since = False, time.monotonic()
        super().data_received(data)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request, unless there is more of this one, which the answer ignored."""
        if self.conn.their_state is not h11.SEND_BODY:
            self._is_between, self._since = not self.conn.trailing_data[0], time.monotonic()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP; once an answer has begun, nothing can be said any more."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Stop making more of an answer that is not read; and bound the memory of all of them."""
        super().pause_writing()
        self._note(time.monotonic())
        self.room.bound_unread()

    @property
    def unread(self) -> int:
        """Return the bytes of answers that wait for the client, besides those that the kernel has."""
        return self.transport.get_write_buffer_size()

    def waits_since(self, now: float) -> float | None:
        """Return since when it waits for the client; None where the client waits for us."""
        self._note(now)
        if self._noted:
            return self.unread_since
        return self._since if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) else None

    def is_overdue(self, now: float) -> bool:
        """Return whether the client is too late."""
        since = self.waits_since(now)
        if since is None:
            return False
        if self._noted:
            return now - since > UNREAD_SECONDS
        return now - since > (KEEP_ALIVE_SECONDS if self._is_between else REQUEST_SECONDS)

    def end(self) -> None:
        """End it; what the client did not read is lost."""
        self.room.leave(self)
        if self.unread:
            # With a reset: what the kernel still has of the answer would stay until it is read, too.
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()
        else:
            self.transport.close()

    def _note(self, now: float) -> None:
        """Note when the client has last taken something that counts."""
        unread = self.unread
        if not unread or not self._noted or unread <= self._noted - _LEAST_READ:
            self._noted, self.unread_since = unread, now


def only_always(app: ASGIApp) -> Callable[[Scope, Receive, Send], Any]:
    """Return an application that refuses all but `ALWAYS`."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        # Below the path of a proxy too.
        if scope["type"] != "http" or scope["path"].endswith(ALWAYS):
            await app(scope, receive, send)
            return
        refused = PlainTextResponse(
            "too many connections are open from your address, or from all: see max-connections in "
            "docs/guides/serve.md\n",
            503,
            headers={"connection": "close", "retry-after": "5"},
        )
        await refused(scope, receive, send)

    return answer
