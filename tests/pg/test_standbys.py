"""Settings that standbys must have as large as their primary: the order of a change is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgsweep.advice.apply import apply, order_on_standbys
from pgsweep.pg.catalog.standbys import count_standbys, order_of_change
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import run
from tests.fix_process import wait_until
from tests.fix_standby import PRIMARY, standby_of


@pytest.fixture(scope="module")
def primary() -> Iterator[Cluster]:
    with Cluster.create(None, {**PRIMARY, "max_connections": "20"}) as found:
        yield found


@pytest.fixture(scope="module")
def standby(primary: Cluster) -> Iterator[Cluster]:
    with standby_of(primary) as found:
        wait_until(lambda: _standbys(primary) == 1, 60, "the standby does not follow")
        yield found


def _standbys(primary: Cluster) -> int:
    with psycopg.connect(primary.conninfo()) as session:
        return count_standbys(session)


def test_without_standbys_nothing_is_said() -> None:
    with (
        Cluster.create(None, {**PRIMARY, "max_connections": "20"}) as alone,
        psycopg.connect(alone.conninfo()) as session,
    ):
        assert count_standbys(session) == 0
        assert order_of_change(session, "max_connections", 20, 40) is None


def test_standbys_are_raised_first_and_lowered_last(primary: Cluster, standby: Cluster) -> None:
    with psycopg.connect(primary.conninfo()) as session:
        raised = order_of_change(session, "max_connections", 20, 40)
        lowered = order_of_change(session, "max_connections", 20, 10)
        assert order_of_change(session, "max_connections", 20, 20) is None
    assert raised is not None
    assert raised.startswith("1 standby follows this server: raise max_connections there first")
    assert lowered is not None
    assert "lower max_connections here first" in lowered


def test_apply_and_its_undo_say_it(primary: Cluster, standby: Cluster) -> None:
    planned = apply(primary.conninfo(), {"max_connections": "40"}, dry_run=True)
    said = order_on_standbys(primary.conninfo(), planned)
    assert said is not None
    assert "raise max_connections there first" in said
    assert order_on_standbys(primary.conninfo(), []) is None


def test_budget_for_more_connections_says_it(primary: Cluster, standby: Cluster, tmp_path: Path) -> None:
    done = run("memory", "budget", primary.conninfo(), "--max-connections", "40", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    reasons = json.loads(done.stdout)["reasons"]
    assert any("raise max_connections there first" in reason for reason in reasons)
    same = run("memory", "budget", primary.conninfo(), "--json", cwd=tmp_path)
    assert not any("standby" in reason for reason in json.loads(same.stdout)["reasons"])
