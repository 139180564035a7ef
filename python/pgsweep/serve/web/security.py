"""Who may ask, and for what: checked before any page is made.

Only GET and HEAD, but for signing in and out, so nothing changes by a link. The Host header must name this
server: a page of another site that makes its own name point here (DNS rebinding) has another one. A
browser says by Sec-Fetch-Site where a request comes from; what other sites ask for, but to open a page, is
refused. Where a token is required, it comes as `Authorization: Bearer`, or as a cookie that signing in
sets. Comparisons take the same time whatever is compared. Every answer has a Content-Security-Policy that
allows this server alone.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Final

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "pgsweep_session"

_OPEN: Final = ("/login", "/healthz")
"""Paths that need no token; and those of static files."""

_WRITING: Final = ("/login", "/logout")

_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)


class Guard:
    """Passes on the requests that are allowed, and adds the headers to every answer.

    Args:
        app: what makes the answers.
        hosts: names and addresses that this server has, in small letters, without ports; empty allows any,
            where a token is required and the server listens at all addresses.
        token: what must be shown; None for nothing.
        base: the path below which the pages are, for browsers.
    """

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], token: str | None, base: str = "") -> None:
        self._app = app
        self._base = base
        self._hosts = frozenset(hosts)
        self._token = token
        self._cookie = None if token is None else cookie_of(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", []))
                headers += _HEADERS
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
            await send(message)

        refused = self._refusal(scope)
        await (self._app if refused is None else refused)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in headers and name in {b"host", b"authorization"}:
                return PlainTextResponse("a header is given twice\n", 400)
            headers[name] = value
        method, path = scope["method"], scope["path"]
        if method not in ("GET", "HEAD") and not (method == "POST" and path in _WRITING):
            return PlainTextResponse("only GET and HEAD\n", 405, headers={"allow": "GET, HEAD"})
        host = host_name(headers.get(b"host", b"").decode("latin-1"))
        if host is None or (self._hosts and host not in self._hosts):
            return PlainTextResponse(
                "this server has another name; if it is yours, add it to allowed-hosts in serve.toml\n", 421
            )
        site = headers.get(b"sec-fetch-site", b"none")
        opens = headers.get(b"sec-fetch-mode") == b"navigate" and method in ("GET", "HEAD")
        if site not in (b"same-origin", b"none") and not opens:
            return PlainTextResponse("not for other sites\n", 403)
        origin = headers.get(b"origin")
        if method == "POST" and origin not in (None, b"null"):
            named = host_name(origin.decode("latin-1").partition("://")[2])
            if named != host:
                return PlainTextResponse("not for other sites\n", 403)
        if self._token is None or path in _OPEN or path.startswith("/static/"):
            return None
        if self._shown(headers):
            return None
        if b"text/html" in headers.get(b"accept", b"") and path != "/events":
            return RedirectResponse(f"{self._base}/login", 303)
        return PlainTextResponse(
            "a token is needed: Authorization: Bearer TOKEN\n", 401, headers={"www-authenticate": "Bearer"}
        )

    def _shown(self, headers: dict[bytes, bytes]) -> bool:
        assert self._token is not None
        assert self._cookie is not None
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._token.encode()):
            return True
        try:
            cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return False
        found = cookies.get(COOKIE)
        return found is not None and hmac.compare_digest(found.value.encode(), self._cookie.encode())


def cookie_of(token: str) -> str:
    """Return what the cookie holds: not the token itself, which also opens /metrics from elsewhere."""
    return hmac.new(token.encode(), b"pgsweep session", hashlib.sha256).hexdigest()


def host_name(header: str) -> str | None:
    """Return the name in a Host header in small letters, without the port; None where it is none."""
    text = header.strip().lower()
    if text.startswith("["):
        name, mark, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
        valid = mark and (rest == "" or rest.startswith(":")) and (not port or port.isdigit())
        return name if valid else None
    name, _, port = text.partition(":")
    return name if name and (port == "" or port.isdigit()) else None
