"""Evidence of one server, recorded without end, in pieces: what the live curve is predicted from.

Each piece is evidence as `pgsweep record` writes it, ten minutes long: killed at any time it is readable
up to its last part. Pieces that no short window needs any more are thinned, and the oldest are removed, so
that the folder keeps to its limit. By peek the server works on nothing but the counters; by SQL snapshots
take at most 2.5% of one backend's time, which is what `pgsweep record` allows itself.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from pgsweep.errors import EvidenceError, MissingAbility, PgsweepError
from pgsweep.evidence.joined import JoinedEvidence
from pgsweep.evidence.peek import record_peek
from pgsweep.evidence.sql import record_sql
from pgsweep.files import rename_flushed
from pgsweep.pg.session.failures import DriverError, first_line
from pgsweep.pg.session.retry import Pauses

PIECE_SECONDS: Final = 600.0
"""Snapshots are then ten seconds apart (snapshot_schedule.py)."""

SAMPLE_BLOCKS: Final = 1 << 15
"""Blocks kept of each snapshot at most: some hundred kB on disk, and windows that fit into memory."""

THIN_AFTER_SECONDS: Final = 2 * 3600.0
_THIN_SNAPSHOTS: Final = 6
_THIN_SAMPLES: Final = 2

_LONGEST_PAUSE_SECONDS: Final = 60.0
_SEED: Final = 1
"""The seed of all pieces: only with one seed do they hold the same sample of blocks."""


class Recorder:
    """Records one server in a thread until it is stopped.

    Args:
        conninfo: as libpq understands it.
        folder: of this server's pieces; is made.
        most_bytes: of all pieces.
        source: `auto`, `peek` or `sql`, as for `pgsweep record`.
        report: called with the reason why nothing is recorded now, or with None when recording begins.
    """

    def __init__(
        self,
        conninfo: str,
        folder: Path,
        *,
        most_bytes: int,
        source: str = "auto",
        report: Callable[[str | None], None] = lambda _why: None,
    ) -> None:
        self._conninfo = conninfo
        self._folder = folder
        self._most_bytes = most_bytes
        self._source = source
        self._report = report
        self._ended = threading.Event()
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """End the piece that is being recorded; it stays readable."""
        self._ended.set()
        self._awake.set()

    def try_again(self) -> None:
        """End a pause after a failure: the server can be read now."""
        self._awake.set()

    def join(self, seconds: float) -> None:
        """Wait for the end, at most this long."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        pauses = Pauses(_LONGEST_PAUSE_SECONDS, first_seconds=1.0)
        while not self._ended.is_set():
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                keep_to(self._folder, self._most_bytes)
                self._report(None)
                self._record(self._folder / f"{time.time():.0f}.evidence")
                pauses.start_again()
            except (PgsweepError, DriverError, OSError, RuntimeError) as error:
                if self._ended.is_set():
                    return
                why = error.message if isinstance(error, PgsweepError) else first_line(error)
                self._report(why)
                pauses.wait(self._awake)
                self._awake.clear()
            except KeyboardInterrupt:
                return  # stopped before the first snapshot
            else:
                # A server that went away is not asked again at once.
                self._ended.wait(1.0)

    def _record(self, path: Path) -> None:
        sources = {"peek": record_peek, "sql": record_sql}
        wanted = ["peek", "sql"] if self._source == "auto" else [self._source]
        for name in wanted:
            try:
                sources[name](
                    self._conninfo,
                    path,
                    seconds=PIECE_SECONDS,
                    rng_seed=_SEED,
                    stop=self._ended,
                    sample_blocks=SAMPLE_BLOCKS,
                    blocks_cached=False,
                )
            except MissingAbility:
                if name == wanted[-1]:
                    raise
            else:
                return


def pieces_of(folder: Path) -> list[Path]:
    """Return the pieces in the order of recording."""
    return sorted(folder.glob("*.evidence"), key=lambda path: (len(path.name), path.name))


def keep_to(folder: Path, most_bytes: int, *, now: float | None = None) -> None:
    """Thin the pieces that are old, and remove the oldest until the rest has at most `most_bytes`.

    Raises:
        OSError: the folder cannot be read.
    """
    now = time.time() if now is None else now
    for left in folder.glob("*.thin"):
        # What a process that was killed left: whole only if the piece itself is gone already.
        piece = left.with_suffix("")
        if piece.exists() or not (left / "meta.json").exists():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.rename(piece)
    pieces = pieces_of(folder)
    for piece in pieces[:-1]:
        if now - float(piece.stem) > THIN_AFTER_SECONDS + PIECE_SECONDS:
            with suppress(EvidenceError):
                _thin(piece)
    sizes = {piece: _size(piece) for piece in pieces}
    for piece in pieces[:-1]:
        if sum(sizes.values()) <= most_bytes:
            break
        shutil.rmtree(piece, ignore_errors=True)
        del sizes[piece]


def _thin(piece: Path) -> None:
    """Replace a piece by one with a few of its snapshots.

    Raises:
        EvidenceError, OSError: it cannot be read or written.
    """
    if (piece / "thin").exists():
        return
    joined = JoinedEvidence.of(
        [piece], PIECE_SECONDS * 2, most_snapshots=_THIN_SNAPSHOTS, most_samples=_THIN_SAMPLES
    )
    meta = msgspec.json.decode((piece / "meta.json").read_bytes())
    joined.meta = msgspec.structs.replace(joined.meta, ended_by=str(meta.get("ended_by", "")))
    aside = piece.with_name(piece.name + ".thin")
    joined.write(aside)
    (aside / "thin").touch()
    shutil.rmtree(piece)
    rename_flushed(aside, piece)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size
    return total
