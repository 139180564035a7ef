"""Commands that are ended half way, by SIGTERM or SIGKILL: nothing else notices, neither then nor before."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from tests.fix_process import wait_until
from tests.harm.cases import LOADED, writes
from tests.harm.fix_world import GONE_SECONDS, Started, World

pytestmark = [pytest.mark.slow]

END_SECONDS = 180.0


def has_session(world: World, started: Started) -> bool:
    return world.unsettled(started.name)


def has_saved(world: World, started: Started) -> bool:
    """Return whether it saves, or has: between two files it has no session."""
    return has_session(world, started) or (world.work / "warm-save" / "x.heat").exists()


def listens(_: World, started: Started) -> bool:
    return bool(started.listening())


def has_server(_: World, started: Started) -> bool:
    """Return whether a private server runs: its keeper, its postmaster and children of that."""
    return len(started.processes()) > 5


@dataclass(frozen=True, kw_only=True)
class Long:
    """A command that goes on for longer than it is let.

    Attributes:
        begun: whether it is half way.
        given: what it reads from stdin, which stays open.
        leaves: what it may leave.
        undo: a command that takes back what a killed one leaves.
    """

    words: str
    begun: Callable[[World, Started], bool] = has_session
    given: str = ""
    leaves: tuple[str, ...] = ()
    undo: str = ""


_SAMPLES = writes(r"\S*\.samples\.jsonl")
_STATE = (r"file: home/\.local(/\S*)? .*",)
"""Journals, and the history of serve."""
_EVIDENCE = writes(r"\S*\.evidence")
LONG = {
    "record sql": Long(words="record -d {at} --source sql --for 300s -o sql.evidence", leaves=_EVIDENCE),
    "record peek": Long(words="record -d {at} --source peek --for 300s -o peek.evidence", leaves=_EVIDENCE),
    "record trace": Long(
        words="record -d {at} --source trace --for 300s -o trace.evidence", leaves=_EVIDENCE
    ),
    "advise": Long(words="advise -d {at} --source peek --for 300s", leaves=_EVIDENCE),
    "verify": Long(words="verify {kept}/shop.evidence -d {at} --for 300s", leaves=_EVIDENCE),
    "top": Long(words="top -d {at} --once --interval 300s"),
    "serve": Long(
        words="serve {at} --listen 127.0.0.1:0 --interval 1s",
        begun=listens,
        leaves=(r"file: home/\.local\S* .*",),
    ),
    "memory": Long(words="memory -d {at} --watch --interval 1s"),
    "footprint": Long(words="footprint|SELECT pg_sleep(60)|-d {at}"),
    "warm save": Long(
        words="warm save x.heat -d {at} --every 300s", begun=has_saved, leaves=writes(r"\.?x\.heat\S*")
    ),
    "warm run": Long(words="warm run -d {at} --relations page --rate 100kB", leaves=_STATE),
    "warm restore": Long(words="warm restore {kept}/shop.heat -d {at} --rate 100kB"),
    "warm keep": Long(words="warm keep app.other -d {at} --budget 1MB --for 300s"),
    "load": Long(
        words="load - target -d {at} --yes --format csv --header --jobs 2 --indexes drop",
        given="id,note\n" + "".join(f"{number},new\n" for number in range(5001, 9000)),
        leaves=(*LOADED, *_STATE),
        undo="load --rollback target -d {at} --yes",
    ),
    "mcp": Long(words="mcp {at}", begun=lambda _, started: bool(started.processes())),
    "lab run": Long(
        words="lab run {kept}/long.toml", begun=has_server, leaves=writes(r"\S*\.samples\.jsonl")
    ),
    "demo": Long(words="demo", begun=has_server),
}


def words_of(text: str, world: World) -> list[str]:
    """Return the words of a line, in which `|` keeps a statement together."""
    parts = text.split("|")
    words = [*parts[0].split(), *parts[1:2], *" ".join(parts[2:]).split()]
    return [word.format(at=world.target, kept=world.kept) for word in words]


def begin(long: Long, world: World, folder: Path, *, open_stdin: bool) -> Started:
    stdin = PIPE if open_stdin else DEVNULL
    started = world.begin(*words_of(long.words, world), stdin=stdin, folder=folder)
    if long.given:
        assert started.command.stdin is not None
        started.command.stdin.write(long.given)
        started.command.stdin.flush()
    return started


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_else_notices(by: signal.Signals, world: World) -> None:
    """All at the same time, as most of it they wait; last those that have a server at work meanwhile."""
    world.clear()
    folders = {name: world.work / name.replace(" ", "-") for name in LONG}
    for folder in folders.values():
        folder.mkdir()
    before = world.look()
    running: dict[str, Started] = {}
    busy = [name for name, long in LONG.items() if long.begun is has_server]
    quiet = [name for name in LONG if name not in busy]
    try:
        for names in (quiet, busy):
            for name in names:
                running[name] = begin(LONG[name], world, folders[name], open_stdin=name in ("load", "mcp"))
            for name in names:
                wait_until(partial(LONG[name].begun, world, running[name]), END_SECONDS, name)
        for application in world.applications:
            application.works()
        addresses = {name: found for name, started in running.items() if (found := started.listening())}
        assert [*addresses] == ["serve"]
        assert addresses["serve"][0].startswith("0100007F:")  # 127.0.0.1
        ended = {
            name: started.command.communicate()
            for name, started in running.items()
            if started.command.poll() is not None
        }
        assert not ended, "\n".join(f"{name}: {err}" for name, (_, err) in ended.items())
        for started in running.values():
            started.command.send_signal(by)
        for name, started in running.items():
            try:
                _, err = started.command.communicate(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                pytest.fail(f"{name} goes on after {by.name}")
            assert "Traceback" not in err, f"{name}: {err}"
            wait_until(started.is_gone, GONE_SECONDS, started.described)
    finally:
        for started in running.values():
            with started.command:
                started.command.kill()
            wait_until(started.is_gone, GONE_SECONDS, started.described)
    wait_until(lambda: not world.unsettled(), GONE_SECONDS)
    for long in LONG.values():
        if long.undo:
            undone = world.run(*words_of(long.undo, world))
            assert undone.code == 0 or "no load of `target` is unfinished" in undone.err, undone.err
    harm = world.settled(before, [pattern for long in LONG.values() for pattern in long.leaves])
    assert not harm, "\n".join(harm)
