"""Hints as they can be pasted: with the host, port and user that the command line named."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pgsweep.plain import shell_words


def pasted(hint: str, server: Sequence[str], session: Sequence[str], command: str) -> str:
    """Return the hint with the user's own server in the commands that it names.

    Args:
        hint: may hold `psql -d NAME`, `psql -l`, `pg_isready`, `pgsweep doctor`, and `pgsweep ...` for the
            command that failed.
        server: the options that name the server: `-h db1 -p 5433`. A hint that says whom else to ask keeps
            the choice of the role.
        session: those, and the options that name role and database.
        command: the command line that failed, without passwords.
    """
    place, whole = shell_words(list(server)), shell_words(list(session))
    text = hint
    if place:
        text = re.sub(r"\bpsql (?=-[dl]\b)", lambda _: f"psql {place} ", text)
        text = re.sub(r"\bpg_isready\b(?! -)", lambda _: f"pg_isready {place}", text)
    if whole:
        text = re.sub(r"\bpgsweep doctor\b(?= *(?:`|$|,|;|\)))", lambda _: f"pgsweep doctor {whole}", text)
    return re.sub(r"\bpgsweep \.\.\.", lambda _: command, text)
