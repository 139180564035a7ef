"""The page on a machine that is far too busy: each figure says how old it is, nothing is stale in silence."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from pgsweep.pg.private.cluster import Cluster
from pgsweep.units import seconds_of
from tests.fix_process import wait_until
from tests.fix_serve import Served, Tab, serving

LOAD = 20
STALE_SECONDS = 33.0
"""Beyond it an alert of ours says so, at looks a second apart (PgsweepLooksStale)."""

PANELS = ("#facts", "#usage", "#relations", "#memory")
AGES = """panels => panels.map((panel) => {
  const one = document.querySelector(`${panel} time[data-age]`);
  return one && [one.textContent, one.dateTime];
})"""


@pytest.fixture(scope="module")
def served(wheel18: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("busy")
    config = folder / "serve.toml"
    config.write_text(f"[[server]]\nname = 'one'\nconninfo = {json.dumps(wheel18.conninfo())}\n")
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
    with serving(folder / "h", options=("--config", str(config))) as running:
        running.wait_for("/servers/one/memory.json", lambda memory: memory is not None)
        yield running


@contextmanager
def busy() -> Iterator[None]:
    """Have twenty processes want a processor."""
    work = "import os; os.nice(2)\nwhile True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", work]) for _ in range(LOAD)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def seconds_shown(text: str) -> float:
    """What an age on the page says, in seconds."""
    units = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) (\w+)", text))


def test_every_figure_says_how_old_it_is_while_the_machine_is_busy(served: Served, browser: Any) -> None:
    tab = Tab(browser, served)
    page = tab.page
    page.goto(f"{served.address}/servers/one")
    for panel in PANELS:
        page.locator(f"{panel} time[data-age]").first.wait_for()
    with busy():
        end = time.monotonic() + 5.0
        while time.monotonic() < end:
            before = time.time()
            found = page.evaluate(AGES, PANELS)
            after = time.time()
            alerts = page.locator("[data-alert], [role=alert], #away:not([hidden])").count()
            for panel, (text, at) in zip(PANELS, found, strict=True):
                shown, began = seconds_shown(text), seconds_of(at)
                # It is written once a second, if the browser gets a processor.
                assert before - began - 5.0 <= shown <= after - began + 1.0, panel
                # Memory is read once a minute, and more rarely where that takes long.
                assert shown < STALE_SECONDS or alerts or panel == "#memory", panel
            time.sleep(0.5)
        page.goto(f"{served.address}/")
        page.locator("[data-server] time[data-age]").first.wait_for()
    tab.context.close()
    assert tab.complaints == []


def test_ages_go_on_while_nothing_new_comes(wheel18: Cluster, served: Served, browser: Any) -> None:
    """Sessions that do not answer: nothing tells the page of it, and what it shows is from before."""
    tab = Tab(browser, served)
    page = tab.page
    page.goto(f"{served.address}/servers/one")
    for panel in PANELS:
        page.locator(f"{panel} time[data-age]").first.wait_for()
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        ours = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgsweep%'"
        pids = [pid for (pid,) in connection.execute(ours)]
    assert pids
    said = page.locator("#facts [role=alert]")

    def ages() -> list[float]:
        return [0.0 if one is None else seconds_shown(one[0]) for one in page.evaluate(AGES, PANELS[:3])]

    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: min(ages()) >= 4.0 or said.count() > 0)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: said.count() == 0 and 0 < max(ages()) < 4.0)
    tab.context.close()
    assert tab.complaints == []
