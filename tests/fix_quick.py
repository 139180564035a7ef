"""Which tests `make test-quick` leaves out: those that use a server, which is found out here, and slow ones.

A test uses a server if it, a fixture of its, or a helper in tests/ that one of them calls names what starts a
server. It is slow if it is marked so. A test without the mark fails if it starts a server, or takes longer.
"""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from tests.fix_cli import forked_seconds
from tests.fix_initdb import servers_started

STARTS_SERVERS = (
    "pgsweep.pg.private.cluster",
    "pgsweep.testbed",
    "pgsweep.sizing.demo",
    "pgsweep.sizing.prove",
)
OURS = ("tests.", "benchmarks.")
MOST_PROCESSOR_SECONDS = 15.0
"""Of this process and those that it waited for: other work on the machine does not count."""

_STARTED_BEFORE = pytest.StashKey[int]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known: dict[object, bool] = {}
    for item in items:
        if isinstance(item, pytest.Function) and any(uses_a_server(each, known) for each in _functions(item)):
            item.add_marker(pytest.mark.server)
    # What takes longest begins first, and what takes least is left for the end: otherwise one long file would
    # keep one processor busy while the others have nothing to do. Of files of one kind those with more tests
    # take longer, by and large.
    slow, server = (
        {item.path for item in items if item.get_closest_marker(name)} for name in ("slow", "server")
    )
    tests = Counter(item.path for item in items)
    items.sort(
        key=lambda item: (item.path not in slow, item.path not in server, -tests[item.path], item.path.name)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_STARTED_BEFORE] = servers_started()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    begin, forked = os.times(), len(forked_seconds)
    result = yield
    taken = sum(os.times()[:4]) - sum(begin[:4]) + sum(forked_seconds[forked:])
    marks = {mark.name for mark in item.iter_markers()}
    if why := not_quick(marks, servers_started() - item.stash[_STARTED_BEFORE], taken):
        pytest.fail(why)
    return result


def not_quick(marks: Collection[str], servers: int, processor_seconds: float) -> str:
    """Return why a test does not belong into the quick selection, where its marks leave it in, or nothing.

    Args:
        servers: how many the test and its fixtures started.
        processor_seconds: what the test took.
    """
    if not {"server", "slow"}.isdisjoint(marks):
        return ""
    if servers:
        return "starts a server, which fix_quick did not find out: mark it server"
    if processor_seconds > MOST_PROCESSOR_SECONDS:
        return (
            f"takes {processor_seconds:.1f} s of a processor: mark it slow, so that `make test-quick` leaves "
            "it out"
        )
    return ""


def _functions(item: pytest.Function) -> Iterator[Callable[..., Any]]:
    """Yield the test and its fixtures."""
    yield item.function
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        yield definitions[-1].func


def uses_a_server(thing: object, known: dict[object, bool]) -> bool:
    """Return whether a function, class or program in a text names what starts a server, or one that does."""
    if isinstance(thing, str):
        return any(name in thing for name in STARTS_SERVERS)
    module = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or ""
    if module.startswith(STARTS_SERVERS):
        return True
    if not isinstance(thing, FunctionType | type) or not module.startswith(OURS):
        return False
    if thing not in known:
        known[thing] = False  # where functions call each other
        inside = vars(thing).values() if isinstance(thing, type) else _named(inspect.unwrap(thing))
        known[thing] = any(uses_a_server(each, known) for each in inside)
    return known[thing]


def _named(function: Callable[..., Any]) -> Iterable[object]:
    """Yield what a function names: globals, what it imports, what inner functions name."""
    if not isinstance(function, FunctionType):
        return
    codes = [function.__code__]
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        for name in code.co_names:
            yield function.__globals__.get(name, name)
