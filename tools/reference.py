"""Write what is made from the program: cli, verdict, json and errors.md in docs/reference, and manual pages.

`make docs` runs it; tests/test_docs.py fails where the files differ from the program.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import click

import pgsweep.records.trace_reasons  # noqa: F401 (its codes are in the table)
from pgsweep import __version__
from pgsweep.cli.branches import Branching
from pgsweep.cli.overview import COMMANDS, EXAMPLES, EXIT_CODES, overview_text
from pgsweep.errors import ConnectionFailed, PgsweepError
from pgsweep.pg.session.refusals import REFUSALS
from pgsweep.plain import sentence
from pgsweep.records.reasons import CODES
from pgsweep.sizing.verdict import TABLE
from pgsweep.units import format_plain
from tools.json_reference import json_page

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference" / "cli.md"
VERDICT = ROOT / "docs" / "reference" / "verdict.md"
JSON = ROOT / "docs" / "reference" / "json.md"
ERRORS = ROOT / "docs" / "reference" / "errors.md"
MANUAL = ROOT / "docs" / "manual" / "data" / "share" / "man" / "man1"
"""The wheel installs what is below docs/manual (pyproject.toml, tool.maturin)."""


def command_of(name: str) -> click.Command:
    """Return the command of this name."""
    command = importlib.import_module(f"pgsweep.cli.{COMMANDS[name].module}").command
    assert isinstance(command, click.Command)
    return command


def branches_of(command: click.Command) -> dict[str, click.Command]:
    """Return the subcommands of a command by name."""
    if not isinstance(command, Branching):
        return {}
    return {name: command.branch(name) for name in command.branches}


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Yield the words after `pgsweep` and the command, in the order of the overview."""
    for name in COMMANDS:
        command = command_of(name)
        yield name, command
        for branch, inner in branches_of(command).items():
            yield f"{name} {branch}", inner


def _context(command: click.Command, title: str) -> click.Context:
    """Return a context of 100 columns, with the command's own names of the help option.

    click keeps the first help option it makes for a command, so another context's names would stay.
    """
    settings = {**command.context_settings, "max_content_width": 100, "terminal_width": 100}
    return click.Context(command, info_name=title, **settings)


def verdict_page() -> str:
    """Return the page docs/reference/verdict.md."""
    lines = [
        "# Verdicts and their reasons",
        "",
        "A prediction is *reliable*, *rough* or *refused*. The gravest doubt decides.",
        "Each reason has a code, `verdict.reasons[].code` in JSON, and a sentence, `text`.",
        "",
        "## Thresholds",
        "",
        "They stand in `sizing/verdict.py`. A dash: this alone refuses nothing.",
        "",
        "| what is compared | rough from | refused from | evidence |",
        "|---|---:|---:|---|",
    ]
    for row in TABLE:
        refused = "–" if row.refused is None else format_plain(row.refused)
        lines.append(f"| {row.what} | {format_plain(row.rough)} | {refused} | {row.evidence} |")
    lines += ["", "## Codes", "", "| code | reason |", "|---|---|"]
    lines += [f"| `{code}` | {meaning} |" for code, meaning in CODES.items()]
    return "\n".join(lines) + "\n"


def reference() -> str:
    """Return the page docs/reference/cli.md."""
    parts = [
        "# The command line\n",
        "This page is made from the help texts by `make docs`; change those.\n",
        f"```text\n{overview_text().rstrip()}\n```\n",
    ]
    for words, command in all_commands():
        title = f"pgsweep {words}"
        level = "##" if " " not in words else "###"
        help_text = command.get_help(_context(command, title)).rstrip()
        parts.append(f"{level} {title}\n\n```text\n{help_text}\n```\n")
    return "\n".join(parts)


def kinds_of(of: type[PgsweepError]) -> Iterator[type[PgsweepError]]:
    """Yield the class and all below it."""
    yield of
    for kind in of.__subclasses__():
        yield from kinds_of(kind)


