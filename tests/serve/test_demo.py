"""`pgsweep serve --demo`: one command, a live page, and nothing left of it."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener
from pgsweep.serve.demo import demo_server
from tests.fix_cli import launch, run
from tests.fix_process import wait_until
from tests.fix_serve import Served


@pytest.mark.server
def test_one_command_serves_a_private_server(tmp_path: Path) -> None:
    process = launch(
        *("serve", "--demo", "--listen", "127.0.0.1:0", "--interval", "1s", "--no-progress"),
        env={"PGSWEEP_CONFIG": "", "XDG_STATE_HOME": str(tmp_path)},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), process.communicate(timeout=20)[1]
        served = Served(process, address)
        [server] = served.json("/overview.json")["servers"]
        key = server["key"]
        up = served.wait_for(
            f"/servers/{key}/summary.json", lambda s: s["state"] == "up" and (s["reads_per_second"] or 0) > 0
        )
        assert up["shared_buffers_bytes"] == 32 << 20
        assert up["database"] == "bench"
        found = re.search(r"/\S*/c-\w+", up["place"])
        assert found is not None, up["place"]
        folder = Path(found.group())
        assert list(folder.rglob("history.sqlite"))
        assert served.stop() == 0
    finally:
        if process.poll() is None:
            process.kill()
        _, said = process.communicate()
    assert "Traceback" not in said
    wait_until(lambda: not folder.exists(), why="the server and its history are removed")
    assert not list(tmp_path.rglob("history.sqlite")), "nothing is written where a history usually is"


def test_it_has_what_the_pages_show(wheel18: Cluster) -> None:
    with demo_server(NullListener(), scale=1) as (conninfo, folder):
        done = run("doctor", conninfo, "--json")
        assert done.returncode == 0, done.stderr
        found = {one["name"]: one["available"] for one in json.loads(done.stdout)["abilities"]}
        assert found["pg_buffercache"] is True
        assert found["track_io_timing"] is True
        assert folder.parent.exists()
    assert not folder.parent.exists(), "nothing is left"
    assert run("doctor", conninfo).returncode != 0


@pytest.mark.parametrize(
    "arguments", [("shop",), ("-h", "x"), ("--history", "x"), ("--config", "serve.toml"), ("-d", "shop")]
)
def test_it_takes_no_server_of_ones_own(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text("")
    done = run("serve", "--demo", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "--demo has a server and a history of its own" in done.stderr


@pytest.mark.server
def test_a_signal_while_it_is_made_ends_it(tmp_path: Path) -> None:
    process = launch("serve", "--demo", "--no-progress", env={"PGSWEEP_CONFIG": ""}, cwd=tmp_path)
    time.sleep(0.5)
    process.terminate()
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode != 0
