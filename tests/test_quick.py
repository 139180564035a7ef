"""What `make test-quick` leaves out is found, however a test comes to its server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

import pytest

from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import run_code
from tests.fix_initdb import servers_started
from tests.fix_process import Patience
from tests.fix_quick import MOST_PROCESSOR_SECONDS, not_quick, uses_a_server

PROGRAM = "from pgsweep.pg.private.cluster import Cluster; Cluster.create()"


def starts() -> Cluster:
    return Cluster.create()


def calls_a_helper() -> None:
    starts()


def has_a_function_inside() -> Callable[[], object]:
    return lambda: [starts() for _ in range(2)]


def runs_a_program() -> str:
    return PROGRAM


def imports_it_late() -> None:
    from pgsweep.testbed.cold import empty_caches

    print(empty_caches)


class Starter:
    def go(self) -> None:
        starts()


def makes_an_object() -> None:
    Starter().go()


def starts_none() -> str:
    return json.dumps({"cluster": "Cluster"})


@pytest.mark.parametrize(
    "function",
    [starts, calls_a_helper, has_a_function_inside, runs_a_program, imports_it_late, makes_an_object],
)
def test_a_server_is_seen(function: Callable[[], object]) -> None:
    assert uses_a_server(function, {})


def test_no_server_is_seen_where_there_is_none() -> None:
    assert not uses_a_server(starts_none, {})


def test_fixtures_count(request: pytest.FixtureRequest) -> None:
    """Those of this session: tests that take a server are marked, this one is not."""
    marked = {item.name for item in request.session.items if item.get_closest_marker("server")}
    taking = {
        item.name for item in request.session.items if "shared_cluster" in getattr(item, "fixturenames", ())
    }
    assert taking <= marked
    assert request.node.name not in marked


@pytest.mark.parametrize(
    ("marks", "servers", "seconds", "words"),
    [
        (set(), 1, 0.0, "mark it server"),
        ({"timeout"}, 1, 0.0, "mark it server"),
        (set(), 0, MOST_PROCESSOR_SECONDS + 1, "mark it slow"),
    ],
)
def test_a_test_without_its_mark_fails(marks: set[str], servers: int, seconds: float, words: str) -> None:
    assert words in not_quick(marks, servers, seconds)


@pytest.mark.parametrize(
    ("marks", "servers", "seconds"), [({"server"}, 3, 60.0), ({"slow"}, 0, 60.0), (set(), 0, 0.1)]
)
def test_a_test_with_its_mark_does_not(marks: set[str], servers: int, seconds: float) -> None:
    assert not not_quick(marks, servers, seconds)


@pytest.mark.server
def test_servers_of_commands_and_of_this_process_are_counted() -> None:
    before = servers_started()
    assert run_code(f"{PROGRAM}.close()").returncode == 0
    assert servers_started() == before + 1
    with Cluster.create(settings={"shared_buffers": "8MB"}):
        assert servers_started() == before + 2


def test_patience_lasts_longer_beside_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, now = Patience(10.0), time.monotonic()
    monkeypatch.setattr(os, "getloadavg", lambda: (4.0 * (os.cpu_count() or 1), 0.0, 0.0))
    monkeypatch.setattr(time, "monotonic", lambda: now + 20.0)
    assert 4.9 < waiting.left() < 5.1
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(time, "monotonic", lambda: now + 26.0)
    assert waiting.left() < 0
