"""The unit of systemd and the container file: whole, hardened, and with options that there are."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from pgsweep.cli.serve import command

PACKAGING = Path(__file__).parents[1] / "packaging"
UNIT = PACKAGING / "pgsweep-serve.service"


def parsed(words: list[str]) -> dict[str, object]:
    """Return what `pgsweep serve` takes of its words; an option that there is not is an error."""
    assert words[:2] == ["pgsweep", "serve"]
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
