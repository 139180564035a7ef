"""An open page of `pgsweep serve`: panels have the values of records, also after PostgreSQL was away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgsweep.pg.private.cluster import Cluster
from tests.fix_serve import Served, Tab, serving

INTERVAL = "3s"
"""Longer than a page takes to follow a look on a busy machine."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.create(None, {"shared_buffers": "16MB", "autovacuum": "off"}) as made:
        with psycopg.connect(made.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_buffercache")
            connection.execute("CREATE TABLE page (id int PRIMARY KEY, filler text, long text)")
            connection.execute("ALTER TABLE page ALTER filler SET STORAGE PLAIN")
            connection.execute(
                "INSERT INTO page SELECT g, repeat('x', 1800), '' FROM generate_series(1, 12000) g"
            )
            connection.execute("VACUUM ANALYZE")
        yield made


@pytest.fixture(scope="module")
def served(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("live")
    config = folder / "serve.toml"
    config.write_text(f"[[server]]\nname = 'one'\nconninfo = {json.dumps(cluster.conninfo())}\n")
    options = ("--config", str(config), "--interval", INTERVAL)
    with serving(folder / "h", options=options) as running:
        yield running


@pytest.fixture
def tab(browser: Any, served: Served) -> Iterator[Tab]:
    opened = Tab(browser, served)
    yield opened
    opened.context.close()
    assert opened.complaints == []
    assert opened.elsewhere == []


def test_a_page_that_is_open_outlives_a_restart_of_postgresql(
    cluster: Cluster, served: Served, tab: Tab
) -> None:
    """It says what is not known meanwhile, and goes on by itself."""
    page = tab.page
    served.wait_for("/servers/one/summary.json", lambda s: s["state"] == "up")
    page.goto(f"{served.address}/servers/one")
    page.locator("#relations tbody tr").first.wait_for()
    cluster.stop(immediately=True)
    page.locator("#facts [role=alert]").first.wait_for()
    assert "Not reached" in page.locator("#facts [role=alert]").inner_text()
    for panel in ("#relations", "#usage", "#memory"):
        page.locator(f"{panel} :text('Nothing is known while the server does not answer')").first.wait_for()
    cluster.start()
    page.locator("#facts [role=alert]").first.wait_for(state="detached")
    assert page.text_content("[data-fact=shared_buffers]") == "16 MB"
    page.locator("#relations tbody tr").first.wait_for()
