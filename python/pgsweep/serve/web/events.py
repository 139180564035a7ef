"""Server-sent events: what has changed, for pages that are open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Final

_BEAT_SECONDS: Final = 15.0
_MOST_WAITING: Final = 64


class Hub:
    """Passes on to every open page what threads report."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: set[asyncio.Queue[tuple[str, str] | None]] = set()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to pass on, in this loop."""
        self._loop = loop

    def close(self) -> None:
        """End all streams, so that the server can end; may be called from any thread or a signal handler."""
        self._call(None)

    def report(self, key: str, kind: str) -> None:
        """Pass on that something of a server has changed; may be called from any thread."""
        self._call((key, kind))

    def _call(self, item: tuple[str, str] | None) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._put, item)

    def _put(self, item: tuple[str, str] | None) -> None:
        for waiting in list(self._open):
            # A page that does not read loses events; it fetches everything anew with the next.
            if waiting.full() and item is not None:
                continue
            if waiting.full():
                waiting.get_nowait()
            waiting.put_nowait(item)

    async def stream(self, key: str | None) -> AsyncIterator[bytes]:
        """Yield the events of one server, or of all, until the page or the server ends."""
        waiting: asyncio.Queue[tuple[str, str] | None] = asyncio.Queue(_MOST_WAITING)
        self._open.add(waiting)
        try:
            yield b"retry: 2000\nevent: hello\ndata: {}\n\n"
            while True:
                try:
                    item = await asyncio.wait_for(waiting.get(), _BEAT_SECONDS)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if item is None:
                    return
                if key is None or item[0] == key:
                    data = json.dumps({"server": item[0]})
                    yield f"event: {item[1]}\ndata: {data}\n\n".encode()
        finally:
            self._open.discard(waiting)
