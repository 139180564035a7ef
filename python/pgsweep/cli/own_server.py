"""The user's own server in the commands that hints and results propose."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pgsweep.cli.settings import Settings
from pgsweep.errors import PgsweepError
from pgsweep.plain import shell_words

R = TypeVar("R")

_COMMAND: Final = re.compile(
    r"\bpgsweep (?:"
    r"load(?= --(?:resume|rollback|keep-as-is) )"
    # What is said of a file that one of these wrote names no command to run.
    r"|record(?= -)|warm (?:save|restore)(?= [\w./'$~-]+\.)"
    r"|doctor(?= *(?:[`,;)]|$))"
    r"|(?:cache|top|footprint|hugepages|memory budget|memory|warm (?:check|keep|plan|run))"
    r"(?= *(?:[`,;)]|$| --(?!undo|apply)))"
    r")(?! -[hpUd]\b)(?!(?: [a-z-]+)* \.\.\.)"
)
"""Commands for the user's own server, without options that name one."""

_PARTS: Final = ("abilities", "missing", "refused", "troubles", "settings", "parts", "problems", "steps")
_TEXTS: Final = ("enable", "value", "reason", "why", "text", "undo")
_DONE: Final = ("work", "outcome")
"""Where results propose commands: the parts that a result lists, and their fields; and what has parts too."""


def pasted(hint: str, server: Sequence[str], session: Sequence[str], command: str) -> str:
    """Return the hint with the user's own server in the commands that it names.

    Args:
        hint: may hold `psql -d NAME` and `psql -c` for the user's own database, `psql -d shop`, `psql -l`,
            `pg_isready`, commands of pgsweep for a server, and `pgsweep ...` or `pgsweep record ...` for the
            command that failed.
        server: the options that name the server: `-h db1 -p 5433`. A hint that says whom else to ask keeps
            the choice of the role.
        session: those, and the options that name role and database.
        command: the command line that failed, without passwords.
    """
    place, whole = shell_words(list(server)), shell_words(list(session))
    # The list of databases is asked for when the server has let this role in, but has no such database.
    role = shell_words(list(session[: session.index("-d")] if "-d" in session else session))
    text = re.sub(r"\bpsql (?=-l\b)", lambda _: f"psql {role} ", hint) if role else hint
    if whole:
        text = re.sub(r"\bpsql -d NAME\b", lambda _: f"psql {whole}", text)
        text = re.sub(r"\bpsql (?=-c )", lambda _: f"psql {whole} ", text)
        text = _COMMAND.sub(lambda found: f"{found[0]} {_without_other_role(session, found)}", text)
    if place:
        text = re.sub(r"\bpsql (?=-d\b)", lambda _: f"psql {place} ", text)
        text = re.sub(r"\bpg_isready\b(?! -)", lambda _: f"pg_isready {place}", text)
    return re.sub(r"\bpgsweep(?: [a-z-]+)* \.\.\.", lambda _: command, text)


def _without_other_role(session: Sequence[str], command: re.Match[str]) -> str:
    """Return the options of the session; the role is left to a command that names one itself."""
    words = list(session)
    if " -U " in command.string[command.end() :].partition(";")[0] and "-U" in words:
        place = words.index("-U")
        del words[place : place + 2]
    return shell_words(words)


def with_own_server(settings: Settings, hint: str, *, here: bool = True) -> str:
    """Return the hint with the server that the command line named; `here`: it is run on this system."""
    if os.geteuid() == 0 and here:
        hint = _as_root(hint)
    if not any(word in hint for word in ("psql -", "pg_isready", "pgsweep ")):
        return hint
    from pgsweep.pg.secrets import without_secrets

    server: list[str] = []
    session: list[str] = []
    if settings.target is not None:
        with contextlib.suppress(PgsweepError):
            server, session = settings.target.options()
    command = shell_words(["pgsweep", *(without_secrets(word) for word in settings.arguments)])
    return pasted(hint, server, session, command)


def _as_root(hint: str) -> str:
    """Return the hint for root, who needs no sudo; many containers have none."""
    return re.sub(r"\bsudo (?!-)", "", re.sub(r"\bsudo -u (\S+) ", r"runuser -u \1 -- ", hint))


def naming_own_server(settings: Settings, result: R) -> R:
    """Return a result whose parts propose commands for the user's own server.

    Args:
        settings: of this command; a report of an older result has no server of its own.
        result: any; one that proposes nothing is returned as it is.
    """
    if settings.target is None:
        return result
    from msgspec.structs import replace

    place = getattr(result, "place", None)
    # Who is root in a container need not be it on the host, for which some of the commands are.
    here = place is None or not place.contained

    def named(part: Any) -> Any:
        if isinstance(part, str):
            return with_own_server(settings, part, here=here)
        texts = {name: text for name in _TEXTS if isinstance(text := getattr(part, name, None), str)}
        changed = {name: with_own_server(settings, text, here=here) for name, text in texts.items()}
        return part if changed == texts else replace(part, **changed)

    lists: dict[str, Any] = {
        name: found for name in _PARTS if isinstance(found := getattr(result, name, None), list)
    }
    changed: dict[str, Any] = {name: [named(part) for part in found] for name, found in lists.items()}
    whole: Any = result
    for name in _DONE:
        if (done := getattr(result, name, None)) is not None:
            lists[name], changed[name] = done, naming_own_server(settings, done)
    whole = whole if changed == lists else replace(whole, **changed)
    rewritten: R = whole
    return rewritten
