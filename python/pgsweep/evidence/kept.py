"""Answers that are kept beside the evidence, so that no question is computed twice.

They are in one file of some kB: `.answers` in a folder of evidence, `NAME.answers` beside a trace in a file.
It may be removed at any time. Nothing in it is believed that this user has not computed: it is signed (HMAC,
RFC 2104) with a key in the user's state folder, together with the digest of all files of the evidence and
what identifies this pgsweep. So a file that is damaged, forged, of other evidence, of another user or of
another version is as good as none, and the answer is computed anew.

Besides the answers there are steps on the way to them, which answer another question sooner: of snapshots the
fitted rates, of a trace what it does at a size, and what the page cache makes of that.

Nothing is kept where others could put something in the place of the file: see `files.check_private`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

import pgsweep
from pgsweep import _native
from pgsweep.evidence.meta import mapping_file, start_folder
from pgsweep.evidence.schema import ANSWERS, TABLES
from pgsweep.files import Untrusted, make_private, read_private, state_folder, write_whole
from pgsweep.regular import open_of, open_regular, read_bounded

R = TypeVar("R", bound=msgspec.Struct)
S = TypeVar("S")
K = TypeVar("K", int, str)

_MOST_BYTES: Final = 1 << 20
_MOST_ANSWERS: Final = 20
"""The latest: an answer has 1 to 4 kB."""

_MOST_STEPS_BYTES: Final = 1 << 17
"""The latest: the rates of a relation have 7 kB, what is known of one size of the pool some hundred bytes."""

_KEY: Final = "answers.key"
_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = hashlib.sha256().digest_size


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of the evidence; without what has no influence on the answer.

    Attributes:
        command: `predict` or `advise`.
        sizes_bytes: None for those that are taken where none is named.
        memory_bytes: --ram.
        memory_sizes_bytes: sizes with disk reads; None for all, and of `advise` for none.
        what_if: as it was written.
        loss: --loss.
        seed: of all draws.
    """

    command: str
    sizes_bytes: list[int] | None = None
    memory_bytes: int | None = None
    memory_sizes_bytes: list[int] | None = None
    what_if: list[str] = []
    loss: float | None = None
    seed: int = 0


class _Answer(msgspec.Struct, frozen=True):
    question: Question
    record: msgspec.Raw


class _Kept(msgspec.Struct, frozen=True):
    """What is in the file.

    Attributes:
        evidence: its digest.
        program: what identifies this pgsweep.
        answers, steps: the latest last.
    """

    evidence: str
    program: str
    answers: list[_Answer]
    steps: dict[str, bytes] = {}


class Steps:
    """Values that were computed on the way to answers, and are not computed twice; for several threads.

    Args:
        known: each as it was written, by a name that says all that it depends on beside the evidence.

    Attributes:
        used: whether one of these was taken.
    """

    def __init__(self, known: dict[str, bytes] | None = None) -> None:
        self._known = known or {}
        self._taken: dict[str, bytes] = {}
        self.used = False

    def step(self, name: str, kind: type[S], make: Callable[[], S]) -> S:
        """Return the value of a name; where it is not known, what `make` returns."""
        return self.steps(name, kind, [""], lambda _: {"": make()})[""]

    def steps(
        self, name: str, kind: type[S], keys: Iterable[K], make: Callable[[list[K]], dict[K, S]]
    ) -> dict[K, S]:
        """Return the values of several keys; of those that are not known, what `make` returns of them."""
        found: dict[K, S] = {}
        missing: list[K] = []
        for key in keys:
            full = f"{name} {key}"
            written = self._taken.get(full, self._known.get(full))
            if written is None:
                missing.append(key)
            else:
                found[key] = msgspec.msgpack.decode(written, type=kind, dec_hook=_from_parts)
                self._taken[full] = written
                self.used = True
        if missing:
            for key, value in make(missing).items():
                found[key] = value
                self._taken[f"{name} {key}"] = msgspec.msgpack.encode(value, enc_hook=_to_parts)
        return found

    def added_to(self, others: dict[str, bytes]) -> dict[str, bytes]:
        """Return other steps and these, without the oldest where they are too large."""
        found = {name: one for name, one in others.items() if name not in self._taken} | self._taken
        room = _MOST_STEPS_BYTES
        for name in reversed(list(found)):
            room -= len(found[name])
            if room < 0:
                del found[name]
        return found


def _to_parts(value: Any) -> Any:
    """Return an array or a number of numpy as what can be written."""
    if hasattr(value, "tobytes") and value.ndim:
        return (value.dtype.str, value.shape, value.tobytes())
    return value.item()


def _from_parts(_kind: type, parts: Any) -> Any:
    """Return the array that `_to_parts` has written."""
    import numpy as np

    kind, shape, data = parts
    return np.frombuffer(data, kind).reshape(shape).copy()


