"""Warming: what was planned, and what came of it."""

from __future__ import annotations

import msgspec


class WarmTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of one relation that could not be read, and why."""

    database: str
    schema: str
    relation: str
    why: str
    blocks: int
    enable: str | None = None
