"""The application: which address shows what. Every page has its data as JSON and CSV beside it."""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.records.cache import CacheMap
from pgsweep.records.serve import (
    ServeAdvice,
    ServeConsumers,
    ServeCurve,
    ServeCurves,
    ServeDatabases,
    ServeMemory,
    ServeOverview,
    ServeSeries,
    ServeShares,
    ServeSummary,
)
from pgsweep.records.top import TopSample, TopView
from pgsweep.serve.web import data, pages
from pgsweep.serve.web.answering import Failures, Lane, failed
from pgsweep.serve.web.connections import address_of
from pgsweep.serve.web.events import Hub
from pgsweep.serve.web.query import Query
from pgsweep.serve.web.security import COOKIE, Guard, cookie_of

SORTS: Final = ("pool", "change", "hot", "dirty", "page-cache", "twice", "name")
CONSUMER_KINDS: Final = ("user", "database", "statement", "backend")
_COMPARED_SECONDS: Final = 86_400.0
"""Least time for which the hourly curves are shown, also if a shorter range is chosen."""

_MOST_ROWS: Final = 500
_ROWS: Final = 50
_STREAMS: Final = 0.75
"""The part of all connections, and of those of one address, that streams of events may take."""

_MOST_WRONG: Final = 16
"""Wrong tokens that are answered late at the same time; more are refused at once."""

_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Source(Protocol):
    """What the pages show: records, by the key of a server, which must be known."""

    def is_known(self, key: str) -> bool:
        """Return whether there is such a server."""

    def overview(self) -> ServeOverview:
        """Return all servers."""

    def summary(self, key: str) -> ServeSummary:
        """Return one server."""

    def sample(self, key: str, view: TopView) -> TopSample | None:
        """Return the last sample with these relations."""

    def memory(self, key: str) -> ServeMemory | None:
        """Return the host's memory."""

    def curves(self, key: str) -> list[ServeCurve]:
        """Return the curves of the sliding windows."""

    def advice(self, key: str) -> ServeAdvice:
        """Return the advice, and whether the last prediction held."""

    def recording(self, key: str) -> str | None:
        """Return why no evidence is recorded now; None where it is."""

    def hours(self, key: str, begin: float, end: float) -> list[ServeCurve]:
        """Return the curves kept of earlier hours."""

    def series(self, key: str, begin: float, end: float) -> ServeSeries:
        """Return a part of the history."""

    def databases(self, key: str, begin: float, end: float) -> ServeDatabases:
        """Return hits and reads of each database over a range."""

    def shares(self, key: str, begin: float, end: float) -> ServeShares:
        """Return what relations have in the pool over a range."""

    def consumers(self, key: str, begin: float, end: float) -> ServeConsumers:
        """Return who used the server over a range."""

    def block_map(self, key: str, database: str, schema: str, relation: str) -> CacheMap:
        """Return where the blocks of a relation lie, read now."""

    def metrics(self) -> tuple[bytes, str]:
        """Return the metrics and their content type."""


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


def make_app(source: Source, hub: Hub, config: WebConfig) -> ASGIApp:
    """Return the application, guarded."""
    site = _Site(source, hub, config)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        hub.attach(asyncio.get_running_loop())
        yield

    # What is at hand, what reads the history, and what reads a server's pool: none waits for another kind.
    at_hand, of_history, of_pool = Lane(8), Lane(4), Lane(1)
    reading = {
        "/": (at_hand, site.overview_page),
        "/overview.json": (at_hand, site.overview_json),
        "/overview.csv": (at_hand, site.overview_csv),
        "/fragments/overview": (at_hand, site.overview_fragment),
        "/servers/{key}": (of_history, site.server_page),
        "/servers/{key}/summary.json": (at_hand, site.summary_json),
        "/servers/{key}/facts": (at_hand, site.facts_fragment),
        "/servers/{key}/series.json": (of_history, site.series_json),
        "/servers/{key}/series.csv": (of_history, site.series_csv),
        "/servers/{key}/databases.json": (of_history, site.databases_json),
        "/servers/{key}/databases.csv": (of_history, site.databases_csv),
        "/servers/{key}/shares.json": (of_history, site.shares_json),
        "/servers/{key}/shares.csv": (of_history, site.shares_csv),
        "/servers/{key}/statements": (of_history, site.statements_fragment),
        "/servers/{key}/curves.json": (of_history, site.curves_json),
        "/servers/{key}/curves.csv": (of_history, site.curves_csv),
        "/servers/{key}/verdict": (at_hand, site.verdict_fragment),
        "/servers/{key}/advice": (of_history, site.advice_fragment),
        "/servers/{key}/advice.json": (of_history, site.advice_json),
        "/servers/{key}/advice.csv": (of_history, site.advice_csv),
        "/servers/{key}/memory": (at_hand, site.memory_fragment),
        "/servers/{key}/memory.json": (at_hand, site.memory_json),
        "/servers/{key}/memory.csv": (at_hand, site.memory_csv),
        "/servers/{key}/usage": (at_hand, site.usage_fragment),
        "/servers/{key}/relations": (at_hand, site.relations_fragment),
        "/servers/{key}/relations.json": (at_hand, site.relations_json),
        "/servers/{key}/relations.csv": (at_hand, site.relations_csv),
        "/servers/{key}/consumers": (of_history, site.consumers_fragment),
        "/servers/{key}/consumers.json": (of_history, site.consumers_json),
        "/servers/{key}/consumers.csv": (of_history, site.consumers_csv),
        "/servers/{key}/map": (of_pool, site.map_page),
        "/servers/{key}/map.json": (of_pool, site.map_json),
    }
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