def answered(evidence: Path, question: Question, of: type[R], make: Callable[[Steps], R]) -> R:
    """Return the answer that is kept; without one make it, and keep it where that is possible.

    Args:
        evidence: a folder or a file.
        question: all that the answer depends on besides.
        of: the type of the answer.
        make: computes it, with the steps that are known. Whatever it raises is raised, and not kept.
    """
    key, digest = _key(), _digest(evidence)
    if key is None or digest is None:
        return make(Steps())
    file = evidence.with_name(evidence.name + ANSWERS) if evidence.is_file() else evidence / ANSWERS
    kept = _read(file, key, digest)
    for one in kept.answers:
        if one.question == question:
            with contextlib.suppress(msgspec.DecodeError):
                return msgspec.json.decode(one.record, type=of)
    steps = Steps(kept.steps)
    answer = make(steps)
    if _digest(evidence) != digest:
        # Evidence that is still being recorded: steps of before do not belong to what has been read since.
        return make(Steps()) if steps.used else answer
    record = msgspec.json.encode(answer)
    with contextlib.suppress(msgspec.DecodeError):  # JSON has no NaN
        if msgspec.json.decode(record, type=of) == answer:
            kept = _read(file, key, digest)  # others may have been kept meanwhile
            others = [one for one in kept.answers if one.question != question][1 - _MOST_ANSWERS :]
            answers = [*others, _Answer(question, msgspec.Raw(record))]
            kept = msgspec.structs.replace(kept, answers=answers, steps=steps.added_to(kept.steps))
            _write(file, key, kept, evidence)
    return answer


def _read(file: Path, key: bytes, digest: str) -> _Kept:
    """Return what is kept of this evidence by this program; nothing where the file is not what we wrote."""
    none = _Kept(evidence=digest, program=_program(), answers=[])
    with contextlib.suppress(OSError, msgspec.DecodeError, zlib.error):
        with os.fdopen(open_of(file, os.geteuid(), os.O_RDONLY), "rb") as opened:
            data = read_bounded(opened, _MOST_BYTES, file)
        signature, packed = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
        # Before anything else is made of it.
        if hmac.compare_digest(signature, _signature(key, packed)):
            kept = msgspec.json.decode(zlib.decompress(packed), type=_Kept)
            if (kept.evidence, kept.program) == (none.evidence, none.program):
                return kept
    return none


def _write(file: Path, key: bytes, kept: _Kept, evidence: Path) -> None:
    """Write the file with the permissions of the evidence; not where others may write, or nobody."""
    packed = zlib.compress(msgspec.json.encode(kept))
    with contextlib.suppress(OSError, Untrusted):
        if len(packed) + _SIGNATURE_BYTES <= _MOST_BYTES:
            mode = (evidence if evidence.is_file() else evidence / "meta.json").stat().st_mode & 0o666
            write_whole(file, _signature(key, packed) + packed, mode=mode, private=True, durable=False)


def _signature(key: bytes, packed: bytes) -> bytes:
    return hmac.digest(key, packed, "sha256")


def _key() -> bytes | None:
    """Return this user's key, made where there is none; None where it cannot be kept."""
    folder = state_folder()
    if folder is None:
        return None
    with contextlib.suppress(OSError, Untrusted):
        with contextlib.suppress(FileNotFoundError):
            found = read_private(folder / _KEY)
            if len(found) == _KEY_BYTES:
                return found
        made = os.urandom(_KEY_BYTES)
        make_private(folder, mode=0o700)
        write_whole(folder / _KEY, made, mode=0o600, private=True)
        return made
    return None


def _digest(evidence: Path) -> str | None:
    """Return the digest of all files that the evidence consists of; None where one cannot be read."""
    found = hashlib.sha256()
    try:
        for name, file in _files(evidence):
            with contextlib.suppress(FileNotFoundError), open_regular(file) as opened:
                content = hashlib.file_digest(opened, "sha256").digest()
                found.update(len(name).to_bytes(8) + name.encode(errors="surrogateescape") + content)
    except OSError:
        return None
    return found.hexdigest()


def _files(evidence: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files, each with a name that does not change where the evidence is moved."""
    if evidence.is_file():
        yield "trace", evidence
        yield "relations", mapping_file(evidence)
        evidence = start_folder(evidence)
    yield "meta", evidence / "meta.json"
    for table in TABLES:
        with contextlib.suppress(FileNotFoundError), os.scandir(evidence / table) as entries:
            names = sorted(entry.name for entry in entries)
            yield from ((f"{table}/{name}", evidence / table / name) for name in names)


def _program() -> str:
    """Return what identifies this pgsweep: its version, that of Python, and the files that it consists of.

    A version alone does not: between two releases there are many states of the code.
    """
    root = Path(pgsweep.__file__).parent
    found = hashlib.sha256(f"{_native.__version__} {_native.build_profile()} {sys.version}".encode())
    for folder, _, names in sorted(os.walk(root)):
        for name in sorted(names):
            if name.endswith((".py", ".so", ".sql")):
                status = os.stat(os.path.join(folder, name))  # noqa: PTH116, PTH118
                found.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return found.hexdigest()
