"""The unit of systemd and the container file: whole, hardened, and with options that there are."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import pytest

from pgsweep.cli.serve import command
from tests.fix_cluster import DEBIAN_BINDIR
from tests.fix_process import wait_until
from tests.fix_systemd import Systemd, running_systemd

PACKAGING = Path(__file__).parents[1] / "packaging"
UNIT = PACKAGING / "pgsweep-serve.service"


def parsed(words: list[str]) -> dict[str, object]:
    """Return what `pgsweep serve` takes of its words; an option that there is not is an error."""
    assert words[:2] == ["pgsweep", "serve"]
    # Its files need not be on this machine.
    with patch("pgsweep.cli.common.existing", lambda path, *_: path):
        return command.make_context("serve", words[2:]).params


def systemd(*words: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on this machine")
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)


def test_the_unit_is_understood_by_systemd() -> None:
    done = systemd("verify", "--man=no", str(UNIT))
    # The command is not installed here; that is the only complaint.
    said = [line for line in (done.stderr + done.stdout).splitlines() if "pgsweep-serve.service" in line]
    assert all("is not executable" in line for line in said), said


def test_the_unit_is_hardened() -> None:
    done = systemd("security", "--offline=true", "--threshold=25", str(UNIT))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    text = UNIT.read_text(encoding="utf-8")
    for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet=\n"):
        assert line in text


def test_their_commands_have_options_that_there_are() -> None:
    line = re.search(r"^ExecStart=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None
    words = shlex.split(line[1])
    assert parsed([Path(words[0]).name, *words[1:]])["config_file"] == Path("/etc/pgsweep/serve.toml")
    text = (PACKAGING / "Containerfile").read_text(encoding="utf-8").replace("\\\n", "")
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    assert entry is not None
    given = parsed(json.loads(entry[1]))
    assert given["listen"] == "0.0.0.0:8432"
    assert given["token_file"] == Path("/etc/pgsweep/token"), "beyond this machine a token is demanded"


def test_an_option_that_there_is_not_would_be_found() -> None:
    with pytest.raises(click.NoSuchOption):
        parsed(["pgsweep", "serve", "--nosuch"])


POSTGRESQL = f"""
[Service]
Type=exec
User=postgres
StateDirectory=watched
RuntimeDirectory=postgresql
ExecStartPre={DEBIAN_BINDIR}/initdb --no-sync --auth=trust --username=postgres -D /var/lib/watched/data
ExecStart={DEBIAN_BINDIR}/postgres -D /var/lib/watched/data -k /run/postgresql -c listen_addresses= \\
    -c shared_buffers=16MB -c fsync=off
"""
# The unit has /tmp and the homes hidden, where a checkout may lie.
ADDED = f"""
[Service]
StandardOutput=file:/run/said
StandardError=file:/run/said
RestartSec=100ms
BindReadOnlyPaths={PACKAGING.parent} {sys.prefix} {sys.base_prefix}
"""
SERVE_TOML = """
[[server]]
name = "one"
conninfo = "host=/run/postgresql user=postgres dbname=postgres"
"""
ADDRESS = "http://127.0.0.1:8432"


@contextmanager
def installed(environment: Path, *, limits: bool = False) -> Iterator[Systemd]:
    """Do what the unit's first lines say, beside a server of PostgreSQL, and start it."""
    if not DEBIAN_BINDIR.exists():
        pytest.skip("needs Debian's PostgreSQL 15: apt-get install postgresql-15")
    units = {
        UNIT.name: UNIT.read_text(encoding="utf-8"),
        f"{UNIT.name}.d/test.conf": ADDED,
        "postgresql.service": POSTGRESQL,
    }
    reached = [environment, Path(sys.base_prefix) / "x", PACKAGING]
    with running_systemd(units, reached, limits=limits) as systemd:
        systemd.control("start", "postgresql.service")
        sql: list[str | Path] = [
            DEBIAN_BINDIR / "psql",
            "-h",
            "/run/postgresql",
            "-c",
            "CREATE EXTENSION pg_buffercache",
        ]
        wait_until(lambda: systemd.inside(*sql, user="postgres").returncode == 0)
        made = 'mkdir -p /etc/pgsweep; printf %s "$1" >/etc/pgsweep/serve.toml; ln -s "$2" /opt/pgsweep'
        done = systemd.inside("sh", "-e", "-c", made, "sh", SERVE_TOML, environment)
        assert done.returncode == 0, done.stderr
        systemd.control("start", UNIT.name)
        yield systemd


def summary(systemd: Systemd) -> dict[str, Any]:
    status, text = systemd.ask(f"{ADDRESS}/servers/one/summary.json")
    return json.loads(text) if status == 200 else {"state": text}