def errors_page() -> str:
    """Return the page docs/reference/errors.md."""
    package = ROOT / "python"
    for path in sorted(package.rglob("pgsweep/**/*.py")):
        if re.search(r"^class \w+\(.*Error\):", path.read_text(encoding="utf-8"), re.MULTILINE):
            importlib.import_module(".".join(path.relative_to(package).with_suffix("").parts))
    every = set(kinds_of(PgsweepError))  # some have two parents
    kinds = {kind.code: (kind.exit_code, (kind.__doc__ or "").split("\n")[0]) for kind in every}
    assert len(kinds) == len(every), "each kind has a code of its own"
    refusals = {code: (ConnectionFailed.exit_code, sentence(cause)) for code, _, cause, _ in REFUSALS}
    lines = [
        "# Codes of errors",
        "",
        "An error has a message, a likely cause and a hint, whose words may change, and a code, which stays.",
        "With `--json` a command that fails ends with it on stderr: `code: no-database`. In Python",
        "it is the exception's `code`, in the JSON of `serve` that of a server's `failure`.",
        "",
    ]
    for title, codes in (("Kinds", kinds), ("Refused connections", refusals)):
        lines += [f"## {title}", "", "| code | exit code | what it means |", "|---|---:|---|"]
        lines += [f"| `{code}` | {number} | {meaning} |" for code, (number, meaning) in sorted(codes.items())]
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def _roff(text: str) -> str:
    """Return the text with what roff would take for a request or an escape made harmless."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in escaped.split("\n"))


def _indented(block: str) -> str:
    return f".PP\n.RS 4\n.nf\n{_roff(block)}\n.fi\n.RE"


def _paragraphs(text: str) -> list[str]:
    """Return a help text's paragraphs as roff; those marked for click not to wrap stay as they are."""
    made = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        if lines[0].strip() == "\b":
            made.append(_indented("\n".join(line.rstrip() for line in lines[1:])))
        elif any(lines):
            made.append(".PP\n" + _roff(" ".join(line.strip() for line in lines)))
    return made


def _page(title: str, summary: str, sections: list[tuple[str, list[str]]], also: list[str]) -> str:
    name = title.replace(" ", "-")
    lines = [
        '.\\" Made from the help texts by "make docs".',
        f'.TH "{name.upper()}" 1 "" "pgsweep {__version__}" "pgsweep"',
        f".SH NAME\n{_roff(name)} \\- {_roff(summary)}",
    ]
    for heading, paragraphs in sections:
        if paragraphs:
            lines.append("\n".join([f".SH {heading}", *paragraphs]))
    links = ",\n".join(f".BR {_roff(page)} (1)" for page in also)
    lines.append(f".SH SEE ALSO\n{links}")
    return "\n".join(lines) + "\n"


_EXITS = [f".TP\n{code}\n{_roff(meaning)}" for code, meaning in EXIT_CODES]


def manual() -> dict[str, str]:
    """Return the manual pages by file name: pgsweep.1, and one for each command and subcommand."""
    every = [f"pgsweep-{words.replace(' ', '-')}" for words, _ in all_commands()]
    summaries = [f".TP\n.B {_roff(name)}\n{_roff(entry.summary)}" for name, entry in COMMANDS.items()]
    examples = "\n".join(f"# {meaning}\n{command}" for command, meaning in EXAMPLES)
    purpose = overview_text().split("\nUsage:")[0].strip().split("\n")
    sections = [
        ("SYNOPSIS", [".B pgsweep\n.I COMMAND\n[OPTIONS] [ARGUMENTS]"]),
        ("DESCRIPTION", [".PP\n" + _roff(line) for line in purpose]),
        ("COMMANDS", summaries),
        ("EXAMPLES", [_indented(examples)]),
        ("EXIT STATUS", _EXITS),
    ]
    pages = {"pgsweep.1": _page("pgsweep", "evidence on the use of a server's memory", sections, every)}
    for words, command in all_commands():
        title = f"pgsweep {words}"
        context = _context(command, title)
        text, _, rest = (command.help or "").partition("Examples:")
        text = re.sub(r"\n\s*\x08\s*$", "", text.rstrip())
        options = [
            f".TP\n.B {_roff(record[0])}\n{_roff(record[1])}"
            for parameter in command.get_params(context)
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context))
        ]
        usage = " ".join(command.collect_usage_pieces(context))
        first = command.get_short_help_str(limit=200).rstrip(".")
        given = "\n".join(line.strip() for line in rest.strip("\n").split("\n"))
        sections = [
            ("SYNOPSIS", [f".B {_roff(title)}\n{_roff(usage)}"]),
            ("DESCRIPTION", _paragraphs(text)),
            ("OPTIONS", options),
            ("EXAMPLES", [_indented(given)] if rest else []),
            ("EXIT STATUS", _EXITS),
        ]
        name = title.replace(" ", "-")
        pages[f"{name}.1"] = _page(title, first[:1].lower() + first[1:], sections, ["pgsweep"])
    return pages


def outdated() -> list[Path]:
    """Return the files that differ from what they would be made as, and make them so."""
    pages = {REFERENCE: reference(), VERDICT: verdict_page(), JSON: json_page(), ERRORS: errors_page()}
    wanted = pages | {MANUAL / name: text for name, text in manual().items()}
    differ = []
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            differ.append(path)
    for path in set(MANUAL.glob("*.1")) - set(wanted):
        path.unlink()
        differ.append(path)
    return differ


if __name__ == "__main__":
    outdated()
