"""`pgsweep serve` as a process of its own, and what a client gets from it."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from pgsweep.pg.history_store import PostgresStore
from pgsweep.pg.private.cluster import Cluster
from pgsweep.serve.history import postgres_store, sqlite_store
from pgsweep.serve.storage import Store
from tests.fix_cli import Command, launch
from tests.fix_process import Patience, wait_until

PGSWEEP = Path(sys.executable).with_name("pgsweep")
PATIENCE_SECONDS = 90.0
PAGE_PATIENCE_MILLISECONDS = 60_000


class Served:
    """A running `pgsweep serve`.

    Attributes:
        said: all that it wrote to stderr, once it has ended.
    """

    said: str = ""

    def __init__(self, process: Command, address: str) -> None:
        self.process = process
        self.address = address.rstrip("/")
        place = urlsplit(address)
        self.host, self.port = place.hostname or "", str(place.port)

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        body: str | None = None,
    ) -> tuple[int, dict[str, str], str]:
        """Return status, headers in small letters, and text."""
        connection = http.client.HTTPConnection(self.host, int(self.port), timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            text = answer.read().decode()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, text

    def json(self, path: str) -> Any:
        status, _, text = self.ask(path)
        assert status == 200, text
        return json.loads(text)

    def wait_for(self, path: str, there: Callable[[Any], bool], patience: float = PATIENCE_SECONDS) -> Any:
        """Return what a path gives as soon as it is so."""
        until = Patience(patience)
        while True:
            found = self.json(path)
            if there(found):
                return found
            assert until.left() > 0, found
            assert self.process.poll() is None
            time.sleep(0.2)

    def memory(self) -> int:
        """Return the bytes of memory that it has."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096

    def peer(self, sent: bytes = b"", *, source: str = "127.0.0.1", receives: int = 0) -> socket.socket:
        """Return a connection on which something was sent.

        Args:
            receives: bytes of the kernel's buffer for what it does not read; 0 for the usual ones.
        """
        peer = socket.socket()
        if receives:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        peer.settimeout(30)
        peer.bind((source, 0))
        peer.connect((self.host, int(self.port)))
        peer.sendall(sent)
        return peer

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@contextmanager
def serving(
    folder: Path,
    *targets: str,
    options: tuple[str, ...] = (),
    listen: str = "127.0.0.1:0",
    history: str | None = None,
    first: str = "",
) -> Iterator[Served]:
    """Run it until the block ends; evidence is in the folder, and the history if no other place is named.

    Args:
        first: what is done in its process before it begins, in Python.
    """
    process = launch(
        *("serve", *targets, "--listen", listen, "--history", history or str(folder)),
        *("--interval", "1s", *options),
        env={"PGSWEEP_CONFIG": "", "XDG_STATE_HOME": str(folder), "STATE_DIRECTORY": ""},
        first=first,
    )
    served = None
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise AssertionError(process.communicate(timeout=20)[1])
        served = Served(process, address)
        yield served
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        _, said = process.communicate()
        assert "Traceback" not in said, said
        if served is not None:
            served.said = said


@pytest.fixture(scope="session")
def watching(wheel18: Cluster) -> str:
    """A database for histories."""
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE watching")
    return wheel18.conninfo("watching")


def emptied(conninfo: str) -> PostgresStore:
    """A history in a database, without anything in it, that nobody writes any more."""
    others = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    with psycopg.connect(conninfo, autocommit=True) as connection:
        # A session holds the lock of the one that rolls up until the server has ended it.
        wait_until(lambda: connection.execute(others).fetchone() == (0,))
        connection.execute("DROP SCHEMA IF EXISTS pgsweep_history CASCADE")
    return postgres_store(conninfo)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A history in each of its stores."""
    made: Store
    if request.param == "sqlite":
        made = sqlite_store(tmp_path / "history.sqlite")
    else:
        made = emptied(request.getfixturevalue("watching"))
    yield made
    made.close()


def rows_of(store: Store, query: str) -> list[tuple[Any, ...]]:
    """What a query of the history gives."""
    with store.reading() as session:
        return session.execute(query)


class Tab:
    """A page, and all that went wrong on it."""

    def __init__(self, browser: Any, served: Served, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PAGE_PATIENCE_MILLISECONDS)
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        self.page.on("console", lambda said: self._said(said.type, said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url, served.address))

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _asked(self, url: str, address: str) -> None:
        if not url.startswith((address, "data:")):
            self.elsewhere.append(url)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's chromium, driven by playwright."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()
