"""A page is made of what is known at several moments: a server may change between any two of them."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.serve import ServeCurve
from pgsweep.serve.board import Watched
from pgsweep.serve.config import ServeConfig, ServerConfig
from pgsweep.serve.service import Service
from pgsweep.serve.web.app import WebConfig, make_app
from pgsweep.serve.web.events import Hub
from tests.fix_advice import growing, planner
from tests.fix_process import wait_until

PATHS = (
    *("/", "/fragments/overview", "/overview.json", "/overview.csv", "/metrics"),
    *(
        f"/servers/one{path}"
        for panel in ("", "/facts", "/statements", "/verdict", "/advice", "/memory", "/usage", "/relations")
        for path in ([panel, f"{panel}.json", f"{panel}.csv"] if panel in ("/advice", "/memory") else [panel])
    ),
    *(
        f"/servers/one/{panel}.{kind}"
        for panel in ("series", "databases", "shares", "consumers", "curves", "relations")
        for kind in ("json", "csv")
    ),
    *("/servers/one/summary.json", "/servers/one/consumers"),
)


class Changing(dict[str, Watched]):
    """The servers, each in another state whenever it is asked for."""

    def __init__(self, states: list[Watched], chance: random.Random) -> None:
        super().__init__(one=states[0])
        self.states, self.chance = states, chance

    def __getitem__(self, key: str) -> Watched:
        assert key == "one"
        return copy.copy(self.chance.choice(self.states))

    def values(self) -> Any:
        return [self["one"]]

    def items(self) -> Any:
        return [("one", self["one"])]


def asked(app: Any, path: str) -> int:
    """The status of an answer."""
    said: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"here")],
        "client": ("127.0.0.1", 1),
        "server": ("here", 80),
    }
    asyncio.run(app(scope, receive, send))
    return int(said[0]["status"])


@contextmanager
def collecting(folder: Path, conninfo: str) -> Iterator[Service]:
    """Watch a server, and one that is away."""
    servers = [
        ServerConfig(key="whole", name="one", conninfo=conninfo),
        ServerConfig(key="away", name="away", conninfo="host=127.0.0.1 port=1"),
    ]
    service = Service(
        ServeConfig(servers=servers, host="", port=1, history=folder, evidence=folder / "evidence")
    )
    service.start()
    try:
        yield service
    finally:
        assert service.stop()
        for held in service._held:
            held.close()


@pytest.mark.slow
def test_no_page_fails_whatever_comes_meanwhile(wheel18: Cluster, tmp_path: Path) -> None:
    starting = Watched(ServerConfig(key="one", name="one", conninfo=""), "here")
    with collecting(tmp_path, wheel18.conninfo()) as service:
        known = service.board.servers
        wait_until(lambda: known["whole"].memory is not None and known["whole"].minutes)
        wait_until(lambda: known["away"].failure is not None)
    curve = ServeCurve(window_seconds=900, covered_seconds=600.0, at=7.0, result=growing().prediction)
    failed = msgspec.structs.replace(curve, result=None, failed="signal 9", failed_at=99.0)
    advised = planner("20GB")
    states = [starting]
    for seen in (known["whole"], known["away"]):
        seen.config = starting.config
        states.append(seen)
        for one in (curve, failed):
            more = copy.copy(seen)
            more.curves, more.advised = {900: one}, {900: advised}
            states.append(more)
    down = copy.copy(states[2])
    down.sample, down.failure = None, known["away"].failure
    states.append(down)
    service.board.servers = Changing(states, random.Random(20))
    config = WebConfig(hosts=["here"], token=None, version="1", connections=8, connections_of_one=8)
    app = make_app(service, Hub(), config)
    wrong = [path for path in PATHS for _ in range(30) if asked(app, path) != 200]
    assert wrong == []
