"""The docs agree with the program: every command in them can be parsed, the reference is what --help says."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from psycopg.conninfo import conninfo_to_dict

from pgsweep.cli.branches import Branching
from pgsweep.cli.overview import COMMANDS, EXAMPLES, EXIT_CODES, overview_text
from pgsweep.pg.cluster import Cluster
from tests.fix_shop import shop_under_load

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference" / "cli.md"
PAGES = [path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if path.name != "CHANGELOG.md"]


def command_of(name: str) -> click.Command:
    command = importlib.import_module(f"pgsweep.cli.{COMMANDS[name].module}").command
    assert isinstance(command, click.Command)
    return command


def branches_of(command: click.Command) -> dict[str, click.Command]:
    if not isinstance(command, Branching):
        return {}
    return {name: command.branch(name) for name in command.branches}


def help_of(command: click.Command, title: str) -> str:
    """Return the help at 100 columns, with the command's own names of the help option.

    click keeps the first help option it makes for a command, so another context's names would stay.
    """
    settings = {**command.context_settings, "max_content_width": 100, "terminal_width": 100}
    return command.get_help(click.Context(command, info_name=title, **settings)).rstrip()


def reference() -> str:
    """Return the page made of the help texts."""
    parts = [
        "# The command line\n",
        "This page is made from the help texts by `tests/test_docs.py`; change those.\n",
        f"```text\n{overview_text().rstrip()}\n```\n",
    ]
    for name in COMMANDS:
        command = command_of(name)
        title = f"pgsweep {name}"
        parts.append(f"## {title}\n\n```text\n{help_of(command, title)}\n```\n")
        for branch, inner in branches_of(command).items():
            title = f"pgsweep {name} {branch}"
            parts.append(f"### {title}\n\n```text\n{help_of(inner, title)}\n```\n")
    return "\n".join(parts)


def commands_in(text: str) -> list[str]:
    """Return the commands of the console blocks, and those of help texts' examples."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.split("\n") if line.startswith("$ ")]
    return [line for line in lines if re.match(r"(sudo )?(\S*/)?pgsweep\b", line)]


def check(line: str) -> None:
    """Parse the command as the program would, without running it."""
    before_pipe = line.split(" | ", maxsplit=1)[0].split("  #", maxsplit=1)[0].split(" > ", maxsplit=1)[0]
    words = shlex.split(before_pipe.removeprefix("sudo "))[1:]
    if not words or words[0] in ("--help", "--version"):
        return
    assert words[0] in COMMANDS, f"no such command: {line}"
    command = command_of(words[0])
    try:
        command.make_context(words[0], words[1:])
    except click.exceptions.Exit as stop:
        assert stop.exit_code == 0, line


def test_reference_is_what_help_says() -> None:
    now = reference()
    if not REFERENCE.exists() or REFERENCE.read_text(encoding="utf-8") != now:
        REFERENCE.parent.mkdir(parents=True, exist_ok=True)
        REFERENCE.write_text(now, encoding="utf-8")
        pytest.fail("docs/reference/cli.md was out of date and has been rewritten: commit it")


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_commands_in_the_docs_can_be_parsed(path: Path) -> None:
    for line in commands_in(path.read_text(encoding="utf-8")):
        check(line)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_examples_in_help_can_be_parsed(name: str) -> None:
    text = command_of(name).help or ""
    examples = re.findall(r"^ *((?:sudo )?pgsweep .+)$", text.split("Examples:")[1], re.MULTILINE)
    assert examples
    for line in examples:
        check(line)


def test_examples_of_the_first_page_can_be_parsed() -> None:
    assert len(EXAMPLES) == 5
    for line, _ in EXAMPLES:
        check(line)


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_commands_of_the_readme_do_what_they_say(wheel18: Cluster, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Five commands")[2].partition("\n## ")[0]
    lines = [line.split("   #")[0].strip() for line in commands_in(section)]
    assert len(lines) == 5
    with shop_under_load(wheel18) as conninfo:
        parts = conninfo_to_dict(conninfo)
        for line in lines:
            if line == "pgsweep demo":
                continue  # It takes minutes; tests/test_demo.py runs it.
            here = line.replace("-h db1", f"-h {parts['host']} -p {parts['port']}").replace("60s", "4s")
            if shutil.which("jq") is None:
                here = here.replace("jq .points", f"{sys.executable} -m json.tool")
            done = subprocess.run(
                ["bash", "-c", f"set -eo pipefail; {here}"],
                cwd=tmp_path,
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"shop.evidence", "shop.html"}


def test_exit_codes_stand_in_the_docs() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for code, _ in EXIT_CODES:
        assert re.search(rf"\b{code}\b", text)
