"""Text that comes from servers, files and users, made safe to show and safe to paste.

A name in PostgreSQL may hold any character but NUL: escape sequences that a terminal obeys, newlines,
overrides of the direction of writing. `shown` and `cleaned` write such characters as escapes; `shell_word`,
`database_word` and `sql_identifier` quote a name so that a command with it does what it says, and no more.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

_OURS = re.compile(r"\x1b\[(?:0|[12]|3[1-46])(?:;(?:[12]|3[1-46]))*m")
"""The colours that ui/kit/terminal.py sets (ECMA-48, SGR), and nothing else that begins with ESC."""

_UNQUOTED = re.compile(r"[a-z_][a-z0-9_]*")
_KEYWORDS = """
all analyse analyze and any array as asc asymmetric authorization between bigint binary bit boolean both
case cast char character check coalesce collate collation column concurrently constraint create cross
current_catalog current_date current_role current_schema current_time current_timestamp current_user dec
decimal default deferrable desc distinct do else end except exists extract false fetch float for foreign
freeze from full grant graph_table greatest group grouping having ilike in initially inner inout int
integer intersect interval into is isnull join json json_array json_arrayagg json_exists json_object
json_objectagg json_query json_scalar json_serialize json_table json_value lateral leading least left
like limit localtime localtimestamp merge_action national natural nchar none normalize not notnull null
nullif numeric offset on only or order out outer overlaps overlay placing position precision primary
real references returning right row select session_user setof similar smallint some substring symmetric
system_user table tablesample then time timestamp to trailing treat trim true union unique user using
values varchar variadic verbose when where window with xmlattributes xmlconcat xmlelement xmlexists
xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable
"""
"""What quote_ident quotes besides (src/include/parser/kwlist.h: all but UNRESERVED_KEYWORD), up to 19."""

_SIMPLE_NAME = re.compile(r"[a-z_][a-z0-9_$]*")


def shown(text: str) -> str:
    r"""Return the text in one line that cannot disturb a terminal or a table.

    What is not printable is written as an escape: controls (C0, DEL, C1) as `\x1b`, `\n`; overrides of the
    direction, zero-width and private characters as `\u202e`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def cleaned(text: str, *, colours: bool = False) -> str:
    """Return a text of several lines, each of them `shown`.

    Args:
        text: its line feeds stay.
        colours: our own colours stay too.
    """
    if text.replace("\n", "").isprintable():
        return text
    if colours:
        kept = _OURS.findall(text)
        pieces = [cleaned(piece) for piece in _OURS.split(text)]
        return pieces[0] + "".join(mark + piece for mark, piece in zip(kept, pieces[1:], strict=True))
    return "\n".join(shown(line) for line in text.split("\n"))


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠", "'")
"""What makes a spreadsheet take a cell for a formula (OWASP, "CSV Injection"), and the mark against it."""


def inert(cell: object) -> object:
    """Return a cell of CSV with an apostrophe in front of a text that a spreadsheet would take for a formula.

    So has a text that begins with an apostrophe, so that taking one away gives back every text.
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def sentence(text: str) -> str:
    """Return a text with a capital and a full stop; a setting or what is quoted begins as it is."""
    name = "_" in text.split(" ", maxsplit=1)[0]
    return f"{text if name else text[:1].upper() + text[1:]}."


def relation_label(schema: str, relation: str, table_schema: str = "", table: str = "") -> str:
    """Return `schema.relation`, without `public`; a TOAST relation, whose name is a number, by its table.

    Names are quoted where an argument of pgsweep needs quotes, so that the label can be pasted as one.

    Args:
        schema, relation: its own names.
        table_schema, table: of the table that a TOAST relation or its index serves; empty where not known.
    """
    if schema == "pg_toast" and table:
        # pg_toast.pg_toast_16405 says nothing to a person. Its index is pg_toast_16405_index (toasting.c).
        kind = "TOAST index" if relation.endswith("_index") else "TOAST"
        return f"{relation_label(table_schema, table)} ({kind})"
    name = quoted_where_needed(relation)
    return name if schema in ("", "public") else f"{quoted_where_needed(schema)}.{name}"


def quoted_where_needed(name: str) -> str:
    """Return a name as regclass prints it (ruleutils.c, quote_identifier), but key words without quotes.

    regclass takes key words as they are.
    """
    return name if _SIMPLE_NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def shell_word(text: str) -> str:
    r"""Return the text as one word for a shell.

    A text with controls is written in the form `$'a\033b'` of bash, zsh, ksh and POSIX.1-2024: exact there,
    and still one quoted word in a shell that does not know it.
    """
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(_ansi_c(c) for c in text) + "'"


def shell_words(words: Iterable[str]) -> str:
    """Return the words as a command line."""
    return " ".join(shell_word(word) for word in words)


def database_word(name: str) -> str:
    """Return the name of a database as the argument of `-d`, for a shell.

    libpq takes what has `=` in it, or begins like a URI, for a connection string (fe-connect.c,
    recognized_connection_string): a database of the name `host=...` would send the session elsewhere.
    """
    if "=" in name or name.startswith(("postgresql://", "postgres://")):
        name = "dbname='" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return shell_word(name)


def decode_name(name: bytes | None) -> str:
    """Return a name as a server sends it: as UTF-8, and bytes that are not UTF-8 (SQL_ASCII) as escapes."""
    return "" if name is None else bytes(name).decode("utf-8", "backslashreplace")


def decode_nullable(name: bytes | None) -> str | None:
    """Return a name as `decode_name` does; None for NULL."""
    return None if name is None else decode_name(name)


def sql_identifier(name: str) -> str:
    r"""Return the name as an SQL identifier, quoted where quote_ident would; controls as in `U&"a\001Bb"`.

    https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-IDENTIFIERS-UESCAPE
    """
    if _UNQUOTED.fullmatch(name) and name not in _KEYWORDS.split():
        return name
    quoted = name.replace('"', '""')
    if name.isprintable():
        return f'"{quoted}"'
    quoted = quoted.replace("\\", "\\\\")
    return 'U&"' + "".join(c if c.isprintable() else f"\\+{ord(c):06X}" for c in quoted) + '"'


def printable_identifier(quoted: str) -> str:
    """Return what `quote_ident` of a server returns; with controls in the form of `sql_identifier`."""
    return quoted if quoted.isprintable() else sql_identifier(quoted[1:-1].replace('""', '"'))


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _ansi_c(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character.isprintable():
        return character
    # As bytes: what \u means depends on the locale of the shell.
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))
