"""The file of samples: JSON lines, one a run, each on disk before the next run begins.

The first line describes the plan, the server and the machine. After a kill only the last line may be cut
short; the next run removes it. A lock keeps two runs from writing the same file.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import msgspec

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.plain import shell_word
from pgsweep.records.lab import LabRun
from pgsweep.regular import NotRegular, open_regular
from pgsweep.units import format_bytes, format_count

_MOST_BYTES: Final = 64 << 20
_MOST_VALUES: Final = 5_000_000
"""In a file; a run has some fifty. A value takes some fifty bytes, and a number in JSON two."""

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="plan"):
    """The first line: what is run, on what.

    Attributes:
        plan: a digest of all that decides the figures.
    """

    schema: str = "pgsweep.lab-samples/1"
    name: str
    plan: str
    seed: int
    repetitions: int
    conditions: dict[str, str]
    settings: dict[str, str]
    server_version: str
    machine: str
    pgsweep_version: str
    command: str
    at: str


class Resumed(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="resumed"):
    """A line that says that a later run of pgsweep went on."""

    command: str
    at: str


class _Run(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="run"):
    run: LabRun


_DECODER = msgspec.json.Decoder(Header | Resumed | _Run)
_ENCODER = msgspec.json.Encoder()


class Samples:
    """An open file of samples: make one with `opened_samples`.

    Attributes:
        header: its first line.
        runs: those that it has.
    """

    def __init__(self, file: IO[bytes], header: Header, runs: list[LabRun]) -> None:
        self.header = header
        self.runs = runs
        self._file = file

    def add(self, run: LabRun) -> None:
        """Write a run; it is on disk when this returns.

        Raises:
            PgsweepError: the disk is full.
        """
        _write(self._file, _Run(run=run))
        self.runs.append(run)


@contextmanager
def opened_samples(path: Path, header: Header) -> Iterator[Samples]:
    """Open a file of samples to add to it; it is made where it is not there.

    Args:
        path: the file.
        header: of the plan; the seed of a file that is there counts.

    Raises:
        UsageError: it holds something else, or the runs of another plan, server or machine.
        PgsweepError: it cannot be written, or another run writes it.
    """
    try:
        descriptor = os.open(path, _FLAGS, 0o666)
    except OSError as error:
        raise PgsweepError(f"cannot write `{path}`: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"`{path}` is not a plain file", hint="name another: --samples FILE")
    # Unbuffered: otherwise what a full disk has refused would be written, and refused, again at the close.
    with os.fdopen(descriptor, "r+b", 0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise PgsweepError(
                f"another run is writing `{path}`", hint="wait for it, or name another file: --samples FILE"
            ) from error
        text = _bounded(file, path)
        if b"\n" not in text:
            # New, or killed within its first line. A file that does not begin like ours is not overwritten.
            if text and not text.startswith(b'{"kind":"plan"'):
                raise _foreign(path)
            file.seek(0)
            file.truncate()
            _write(file, header)
            yield Samples(file, header, [])
            return
        whole = text[: text.rindex(b"\n") + 1]
        found, runs = _parsed(whole, path)
        _check_same(path, found, header)
        file.seek(len(whole))
        file.truncate()
        _write(file, Resumed(command=header.command, at=header.at))
        yield Samples(file, found, runs)


def read_samples(path: Path) -> tuple[Header, list[LabRun]]:
    """Return what a file of samples holds; a last line that is cut short is left out.

    Raises:
        UsageError: it is not a file of samples.
        PgsweepError: it cannot be read.
    """
    try:
        with open_regular(path) as file:
            text = _bounded(file, path)
    except NotRegular as error:
        raise UsageError(f"`{path}` is not a plain file") from error
    except OSError as error:
        raise PgsweepError(f"cannot read `{path}`: {error.strerror}") from error
    if b"\n" not in text:
        raise _foreign(path)
    return _parsed(text[: text.rindex(b"\n") + 1], path)


def _bounded(file: IO[bytes], path: Path) -> bytes:
    """Return what a file of samples holds, if that is no more than there can be.

    Raises:
        UsageError: it is more.
    """
    text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES or text.count(b",") > _MOST_VALUES:
        raise UsageError(
            f"`{path}` is too long to be samples of pgsweep",
            cause=f"it has more than {format_bytes(_MOST_BYTES)}, or {format_count(_MOST_VALUES)} values",
            hint="name another: --samples FILE",
        )
    return text


def _parsed(text: bytes, path: Path) -> tuple[Header, list[LabRun]]:
    header: Header | None = None
    runs: dict[tuple[str, int], LabRun] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if header is None:
                raise _foreign(path) from error
            raise UsageError(
                f"`{path}` is damaged", cause=f"line {number}: {error}", hint="name another: --samples FILE"
            ) from error
        if isinstance(entry, Header):
            header = entry
        elif header is None:
            raise _foreign(path)
        elif isinstance(entry, _Run):
            runs[entry.run.job, entry.run.repetition] = entry.run
    if header is None:
        raise _foreign(path)
    return header, list(runs.values())


def _foreign(path: Path) -> UsageError:
    return UsageError(
        f"`{path}` holds no samples of pgsweep", hint="name a file that `pgsweep lab run` wrote, or a new one"
    )


def _check_same(path: Path, found: Header, wanted: Header) -> None:
    """Refuse to add runs to those of something else: the result would mix both."""
    for what, before, now in (
        ("name", found.name, wanted.name),
        ("PostgreSQL", found.server_version, wanted.server_version),
        ("machine", found.machine, wanted.machine),
        ("plan", found.plan, wanted.plan),
    ):
        if before != now:
            cause = "the grid, a script or the scale was changed since"
            if what != "plan":
                cause = f"the {what} was `{before}`, it is `{now}` now"
            raise UsageError(
                f"`{path}` holds the runs of another plan",
                cause=cause,
                hint=f"name another file: --samples FILE, or remove this one: rm {shell_word(str(path))}",
            )


def _write(file: IO[bytes], entry: msgspec.Struct) -> None:
    try:
        text = memoryview(_ENCODER.encode(entry) + b"\n")
        while text:
            text = text[file.write(text) :]
        os.fsync(file.fileno())
    except OSError as error:
        raise PgsweepError(f"cannot write the samples: {error.strerror}") from error
