"""What is run of each command, and what it may change: its own files, and what the user asked it to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import click

from pgsweep.cli.app import application
from pgsweep.cli.branches import Branching
from tests.harm.fix_world import World

Words = Callable[[World], Sequence[str]]

MOST_SECONDS, MOST_PROCESSOR_SECONDS = 90.0, 10.0
MOST_BYTES = 600 << 20
"""A command here takes a second or two, one of a processor, and 250 MB; the rest is for busy machines."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command line.

    Attributes:
        code: how it ends on a primary; where it may not or cannot work it ends as it likes.
        given: its stdin.
    """

    words: Words
    code: int = 0
    given: str = ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Command lines after which the world must be as before.

    Attributes:
        command: as in the tree of commands: `warm run`.
        leaves: patterns of differences that are what the command is for, such as the file that it was told
            to write.
        connects: whether it has a session with the server that it is given.
    """

    command: str
    steps: tuple[Step, ...]
    leaves: tuple[str, ...] = ()
    connects: bool = True
    name: str = ""

    @property
    def id(self) -> str:
        return self.name or self.command


def one(command: str, *words: str, leaves: tuple[str, ...] = (), name: str = "", code: int = 0) -> Case:
    """Return the case of a command that is given the server by -d."""
    step = Step(words=lambda world: [*command.split(), *_filled(world, words), "-d", world.target], code=code)
    return Case(command=command, steps=(step,), leaves=leaves, name=name)


def local(command: str, *words: str, leaves: tuple[str, ...] = (), given: str = "") -> Case:
    """Return the case of a command that needs no server."""
    step = Step(words=lambda world: [*command.split(), *_filled(world, words)], given=given)
    return Case(command=command, steps=(step,), leaves=leaves, connects=False)


def _filled(world: World, words: Sequence[str]) -> list[str]:
    return [word.format(kept=world.kept, target=world.target) for word in words]


def writes(name: str) -> tuple[str, ...]:
    """Return the pattern of a file or folder that a command was told to write in the current folder."""
    return (rf"file: work/([a-z-]+/)?{name}(/\S*)? .*",)


_RECORDED = writes(r"pgsweep-\S*\.evidence")
_CONVERTED = writes(r"x\.(oracleGeneral|relations|start)\S*")
_EVIDENCE = ("--for", "1s", "-o", "x.evidence")
_ASKED = (
    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
    '"clientInfo":{"name":"test","version":"1"}}}\n'
    '{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
    '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"cache","arguments":{"server":"shop"}}}\n'
    '{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"doctor","arguments":{"server":"shop"}}}\n'
)

LOADED = (
    r"rows: target: .*",
    r"catalog: pg_(class|statistic|depend|namespace|type|attribute|index|constraint|attrdef|shdepend): .*",
    r"file: home/\.local(/state(/pgsweep)?)? .*",
)
"""A load writes its table; its journal comes and goes, so that rows of catalogs get other places."""

APPLIED = (r"file: home/\.local(/state(/pgsweep)?)? .*",)

ANSWERED = (
    r"file: kept/\w+\.evidence/\.answers .*",
    r"file: home/\.local(/state(/pgsweep(/answers\.key)?)?)? .*",
)
"""Answers are kept beside the evidence, signed with a key."""

