"""The application: which address shows what. Every page has its data as JSON and CSV beside it."""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.records.cache import CacheMap
from pgsweep.records.serve import ServeCurves
from pgsweep.records.top import TopSample, TopView
from pgsweep.serve.saved import saved_by
from pgsweep.serve.web import data, pages
from pgsweep.serve.web.answering import Failures, Lane, failed
from pgsweep.serve.web.connections import address_of
from pgsweep.serve.web.events import Hub
from pgsweep.serve.web.query import Query
from pgsweep.serve.web.security import COOKIE, Guard, cookie_of

if TYPE_CHECKING:
    from pgsweep.serve.service import Service

R = TypeVar("R")

SORTS: Final = ("pool", "change", "hot", "dirty", "page-cache", "twice", "name")
CONSUMER_KINDS: Final = ("user", "database", "statement", "backend")
_COMPARED_SECONDS: Final = 86_400.0
"""Least time for which the hourly curves are shown, also if a shorter range is chosen."""

_HALF_AN_HOUR: Final = 1800.0

_MOST_ROWS: Final = 500
_ROWS: Final = 50
_STREAMS: Final = 0.75
"""The part of all connections, and of those of one address, that streams of events may take."""

_MOST_WRONG: Final = 16
"""Wrong tokens that are answered late at the same time; more are refused at once."""

_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class WebConfig:
    """How the pages are served.

    Attributes:
        hosts: names that the Host header may have.
        token: what must be shown; None for nothing.
        base: the path below which a proxy shows the pages, such as `/pgsweep`; empty for the root.
        version: of pgsweep.
        connections: how many may be open.
        connections_of_one: how many of one address.
    """

    hosts: list[str]
    token: str | None
    version: str
    connections: int
    connections_of_one: int
    base: str = ""


def make_app(source: Service, hub: Hub, config: WebConfig) -> ASGIApp:
    """Return the application, guarded."""
    site = _Site(source, hub, config)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        hub.attach(asyncio.get_running_loop())
        yield

    # What is at hand, what reads the history, and what reads a server's pool: none waits for another kind.
    at_hand, of_history, of_pool = Lane(8), Lane(4), Lane(1)
    panels: dict[str, tuple[Lane, Callable[[Request], Any], Callable[[str, Any], Response] | None]] = {
        "/overview": (at_hand, lambda _: site.board.overview(), data.overview_csv),
        "/servers/{key}/summary": (at_hand, lambda asked: site.board.summary(_key(asked)), None),
        "/servers/{key}/series": (of_history, site.ranged(source.series), data.series_csv),
        "/servers/{key}/databases": (of_history, site.ranged(source.databases), data.databases_csv),
        "/servers/{key}/shares": (of_history, site.ranged(source.shares), data.shares_csv),
        "/servers/{key}/consumers": (of_history, site.ranged(source.consumers), data.consumers_csv),
        "/servers/{key}/curves": (of_history, site.curves, data.curves_csv),
        "/servers/{key}/advice": (of_history, lambda asked: source.advice(_key(asked)), data.advice_csv),
        "/servers/{key}/memory": (at_hand, lambda asked: site.board.memory(_key(asked)), data.memory_csv),
        "/servers/{key}/relations": (at_hand, site.relations, data.relations_csv),
        "/servers/{key}/map": (of_pool, site.block_map, None),
    }
    shown: dict[str, tuple[Lane, str, Callable[[Request], dict[str, object]]]] = {
        "/": (at_hand, "overview.html.j2", lambda _: {"title": "Servers", "overview": site.board.overview()}),
        "/fragments/overview": (at_hand, "_overview.html.j2", lambda _: {"overview": site.board.overview()}),
        "/servers/{key}": (of_history, "server.html.j2", site.server_values),
        "/servers/{key}/facts": (at_hand, "_facts.html.j2", lambda _: {}),
        "/servers/{key}/statements": (of_history, "_statements.html.j2", site.consumer_values),
        "/servers/{key}/verdict": (at_hand, "_verdict.html.j2", site.verdict_values),
        "/servers/{key}/saved": (of_history, "_saved.html.j2", site.saved_values),
        "/servers/{key}/advice": (of_history, "_advice.html.j2", site.advice_values),
        "/servers/{key}/memory": (at_hand, "_memory.html.j2", site.memory_values),
        "/servers/{key}/usage": (at_hand, "_usage.html.j2", site.usage_values),
        "/servers/{key}/relations": (at_hand, "_relations.html.j2", site.relation_values),
        "/servers/{key}/consumers": (of_history, "_consumers.html.j2", site.consumer_values),
        "/servers/{key}/map": (of_pool, "map.html.j2", site.map_values),
    }
    reading: dict[str, tuple[Lane, Callable[[Request], Response]]] = {}
    for path, (lane, template, values) in shown.items():
        reading[path] = lane, partial(_shown, site, template, values)
    for path, (lane, record, table) in panels.items():
        reading[f"{path}.json"] = lane, partial(_json, record)
        if table is not None:
            reading[f"{path}.csv"] = lane, partial(_csv, record, table)
    routes = [
        Route(path, lane.answered(site.of_known(endpoint)), methods=["GET"])
        for path, (lane, endpoint) in reading.items()
    ]
    routes += [
        Route("/metrics", site.metrics, methods=["GET"]),
        Route("/events", site.events, methods=["GET"]),
        Route("/healthz", site.health, methods=["GET"]),
        Route("/static/{name:path}", site.static, methods=["GET"]),
        Route("/login", site.login, methods=["GET", "POST"]),
        Route("/logout", site.logout, methods=["POST"]),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: _not_found, Exception: failed})
    guarded = Guard(app, hosts=config.hosts, token=config.token, base=config.base)
    return Failures(below(guarded, config.base) if config.base else guarded)


