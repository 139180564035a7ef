"""`pgsweep mcp` with the protocol's own client, over stdio."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psycopg

from pgsweep.evidence.sql import record_sql
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import PGSWEEP


async def asked(arguments: list[str], calls: list[tuple[str, dict[str, Any]]]) -> tuple[Any, list[Any]]:
    # Imported here: it takes a second, in each process of pytest, and this file needs it in one of them.
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    parameters = StdioServerParameters(
        command=str(PGSWEEP), args=["mcp", *arguments], env={**os.environ, "PGSWEEP_CONFIG": ""}
    )
    async with stdio_client(parameters) as (reader, writer), ClientSession(reader, writer) as session:
        await session.initialize()
        tools = await session.list_tools()
        return tools, [await session.call_tool(name, given) for name, given in calls]


def test_an_assistant_gets_the_records(wheel18: Cluster, tmp_path: Path) -> None:
    conninfo = wheel18.conninfo()
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
        connection.execute("CREATE TABLE asked AS SELECT repeat('x', 700) FROM generate_series(1, 8000)")
        over = threading.Event()

        def read() -> None:
            while not over.wait(0.02):
                connection.execute("SELECT count(*) FROM asked")

        reading = threading.Thread(target=read)
        reading.start()
        try:
            record_sql(conninfo, tmp_path / "one.evidence", seconds=3)
        finally:
            over.set()
            reading.join()
    secret = f"{conninfo} password=very-secret-word"
    tools, answers = asyncio.run(
        asked(
            [f"shop:{secret}", "gone:host=127.0.0.1 port=1", "--evidence", str(tmp_path)],
            [
                ("servers", {}),
                ("doctor", {"server": "shop"}),
                ("cache", {"server": "shop", "top": 5}),
                ("memory", {"server": "shop", "top": 2}),
                ("predict_misses", {"evidence_name": "one.evidence", "sizes": ["8MB", "16MB"]}),
                ("advise_settings", {"evidence_name": "one.evidence", "memory_of_host": "1GB"}),
                ("predict_misses", {"evidence_name": "one.evidence", "what_if": ["asked grows 2x"]}),
                ("predict_misses", {"evidence_name": "one.evidence", "what_if": ["nothing of the kind"]}),
                ("cache", {"server": "other"}),
                ("cache", {"server": "gone"}),
                ("predict_misses", {"evidence_name": "../../etc"}),
                ("cache", {"server": "shop", "top": -1}),
                ("memory", {"server": "shop", "top": 0}),
                ("cache", {"server": "shop", "top": 1000}),
                ("cache", {"server": "shop", "top": "many"}),
                ("cache", {}),
                ("cache", {"server": "shop", "rows": 3}),
                ("predict_misses", {"evidence_name": "one.evidence", "sizes": "8MB"}),
                ("caches", {"server": "shop"}),
            ],
        )
    )
    names = {tool.name for tool in tools.tools}
    assert names == {"servers", "doctor", "cache", "memory", "predict_misses", "advise_settings"}
    assert all(tool.annotations.read_only_hint for tool in tools.tools)
    texts = [answer.content[0].text for answer in answers]
    assert [answer.is_error for answer in answers] == [False] * 7 + [True] * 12, texts
    records = [json.loads(text) for text in texts[:7]]
    assert [answer.structured_content for answer in answers[:7]] == records
    servers, doctor, cache, memory, predicted, advice, changed = records
    assert servers["evidence"] == ["one.evidence"]
    assert [server["name"] for server in servers["servers"]] == ["shop", "gone"]
    assert doctor["schema"] == "pgsweep.doctor/1"
    assert any(relation["relation"] == "asked" for relation in cache["relations"])
    assert memory["schema"] == "pgsweep.memory/1"
    assert predicted["observed"]["shared_buffers_bytes"] == 16 << 20
    assert advice["schema"] == "pgsweep.advise/1"
    assert advice["settings"][0]["name"] == "shared_buffers"
    assert [one["text"] for one in changed["what_if"]] == ["asked grows 2x"]
    assert changed["changed"]["verdict"]["level"] in {"rough", "refused"}
    assert "nothing of the kind" in texts[7]
    assert "the servers are: shop, gone" in texts[8]
    assert "pg_isready" in texts[9]
    assert "there is no evidence" in texts[10]
    for text, top in zip(texts[11:14], (-1, 0, 1000), strict=True):
        assert f"`top` is {top}" in text
        assert "1 to 200" in text
    for text, words in zip(texts[14:], ("`top`", "`server`", "`rows`", "`sizes`", "`caches`"), strict=True):
        assert words in text.splitlines()[0]
        assert "hint: " in text
        assert "pydantic" not in text
        assert "by default 30" in text or words in ("`sizes`", "`caches`")
    assert "very-secret-word" not in json.dumps(texts)


_IMPATIENT = """
import sys
import pgsweep.mcp
pgsweep.mcp._PATIENCE_SECONDS = 0.5
pgsweep.mcp._PROGRESS_SECONDS = 0.2
pgsweep.mcp.run({"hangs": sys.argv[1]}, [])
"""


def test_a_line_that_is_no_message_is_answered() -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    first = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
    ping = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"})
    with subprocess.Popen(
        [str(PGSWEEP), "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as at:
        assert at.stdin is not None
        assert at.stdout is not None
        got = []
        for line in ("{bad", first, "\n{bad json", '{"id": 3}', ping):
            at.stdin.write(f"{line}\n")
            at.stdin.flush()
            got.append(json.loads(at.stdout.readline()))
        at.stdin.close()
    assert [answer["id"] for answer in got] == [None, 1, None, None, 2]
    assert [got[number]["error"]["code"] for number in (0, 2, 3)] == [-32700, -32700, -32600]


def test_an_exported_trace_is_evidence_and_the_folder_beside_it_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    folder.mkdir()
    for path in (Path(__file__).parents[1] / "answers" / "evidence").glob("exported.oracleGeneral*"):
        (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / path.name)
    question = {"evidence_name": "exported.oracleGeneral", "sizes": ["1MB"]}
    calls: list[tuple[str, dict[str, Any]]] = [("servers", {}), ("predict_misses", question)]
    _, [servers, predicted] = asyncio.run(asked(["--evidence", str(folder)], calls))
    names = json.loads(servers.content[0].text)["evidence"]
    assert "exported.oracleGeneral" in names
    assert "exported.oracleGeneral.start" not in names
    assert json.loads(predicted.content[0].text)["points"]


def test_a_question_that_takes_long_has_progress_or_is_to_be_asked_again() -> None:
    """A server that takes connections and says nothing: a client must hear something before it gives up."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def ask(conninfo: str) -> tuple[list[float], list[Any]]:
        parameters = StdioServerParameters(
            command=sys.executable, args=["-P", "-c", _IMPATIENT, conninfo], env=dict(os.environ)
        )
        heard: list[float] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            assert (total, message) == (None, f"at work for {progress:.0f} s")
            heard.append(progress)

        about = {"server": "hangs"}
        async with stdio_client(parameters) as (reader, writer), ClientSession(reader, writer) as session:
            await session.initialize()
            answers = [await session.call_tool("cache", about)]
            answers.append(await session.call_tool("cache", about, progress_callback=hear))
            return heard, answers

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        heard, (first, second) = asyncio.run(ask(f"host=127.0.0.1 port={port} dbname=x user=x"))
    assert first.is_error
    assert "ask the same again" in first.content[0].text
    assert len(heard) > 3
    assert heard == sorted(heard)
    assert second.is_error
    assert "began no session" in second.content[0].text or "timeout" in second.content[0].text
