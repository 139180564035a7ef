"""Commands through poolers: refused or not, the application finds its session as it left it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.harm.cases import COMMANDS, Case
from tests.harm.fix_poolers import OURS, PGBOUNCERS, PgBouncer, used
from tests.harm.fix_world import World
from tests.harm.pooler import Behaviour

pytestmark = [pytest.mark.slow]

KINDS = [case for case in COMMANDS if case.command in ("doctor", "record", "load")]
"""Of those that differ in how they use sessions."""
POOLERS = {**PGBOUNCERS, **OURS}
WITH_ALL = ("transaction", "the server's key")
PAIRS = [
    pytest.param(pooler, case, id=f"{name}: {case.id}")
    for name, pooler in POOLERS.items()
    for case in (COMMANDS if name in WITH_ALL else KINDS)
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
