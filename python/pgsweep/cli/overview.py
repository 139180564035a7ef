"""The first page of help, and the list of commands it rests on.

This is a table, not a walk over the commands, because reading it must not import them (a test compares the
two).
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One subcommand: its module in pgsweep.cli (attribute `command`), its group, one line of help.

    What has no group is not on the first page of help.
    """

    module: str
    group: str
    summary: str


COMMANDS: dict[str, Entry] = {
    "doctor": Entry(
        "doctor", "First", "Show what can be done with a server from here, and how to enable the rest"
    ),
    "record": Entry(
        "record", "The main job", "Watch a running server and write what was observed as evidence"
    ),
    "import": Entry(
        "import_", "The main job", "Make evidence from what psql gathered on a host without pgsweep"
    ),
    "predict": Entry(
        "predict", "The main job", "Predict the misses at other sizes of shared_buffers from evidence"
    ),
    "advise": Entry(
        "advise", "The main job", "Advise memory settings, each with its reason and its expected gain"
    ),
    "prove": Entry("prove", "The main job", "Replay a recorded trace through a real server at other sizes"),
    "verify": Entry(
        "verify", "The main job", "Record again after a change, and say whether the prediction was right"
    ),
    "demo": Entry(
        "demo", "The main job", "Record, predict and prove on a private PostgreSQL, with an HTML report"
    ),
    "cache": Entry(
        "cache", "The caches", "Show what lies in shared_buffers, in the page cache, in both, in neither"
    ),
    "top": Entry("top", "The caches", "Watch shared_buffers and the page cache live"),
    "serve": Entry("serve", "The caches", "Serve live pages, a history and metrics of one server or many"),
    "footprint": Entry(
        "footprint",
        "The caches",
        "Show what one statement brings into shared_buffers and into the page cache",
    ),
    "warm": Entry(
        "warm.group", "The caches", "Warm the caches of a cold server, and keep relations resident"
    ),
    "load": Entry(
        "load",
        "Data",
        "Load files into a table: fast, and without losing an index, a constraint, a trigger or a row",
    ),
    "memory": Entry(
        "memory.processes",
        "Memory",
        "Show what every process of the server costs the host, and what a connection truly costs",
    ),
    "hugepages": Entry(
        "hugepages",
        "Memory",
        "Show how many huge pages the server needs, whether it uses them, and what they save",
    ),
    "lab": Entry(
        "lab.group", "Experiments", "Run published experiments again, and grids of settings of your own"
    ),
    "convert": Entry(
        "convert", "", "Write a recorded trace in libCacheSim's oracleGeneral format: now part of `report`"
    ),
    "report": Entry("report", "Files", "Write any result as one offline HTML file"),
    "mcp": Entry("mcp", "Shell", "Answer an assistant's questions about servers, over stdin and stdout"),
    "completion": Entry("completion", "", "Print the completion script for bash, zsh or fish"),
}

EXAMPLES: tuple[tuple[str, str], ...] = (
    ("pgsweep demo", "see it work, nothing needed"),
    (
        "pgsweep record -h db1 -U postgres -d shop -o shop.evidence",
        "watch a server, until there is enough data",
    ),
    ("pgsweep predict shop.evidence", "the curve, in the terminal"),
    ("pgsweep predict shop.evidence --sizes 1GB,2GB,4GB,8GB -o shop.html", "as a report"),
    ("pgsweep predict shop.evidence --json | jq .points", "for scripts"),
)

EXIT_CODES: tuple[tuple[str, str], ...] = (
    ("0", "ok"),
    ("1", "error"),
    ("2", "usage"),
    ("3", "no connection to the server"),
    ("4", "missing privilege or ability"),
    ("5", "a condition of --fail-if holds"),
    ("130", "interrupted; what was gathered is kept"),
)

USAGE = "Usage: pgsweep COMMAND [OPTIONS] [ARGUMENTS]"
_PURPOSE = (
    "How should this PostgreSQL server's memory be used?\n"
    "Misses at every other shared_buffers, predicted from the live workload, proven on a real server.\n"
)


def overview_text(*, short: bool = False) -> str:
    """Return the page: five examples when short, else the commands, common options and exit codes too."""
    parts = [_PURPOSE, USAGE + "\n"]
    width = max(len(name) for name, entry in COMMANDS.items() if entry.group)
    if not short:
        for group in dict.fromkeys(entry.group for entry in COMMANDS.values() if entry.group):
            lines = [f"{group}:"]
            lines += [f"  {name:<{width}}  {e.summary}" for name, e in COMMANDS.items() if e.group == group]
            parts.append("\n".join(lines) + "\n")
    lines = ["Examples:"]
    for command, meaning in EXAMPLES:
        lines += [f"  # {meaning}", f"  {command}"]
    parts.append("\n".join(lines) + "\n")
    if short:
        parts.append("`pgsweep --help` lists all commands, `pgsweep COMMAND --help` explains one.\n")
    else:
        parts.append(
            "Options of every command:\n"
            "  -?, --help                    explain the command\n"
            "  -q, --quiet                   on success print the result only\n"
            "  --no-progress                 no progress bar\n"
            "  --color [auto|always|never]   NO_COLOR is respected too\n"
            "  --debug                       the full traceback of an error\n"
            "  -V, --version                 versions of pgsweep, its native module and libpq\n"
        )
        parts.append("Exit codes:\n" + "".join(f"  {code:<4} {meaning}\n" for code, meaning in EXIT_CODES))
    return "\n".join(parts)