def below(app: ASGIApp, base: str) -> ASGIApp:
    """Return an application that answers below a path, whether or not the proxy takes that path away."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and (path == base or path.startswith(f"{base}/")):
            scope = {**scope, "path": path.removeprefix(base) or "/"}
        await app(scope, receive, send)

    return answer


async def _not_found(_request: Request, _error: Exception) -> Response:
    return PlainTextResponse("there is no such page\n", 404)


def _no_server() -> Response:
    return PlainTextResponse("there is no such server\n", 404)


class _Stream(StreamingResponse):
    """A stream of events.

    Args:
        pieces: of it.
        ended: called when it ends, also if it never began.
    """

    def __init__(self, pieces: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(pieces, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def _query(request: Request) -> Query:
    return Query(request.scope["query_string"])


def _key(request: Request) -> str:
    return str(request.path_params["key"])


def _json(record: Callable[[Request], Any], request: Request) -> Response:
    return data.as_json(record(request))


def _csv(
    record: Callable[[Request], Any], table: Callable[[str, Any], Response], request: Request
) -> Response:
    return table(request.path_params.get("key", ""), record(request))


def _shown(
    site: _Site, template: str, values: Callable[[Request], dict[str, object]], request: Request
) -> Response:
    """Return a page or a part of one, which is about a server where its address names one."""
    key = request.path_params.get("key")
    about: dict[str, object] = {}
    if key is not None:
        server = site.board.summary(key)
        about = {"server": server, "title": server.name}
    return site.page(template, **{**about, **values(request)})


class _Site:
    """The endpoints."""

    def __init__(self, source: Service, hub: Hub, config: WebConfig) -> None:
        self._source = source
        self.board = source.board
        self._hub = hub
        self._config = config
        self._streams: Counter[str] = Counter()
        self._wrong = 0
        self._metrics: asyncio.Task[tuple[bytes, str]] | None = None

    def of_known(self, endpoint: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """Return an endpoint that is asked about known servers only."""

        def answer(request: Request) -> Response:
            key = request.path_params.get("key")
            return endpoint(request) if key is None or key in self.board.servers else _no_server()

        return answer

    def page(self, template: str, **values: object) -> Response:
        common = {
            "version": self._config.version,
            "signed_in": self._config.token is not None,
            "base": self._config.base,
        }
        return Response(pages.render(template, **common, **values), media_type="text/html")

    def ranged(self, read: Callable[[str, float, float], R]) -> Callable[[Request], R]:
        """Return what reads the part of the history that a request asks for."""
        return lambda request: read(_key(request), *data.range_of(_query(request)))

    def server_values(self, request: Request) -> dict[str, object]:
        query = _query(request)
        begin, end = data.range_of(query)
        return {
            "ranges": data.RANGES,
            "chosen": "" if "begin" in query else query.text("range", data.DEFAULT_RANGE),
            "begin": begin,
            "end": end,
            **self.verdict_values(request),
            **self.saved_values(request),
            **self.advice_values(request),
            **self.memory_values(request),
            **self.relation_values(request),
            **self.consumer_values(request),
        }

    def verdict_values(self, request: Request) -> dict[str, object]:
        key = _key(request)
        return {"curves": self.board.curves(key), "recording": self._source.recording(key)}

    def saved_values(self, request: Request) -> dict[str, object]:
        found = self.curves(request)
        return {"saved": found.saved, "saved_trouble": found.trouble}

    def advice_values(self, request: Request) -> dict[str, object]:
        key = _key(request)
        return {"advice": self._source.advice(key), "curves": self.board.curves(key)}

    def memory_values(self, request: Request) -> dict[str, object]:
        return {"memory": self.board.memory(_key(request))}

    def usage_values(self, request: Request) -> dict[str, object]:
        return {"sample": self.board.sample(_key(request), TopView(limit=0))}

    def curves(self, request: Request) -> ServeCurves:
        key = _key(request)
        begin, end = data.range_of(_query(request))
        hours, trouble = [], None
        try:
            # A curve is kept at the end of its hour, of which a half may lie in the range.
            hours = self._source.hours(key, min(begin, end - _COMPARED_SECONDS), end + _HALF_AN_HOUR)
        except PgsweepError as error:
            trouble = error.message
        return ServeCurves(
            server=self.board.summary(key).name,
            now=self.board.curves(key),
            hours=hours,
            saved=saved_by(hours, begin, end),
            recording=self._source.recording(key),
            trouble=trouble,
        )

    def consumer_values(self, request: Request) -> dict[str, object]:
        consumers = self.ranged(self._source.consumers)(request)
        by = _query(request).choice("by", CONSUMER_KINDS)
        return {"consumers": consumers, "by": by, "kinds": CONSUMER_KINDS}

    def _view(self, request: Request) -> TopView:
        query = _query(request)
        return TopView(
            sort=query.choice("sort", SORTS),
            reverse=query.choice("reverse", ("0", "1")) == "1",
            filter=query.text("filter"),
            limit=query.whole("limit", _ROWS, least=1, most=_MOST_ROWS),
            fold=query.choice("catalogs", ("0", "1")) == "0",
        )

    def relations(self, request: Request) -> TopSample | None:
        return self.board.sample(_key(request), self._view(request))

    def relation_values(self, request: Request) -> dict[str, object]:
        return {"view": self._view(request), "sample": self.relations(request), "key": _key(request)}

    def block_map(self, request: Request) -> CacheMap:
        query = _query(request)
        names = [query.text(name) for name in ("database", "schema", "relation")]
        return self._source.block_map(_key(request), *names)

    def map_values(self, request: Request) -> dict[str, object]:
        query = request.scope["query_string"].decode("ascii")
        return {"title": "Block map", "map": self.block_map(request), "query": query}

    # All else.

    async def metrics(self, _request: Request) -> Response:
        # Whoever asks while they are being made gets the same, so that many take no more than one.
        if self._metrics is None or self._metrics.done():
            self._metrics = asyncio.create_task(run_in_threadpool(self._source.metrics))
        text, content_type = await asyncio.shield(self._metrics)
        return Response(text, headers={"content-type": content_type})

    async def health(self, _request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def events(self, request: Request) -> Response:
        try:
            key = _query(request).text("server") or None
        except UsageError as error:
            return PlainTextResponse(f"{error.message}\n", 400)
        if key is not None and key not in self.board.servers:
            return _no_server()
        address = "" if request.client is None else address_of(request.client.host)
        if (
            self._streams.total() >= _STREAMS * self._config.connections
            or self._streams[address] >= _STREAMS * self._config.connections_of_one
        ):
            return PlainTextResponse("too many pages are open\n", 503)

        self._streams[address] += 1
        return _Stream(self._hub.stream(key), lambda: self._end_stream(address))

    def _end_stream(self, address: str) -> None:
        self._streams[address] -= 1
        if not self._streams[address]:
            del self._streams[address]

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = pages.static_files().get(name)
        if found is None:
            return PlainTextResponse("there is no such file\n", 404)
        return Response(
            found,
            media_type=_KINDS.get(Path(name).suffix, "text/plain"),
            headers={"cache-control": "max-age=3600"},
        )

    async def login(self, request: Request) -> Response:
        if self._config.token is None:
            return RedirectResponse(f"{self._config.base}/", 303)
        if request.method != "POST":
            return self.page("login.html.j2", title="Sign in", wrong=False)
        body = await request.body()  # which is short: see web/connections.py
        given = parse_qs(body.decode("latin-1")).get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), self._config.token.encode()):
            if self._wrong >= _MOST_WRONG:
                return PlainTextResponse("too many wrong tokens at once\n", 429)
            self._wrong += 1
            try:
                await asyncio.sleep(0.5)
            finally:
                self._wrong -= 1
            page = self.page("login.html.j2", title="Sign in", wrong=True)
            page.status_code = 403
            return page
        answer = RedirectResponse(f"{self._config.base}/", 303)
        answer.set_cookie(
            COOKIE,
            cookie_of(self._config.token),
            max_age=7 * 86_400,
            path=f"{self._config.base}/",
            httponly=True,
            samesite="strict",
            secure=request.scope["scheme"] == "https",
        )
        return answer

    async def logout(self, _request: Request) -> Response:
        answer = RedirectResponse(f"{self._config.base}/login", 303)
        answer.delete_cookie(COOKIE, path=f"{self._config.base}/", httponly=True, samesite="strict")
        return answer
