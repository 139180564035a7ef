"""Files of settings and of secrets that a user wrote: who may write them, and where a fault stands.

Settings decide what is connected to, read and written. So a file of them that others may write is refused, as
ssh refuses its own (sshd_config(5), StrictModes).
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from pgsweep.decoded import toml_of
from pgsweep.errors import UsageError
from pgsweep.plain import shell_word
from pgsweep.regular import open_regular, read_bounded

_MOST_BYTES: Final = 1 << 20
_MOST_LINES: Final = 1000
"""In a longer file the line of a fault is not searched for: each line may parse all before it."""

_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text in quotes",
    "bool": "true or false",
    "array": "a list in brackets",
    "object": "a table",
}
"""TOML's types by their names in msgspec's messages."""

T = TypeVar("T", bound=msgspec.Struct)


def require_unshared(path: Path, status: os.stat_result | None = None) -> None:
    """Check that nobody but its owner may write a file.

    A group may, if it is the owner's own: where umask is 002
    each user has one (USERGROUPS_ENAB, login.defs(5)).

    Raises:
        UsageError: others may write it.
        OSError: it is not there.
    """
    status = status or path.stat()
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _is_own_group(status)):
        raise UsageError(
            f"`{path}` may be written by others: its mode is {stat.S_IMODE(status.st_mode):04o}",
            cause="what it says decides what is read, written and shown",
            hint=f"chmod go-w {shell_word(str(path))}",
        )


def _is_own_group(status: os.stat_result) -> bool:
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return (
        owner.pw_gid == group.gr_gid
        and owner.pw_name == group.gr_name
        and set(group.gr_mem) <= {owner.pw_name}
    )


class TomlFile:
    """A file of settings in TOML.

    Args:
        path: where it is.
        of_user: it must be the user's own, or root's.

    Attributes:
        values: what it says.

    Raises:
        UsageError: it cannot be read, others may write it, or it is not TOML.
    """

    def __init__(self, path: Path, *, of_user: bool = False) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                status = os.fstat(file.fileno())
                if of_user and status.st_uid not in (0, os.geteuid()):
                    raise UsageError(
                        f"`{path}` is another user's",
                        cause="options in it decide what is read and written",
                        hint="run with PGSWEEP_CONFIG= to leave it out; with sudo: sudo -H",
                    )
                require_unshared(path, status)
                text = read_bounded(file, _MOST_BYTES, path)
                self.values = toml_of(text)
        except OSError as error:
            raise UsageError(f"cannot read `{path}`", cause=error.strerror) from error
        except ValueError as error:
            raise UsageError(
                f"`{path}` is not TOML",
                cause=str(error),
                hint='lines such as host = "db1", and tables: [record]',
            ) from error
        self._lines = text.decode().splitlines(keepends=True)

    def where(self, *keys: str | int) -> str:
        """Return in words where the value of these keys, and numbers in lists, stands: the line, if found."""
        line = self._line_of(keys)
        return f"`{self.path}`" if line is None else f"`{self.path}`, line {line}"

    def _line_of(self, keys: tuple[str | int, ...]) -> int | None:
        """Return the line of the value: the last that names it before the text up to there has the value."""
        names = [key for key in keys if isinstance(key, str)]
        begin = None
        for number, line in enumerate(self._lines[:_MOST_LINES], 1):
            if names and re.search(rf"(?<![\w-]){re.escape(names[-1])}(?![\w-])", line):
                begin = number
            if begin is not None:
                try:
                    if _has(toml_of("".join(self._lines[:number]).encode()), keys):
                        return begin
                except ValueError:
                    continue  # within a text or a list of several lines
        return None

    @contextmanager
    def blamed(self, *keys: str | int) -> Iterator[None]:
        """Let a fault of usage say that the file is where the value came from.

        Raises:
            UsageError: the fault.
        """
        try:
            yield
        except UsageError as error:
            message = f"{self.where(*keys)}: {error.message}"
            raise UsageError(message, cause=error.cause, hint=error.hint) from error

    def table(self, kind: type[T], values: Any, *keys: str | int) -> T:
        """Return one of its tables by the names and types that are allowed there.

        Args:
            kind: what is allowed.
            values: the table; it stands at `keys`.

        Raises:
            UsageError: a name or a type is another.
        """
        try:
            return msgspec.convert(values, kind)
        except msgspec.ValidationError as error:
            message, _, place = str(error).partition(" - at `$")
            inside = re.findall(r"\.([\w-]+)", place)
            unknown = re.match(r"Object contains unknown field `(.*)`", message)
            lacking = re.match(r"Object missing required field `(.*)`", message)
            name = unknown[1] if unknown else ".".join(inside)
            at = self.where(*keys, *([name] if unknown else inside))
            if lacking:
                raise UsageError(
                    f"{at}: `{keys[0]}` has no `{lacking[1]}`", hint=f'{lacking[1]} = "..."'
                ) from error
            fields = {field.encode_name: field.name for field in msgspec.structs.fields(kind)}
            if unknown:
                allowed = f"the known ones are: {', '.join(sorted(fields))}"
                raise UsageError(f"{at}: there is no option `{name}`", hint=allowed) from error
            choices = _choices(get_type_hints(kind).get(fields.get(name, "")))
            if choices:
                raise UsageError(f"{at}: `{name}` is none of: {', '.join(choices)}") from error
            types = re.match(r"Expected `(.*?)(?: \| null)?`", message)
            wanted = _WORDS.get(types[1], types[1]) if types else message
            raise UsageError(f"{at}: `{name or keys[0]}` is not {wanted}") from error


def _has(values: Any, keys: tuple[str | int, ...]) -> bool:
    for key in keys:
        try:
            values = values[key]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _choices(hint: Any) -> list[str]:
    """Return the words of a Literal, also of one that may be None."""
    return [word for one in (hint, *get_args(hint)) for word in get_args(one) if isinstance(word, str)]
