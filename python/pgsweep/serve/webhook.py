"""Tell another program when the advice changes: `webhook` in serve.toml, an address that takes JSON by POST.

One thread sends, so that nothing waits for an address that does not answer. What could not be delivered is
tried again after a while, three times in all, and then left out with a word on stderr: the page has it. The
address may hold a secret, so it stands in the file alone, and no message names more of it than its host.
"""

from __future__ import annotations

import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import msgspec

from pgsweep.errors import UsageError
from pgsweep.records.serve import ServeAdviceChanged, ServeAdvised

_WAITING: Final = 64
_PATIENCE_SECONDS: Final = 10.0
PAUSES_SECONDS: Final = (0.0, 5.0, 60.0)
"""Before each attempt."""


def check_webhook(url: str) -> str:
    """Return the address.

    Raises:
        UsageError: it is none of http or https.
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not url.isprintable() or " " in url:
        raise UsageError(
            "`webhook` in serve.toml is not an address", hint='webhook = "https://example.com/advice"'
        )
    return url


def advice_changed(
    server: str, now: ServeAdvised, before: ServeAdvised | None, at: str
) -> ServeAdviceChanged | None:
    """Return what is to be told; None where the same settings are advised, and for the first advice.

    Args:
        server: its name.
        now: the advice, and `before` that which was shown.
        at: the time, ISO 8601.
    """
    if before is None or _said(now) == _said(before):
        return None
    return ServeAdviceChanged(
        server=server,
        at=at,
        text=f"{server}: {now.result.summary}",
        decision=now.result.decision,
        summary=now.result.summary,
        before=before.result.summary,
        settings={name: value for name, (action, value) in _said(now).items() if action == "set"},
    )


def _said(advised: ServeAdvised) -> dict[str, tuple[str, str | None]]:
    return {one.name: (one.action, one.value) for one in advised.result.settings if one.where != "command"}


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: what is sent is for the address that was named."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


class Webhook:
    """Sends what it is given, in its own thread.

    Args:
        url: the address.
        warn: told what could not be delivered.
    """

    def __init__(self, url: str, warn: Callable[[str], None]) -> None:
        self._url = url
        self._host = urlsplit(url).hostname
        self._warn = warn
        self._opener = urllib.request.build_opener(_Stay)
        self._waiting: queue.Queue[ServeAdviceChanged] = queue.Queue(_WAITING)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what waits is not sent any more."""
        self._stop.set()

    def send(self, event: ServeAdviceChanged) -> None:
        """Have it sent."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._warn(f"the webhook at {self._host} does not answer: a change of the advice was not sent")

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                event = self._waiting.get(timeout=0.5)
            except queue.Empty:
                continue
            self._deliver(msgspec.json.encode(event))

    def _deliver(self, body: bytes) -> None:
        why = ""
        for pause in PAUSES_SECONDS:
            if self._stop.wait(pause):
                return
            request = urllib.request.Request(  # noqa: S310 (http or https: check_webhook)
                self._url, data=body, headers={"content-type": "application/json"}, method="POST"
            )
            try:
                self._opener.open(request, timeout=_PATIENCE_SECONDS).close()
            except urllib.error.HTTPError as error:
                why = f"it answered {error.code}"
                error.close()
            except (OSError, ValueError) as error:
                why = str(getattr(error, "reason", error))
            else:
                return
        self._warn(f"a change of the advice was not delivered to the webhook at {self._host}: {why}")