def check_the_service(systemd: Systemd) -> None:
    """It is up, sees the server's memory without any privilege, and is shut off from the rest."""

    def said() -> object:
        return systemd.control("show", UNIT.name), systemd.inside("cat", "/run/said").stdout

    wait_until(lambda: summary(systemd)["state"] == "up", why=said)
    found = summary(systemd)
    assert found["pool_source"] == "peek", found
    # What a version does not count is missing whatever the rights.
    missing = [one for one in found["missing"] if one["enable"] is not None]
    assert missing == [], "nothing is missing without capabilities"
    wait_until(lambda: systemd.ask(f"{ADDRESS}/servers/one/memory.json")[1].startswith("{"), why=said)
    assert 'pgsweep_up{server="one"} 1.0' in systemd.ask(f"{ADDRESS}/metrics")[1]
    pid = systemd.shown(UNIT.name, "MainPID")
    lines = systemd.inside("cat", f"/proc/{pid}/status").stdout.splitlines()
    status = {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}
    user = systemd.inside("id", "-u", "postgres").stdout.strip()
    assert set(status["Uid"].split()) == {user}
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    there = ["nsenter", f"--target={pid}", "--mount", "touch"]
    for place in ("/usr/x", "/etc/pgsweep/x", "/var/lib/watched/x", "/root/x", "/opt/pgsweep/x"):
        assert "Read-only file system" in systemd.inside(*there, place).stderr, place
    assert systemd.inside(*there, "/var/lib/pgsweep/x").returncode == 0
    assert "history.sqlite" in systemd.inside("ls", "/var/lib/pgsweep").stdout
    # Killed, it is started again; stopped, it ends by itself and in time.
    systemd.control("kill", "--signal=KILL", "--kill-whom=main", UNIT.name)
    wait_until(lambda: systemd.shown(UNIT.name, "NRestarts") == "1", why=said)
    wait_until(lambda: summary(systemd)["state"] == "up", why=said)
    systemd.control("stop", UNIT.name)
    assert systemd.shown(UNIT.name, "Result") == "success", said()
    assert systemd.shown(UNIT.name, "ExecMainStatus") == "0"
    assert "Traceback" not in systemd.inside("cat", "/run/said").stdout


@pytest.mark.slow
def test_the_unit_starts_under_systemd() -> None:
    """With all that it forbids: systemd as the first process of namespaces, the code of this checkout."""
    with installed(Path(sys.prefix)) as systemd:
        check_the_service(systemd)


# In the unit's cgroup: starts processes until there may be no more.
MANY = """
import os, signal, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write("0")
children = []
try:
    while len(children) < 1000:
        children.append(os.fork())
        if children[-1] == 0:
            signal.pause()
except BlockingIOError:
    pass
print(len(children))
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""
SMALL = """
[Service]
MemoryMax=32M
MemorySwapMax=0
Restart=no
"""


@pytest.mark.slow
def test_its_limits_are_in_force() -> None:
    """The collector lives within them; with less memory the kernel kills it, and nothing else."""
    with installed(Path(sys.prefix), limits=True) as systemd:
        wait_until(lambda: summary(systemd)["state"] == "up", why=lambda: systemd.control("show", UNIT.name))
        memory = systemd.limit(UNIT.name, "memory", "memory.max", "memory.limit_in_bytes")
        tasks = systemd.limit(UNIT.name, "pids", "pids.max")
        if memory is None or tasks is None:
            pytest.skip("no controllers of memory and tasks for cgroups of the test's own")
        assert (memory, tasks) == (2 << 30, 512)
        postgresql = systemd.shown("postgresql.service", "MainPID")
        done = systemd.inside(sys.executable, "-c", MANY, systemd.group(UNIT.name, "pids"))
        assert 400 < int(done.stdout) < 512, done
        assert summary(systemd)["state"] == "up"
        assert systemd.shown(UNIT.name, "NRestarts") == "0"
        small = f"/run/units/{UNIT.name}.d/small.conf"
        systemd.inside("sh", "-c", 'printf %s "$1" >"$2"', "sh", SMALL, small)
        systemd.control("daemon-reload")
        systemd.inside("systemctl", "restart", UNIT.name)
        wait_until(
            lambda: systemd.shown(UNIT.name, "ActiveState") == "failed",
            why=lambda: systemd.control("show", UNIT.name),
        )
        assert systemd.shown(UNIT.name, "ExecMainStatus") == str(signal.SIGKILL)
        assert systemd.shown(UNIT.name, "Result") in ("oom-kill", "signal")
        assert systemd.shown("postgresql.service", "MainPID") == postgresql
        assert systemd.shown("postgresql.service", "NRestarts") == "0"
        systemd.inside("rm", small)
        systemd.control("daemon-reload")
        systemd.control("reset-failed", UNIT.name)
        systemd.control("restart", UNIT.name)
        wait_until(lambda: summary(systemd)["state"] == "up", why=lambda: systemd.control("show", UNIT.name))
