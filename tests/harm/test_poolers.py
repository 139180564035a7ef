"""Commands through poolers: refused or not, the application finds its session as it left it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import pytest

from pgsweep.evidence.script import record_script
from pgsweep.pg.private.bindir import find_server
from tests.fix_process import wait_until
from tests.harm.cases import CASES, COMMANDS, MOST, Case
from tests.harm.fix_poolers import OURS, PGBOUNCERS, PgBouncer, used
from tests.harm.fix_world import GONE_SECONDS, World
from tests.harm.pooler import Behaviour

pytestmark = [pytest.mark.slow]

KINDS = [case for case in CASES if case.id in ("doctor", "record sql", "load")]
"""Of those that differ in how they use sessions."""
POOLERS = {**PGBOUNCERS, **OURS}
RUN = {"transaction": COMMANDS, "the server's key": MOST}
PAIRS = [
    pytest.param(pooler, case, id=f"{name}: {case.id}")
    for name, pooler in POOLERS.items()
    for case in RUN.get(name, KINDS)
]


def harm_of(case: Case, world: World) -> list[str]:
    """Run a case through the pooler; return what the application's session is no more, or is now."""
    world.clear()
    used(world)
    before = world.look(sessions_only=True)
    for step in case.steps:
        done = world.run(*step.words(world), given=step.given)
        assert "Traceback" not in done.err
    return world.settled(before, sessions_only=True)


@pytest.mark.parametrize(("pooler", "case"), PAIRS)
def test_the_session_is_as_before(
    pooler: Behaviour | PgBouncer, case: Case, world_through: Callable[..., World]
) -> None:
    harm = harm_of(case, world_through(pooler))
    assert not harm, "\n".join(harm)


@pytest.mark.parametrize("name", POOLERS)
def test_the_session_is_as_before_the_script(name: str, world_through: Callable[..., World]) -> None:
    """Of `record --script`, which psql runs: refused, or a recording."""
    world = world_through(POOLERS[name])
    world.clear()
    used(world)
    before = world.look(sessions_only=True)
    script = world.work / "gather.sql"
    script.write_text(record_script(1))
    psql, output = find_server(None).bindir / "psql", world.work / "x"
    words = [psql, "-X", "-d", world.target, "-f", script, "-o", output]
    subprocess.run([str(word) for word in words], capture_output=True, check=False, timeout=120)
    harm = world.settled(before, sessions_only=True)
    assert not harm, "\n".join(harm)


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("name", [name for name, each in OURS.items() if each.real_key])
def test_the_session_is_as_before_where_a_command_is_ended(
    name: str, by: signal.Signals, world_through: Callable[..., World]
) -> None:
    """Where the pooler is not noticed, the command is recording when it is ended."""
    world = world_through(OURS[name])
    world.clear()
    used(world)
    before = world.look(sessions_only=True)
    started = world.begin("record", "-d", world.target, "--source", "sql", "--for", "60s", "-o", "x.evidence")
    with started.command as command:
        evidence = world.work / "x.evidence"
        wait_until(lambda: evidence.exists() or command.poll() is not None)
        command.send_signal(by)
    wait_until(started.is_gone, GONE_SECONDS, started.described)
    harm = world.settled(before, sessions_only=True)
    assert not harm, "\n".join(harm)
