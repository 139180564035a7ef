"""Defaults of options from a file: `~/.config/pgsweep/config.toml`.

    host = "db1"              # of every command that has the option
    username = "monitor"

    [record]                  # of one command
    for = "60s"

    [warm.run]
    rate = "200MB"

The command line and the environment override it. PGSWEEP_CONFIG names another file; if empty, none is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pgsweep.cli.overview import COMMANDS
from pgsweep.errors import UsageError

if TYPE_CHECKING:
    from pgsweep.toml_file import TomlFile

_PORTS: Final = re.compile(r"\d{0,5}(,\d{0,5})*")
"""As libpq takes them: one for each host, or the default where there is nothing."""

_EVERYWHERE: Final = (
    "host",
    "port",
    "username",
    "dbname",
    "no-password",
    "color",
    "quiet",
    "no-progress",
    "source",
)
"""Options that may stand before the first table: they mean the same for each command that has them."""

_NEVER: Final = ("help", "password", "yes", "apply", "undo", "evict")
"""Options that must be decided at each run, so the file cannot set them."""

_ENVIRONMENT: Final = {
    "host": ("PGHOST", "PGHOSTADDR", "PGSERVICE"),
    "port": ("PGPORT", "PGHOST", "PGSERVICE"),
    "username": ("PGUSER", "PGSERVICE"),
    "dbname": ("PGDATABASE", "PGSERVICE"),
}
"""libpq's variables, which override the file."""


def config_path(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return where the file is, or would be; None if no file is to be read."""
    if "PGSWEEP_CONFIG" in environment:
        return Path(environment["PGSWEEP_CONFIG"]) if environment["PGSWEEP_CONFIG"] else None
    home, given = environment.get("HOME", ""), environment.get("XDG_CONFIG_HOME")
    folder = Path(given) if given else Path(home) / ".config"
    return folder / "pgsweep" / "config.toml" if folder.is_absolute() else None


def name_in_environment(command: click.Command, name: str) -> None:
    """Name the variables of a command's options as the command line has them: PGSWEEP_RECORD_FOR is --for.

    By itself click takes the name of the function's parameter, which a user does not see.
    """
    for option in command.params:
        word = next((each[2:] for each in option.opts if each.startswith("--")), "")
        if isinstance(option, click.Option) and word and word not in _NEVER:
            option.envvar = f"PGSWEEP_{name} {word}".upper().replace(" ", "_").replace("-", "_")


def defaults_for(command: click.Command, name: str) -> dict[str, Any]:
    """Return the defaults that the file has for a command, by the names of its parameters.

    Args:
        command: whose options they are.
        name: as it is called: `record`, `warm run`.

    Raises:
        UsageError: the file that PGSWEEP_CONFIG names is not there; the file is not TOML, not the user's own,
            may be written by others, names an option that does not exist, or a value that it does not take.
    """
    path = config_path()
    # Not even the parser is loaded where there is no file.
    if path is None:
        return {}
    if not _is_there(path):
        if os.environ.get("PGSWEEP_CONFIG"):
            raise UsageError(
                f"there is no `{path}`, which PGSWEEP_CONFIG names",
                cause="without it, options would silently have other defaults",
                hint="name a file that is there, or leave out PGSWEEP_CONFIG; PGSWEEP_CONFIG= reads none",
            )
        return {}
    from pgsweep.toml_file import TomlFile

    file = TomlFile(path, of_user=True)
    options = {
        option.lstrip("-"): parameter
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
        if option.startswith("--")
    }
    found: dict[str, Any] = {}
    for key, value in file.values.items():
        if isinstance(value, dict):
            if key not in COMMANDS:
                raise UsageError(
                    f"{file.where(key)}: there is no command `{key}`",
                    hint=f"tables are of: {', '.join(sorted(COMMANDS))}",
                )
            continue
        if key not in _EVERYWHERE:
            raise _unknown(file.where(key), key, "every command", _EVERYWHERE)
        if key in options and not _is_set(key):
            found[str(options[key].name)] = _plain(value, options[key], file, key)
    table: Any = file.values
    for word in name.split():
        table = table.get(word, {}) if isinstance(table, dict) else {}
    for key, value in table.items() if isinstance(table, dict) else ():
        if isinstance(value, dict):
            continue  # of a subcommand
        if key not in options or key in _NEVER:
            where = file.where(*name.split(), key)
            raise _unknown(where, key, f"`pgsweep {name}`", [o for o in options if o not in _NEVER])
        if not _is_set(key):
            found[str(options[key].name)] = _plain(value, options[key], file, *name.split(), key)
    return found


def _is_there(path: Path) -> bool:
    """Return whether there is a file; not where its folder may not be entered (the HOME of another user)."""
    try:
        return path.exists()
    except OSError:
        return False


def _is_set(key: str) -> bool:
    return any(os.environ.get(name) for name in _ENVIRONMENT.get(key, ()))


def _plain(value: Any, option: click.Option, file: TomlFile, *keys: str) -> Any:
    """Return a value as the command line would have it; numbers are read by the option itself.

    Raises:
        UsageError: the option does not take it.
    """
    if option.multiple:
        words = [_word(entry) for entry in (value if isinstance(value, list) else [value])]
    else:
        words = [",".join(map(str, value)) if isinstance(value, list) else _word(value)]
    with file.blamed(*keys):
        for word in words:
            try:
                option.type.convert(word, option, None)
                if keys[-1] == "port" and not _PORTS.fullmatch(str(word)):
                    raise UsageError(f"port: `{word}` is not a number from 1 to 65535")
            except click.BadParameter as error:
                raise UsageError(f"{keys[-1]}: {error.message.rstrip('.')}") from error
    return words if option.multiple else words[0]


def _word(value: Any) -> Any:
    return value if isinstance(value, bool) else str(value)


def _unknown(where: str, key: str, whose: str, known: Any) -> UsageError:
    return UsageError(
        f"{where}: there is no option `{key}` of {whose} that may stand there",
        hint=f"the known ones are: {', '.join(sorted(known))}",
    )
