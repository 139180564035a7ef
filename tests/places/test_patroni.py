"""A server that Patroni keeps: it takes its form of the advice, and nothing here would write past it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgsweep.advice.apply import apply
from pgsweep.errors import MissingAbility
from pgsweep.host.patroni import member_of
from pgsweep.memory.hugepages.inspect import examine
from pgsweep.pg.private.bindir import installed_servers
from pgsweep.ui.forms import patch
from tests.fix_cli import run
from tests.fix_forms import SHOWN, WANTED, wanted
from tests.fix_patroni import Patroni, running
from tests.fix_process import needs_root, wait_until

pytestmark = [needs_root, pytest.mark.slow, pytest.mark.one_server]


@pytest.fixture(scope="module")
def shop() -> Iterator[Patroni]:
    """Its REST API listens at all addresses, by IPv6 where there is that, as in a container."""
    servers = [server for server in installed_servers() if server.version_num >= 140000]
    newest = max(servers, key=lambda server: server.version_num)
    with running(newest.bindir, {"shared_buffers": "16MB", "max_connections": 50}, listen="*") as found:
        yield found


def _settings(shop: Patroni, *names: str) -> dict[str, str]:
    with psycopg.connect(shop.conninfo) as session:
        rows = session.execute(
            "SELECT name, setting FROM pg_catalog.pg_settings WHERE name = ANY(%s)", [list(names)]
        )
        return dict(rows.fetchall())


def test_what_would_write_past_patroni_is_refused(shop: Patroni, tmp_path: Path) -> None:
    with pytest.raises(MissingAbility) as said:
        apply(shop.conninfo, {"effective_cache_size": "3GB"})
    command = f"patronictl edit-config shop-{os.getpid()} --pg effective_cache_size=3GB"
    assert command in (said.value.hint or ""), "the REST API says the name of the cluster"
    assert "effective_cache_size" not in (shop.folder / "data/postgresql.auto.conf").read_text()
    pid = int((shop.folder / "data/postmaster.pid").read_text().split()[0])
    assert member_of(pid, "another cluster of this host") is None


@pytest.mark.parametrize("words", [["doctor"], ["hugepages"], ["memory", "budget"]])
def test_no_command_is_named_that_writes_past_patroni(shop: Patroni, words: list[str]) -> None:
    done = run(*words, "-d", shop.conninfo) if words != ["doctor"] else run(*words, shop.conninfo)
    assert done.stdout, done.stderr
    assert "ALTER SYSTEM SET" not in " ".join((done.stdout + done.stderr).split())
    if words == ["doctor"]:
        assert "patronictl edit-config" in " ".join(done.stdout.split())
        assert json.loads(run(*words, shop.conninfo, "--json").stdout)["place"]["manager"] == "Patroni"


def test_patroni_takes_its_form(shop: Patroni, tmp_path: Path) -> None:
    """Written by patronictl, and in force after the restart that Patroni itself asks for."""
    file = tmp_path / "patch.yaml"
    file.write_text(patch(wanted(), "patroni"))
    shop.ctl("edit-config", "--apply", str(file), "--force")
    wait_until(lambda: shop.status().get("pending_restart") is True, 60)
    assert set(shop.status()["pending_restart_reason"]) == {"shared_buffers", "max_connections"}
    # The server knows of the one in its file; of the one on its command line Patroni alone.
    found = examine(shop.conninfo)
    assert found.settings == {"shared_buffers": "48MB", "max_connections": "37"}
    shop.ctl("restart", f"shop-{os.getpid()}", "--force")
    wait_until(lambda: shop.status().get("state") == "running", 60)
    assert _settings(shop, *WANTED) == SHOWN
    now = examine(shop.conninfo)
    assert now.settings == {} and now.huge_pages_needed == found.huge_pages_needed
    # Patroni leaves out, with a warning, what is no setting or has no value of that type.
    log = (shop.folder / "log").read_text()
    assert not [name for name in WANTED if f"parameter={name} " in log]
