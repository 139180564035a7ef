"""Which column of the table a name in a file means: of a header, a key of JSON, or a column of Parquet."""

from __future__ import annotations

from collections.abc import Sequence

from pgsweep.errors import UsageError
from pgsweep.pg.load.catalog import Column
from pgsweep.plain import shell_word


def named(name: str, known: Sequence[str]) -> str | None:
    """Return the name that is meant: the same, else the same but for case and blanks around it.

    Raises:
        UsageError: there are several.
    """
    if name in known:
        return name
    plain = name.strip().lower()
    found = [one for one in known if one.lower() == plain]
    if len(found) > 1:
        raise UsageError(
            f"the name `{name}` in the file may mean several columns: {', '.join(found)}",
            cause="it is none of them exactly, and all of them without regard to case",
            hint="spell it in the file as the table has it",
        )
    return found[0] if found else None


def columns_for(
    names: Sequence[str], columns: Sequence[Column], leave_out: Sequence[str], who: str
) -> list[str | None]:
    """Return the column that each name of a file means; nothing for those that are to be left out.

    Args:
        who: whose names they are, for messages: `the header of x.csv`.

    Raises:
        UsageError: a name means no column, a generated one, or the same as another.
    """
    known = [column.name for column in columns]
    out = [named(name, leave_out) is not None for name in names]
    found = [None if left else named(name, known) for name, left in zip(names, out, strict=True)]
    unknown = [name for name, one, left in zip(names, found, out, strict=True) if one is None and not left]
    if unknown:
        raise UsageError(
            f"{who} names {_columns(unknown)} that the table does not have: "
            f"{', '.join(map(quoted, unknown[:5]))}",
            hint=f"leave them out: --leave-out {shell_word(','.join(map(quoted, unknown)))}; "
            f"the table has {', '.join(known)}",
        )
    check_columns([one for one in found if one is not None], columns, who)
    return found


def check_columns(names: Sequence[str], columns: Sequence[Column], who: str) -> None:
    """Refuse names that are not those of columns that take values, each once.

    Raises:
        UsageError: one is not.
    """
    known = {column.name: column for column in columns}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            f"{who} names {_columns(unknown)} that the table does not have: {', '.join(unknown[:5])}",
            hint=f"the table has {', '.join(known)}",
        )
    generated = [name for name in names if known[name].generated]
    if generated:
        raise UsageError(
            f"{who} names {_columns(generated)} that the server computes: {', '.join(generated)}",
            cause="it takes no values for generated columns",
            hint=f"leave them out: --leave-out {shell_word(','.join(map(quoted, generated)))}",
        )
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise UsageError(
            f"{who} names {_columns(twice)} twice: {', '.join(twice)}",
            hint="a column takes one value: rename the others in the file, or take them out",
        )


def _columns(names: Sequence[str]) -> str:
    return "a column" if len(names) == 1 else "columns"


def quoted(name: str) -> str:
    """Return a name as options take it in a list."""
    return (
        '"' + name.replace('"', '""') + '"'
        if not name or any(sign in name for sign in ',"') or name != name.strip()
        else name
    )
