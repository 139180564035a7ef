"""Commands of hints and results: for the user's own server, and made where they are written."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator

import pytest

from pgsweep.commands import asked_by, on_server, recording, sudo, this_command
from pgsweep.pg.load.ways import Ways
from tests.fix_cli import ROOT

NAMED = {"-h": "a b", "-p": "1", "-U": "app", "-d": "shop"}


@pytest.fixture
def asked() -> Iterator[None]:
    with asked_by(lambda: "pgsweep cache x", lambda: NAMED):
        yield


@pytest.mark.usefixtures("asked")
def test_commands_name_the_users_own_server() -> None:
    assert on_server("psql", "-c 'SELECT 1'") == "psql -h 'a b' -p 1 -U app -d shop -c 'SELECT 1'"
    assert on_server("psql", "-l", named="role") == "psql -h 'a b' -p 1 -U app -l"
    assert on_server("psql", "-d x -U NAME", named="server") == "psql -h 'a b' -p 1 -d x -U NAME"
    assert on_server("pg_isready", named="server") == "pg_isready -h 'a b' -p 1"
    assert recording("--for 1s") == "pgsweep record -h 'a b' -p 1 -U app -d shop --for 1s -o NAME.evidence"
    assert Ways("t", "chief").resume == "pgsweep load -h 'a b' -p 1 -U chief -d shop --resume t"
    assert this_command() == "pgsweep cache x"
    with asked_by():
        assert (this_command(), on_server("pgsweep doctor")) == ("pgsweep cache x", "pgsweep doctor")
    assert on_server("pgsweep doctor") != "pgsweep doctor"


def test_a_program_names_no_server() -> None:
    assert (this_command(), recording()) == ("pgsweep ...", "pgsweep record -o NAME.evidence")


def test_root_needs_no_sudo_on_its_own_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert [sudo(), sudo(here=False), sudo("a b")] == ["", "sudo ", "runuser -u 'a b' -- "]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert [sudo(), sudo("pg")] == ["sudo ", "sudo -u pg "]


HINTS = ("hint", "enable", "why")

CHOSEN = re.compile(
    r"-h HOST|-p PORT|-U NAME|-d (NAME|DBNAME)|--columns NAME|NAME or SCHEMA.NAME|NAME\.evidence"
    r"|tcp://HOST:PORT|as for psql: DBNAME|USER@HOST:PORT/DBNAME|RESET NAME takes|^NAME$"
)
"""What only the user can choose."""

WRITTEN_OUT = re.compile(
    r"\bpsql -[cld] (?!DBNAME)|\bpg_isready|\bsudo (?!-H)|\brunuser\b|\bpgsweep \.\.\."
    r"|\bpgsweep (?:doctor|cache|top|memory|hugepages|(?:record|load|warm \w+) -(?! |-script|.*\{\}))"
)
"""Commands that are made by pgsweep/commands.py: for the user's server, as root, the same again.

With `{}` they are of commands that name no server."""


def texts_of(node: ast.AST) -> Iterator[str]:
    """Yield the texts of a hint, but for those with which commands are made."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"on_server", "recording"}:
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for inner in ast.iter_child_nodes(node):
        yield from texts_of(inner)


def test_hints_leave_to_the_user_only_what_he_chooses() -> None:
    """A place to fill in is no name that the connection has, and a command has its server by itself."""
    found = []
    for path in sorted((ROOT / "python/pgsweep").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            of_refusals = isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "REFUSALS"
            if not of_refusals and getattr(node, "arg", "") not in HINTS:
                continue
            for text in texts_of(node):
                filled = re.search(r"\b(HOST|PORT|NAME|USER|DBNAME)\b", CHOSEN.sub("", text))
                if filled or WRITTEN_OUT.search(text):
                    found.append(f"{path.name}: {text}")
    assert found == [], "name what the connection has; commands are made by pgsweep/commands.py"
