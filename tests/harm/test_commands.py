"""Every command, run to its end on a primary and on its standby: the world is as before."""

from __future__ import annotations

import pytest

from tests.harm.cases import (
    CASES,
    MOST,
    MOST_BYTES,
    MOST_PROCESSOR_SECONDS,
    MOST_SECONDS,
    NOT_HERE,
    Case,
    commands,
)
from tests.harm.fix_world import World

pytestmark = [pytest.mark.slow]


def test_every_command_has_a_case() -> None:
    cases = {case.command for case in CASES}
    assert {*commands()} == cases | NOT_HERE.keys()
    assert cases.isdisjoint(NOT_HERE)


def harm_of(case: Case, world: World, *, standby: bool = False) -> list[str]:
    """Run a case, and return what is not as before."""
    world.clear()
    before = world.look()
    for step in case.steps:
        done = world.run(*step.words(world), given=step.given)
        assert "Traceback" not in done.err
        assert standby or done.code == step.code, f"{done.words}: {done.code}, {done.err}"
        assert done.seconds < MOST_SECONDS, done.words
        assert done.processor_seconds < MOST_PROCESSOR_SECONDS, done.words
        assert done.peak_bytes < MOST_BYTES, f"{done.words}: {done.peak_bytes >> 20} MB"
    for application in world.applications:
        application.works()
    return world.settled(before, case.leaves)


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_nothing_else_notices(case: Case, world: World) -> None:
    harm = harm_of(case, world)
    assert not harm, "\n".join(harm)


@pytest.mark.parametrize("case", MOST, ids=[case.id for case in MOST])
def test_nothing_else_notices_on_a_standby(case: Case, standby_world: World) -> None:
    harm = harm_of(case, standby_world, standby=True)
    assert not harm, "\n".join(harm)
