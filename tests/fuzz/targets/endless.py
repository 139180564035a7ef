"""Answers without end: every command that inspects a server, through a proxy that goes on and on.

A run that takes too long, or too much memory, is a finding of the runner.
"""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

from tests.fix_proxy import ENDLESS, Plan
from tests.fuzz.targets import server

INPUT = struct.Struct("<BBH")
"""Command, kind of answer, and after how many messages it begins."""


def seeds() -> list[bytes]:
    """Return an input for each kind of answer, at the set-up of a session; start the server."""
    server.seeds()
    return [INPUT.pack(kind % len(server.COMMANDS), kind, 25) for kind in range(len(ENDLESS))]


def mutate(_data: bytes, random: Random) -> bytes:
    return INPUT.pack(
        random.randrange(len(server.COMMANDS)),
        random.randrange(len(ENDLESS)),
        # Most commands have read some thousand messages by their end.
        random.choice((random.randrange(60), random.randrange(600), random.randrange(4000))),
    )


def run_one(data: bytes, workdir: Path) -> str | None:
    command, kind, skip = INPUT.unpack(data)
    return server.run_command(server.COMMANDS[command], Plan(0, 0.0, skip, endless=ENDLESS[kind]), workdir)
