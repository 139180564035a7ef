"""The webhook of `pgsweep serve`: told when the advice changes, and never waited for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pgsweep.errors import UsageError
from pgsweep.records.serve import ServeCurve
from pgsweep.serve import webhook
from pgsweep.serve.config import load_config
from pgsweep.serve.service import Service
from pgsweep.serve.webhook import Webhook, advice_changed, check_webhook
from tests.fix_advice import planner
from tests.fix_process import wait_until

AT = "2026-05-01T09:00:00+00:00"


@contextmanager
def listener(*answers: int) -> Iterator[tuple[str, list[Any]]]:
    """An address that answers with these codes, the last one again and again; and what it was sent."""
    heard: list[Any] = []
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(left.pop(0) if len(left) > 1 else left[0])
            self.send_header("location", "/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hooks/s3cret", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_only_another_advice_is_told() -> None:
    before = planner("20GB")
    assert advice_changed("shop", before, None, AT) is None, "the first is no change"
    assert advice_changed("shop", before, before, AT) is None
    longer = msgspec.structs.replace(before, covered_seconds=9999.0, at=before.at + 60)
    assert advice_changed("shop", longer, before, AT) is None
    event = advice_changed("shop", planner("40GB"), before, AT)
    assert event is not None
    assert event.settings["effective_cache_size"] == "40GB"
    assert (event.server, event.at, event.decision) == ("shop", AT, "leave")
    assert event.text == f"shop: {event.summary}"
    left = advice_changed("shop", planner(None), before, AT)
    assert left is not None
    assert "effective_cache_size" not in left.settings


def test_it_is_sent_again_where_it_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "PAUSES_SECONDS", (0.0, 0.05, 0.05))
    event = advice_changed("shop", planner("40GB"), planner("20GB"), AT)
    assert event is not None
    warned: list[str] = []
    with listener(500, 200) as (url, heard):
        hook = Webhook(url, warned.append)
        hook.start()
        hook.send(event)
        wait_until(lambda: len(heard) == 2)
        assert heard[0] == heard[1]
        assert heard[0]["schema"] == "pgsweep.serve.advice-changed/1"
        assert msgspec.convert(heard[0], type(event)) == event
        hook.stop()
    assert warned == []
    # A redirection is not followed, and the secret of the address is not shown.
    with listener(302) as (url, heard):
        hook = Webhook(url, warned.append)
        hook.start()
        hook.send(event)
        wait_until(lambda: bool(warned))
        hook.stop()
        assert len(heard) == 3
    assert "302" in warned[0]
    assert "s3cret" not in warned[0]


def test_serve_tells_it_of_another_advice(tmp_path: Path) -> None:
    window = ServeCurve(window_seconds=900, covered_seconds=600.0, at=60.0, result=None, why="nothing yet")
    with listener(200) as (url, heard):
        file = tmp_path / "serve.toml"
        file.write_text(f"[serve]\nwebhook = '{url}'\n[[server]]\nname = 'shop'\nconninfo = 'dbname=x'\n")
        service = Service(load_config([], file=file, home=tmp_path))
        service._webhook.start()  # type: ignore[union-attr]
        for value in ("20GB", "20GB", "21GB", "80GB"):
            service._show_curve("shop", window, planner(value))
        wait_until(lambda: bool(heard))
        service._webhook.stop()  # type: ignore[union-attr]
        for held in service._held:
            held.close()
        service._store.close()
    assert [one["settings"]["effective_cache_size"] for one in heard] == ["80GB"]


def test_nothing_waits_for_an_address_that_does_not_answer() -> None:
    warned: list[str] = []
    event = advice_changed("shop", planner("40GB"), planner("20GB"), AT)
    assert event is not None
    hook = Webhook("http://127.0.0.1:9/", warned.append)
    for _ in range(65):
        hook.send(event)
    assert len(warned) == 1
    assert "a change of the advice was not sent" in warned[0]


def test_what_is_no_address(tmp_path: Path) -> None:
    for text in ("", "hooks", "ftp://x/y", "https://", "https://x y", "http://[", "file:///etc/passwd"):
        with pytest.raises(UsageError, match="is not an address"):
            check_webhook(text)
    file = tmp_path / "serve.toml"
    file.write_text('[serve]\nwebhook = "https://hooks.example/x"\n')
    assert load_config([], file=file, home=tmp_path).webhook == "https://hooks.example/x"
