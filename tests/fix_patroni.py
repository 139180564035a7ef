"""A real Patroni and its server, alone in a cluster; what others keep in etcd it keeps by itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pgsweep.pg.private.identity import choose_server_user
from tests.fix_process import wait_until

_BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Patroni:
    """Patroni, its folder, and where its REST API is asked."""

    folder: Path
    port: int

    @property
    def conninfo(self) -> str:
        return f"host={self.folder} port={self.port} user=postgres dbname=postgres"

    def status(self) -> dict[str, Any]:
        """Return what the REST API says; nothing where it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port + 1}/patroni", timeout=10) as answer:
                return dict(json.load(answer))
        except (OSError, urllib.error.URLError):
            return {}

    def ctl(self, *words: str) -> str:
        """Run patronictl and return what it says."""
        argv = [str(_BIN / "patronictl"), "-c", str(self.folder / "patroni.yml"), *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def _free_ports() -> int:
    """Return the first of three ports that are free one after the other."""
    for first in range(20000 + os.getpid() % 5000, 32000, 3):
        with socket.socket() as one, socket.socket() as two, socket.socket() as three:
            try:
                for number, each in enumerate((one, two, three)):
                    each.bind(("127.0.0.1", first + number))
            except OSError:
                continue
            return first
    pytest.skip("no free ports")


@contextmanager
def running(bindir: Path, parameters: Mapping[str, Any], *, listen: str = "127.0.0.1") -> Iterator[Patroni]:
    """Let Patroni make a cluster and keep it while this lasts.

    Args:
        bindir: of the server's programs.
        parameters: of the dynamic configuration.
        listen: where its REST API does.
    """
    for module in ("patroni", "pysyncobj"):
        pytest.importorskip(module)
    user = choose_server_user()
    folder = Path(tempfile.mkdtemp(prefix="patroni-"))
    found = Patroni(folder, _free_ports())
    keep = {"username": "postgres", "password": "x"}
    at = f"127.0.0.1:{found.port}"
    (folder / "patroni.yml").write_text(
        json.dumps(
            {
                "scope": f"shop-{os.getpid()}",
                "name": "m1",
                "restapi": {
                    "listen": f"{listen}:{found.port + 1}",
                    "connect_address": f"127.0.0.1:{found.port + 1}",
                },
                "raft": {"data_dir": str(folder / "raft"), "self_addr": f"127.0.0.1:{found.port + 2}"},
                "bootstrap": {
                    "dcs": {
                        "loop_wait": 1,
                        "retry_timeout": 3,
                        "postgresql": {"parameters": dict(parameters)},
                    },
                    "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}, {"username": "postgres"}],
                },
                "postgresql": {
                    "listen": at,
                    "connect_address": at,
                    "bin_dir": str(bindir),
                    "data_dir": str(folder / "data"),
                    "pgpass": str(folder / "pgpass"),
                    "authentication": {"superuser": keep, "replication": keep},
                    "parameters": {"unix_socket_directories": str(folder)},
                },
            }
        )
    )
    user.give(folder)
    # Its interpreter and its modules may lie where the server's user may not enter.
    become = ["setpriv", "--reuid", str(user.uid), "--regid", str(user.gid), "--clear-groups"]
    become += ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    argv = [*(become if user.changed else []), str(_BIN / "patroni"), str(folder / "patroni.yml")]
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen(
            argv, cwd="/", stdout=log, stderr=log, env={**os.environ, "HOME": str(folder)}
        )
    try:
        wait_until(lambda: started.poll() is not None or _is_up(found), 120)
        assert started.poll() is None, (folder / "log").read_text()
        yield found
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(60)
        shutil.rmtree(folder)


def _is_up(found: Patroni) -> bool:
    status = found.status()
    return status.get("state") == "running" and status.get("role") == "primary"
