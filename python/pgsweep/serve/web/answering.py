"""How answers are made: in few threads, and with a sentence for what goes wrong, foreseen or not."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.plain import shown

Endpoint = Callable[[Request], Awaitable[Response]]

_MOST_WAITING: Final = 200
_MOST_LINE: Final = 400
_LINE_SECONDS: Final = 60.0
"""An error at one place is logged this often: who causes it must not be able to fill a disk."""


class Lane:
    """Threads for one kind of endpoint: the memory of many pages that are made at once is bounded so.

    Args:
        threads: of which each makes one answer.
    """

    def __init__(self, threads: int) -> None:
        self._free = asyncio.Semaphore(threads)
        self._waiting = 0

    def answered(self, endpoint: Callable[[Request], Response]) -> Endpoint:
        """Run an endpoint in a thread, and turn what is wrong with a request into an answer."""

        async def answer(request: Request) -> Response:
            if self._waiting >= _MOST_WAITING:
                return PlainTextResponse(
                    "too many pages are asked for at once\n", 503, headers={"retry-after": "5"}
                )
            self._waiting += 1
            try:
                await self._free.acquire()
            finally:
                self._waiting -= 1
            try:
                if await request.is_disconnected():
                    raise ClientDisconnect  # nobody would see it
                return await run_in_threadpool(endpoint, request)
            except UsageError as error:
                return PlainTextResponse(f"{error.message}\n", 400)
            except PgsweepError as error:
                return _unavailable(error)
            finally:
                self._free.release()

        return answer


def _unavailable(error: PgsweepError) -> Response:
    lines = [
        error.message,
        f"cause: {error.cause}" if error.cause else "",
        f"hint: {error.hint}" if error.hint else "",
    ]
    return PlainTextResponse("\n".join(filter(None, lines)) + "\n", 503)


async def failed(_request: Request, _error: Exception) -> Response:
    """Return what a client gets where pgsweep has an error."""
    return PlainTextResponse("this page failed by an error of pgsweep, which its log names\n", 500)


class Failures:
    """Ends what goes wrong in an application: a line in the log, and a short answer where none has begun.

    Args:
        app: what may fail.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._log = logging.getLogger("pgsweep.serve")
        self._said: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except (ClientDisconnect, asyncio.CancelledError):
            # The client is gone, or the time to end is over: neither is an error.
            if not begun:
                await PlainTextResponse("the server ends\n", 503)(scope, receive, send)
        except Exception as error:  # an unforeseen one
            self._say(scope, error)
            if not begun:
                await (await failed(Request(scope), error))(scope, receive, send)

    def _say(self, scope: Scope, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "pgsweep" in Path(frame.filename).parts] or frames
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
        now = time.monotonic()
        if now - self._said.get(place, -_LINE_SECONDS) < _LINE_SECONDS:
            return
        self._said[place] = now
        line = f"{scope['method']} {scope['path'][:100]}: {type(error).__name__} at {place}: {error}"
        self._log.error("pgsweep serve: %s", shown(line)[:_MOST_LINE])
