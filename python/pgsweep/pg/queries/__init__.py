"""SQL in files named by the minimum version of the server: `NAME_160000.sql` serves 16 and later.

`{schema}` in a text is where an extension was created; other words in braces are constants. Parameters are
`%s` or `%(name)s`, as psycopg has them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from psycopg import sql

from pgsweep.pg.session.failures import connection_lost

_PARAMETER = re.compile(r"%(?:s|\((\w+)\)s|%)")


@cache
def load(name: str, version_num: int) -> str:
    """Return the newest text of a query that a server of this version understands.

    Raises:
        LookupError: the query does not exist for servers as old as this one.
        ConnectionFailed: the version is 0, as libpq says of a lost connection (PQserverVersion).
    """
    if version_num == 0:
        raise connection_lost()
    usable = [version for version in versions(name) if version <= version_num]
    if not usable:
        raise LookupError(f"query {name} needs a newer server than {version_num}")
    text = (Path(__file__).parent / f"{name}_{max(usable)}.sql").read_text(encoding="utf-8")
    _NAMES[text[:_BEGINNING]] = name
    return text


def versions(name: str) -> list[int]:
    """Return the least versions of the server that the texts of a query are for, in ascending order."""
    files = Path(__file__).parent.glob(f"{name}_[0-9]*.sql")
    return sorted(int(file.stem.rpartition("_")[2]) for file in files)


def compose(name: str, version_num: int, *, schema: str | None = None, **constants: int | str) -> str:
    """Return a query with what stands in braces filled in; its parameters remain.

    Args:
        name, version_num: as for `load`.
        schema: of an extension, quoted as an SQL identifier as the server gives it.
        constants: become literals.
    """
    text = load(name, version_num)
    parts: dict[str, sql.Composable] = {word: sql.Literal(value) for word, value in constants.items()}
    if schema is not None:
        # Where a query has parameters, psycopg takes % for the beginning of one.
        has_parameters = _PARAMETER.search(text) is not None
        parts["schema"] = sql.SQL(schema.replace("%", "%%") if has_parameters else schema)
    return sql.SQL(text).format(**parts).as_string(None)


def numbered(query: str) -> str:
    """Return a query with its parameters as the server gets them: $1, $2."""
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        return f"${numbers.setdefault(match[1] or f'%{match.start()}', len(numbers) + 1)}"

    return _PARAMETER.sub(number, query)


def filled(query: str, *values: str) -> str:
    """Return a query with SQL in the place of its parameters, one after the other."""
    given = iter(values)
    return _PARAMETER.sub(lambda match: "%" if match[0] == "%%" else next(given), query)


def name_of(query: object) -> str | None:
    """Return which query a statement is; None for a statement that is not from here.

    It is known by the comment that it begins with, which is sent too, whatever was filled in further on.
    """
    if isinstance(query, bytes):
        return _NAMES.get(query[: 4 * _BEGINNING].decode("utf-8", "replace")[:_BEGINNING])
    return _NAMES.get(query[:_BEGINNING]) if isinstance(query, str) else None


def is_ours(statement: str) -> bool:
    """Return whether a statement, perhaps cut short, is one of ours, sent by whatever process of pgsweep."""
    return statement[:_BEGINNING] in _beginnings()


@cache
def _beginnings() -> frozenset[str]:
    texts = (file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("*.sql"))
    return frozenset(text[:_BEGINNING] for text in texts)


_BEGINNING = 64
_NAMES: dict[str, str] = {}
