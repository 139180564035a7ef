"""SQL in files named by the minimum version of the server: `NAME_160000.sql` serves 16 and later."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def load(name: str, version_num: int) -> str:
    """Return the newest text of a query that a server of this version understands.

    Raises:
        LookupError: the query does not exist for servers as old as this one.
    """
    texts = {
        int(file.stem.rpartition("_")[2]): file for file in Path(__file__).parent.glob(f"{name}_[0-9]*.sql")
    }
    usable = [version for version in texts if version <= version_num]
    if not usable:
        raise LookupError(f"query {name} needs a newer server than {version_num}")
    text = texts[max(usable)].read_text(encoding="utf-8")
    _NAMES[text[:_BEGINNING]] = name
    return text


def name_of(query: object) -> str | None:
    """Return which query a statement is; None for a statement that is not from here.

    It is known by the comment that it begins with, which is sent too, whatever was filled in further on.
    """
    if isinstance(query, bytes):
        return _NAMES.get(query[: 4 * _BEGINNING].decode("utf-8", "replace")[:_BEGINNING])
    return _NAMES.get(query[:_BEGINNING]) if isinstance(query, str) else None


_BEGINNING = 64
_NAMES: dict[str, str] = {}
