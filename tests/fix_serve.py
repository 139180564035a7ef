"""`pgsweep serve` as a process of its own, and what a client gets from it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PGSWEEP = Path(sys.executable).with_name("pgsweep")
PATIENCE_SECONDS = 90.0


class Served:
    """A running `pgsweep serve`."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.address = address.rstrip("/")
        self.host, _, self.port = self.address.removeprefix("http://").rpartition(":")

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
        until = time.monotonic() + patience
        while True:
            found = self.json(path)
            if there(found):
                return found
            assert time.monotonic() < until, found
            assert self.process.poll() is None
            time.sleep(0.2)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@contextmanager
def serving(
    folder: Path, *targets: str, options: tuple[str, ...] = (), listen: str = "127.0.0.1:0"
) -> Iterator[Served]:
    """Run it until the block ends; the history is in the folder."""
    process = subprocess.Popen(
        [PGSWEEP, "serve", *targets, "--listen", listen, "--history", str(folder), "--interval", "1s",
         *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PGSWEEP_CONFIG": ""},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise AssertionError(process.communicate(timeout=20)[1])
        yield Served(process, address)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        _, said = process.communicate()
        assert "Traceback" not in said, said


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
