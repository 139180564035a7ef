"""Whether the prediction held after shared_buffers was changed, by the evidence that serve records anyway.

The pieces of evidence of before the change predict what the server does at its new size; those of after it
say what it does. Both are joined to windows and compared as `pgsweep verify` compares two recordings.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from pgsweep.evidence.joined import JoinedEvidence
from pgsweep.records.serve import ServeChange, ServeVerification
from pgsweep.sizing.verify import verify
from pgsweep.units import BLOCK_BYTES

LEAST_SECONDS: Final = 600.0
"""Least seconds of evidence with the new size before it is compared."""

WINDOW_SECONDS: Final = 3600.0
_ASIDE: Final = "verifying"


class _Meta(msgspec.Struct, frozen=True):
    shared_buffers_blocks: int = 0
    block_size_bytes: int = BLOCK_BYTES


def verify_change(folder: Path, pieces: Sequence[Path]) -> ServeVerification | None:
    """Return the verification of the last change of shared_buffers; None where there is none yet.

    Args:
        folder: of the pieces; what is compared is written there and removed again.
        pieces: in the order of recording.

    Raises:
        PgsweepError: there was a change, and the evidence cannot be compared.
    """
    found = last_change(pieces)
    if found is None:
        return None
    before, after = found
    aside = folder / _ASIDE
    # What a process that was killed left.
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        later = JoinedEvidence.of(after, WINDOW_SECONDS)
        if later.meta.seconds < LEAST_SECONDS:
            return None
        later.write(aside / "after")
        JoinedEvidence.of(before, WINDOW_SECONDS).write(aside / "before")
        result = verify(aside / "before", aside / "after")
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return ServeVerification(
        at=time.time(),
        changed_at=float(after[0].stem),
        result=msgspec.structs.replace(result, before=before[-1].name, after=after[0].name),
    )


def seen_change(pieces: Sequence[Path]) -> ServeChange | None:
    """Return the last change of shared_buffers that the evidence shows; None without one."""
    found = last_change(pieces)
    if found is None:
        return None
    before, after = found
    return ServeChange(
        at=float(after[0].stem), before_bytes=_bytes_of(before[-1]), after_bytes=_bytes_of(after[0])
    )


def last_change(pieces: Sequence[Path]) -> tuple[list[Path], list[Path]] | None:
    """Return the pieces with the size of before the last change, and those since; None without a change."""
    sizes = [_meta_of(piece).shared_buffers_blocks for piece in pieces]
    known = [(size, piece) for size, piece in zip(sizes, pieces, strict=True) if size]
    if not known:
        return None
    now = known[-1][0]
    others = [number for number, (size, _) in enumerate(known) if size != now]
    if not others:
        return None
    last = others[-1]
    first = last
    while first > 0 and known[first - 1][0] == known[last][0]:
        first -= 1
    return [piece for _, piece in known[first : last + 1]], [piece for _, piece in known[last + 1 :]]


def _bytes_of(piece: Path) -> int:
    meta = _meta_of(piece)
    return meta.shared_buffers_blocks * meta.block_size_bytes


def _meta_of(piece: Path) -> _Meta:
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((piece / "meta.json").read_bytes(), type=_Meta)
    return _Meta()
