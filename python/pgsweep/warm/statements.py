"""The statements of warming: which of them read the pieces of a call, and their parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import psycopg
from psycopg import sql

from pgsweep.errors import MissingAbility
from pgsweep.pg.abilities import read_extension
from pgsweep.pg.queries import load
from pgsweep.pg.trust import as_superuser, require_trusted, statements_to_create
from pgsweep.warm.pieces import Piece

_PLACEHOLDER = re.compile("%[%s]")
_MANY = 16
"""So many stretches of one fork, on average, are worth a statement of their own: it costs half as much a
stretch, but cannot say which of them failed."""


def by_fork(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Return the pieces by relation and fork, in their order; nothing where forks have few pieces each."""
    forks = [list(group) for _, group in groupby(pieces, key=lambda piece: (piece.oid, piece.fork))]
    return forks if len(forks) * _MANY <= len(pieces) else []


def query_text(name: str, version_num: int, schema: str) -> str:
    """Return a statement with pg_prewarm's schema filled in; a % in its name is no placeholder."""
    return load(name, version_num).replace("{schema}", schema.replace("%", "%%"))


def arguments(pieces: Sequence[Piece], mode: str) -> list[Any]:
    """Return the parameters of the statement that reads pieces of any relations."""
    first, last = _ends(pieces)
    return [mode, [piece.oid for piece in pieces], [piece.fork for piece in pieces], first, last]


def fork_arguments(pieces: Sequence[Piece], mode: str) -> list[Any]:
    """Return the parameters of the statement that reads pieces of one fork."""
    return [pieces[0].oid, mode, pieces[0].fork, *_ends(pieces)]


def _ends(pieces: Sequence[Piece]) -> tuple[list[int], list[int]]:
    return [piece.first_block for piece in pieces], [piece.end_block - 1 for piece in pieces]


def statement_text(connection: psycopg.Connection[Any], pieces: Sequence[Piece], mode: str) -> str:
    """Return the statements that read the pieces, their parameters filled in, for people to read.

    Raises:
        MissingAbility: pg_prewarm is not there, or not for this role.
    """
    schema = require_prewarm(connection)
    forks = by_fork(pieces)
    statements = [("prewarm_fork", fork_arguments(fork, mode)) for fork in forks]
    texts = []
    for name, values in statements or [("prewarm", arguments(pieces, mode))]:
        literals = iter([sql.Literal(value).as_string(connection) for value in values])
        query = query_text(name, connection.info.server_version, schema)
        texts.append(_PLACEHOLDER.sub(partial(_filled, literals), query).strip())
    return ";\n".join(texts)


def _filled(literals: Iterator[str], match: re.Match[str]) -> str:
    return "%" if match[0] == "%%" else next(literals)


def require_prewarm(connection: psycopg.Connection[Any]) -> str:
    """Return the quoted schema of pg_prewarm, after checking that this session may use it.

    Raises:
        MissingAbility: the extension is not created here, is not installed, may not be used by this role, or
            is not trusted.
    """
    found = read_extension(connection, "pg_prewarm", "pg_prewarm")
    database = connection.info.dbname
    if found.schema is None:
        if found.available is None:
            raise MissingAbility(
                "pg_prewarm is not installed on the server",
                cause="the server has no contrib modules",
                hint="install the contrib package of the server's version; on the server's host "
                "`--into page-cache` needs no extension",
            )
        raise MissingAbility(
            f"the extension pg_prewarm does not exist in database `{database}`",
            hint=as_superuser(connection, statements_to_create(connection, "pg_prewarm")),
        )
    if not found.usable:
        role = sql.Identifier(connection.info.user).as_string(connection)
        grant = f"GRANT USAGE ON SCHEMA {found.schema} TO {role}"
        raise MissingAbility(
            f"this role may not use pg_prewarm in database `{database}`",
            cause=f"it may not enter schema {found.schema}, or not execute the function",
            hint=as_superuser(connection, [grant]),
        )
    require_trusted(
        connection,
        "pg_prewarm",
        ("pg_prewarm",),
        instead="on the server's host `--into page-cache` needs no extension",
    )
    return found.schema