class _Site:
    """The endpoints."""

    def __init__(self, source: Source, hub: Hub, config: WebConfig) -> None:
        self._source = source
        self._hub = hub
        self._config = config
        self._streams: Counter[str] = Counter()
        self._wrong = 0
        self._metrics: asyncio.Task[tuple[bytes, str]] | None = None

    def of_known(self, endpoint: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """Return an endpoint that is asked about known servers only."""

        def answer(request: Request) -> Response:
            key = request.path_params.get("key")
            return endpoint(request) if key is None or self._source.is_known(key) else _no_server()

        return answer

    def _page(self, template: str, **values: object) -> Response:
        common = {
            "version": self._config.version,
            "signed_in": self._config.token is not None,
            "base": self._config.base,
        }
        return Response(pages.render(template, **common, **values), media_type="text/html")

    # The overview.

    def overview_page(self, _request: Request) -> Response:
        return self._page("overview.html.j2", title="Servers", overview=self._source.overview())

    def overview_fragment(self, _request: Request) -> Response:
        return self._page("_overview.html.j2", overview=self._source.overview())

    def overview_json(self, _request: Request) -> Response:
        return data.as_json(self._source.overview())

    def overview_csv(self, _request: Request) -> Response:
        return data.overview_csv(self._source.overview())

    # One server.

    def server_page(self, request: Request) -> Response:
        key = request.path_params["key"]
        summary = self._source.summary(key)
        query = _query(request)
        begin, end = data.range_of(query)
        chosen = "" if "begin" in query else query.text("range", data.DEFAULT_RANGE)
        return self._page(
            "server.html.j2",
            title=summary.name,
            server=summary,
            ranges=data.RANGES,
            chosen=chosen,
            begin=begin,
            end=end,
            memory=self._source.memory(key),
            curves=self._source.curves(key),
            advice=self._source.advice(key),
            recording=self._source.recording(key),
            **self._relation_values(request),
            **self._consumer_values(request),
        )

    def summary_json(self, request: Request) -> Response:
        return data.as_json(self._source.summary(request.path_params["key"]))

    def facts_fragment(self, request: Request) -> Response:
        return self._page("_facts.html.j2", server=self._source.summary(request.path_params["key"]))

    def _series(self, request: Request) -> ServeSeries:
        return self._source.series(request.path_params["key"], *data.range_of(_query(request)))

    def series_json(self, request: Request) -> Response:
        return data.as_json(self._series(request))

    def series_csv(self, request: Request) -> Response:
        return data.series_csv(request.path_params["key"], self._series(request))

    def _databases(self, request: Request) -> ServeDatabases:
        return self._source.databases(request.path_params["key"], *data.range_of(_query(request)))

    def databases_json(self, request: Request) -> Response:
        return data.as_json(self._databases(request))

    def databases_csv(self, request: Request) -> Response:
        return data.databases_csv(request.path_params["key"], self._databases(request))

    def _shares(self, request: Request) -> ServeShares:
        return self._source.shares(request.path_params["key"], *data.range_of(_query(request)))

    def shares_json(self, request: Request) -> Response:
        return data.as_json(self._shares(request))

    def shares_csv(self, request: Request) -> Response:
        return data.shares_csv(request.path_params["key"], self._shares(request))

    def statements_fragment(self, request: Request) -> Response:
        return self._page("_statements.html.j2", consumers=self._consumers(request))

    def _curves(self, request: Request) -> ServeCurves:
        key = request.path_params["key"]
        begin, end = data.range_of(_query(request))
        hours, trouble = [], None
        try:
            hours = self._source.hours(key, min(begin, end - _COMPARED_SECONDS), end)
        except PgsweepError as error:
            trouble = error.message
        return ServeCurves(
            server=self._source.summary(key).name,
            now=self._source.curves(key),
            hours=hours,
            recording=self._source.recording(key),
            trouble=trouble,
        )

    def curves_json(self, request: Request) -> Response:
        return data.as_json(self._curves(request))

    def curves_csv(self, request: Request) -> Response:
        curves = self._curves(request)
        return data.curves_csv(request.path_params["key"], [*curves.now, *curves.hours])

    def verdict_fragment(self, request: Request) -> Response:
        key = request.path_params["key"]
        return self._page(
            "_verdict.html.j2",
            server=self._source.summary(key),
            curves=self._source.curves(key),
            recording=self._source.recording(key),
        )

    def advice_fragment(self, request: Request) -> Response:
        key = request.path_params["key"]
        return self._page(
            "_advice.html.j2",
            server=self._source.summary(key),
            advice=self._source.advice(key),
            curves=self._source.curves(key),
        )

    def advice_json(self, request: Request) -> Response:
        return data.as_json(self._source.advice(request.path_params["key"]))

    def advice_csv(self, request: Request) -> Response:
        key = request.path_params["key"]
        return data.advice_csv(key, self._source.advice(key))

    def memory_fragment(self, request: Request) -> Response:
        key = request.path_params["key"]
        return self._page(
            "_memory.html.j2", memory=self._source.memory(key), server=self._source.summary(key)
        )

    def memory_json(self, request: Request) -> Response:
        return data.as_json(self._source.memory(request.path_params["key"]))

    def memory_csv(self, request: Request) -> Response:
        key = request.path_params["key"]
        return data.memory_csv(key, self._source.memory(key))

    def _consumers(self, request: Request) -> ServeConsumers:
        return self._source.consumers(request.path_params["key"], *data.range_of(_query(request)))

    def _consumer_values(self, request: Request) -> dict[str, object]:
        by = _query(request).choice("by", CONSUMER_KINDS)
        return {"consumers": self._consumers(request), "by": by, "kinds": CONSUMER_KINDS}

    def consumers_fragment(self, request: Request) -> Response:
        return self._page("_consumers.html.j2", **self._consumer_values(request))

    def consumers_json(self, request: Request) -> Response:
        return data.as_json(self._consumers(request))

    def consumers_csv(self, request: Request) -> Response:
        return data.consumers_csv(request.path_params["key"], self._consumers(request))

    def usage_fragment(self, request: Request) -> Response:
        key = request.path_params["key"]
        sample = self._source.sample(key, TopView(limit=0))
        return self._page("_usage.html.j2", server=self._source.summary(key), sample=sample)

    # Relations.

    def _view(self, request: Request) -> TopView:
        query = _query(request)
        return TopView(
            sort=query.choice("sort", SORTS),
            reverse=query.choice("reverse", ("0", "1")) == "1",
            filter=query.text("filter"),
            limit=query.whole("limit", _ROWS, least=1, most=_MOST_ROWS),
            fold=query.choice("catalogs", ("0", "1")) == "0",
        )

    def _relation_values(self, request: Request) -> dict[str, object]:
        view = self._view(request)
        key = request.path_params["key"]
        return {"view": view, "sample": self._source.sample(key, view), "key": key}

    def relations_fragment(self, request: Request) -> Response:
        return self._page(
            "_relations.html.j2",
            server=self._source.summary(request.path_params["key"]),
            **self._relation_values(request),
        )

    def relations_json(self, request: Request) -> Response:
        return data.as_json(self._source.sample(request.path_params["key"], self._view(request)))

    def relations_csv(self, request: Request) -> Response:
        sample = self._source.sample(request.path_params["key"], self._view(request))
        return data.relations_csv(request.path_params["key"], [] if sample is None else sample.relations)

    def _map(self, request: Request) -> CacheMap:
        query = _query(request)
        names = [query.text(name) for name in ("database", "schema", "relation")]
        return self._source.block_map(request.path_params["key"], *names)

    def map_page(self, request: Request) -> Response:
        server = self._source.summary(request.path_params["key"])
        query = request.scope["query_string"].decode("ascii")
        return self._page(
            "map.html.j2", title="Block map", server=server, map=self._map(request), query=query
        )

    def map_json(self, request: Request) -> Response:
        return data.as_json(self._map(request))

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
        if key is not None and not self._source.is_known(key):
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
            return self._page("login.html.j2", title="Sign in", wrong=False)
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
            page = self._page("login.html.j2", title="Sign in", wrong=True)
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
