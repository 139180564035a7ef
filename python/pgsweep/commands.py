"""Commands to paste, as hints and results propose them: for the server that the user named.

Whoever writes a text knows which of its commands are run on the user's server, and makes them here. The
command line says once which server was named; a program that imports pgsweep names none, and its texts have
commands without options. No text is changed afterwards: a result that is kept names the server that it was
asked of.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal

from pgsweep.plain import shell_word, shell_words

Named = Literal["server", "role", "database"]

_OPTIONS: Final[dict[Named, str]] = {"server": "-h -p", "role": "-h -p -U", "database": "-h -p -U -d"}

_askers: Final[list[tuple[Callable[[], str], Callable[[], Mapping[str, str]]]]] = [
    (lambda: "pgsweep ...", dict)
]
"""The last counts. A process runs one command, and its threads write hints too."""


@contextmanager
def asked_by(
    command: Callable[[], str] | None = None, options: Callable[[], Mapping[str, str]] = dict
) -> Iterator[None]:
    """Have the commands of this process be for the server that a command names.

    Args:
        command: returns it, without passwords; None for the one that is running.
        options: returns psql's options for the server: `{"-h": "db1", "-d": "shop"}`; none for any server.
    """
    _askers.append((command or _askers[-1][0], options))
    try:
        yield
    finally:
        _askers.pop()


def this_command() -> str:
    """Return the command that is running, to be run again: `pgsweep cache shop`."""
    return _askers[-1][0]()


def server_options() -> Mapping[str, str]:
    """Return psql's options for the server that was named."""
    return _askers[-1][1]()


def on_server(command: str, rest: str = "", *, named: Named = "database", role: str | None = None) -> str:
    """Return a command for the user's server: `pgsweep load -h db1 -d shop --resume orders`.

    Args:
        command: `psql`, `pg_isready`, or `pgsweep` and its subcommand.
        rest: what follows the options, quoted for a shell.
        named: how far the options lead: only to the server, where `rest` names another database or role.
        role: instead of the user's own.
    """
    given = {**server_options(), **({} if role is None else {"-U": role})}
    words = [
        word for option in _OPTIONS[named].split() if option in given for word in (option, given[option])
    ]
    return " ".join(filter(None, [command, shell_words(words), rest]))


def recording(options: str = "") -> str:
    """Return the command that records the user's server, as evidence whose name the user chooses."""
    return on_server("pgsweep record", f"{options} -o NAME.evidence".strip())


def sudo(user: str = "root", *, here: bool = True) -> str:
    """Return what stands before a command that another user of the system has to run.

    Root needs no sudo, and many containers have none.

    Args:
        user: who runs it.
        here: on this system. Who is root in a container need not be it on its host.
    """
    if os.geteuid() == 0 and here:
        return "" if user == "root" else f"runuser -u {shell_word(user)} -- "
    return "sudo " if user == "root" else f"sudo -u {shell_word(user)} "
