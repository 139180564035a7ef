"""Words of a command line without the passwords in them: libpq's own parser says where these are."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

_NAMES: Final = {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
"""Parameters that hold a secret, in all versions of libpq (fe-connect.c, PQconninfoOptions)."""

_HIDDEN: Final = b"*"
"""How libpq marks a parameter that a dialog must not show (PQconninfoOption.dispchar)."""

_URI: Final = re.compile(r"postgres(?:ql)?://", re.IGNORECASE)
_SECRET: Final = re.compile(r"password\b|pass\w*\s*=|secret\s*=|_key\s*=", re.IGNORECASE)
MASK: Final = "****"
_USER_INFO: Final = re.compile(r"(postgres(?:ql)?:/+)[^\s`'\"]*:[^\s`'\"]*@", re.IGNORECASE)
"""What stands before the host, where a password is in it."""

_PAIR: Final = re.compile(
    r"(\w*(?:password|secret|_key)\w*\s*=\s*)(?:'(?:[^'\\]|\\.)*'|[^\s`'\"&)]+)", re.IGNORECASE
)


def masked(text: str) -> str:
    """Return a message without the passwords of connection strings that it quotes."""
    return _PAIR.sub(rf"\1{MASK}", _USER_INFO.sub(rf"\1{MASK}@", text))


def without_secrets(word: str) -> str:
    """Return an argument without passwords: a connection string loses the parameter, others lose their rest.

    A connection string may follow an option in the same word: `-dpassword=...`, `--dbname=postgresql://...`.
    What mentions a password, or is a URI, and libpq cannot parse is cut off there: a secret in it could be
    anywhere.
    """
    for begin in _begins(word):
        cleaned = _cleaned(word[begin:])
        if cleaned is not None:
            return word[:begin] + cleaned
    text = unquote(word)
    if (match := _URI.search(text)) is not None and "@" in text[match.end() :]:
        return text[: match.end()] + MASK
    if (match := _SECRET.search(text)) is not None and re.search("[='$]", text[match.start() :]):
        return text[: match.end()] + MASK
    return word


def _begins(word: str) -> list[int]:
    """Return where a connection string may begin in a word: after `--name=`, or after letters of options."""
    if word.startswith("--"):
        return [word.find("=") + 1] if "=" in word else []
    if word.startswith("-"):
        return list(range(2, min(len(word), 2 + 8)))
    return [0]


def _cleaned(text: str) -> str | None:
    """Return a connection string without its secrets, as it is where it has none; None where it is none."""
    if "=" not in text and "://" not in text:
        return None
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        found = {name: str(value) for name, value in conninfo_to_dict(text).items() if value is not None}
    except psycopg.Error:
        return None
    kept = {name: value for name, value in found.items() if name not in _secret_names()}
    if "@" in kept.get("host", ""):
        kept["host"] = MASK  # of a password with @ in a URI libpq takes the rest for the host
    if "dbname" in kept and (inner := _cleaned(kept["dbname"])) is not None:
        kept["dbname"] = inner
    return text if kept == found else make_conninfo("", **kept)


def _secret_names() -> set[str]:
    from psycopg import pq

    marked = {o.keyword.decode() for o in pq.Conninfo.get_defaults() if o.dispchar == _HIDDEN}
    return _NAMES | marked
