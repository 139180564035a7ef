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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import msgspec

from pgsweep.decoded import toml_of
from pgsweep.errors import UsageError
from pgsweep.plain import shell_word, shown
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
        except FileNotFoundError as error:
            raise UsageError(f"there is no file `{path}`") from error
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
            inside = [name or int(number) for name, number in re.findall(r"\.([\w-]+)|\[(\d+)\]", place)]
            names = [one for one in inside if isinstance(one, str)]
            unknown = re.match(r"Object contains unknown field `(.*)`", message)
            lacking = re.match(r"Object missing required field `(.*)`", message)
            subject = f"`{'.'.join(names) or keys[0]}`" if names or keys else "the file"
            if lacking:
                raise UsageError(
                    f"{self.where(*keys, *inside)}: {subject} has no `{lacking[1]}`",
                    hint=f'{lacking[1]} = "..."',
                ) from error
            if unknown:
                allowed = ", ".join(sorted(one.encode_name for one in _fields_at(kind, names)))
                raise UsageError(
                    f"{self.where(*keys, *inside, unknown[1])}: there is no option `{unknown[1]}`",
                    hint=f"the known ones are: {allowed}",
                ) from error
            hints = [one.type for one in _fields_at(kind, names[:-1]) if one.encode_name == names[-1]]
            # The words of a Literal, also of one that may be None.
            choices = [word for hint in hints for word in _parts(hint) if isinstance(word, str)]
            wanted = f"none of: {', '.join(choices)}" if choices else f"not {_wanted(message)}"
            # What should be a text may be a secret.
            secret = not choices and "`str" in message
            given = None if secret else f"it is {msgspec.json.encode(_at(values, inside)).decode()}"
            raise UsageError(
                f"{self.where(*keys, *inside)}: {subject} is {wanted}", cause=given and shown(given)
            ) from error


def _has(values: Any, keys: tuple[str | int, ...]) -> bool:
    try:
        _at(values, keys)
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _at(values: Any, keys: Sequence[str | int]) -> Any:
    for key in keys:
        values = values[key]
    return values


def _fields_at(kind: type[msgspec.Struct], names: Sequence[str]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a struct, or of that which the fields of these names have, also in a list."""
    fields = msgspec.structs.fields(kind)
    for name in names:
        hint = next((one.type for one in fields if one.encode_name == name), None)
        inner = [one for one in _parts(hint) if isinstance(one, type) and issubclass(one, msgspec.Struct)]
        fields = msgspec.structs.fields(inner[0]) if inner else ()
    return fields


def _parts(hint: Any) -> list[Any]:
    """Return a type and all that it is made of."""
    return [hint, *(part for one in get_args(hint) for part in _parts(one))]


def _wanted(message: str) -> str:
    """Return in words what msgspec's message says that is expected."""
    found = re.match(r"Expected `([^`]*)`(?: of length)?(?: (>=?) (\S+))?", message)
    if found is None:
        return message
    words = " or ".join(_WORDS.get(kind, kind) for kind in found[1].split(" | ") if kind != "null")
    bound = {">=": " of at least ", ">": " above "}.get(found[2], "")
    return words + (bound and bound + found[3].removesuffix(".0"))