CASES: tuple[Case, ...] = (
    one("doctor"),
    one("record", "--source", "sql", *_EVIDENCE, leaves=writes("x.evidence"), name="record sql"),
    one("record", "--source", "peek", *_EVIDENCE, leaves=writes("x.evidence"), name="record peek"),
    one("record", "--source", "trace", *_EVIDENCE, leaves=writes("x.evidence"), name="record trace"),
    one("record", "--source", "sql", "--dry-run", name="record dry-run"),
    local("record", "--script"),
    local("import", "{kept}/shop.gathered", "-o", "x.evidence", leaves=writes("x.evidence")),
    local("predict", "{kept}/trace.evidence", "--sizes", "4MB,16MB", leaves=ANSWERED),
    one("advise", "{kept}/trace.evidence", leaves=ANSWERED, name="advise evidence"),
    one(
        "advise",
        "--source",
        "peek",
        "--for",
        "1s",
        leaves=(*writes(r"pgsweep-\S*\.evidence"), *ANSWERED),
        name="advise server",
    ),
    local("prove", "{kept}/trace.evidence", "--sizes", "4MB", "--max-accesses", "5000"),
    one("verify", "{kept}/shop.evidence", "--for", "1s", leaves=_RECORDED),
    one("cache", "--source", "peek", name="cache peek"),
    one("cache", "--source", "sql", "--map", "page", name="cache sql"),
    one("cache", "--evict", "page", "--yes", name="cache evict"),
    one("top", "--once", "--interval", "0.2s"),
    local("serve", "--alerts"),
    one("footprint", "SELECT count(*) FROM page", "--runs", "1"),
    one("footprint", "DELETE FROM app.other", "--runs", "1", name="footprint refused", code=2),
    one("warm plan", "--every-database"),
    one("warm run", "--relations", "page", "--budget", "2MB", leaves=APPLIED),
    one("warm save", "x.heat", leaves=writes("x.heat")),
    one("warm restore", "{kept}/shop.heat"),
    one("warm check", "{kept}/shop.heat"),
    one("warm keep", "app.other", "--budget", "1MB", "--for", "1s"),
    one("load", "{kept}/rows.csv", "target", "--plan", name="load plan"),
    one("load", "{kept}/rows.csv", "target", "--yes", leaves=LOADED),
    Case(
        command="load",
        name="load rollback",
        steps=(
            Step(
                words=lambda w: [
                    "load",
                    str(w.kept / "bad.csv"),
                    "target",
                    "-d",
                    w.target,
                    "--yes",
                    "--indexes",
                    "drop",
                    "--on-failure",
                    "keep",
                ],
                code=1,
            ),
            Step(words=lambda w: ["load", "--rollback", "target", "-d", w.target, "--yes"]),
        ),
        leaves=LOADED,
    ),
    Case(
        command="advise",
        name="advise apply and undo",
        steps=(
            Step(
                words=lambda w: [
                    "advise",
                    str(w.kept / "shop.evidence"),
                    "-d",
                    w.target,
                    "--ram",
                    "64GB",
                    "--apply",
                    "--yes",
                ]
            ),
            Step(words=lambda w: ["advise", "--undo", "-d", w.target, "--yes"]),
        ),
        leaves=(*APPLIED, *ANSWERED),
    ),
    one("memory"),
    one("memory budget"),
    one("memory kernel"),
    one("hugepages"),
    local("lab list"),
    Case(
        command="lab run",
        steps=(Step(words=lambda w: ["lab", "run", str(w.kept / "grid.toml"), "-o", "x.json"]),),
        leaves=(*writes("x.json"), *writes(r"grid\.samples\.jsonl"), r"file: kept/grid\.\S+ .*"),
        connects=False,
    ),
    local("lab compare", "{kept}/lab.json", "{kept}/lab.json"),
    local("report", "{kept}/lab.json", "-o", "x.html", leaves=writes("x.html")),
    local(
        "convert",
        "{kept}/trace.evidence",
        "x.oracleGeneral",
        leaves=_CONVERTED,
    ),
    local("completion", "bash"),
    Case(command="mcp", steps=(Step(words=lambda w: ["mcp", f"shop:{w.target}"], given=_ASKED),)),
)

COMMANDS = [*{case.command: case for case in reversed(CASES) if case.connects}.values()]
"""One case of each command that has a session."""
MOST = [case for case in COMMANDS if case.command != "mcp"]
"""Without the one that takes five seconds to import its libraries."""

NOT_HERE = {
    "demo": "takes minutes; it is ended half way in test_ended.py",
}
"""Commands without a case of their own, and why."""


def commands() -> Iterator[str]:
    """Yield every command of pgsweep that can be run, from click's own tree."""

    def below(name: str, command: click.Command, context: click.Context) -> Iterator[str]:
        if isinstance(command, Branching):
            if command.callback is not None and not _is_only_a_group(command):
                yield name
            for branch in command.branches:
                yield from below(f"{name} {branch}", command.branch(branch), context)
        elif isinstance(command, click.Group):
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                yield from below(f"{name} {inner}".strip(), found, context)
        else:
            yield name

    yield from below("", application, click.Context(application))


def _is_only_a_group(command: Branching) -> bool:
    """Return whether a command has nothing to do but its branches."""
    return not any(parameter.name in ("dbname", "host") for parameter in command.params)
