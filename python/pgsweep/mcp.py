"""The questions of pgsweep as tools of the Model Context Protocol, for assistants: `pgsweep mcp`.

    pgsweep mcp shop --evidence /var/lib/evidence      # spoken over stdin and stdout

Everything is read-only. An assistant names servers by the names that the command line gave them, and evidence
by its name in the folders that were given, so it reaches nothing else. Results are the records' JSON, the
same that `--json` writes; a failure comes with its cause and hint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent, ToolAnnotations

from pgsweep import api
from pgsweep._native import __version__
from pgsweep.advice.gather import advise
from pgsweep.errors import PgsweepError, UsageError
from pgsweep.pg.conninfo import place_of
from pgsweep.sizing.predict import predict
from pgsweep.units import parse_bytes

_INSTRUCTIONS = """
Facts about the memory of PostgreSQL servers: what lies in shared_buffers and in the page cache, what each
process costs, the miss ratio at other sizes of shared_buffers, predicted from recorded evidence, and the
settings that follow. All tools only read. Values are measured unless a record says predicted or assumed. A
prediction has an interval and a verdict (reliable, rough, refused): pass them on with it. What could not be
seen is in `missing`, with the command that would allow it.
""".strip()

_READS_ONLY = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
_MOST_ROWS = 200


def make_server(targets: Mapping[str, str], evidence: Sequence[Path]) -> MCPServer[Any]:
    """Return the protocol server with its tools.

    Args:
        targets: connection strings by the names that assistants use.
        evidence: folders in which recordings lie.
    """
    server: MCPServer[Any] = MCPServer(
        "pgsweep", version=__version__, instructions=_INSTRUCTIONS, log_level="WARNING"
    )

    def conninfo_of(name: str) -> str:
        if name not in targets:
            known = ", ".join(targets) or "none: pgsweep mcp was started without any"
            raise UsageError(f"there is no server `{name}`", hint=f"the servers are: {known}")
        return targets[name]

    def evidence_of(name: str) -> Path:
        found = _evidence_in(evidence)
        if name not in found:
            raise UsageError(
                f"there is no evidence `{name}`",
                hint=f"there is: {', '.join(sorted(found)) or 'none; pgsweep record makes it'}",
            )
        return found[name]

    def tool(function: Callable[..., Any]) -> None:
        server.add_tool(function, annotations=_READS_ONLY, structured_output=False)

    def servers() -> CallToolResult:
        """List the servers that can be asked about, and the evidence that predictions can be made from."""
        return _answer(lambda: {
            "servers": [{"name": name, "place": place_of(text)} for name, text in targets.items()],
            "evidence": sorted(_evidence_in(evidence)),
        })  # fmt: skip

    def doctor(server: str) -> CallToolResult:
        """Show what can be done with a server from here, and how to enable the rest."""
        return _answer(lambda: api.examine_server(conninfo_of(server)))

    def cache(server: str, by: str = "relation", top: int = 30) -> CallToolResult:
        """Show what lies in shared_buffers, in the page cache, in both and in neither.

        `by` is relation, table, partition-root, index, schema or database; `top` is the number of rows, those
        with most in the pool.
        """
        return _answer(
            lambda: api.inspect_cache(conninfo_of(server), by=by, top=max(1, min(top, _MOST_ROWS)))
        )

    def memory(server: str, top: int = 30) -> CallToolResult:
        """Show what the server's processes cost the host; the server must run on this host."""
        return _answer(lambda: api.inspect_memory(conninfo_of(server), top=max(1, min(top, _MOST_ROWS))))

    def predict_misses(
        evidence_name: str, sizes: list[str] | None = None, what_if: list[str] | None = None
    ) -> CallToolResult:
        """Predict the miss ratio at other sizes of shared_buffers from recorded evidence.

        `evidence_name` is one of those that `servers` lists; `sizes` are like 1GB, and by default an eighth
        to eight times today's. `what_if` are changes that are assumed; all of them together give the curve in
        `changed`, and the rest of the result is without them. Each is like `orders grows 2x`, `insert into
        orders 1000 rows/s`, `scan orders every 60s`, `keep orders warm`, `without orders`, `connections 2x`,
        `ram 64GB`, `huge_pages on` or `shared_buffers 8GB`.
        """
        return _answer(
            lambda: predict(
                evidence_of(evidence_name),
                sizes_bytes=None if sizes is None else [parse_bytes(size) for size in sizes],
                what_if=what_if or [],
            )
        )

    def advise_settings(
        evidence_name: str, server: str | None = None, memory_of_host: str | None = None
    ) -> CallToolResult:
        """Show which settings follow from recorded evidence, each with its reason; nothing is changed.

        To leave a setting as it is, is advice too. `evidence_name` is one of those that `servers` lists. With
        `server`, the one that it was recorded on, huge pages and connections are counted too.
        `memory_of_host`, like 64GB, is what shared_buffers and page cache share, where the evidence does not
        say so.
        """
        return _answer(
            lambda: advise(
                evidence_of(evidence_name),
                conninfo=None if server is None else conninfo_of(server),
                memory_bytes=None if memory_of_host is None else parse_bytes(memory_of_host),
            )
        )

    for function in (servers, doctor, cache, memory, predict_misses, advise_settings):
        tool(function)
    return server


def run(targets: Mapping[str, str], evidence: Sequence[Path]) -> None:
    """Speak the protocol over stdin and stdout until stdin ends; arguments as for `make_server`."""
    make_server(targets, evidence).run("stdio")


def _evidence_in(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the recordings in folders by name; of two of the same name the first."""
    found: dict[str, Path] = {}
    for folder in folders:
        for meta in sorted(folder.glob("*/meta.json")):
            found.setdefault(meta.parent.name, meta.parent)
    return found


def _answer(question: Callable[[], Any]) -> CallToolResult:
    """Return a record as JSON, in both forms that the protocol has.

    Raises:
        ToolError: there is no answer; says why.
    """
    try:
        record = msgspec.to_builtins(question())
    except PgsweepError as error:
        parts = [error.message, error.cause and f"cause: {error.cause}", error.hint and f"hint: {error.hint}"]
        raise ToolError("\n".join(filter(None, parts))) from error
    text = msgspec.json.encode(record).decode()
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=record)
