"""The user's own server in the commands that hints and results propose."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from pgsweep.cli.settings import Settings
from pgsweep.errors import PgsweepError
from pgsweep.plain import shell_words

R = TypeVar("R")


def pasted(hint: str, server: Sequence[str], session: Sequence[str], command: str) -> str:
    """Return the hint with the user's own server in the commands that it names.

    Args:
        hint: may hold `psql -d NAME` and `psql -c` for the user's own database, `psql -d shop`, `psql -l`,
            `pg_isready`, `pgsweep doctor`, `pgsweep record` and `pgsweep load` with options, and
            `pgsweep ...` for the command that failed.
        server: the options that name the server: `-h db1 -p 5433`. A hint that says whom else to ask keeps
            the choice of the role.
        session: those, and the options that name role and database.
        command: the command line that failed, without passwords.
    """
    place, whole = shell_words(list(server)), shell_words(list(session))
    text = hint
    if whole:
        text = re.sub(r"\bpsql -d NAME\b", lambda _: f"psql {whole}", text)
        text = re.sub(r"\bpsql (?=-c )", lambda _: f"psql {whole} ", text)
        own = r"\bpgsweep (?:load(?= --(?:resume|rollback|keep-as-is) )|record(?= -))"
        text = re.sub(own, lambda found: f"{found[0]} {whole}", text)
    if place:
        text = re.sub(r"\bpsql (?=-[dl]\b)", lambda _: f"psql {place} ", text)
        text = re.sub(r"\bpg_isready\b(?! -)", lambda _: f"pg_isready {place}", text)
    if whole:
        text = re.sub(r"\bpgsweep doctor\b(?= *(?:`|$|,|;|\)))", lambda _: f"pgsweep doctor {whole}", text)
    return re.sub(r"\bpgsweep \.\.\.", lambda _: command, text)


def with_own_server(settings: Settings, hint: str) -> str:
    """Return the hint with the server that the command line named."""
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


def naming_own_server(settings: Settings, result: R) -> R:
    """Return a result whose list of what is missing proposes commands for the user's own server.

    Args:
        settings: of this command; a report of an older result has no server of its own.
        result: any; one without such a list is returned as it is.
    """
    missing = getattr(result, "missing", None)
    if not missing or settings.target is None:
        return result
    from msgspec.structs import replace

    named = [replace(one, enable=one.enable and with_own_server(settings, one.enable)) for one in missing]
    whole: Any = result
    changed: R = replace(whole, missing=named)
    return changed
