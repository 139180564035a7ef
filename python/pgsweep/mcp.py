"""The questions of pgsweep as tools of the Model Context Protocol, for assistants: `pgsweep mcp`.

    pgsweep mcp shop --evidence /var/lib/evidence      # spoken over stdin and stdout

Everything is read-only. An assistant names servers by the names that the command line gave them, and evidence
by its name in the folders that were given, so it reaches nothing else. Results are the records' JSON, the
same that `--json` writes; a failure comes with its cause and hint. Within half a minute a client has an
answer, or hears of progress, or that it is to ask again.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    CallToolResult,
    ErrorData,
    InputRequiredResult,
    JSONRPCError,
    TextContent,
    ToolAnnotations,
)
from pydantic import ValidationError

from pgsweep import api
from pgsweep._native import __version__
from pgsweep.advice.ask import advise
from pgsweep.errors import PgsweepError, UsageError
from pgsweep.evidence.meta import exported_trace
from pgsweep.pg.session.conninfo import place_of
from pgsweep.records.advice import AdviceResult
from pgsweep.records.cache import CacheResult
from pgsweep.records.doctor import DoctorResult
from pgsweep.records.memory import MemoryResult
from pgsweep.records.prediction import PredictResult
from pgsweep.sizing.predict import predict
from pgsweep.units import parse_bytes

_INSTRUCTIONS = """
Facts about the memory of PostgreSQL servers: what lies in shared_buffers and in the page cache, what each
process costs, the miss ratio at other sizes of shared_buffers, predicted from recorded evidence, and the
settings that follow. All tools only read. Values are measured unless a record says predicted or assumed. A
prediction has an interval and a verdict (reliable, rough, refused): pass them on with it. What could not be
seen is in `missing`, with the command that would allow it.
""".strip()

R = TypeVar("R")

_READS_ONLY = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
_MOST_ROWS = 200
_PATIENCE_SECONDS: Final = 25.0
"""Clients give up after half a minute or a minute."""

_PROGRESS_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.05


def make_server(targets: Mapping[str, str], evidence: Sequence[Path]) -> MCPServer[Any]:
    """Return the protocol server with its tools.

    Args:
        targets: connection strings by the names that assistants use.
        evidence: folders in which recordings lie.
    """
    server = _Server("pgsweep", version=__version__, instructions=_INSTRUCTIONS, log_level="WARNING")

    def conninfo_of(name: str) -> str:
        known = ", ".join(targets) or "none: pgsweep mcp was started without any"
        return _of_name("server", name, targets, f"the servers are: {known}")

    def evidence_of(name: str) -> Path:
        found = _evidence_in(evidence)
        known = ", ".join(sorted(found)) or "none; pgsweep record makes it"
        return _of_name("evidence", name, found, f"there is: {known}")

    def servers() -> dict[str, Any]:
        """List the servers that can be asked about, and the evidence that predictions can be made from."""
        places = [{"name": name, "place": place_of(text)} for name, text in targets.items()]
        return {"servers": places, "evidence": sorted(_evidence_in(evidence))}

    def doctor(server: str) -> DoctorResult:
        """Show what can be done with a server from here, and how to enable the rest."""
        return api.examine_server(conninfo_of(server))

    def cache(server: str, by: str = "relation", top: int = 30) -> CacheResult:
        """Show what lies in shared_buffers, in the page cache, in both and in neither.

        `by` is relation, table, partition-root, index, schema or database; `top` is the number of rows, those
        with most in the pool.
        """
        return api.inspect_cache(conninfo_of(server), by=by, top=_rows(top))

    def memory(server: str, top: int = 30) -> MemoryResult:
        """Show what the server's processes cost the host; the server must run on this host."""
        return api.inspect_memory(conninfo_of(server), top=_rows(top))

    def predict_misses(
        evidence_name: str, sizes: list[str] | None = None, what_if: list[str] | None = None
    ) -> PredictResult:
        """Predict the miss ratio at other sizes of shared_buffers from recorded evidence.

        `evidence_name` is one of those that `servers` lists; `sizes` are like 1GB, and by default an eighth
        to eight times today's. `what_if` are changes that are assumed; all of them together give the curve in
        `changed`, and the rest of the result is without them. Each is like `orders grows 2x`, `insert into
        orders 1000 rows/s`, `scan orders every 60s`, `keep orders warm`, `without orders`, `connections 2x`,
        `ram 64GB`, `huge_pages on` or `shared_buffers 8GB`.
        """
        wanted = None if sizes is None else [parse_bytes(size) for size in sizes]
        return predict(evidence_of(evidence_name), sizes_bytes=wanted, what_if=what_if or [], kept=True)

    def advise_settings(
        evidence_name: str, server: str | None = None, memory_of_host: str | None = None
    ) -> AdviceResult:
        """Show which settings follow from recorded evidence, each with its reason; nothing is changed.

        To leave a setting as it is, is advice too. `evidence_name` is one of those that `servers` lists. With
        `server`, the one that it was recorded on, huge pages and connections are counted too.
        `memory_of_host`, like 64GB, is what shared_buffers and page cache share, where the evidence does not
        say so.
        """
        return advise(
            evidence_of(evidence_name),
            conninfo=None if server is None else conninfo_of(server),
            memory_bytes=None if memory_of_host is None else parse_bytes(memory_of_host),
            kept=True,
        )

    questions = _Questions()
    for question in (servers, doctor, cache, memory, predict_misses, advise_settings):
        server.add_tool(questions.tool(question), annotations=_READS_ONLY, structured_output=False)
    return server


