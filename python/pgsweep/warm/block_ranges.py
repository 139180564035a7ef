"""What is to be read, in order: stretches of blocks, and how many of them one statement reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import overload

import msgspec
import numpy as np
from numpy.typing import NDArray

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
        kind: as `residency.rows.KINDS` has it.
        fork: main, fsm or vm.
        heat: accesses of a block, whatever the measure; None where it is not known.
        saved: the heat comes from a heat file; all such stretches come before those known from statistics.
        relation_blocks: of the whole relation, where no heat is known.
        partly: statistics show that less than half of the relation is in use, and not which blocks.
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
    relation_blocks: int = 0
    saved: bool = False
    partly: bool = False
    why: str | None = None

    @property
    def end_block(self) -> int:
        """The block after the last."""
        return self.first_block + self.blocks


class Stretches(Sequence[BlockRange]):
    """Stretches of blocks, kept as arrays; a `BlockRange` is made of each only where it is asked for.

    A restore has hundreds of thousands of stretches, most of one or two blocks.

    Args:
        forks: what the stretches belong to; which blocks of it these name does not matter.
        fork: index into the forks; arrays are parallel, one element a stretch.
        first_block: where each begins.
        blocks: how many each has.
    """

    __slots__ = ("blocks", "first_block", "fork", "forks")

    def __init__(
        self,
        forks: Sequence[BlockRange],
        fork: NDArray[np.int32],
        first_block: NDArray[np.int64],
        blocks: NDArray[np.int64],
    ) -> None:
        self.forks = forks
        self.fork = fork
        self.first_block = first_block
        self.blocks = blocks

    @classmethod
    def of(cls, pieces: Sequence[BlockRange]) -> Stretches:
        """Return pieces as arrays."""
        if isinstance(pieces, Stretches):
            return pieces
        numbers: dict[tuple[str, int, str], int] = {}
        fork = [numbers.setdefault((p.database, p.oid, p.fork), at) for at, p in enumerate(pieces)]
        return cls(
            pieces,
            np.array(fork, dtype=np.int32),
            np.array([piece.first_block for piece in pieces], dtype=np.int64),
            np.array([piece.blocks for piece in pieces], dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.fork)

    @overload
    def __getitem__(self, at: int) -> BlockRange: ...

    @overload
    def __getitem__(self, at: slice) -> Stretches: ...

    def __getitem__(self, at: int | slice) -> BlockRange | Stretches:
        if isinstance(at, slice):
            return Stretches(self.forks, self.fork[at], self.first_block[at], self.blocks[at])
        piece: BlockRange = msgspec.structs.replace(
            self.forks[self.fork[at]],
            first_block=int(self.first_block[at]),
            blocks=int(self.blocks[at]),
        )
        return piece

    def by_fork(self) -> list[Stretches]:
        """Return the stretches by fork, in their order."""
        edges = [0, *(1 + np.flatnonzero(np.diff(self.fork))).tolist(), len(self)]
        return [self[begin:end] for begin, end in pairwise(edges) if begin < end]


@dataclass(frozen=True, slots=True)
class Call:
    """What one statement reads: pieces of one database.

    Attributes:
        blocks: how many it reads.
    """

    number: int
    database: str
    pieces: Sequence[BlockRange]
    blocks: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.pieces, Stretches):
            blocks = int(self.pieces.blocks.sum())
        else:
            blocks = sum([piece.blocks for piece in self.pieces])
        object.__setattr__(self, "blocks", blocks)


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
