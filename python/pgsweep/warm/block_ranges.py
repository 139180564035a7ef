"""What is to be read, in order: stretches of blocks, and how many of them one statement reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

CALL_BYTES = 16 << 20
"""How much one statement reads: little enough that a stop or a pause takes effect at once, enough that the
cost of the statement itself is negligible."""

CALL_PIECES = 4096
"""How many stretches one statement reads at most: each is a function call and three numbers sent."""


class BlockRange(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of blocks of one fork of one relation.

    Attributes:
        database: where to connect to; for a shared catalog any database does.
        oid: of the relation, in that database.
        kind: as `caches.rows.KINDS` has it.
        fork: main, fsm or vm.
        heat: accesses of a block, whatever the measure; None where it is not known.
        saved: the heat comes from a heat file; all such stretches come before those known from statistics.
        partly: statistics show that less than half of the relation is in use, and not which blocks.
        usage_count: that the blocks had when they were saved.
        why: the reason for its place in the order.
    """

    database: str
    oid: int
    schema: str
    relation: str
    kind: str
    fork: str
    first_block: int
    blocks: int
    heat: float | None = None
    saved: bool = False
    partly: bool = False
    usage_count: int | None = None
    why: str | None = None

    @property
    def end_block(self) -> int:
        """The block after the last."""
        return self.first_block + self.blocks


@dataclass(frozen=True, slots=True)
class Call:
    """What one statement reads: pieces of one database.

    Attributes:
        blocks: how many it reads.
    """

    number: int
    database: str
    pieces: tuple[BlockRange, ...]
    blocks: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", sum([piece.blocks for piece in self.pieces]))


def calls_of(pieces: Iterable[BlockRange], call_blocks: int, *, first_number: int = 0) -> Iterator[Call]:
    """Group pieces into calls, in their order: large pieces are divided, small ones of a database joined.

    A call ends where the database changes, so pieces in an order that mixes databases make small calls.

    Args:
        pieces: in the order in which they are to be read; those without blocks are left out.
        call_blocks: how many blocks a call reads at most.
        first_number: of the first call.
    """
    number = first_number
    gathered: list[BlockRange] = []
    room = call_blocks
    for piece in pieces:
        first, rest = piece.first_block, piece.blocks
        while rest > 0:
            full = room == 0 or len(gathered) == CALL_PIECES
            if gathered and (full or gathered[0].database != piece.database):
                yield Call(number, gathered[0].database, tuple(gathered))
                number += 1
                gathered, room = [], call_blocks
            taken = min(rest, room)
            part = piece
            if taken != piece.blocks:
                part = msgspec.structs.replace(piece, first_block=first, blocks=taken)
            gathered.append(part)
            first, rest, room = first + taken, rest - taken, room - taken
    if gathered:
        yield Call(number, gathered[0].database, tuple(gathered))