def _of_name(what: str, name: str, known: Mapping[str, R], hint: str) -> R:
    """Return what has this name.

    Raises:
        UsageError: nothing has.
    """
    if name not in known:
        raise UsageError(f"there is no {what} `{name}`", hint=hint)
    return known[name]


class _Server(MCPServer[Any]):
    """A server whose tools say what they take where they are called with anything else."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Answer a call.

        Raises:
            ToolError: there is no such tool, it takes no such arguments, or there is no answer.
        """
        tools = {tool.name: tool.input_schema for tool in await self.list_tools()}
        if name not in tools:
            raise ToolError(f"there is no tool `{name}`\nhint: the tools are: {', '.join(tools)}")
        taken = tools[name]["properties"]
        hint = f"hint: {name} takes {'; '.join(_taken(tools[name])) or 'no arguments'}"
        for word in arguments:
            if word not in taken:
                raise ToolError(f"{name} takes no argument `{word}`\n{hint}")
        for word in tools[name].get("required", []):
            if word not in arguments:
                raise ToolError(f"{name} needs the argument `{word}`\n{hint}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            wrong = {str(each["loc"][0]): each for each in error.__cause__.errors()}
            said = [
                f"`{word}` is {each['input']!r}: not {_type(taken[word])}" for word, each in wrong.items()
            ]
            raise ToolError("\n".join([*said, hint])) from error

    async def run_stdio_async(self) -> None:
        """Serve over stdin and stdout; what is no message is answered too (JSON-RPC 2.0, 5.1)."""
        protocol = self._lowlevel_server
        async with stdio_server() as (read, write), anyio.create_task_group() as group:
            passed, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            group.start_soon(_pass_messages, read, passed, write.send)
            await protocol.run(messages, write, protocol.create_initialization_options())


async def _pass_messages(
    read: AsyncIterable[SessionMessage | Exception],
    passed: MemoryObjectSendStream[SessionMessage | Exception],
    answer: Callable[[SessionMessage], Awaitable[None]],
) -> None:
    """Pass on what a client sends, and answer what is no message."""
    async with passed:
        async for item in read:
            if not isinstance(item, ValidationError):
                await passed.send(item)
                continue
            [first, *_] = item.errors()
            error = ErrorData(code=INVALID_REQUEST, message="the line is no message of JSON-RPC 2.0")
            if first["type"] == "json_invalid":
                error = ErrorData(code=PARSE_ERROR, message=f"the line is not JSON: {first['msg']}")
            if str(first["input"]).strip():
                await answer(SessionMessage(JSONRPCError(jsonrpc="2.0", id=None, error=error)))


def _taken(schema: Mapping[str, Any]) -> list[str]:
    """Return in words each argument of a tool, its type and its default."""
    return [
        f"`{name}`, {_type(one)}"
        + (f" (by default {one['default']})" if one.get("default") is not None else "")
        + (
            ""
            if name in schema.get("required", ()) or one.get("default") is not None
            else " (may be left out)"
        )
        for name, one in schema["properties"].items()
    ]


def _type(schema: Mapping[str, Any]) -> str:
    words = {"string": "a text", "integer": "a whole number", "array": "a list of texts", "null": ""}
    kinds = schema.get("anyOf", [schema])
    return " or ".join(filter(None, (words.get(kind.get("type", ""), "another type") for kind in kinds)))


def run(targets: Mapping[str, str], evidence: Sequence[Path]) -> None:
    """Speak the protocol over stdin and stdout until stdin ends; arguments as for `make_server`."""
    make_server(targets, evidence).run("stdio")


def _evidence_in(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the recordings and the exported traces in folders by name; of two of the same name the first."""
    found: dict[str, Path] = {}
    for folder in folders:
        for meta in sorted(folder.glob("*/meta.json")):
            one = exported_trace(meta.parent) or meta.parent
            if one.exists():
                found.setdefault(one.name, one)
    return found


def _rows(top: int) -> int:
    """Return the number of rows.

    Raises:
        UsageError: it is none, or too many.
    """
    if not 1 <= top <= _MOST_ROWS:
        raise UsageError(f"`top` is {top}", hint=f"a number of rows: 1 to {_MOST_ROWS}")
    return top


class _Questions:
    """Answers questions, each in a thread: it may take minutes, and a client waits for seconds.

    A client that asked for progress hears every few seconds that there is some. Any other is told to ask
    again before it gives up; the question is answered meanwhile, and the answer kept for it.
    """

    def __init__(self) -> None:
        self._asked: dict[str, Future[Any]] = {}

    def tool(self, question: Callable[..., Any]) -> Callable[..., Awaitable[CallToolResult]]:
        """Return a tool of the protocol that answers a question, with its parameters and its description."""
        hints = get_type_hints(question)

        @functools.wraps(question)
        async def asked(ctx: Context, **given: Any) -> CallToolResult:
            return await self.answer(ctx, lambda: question(**given), repr((question.__name__, given)))

        own = inspect.signature(question).parameters.values()
        parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Context)]
        parameters += [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
        asked.__dict__["__signature__"] = inspect.Signature(parameters, return_annotation=CallToolResult)
        asked.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": CallToolResult}
        return asked

    async def answer(self, ctx: Context, question: Callable[[], Any], key: str) -> CallToolResult:
        """Return a record as JSON, in both forms that the protocol has.

        Raises:
            ToolError: there is no answer; says why.
        """
        found = self._asked.get(key)
        if found is None:
            found = self._asked[key] = _begun(question)
        begin = time.monotonic()
        meta = ctx.request_context.meta
        hears = meta is not None and meta.get("progress_token") is not None
        while not found.done():
            await anyio.sleep(_POLL_SECONDS)
            taken = time.monotonic() - begin
            if hears and int(taken / _PROGRESS_SECONDS) > int((taken - _POLL_SECONDS) / _PROGRESS_SECONDS):
                await ctx.report_progress(taken, message=f"at work for {taken:.0f} s")
            if not hears and taken >= _PATIENCE_SECONDS:
                raise ToolError(
                    f"not answered after {taken:.0f} s, and still being worked on\n"
                    "hint: ask the same again in a while: the answer is kept for it"
                )
        self._asked.pop(key, None)
        try:
            record = msgspec.to_builtins(found.result())
        except PgsweepError as error:
            parts = [
                error.message,
                f"code: {error.code}",
                error.cause and f"cause: {error.cause}",
                error.hint and f"hint: {error.hint}",
            ]
            raise ToolError("\n".join(filter(None, parts))) from error
        text = msgspec.json.encode(record).decode()
        return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=record)


def _begun(question: Callable[[], Any]) -> Future[Any]:
    """Answer a question in a thread that does not keep the process from ending."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(question())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="question", daemon=True).start()
    return future
