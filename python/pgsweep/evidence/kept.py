"""Answers that are kept beside the evidence, so that no question is computed twice.

They are in one file of some kB: `.answers` in a folder of evidence, `NAME.answers` beside a trace in a file.
It may be removed at any time. Nothing in it is believed that this user has not computed: it is signed (HMAC,
RFC 2104) with a key in the user's state folder, together with the digest of all files of the evidence and
what identifies this pgsweep. So a file that is damaged, forged, of other evidence, of another user or of
another version is as good as none, and the answer is computed anew.

Nothing is kept where others could put something in the place of the file: see `files.check_private`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

import pgsweep
from pgsweep import _native
from pgsweep.evidence.meta import mapping_file, start_folder
from pgsweep.evidence.schema import ANSWERS, TABLES
from pgsweep.files import Untrusted, make_private, read_private, state_folder, write_whole
from pgsweep.regular import open_of, open_regular, read_bounded

R = TypeVar("R", bound=msgspec.Struct)

_MOST_BYTES: Final = 1 << 20
_MOST_ANSWERS: Final = 20
"""The latest: an answer has 1 to 4 kB."""

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
    """Attributes: evidence: its digest. program: what identifies this pgsweep. answers: the latest last."""

    evidence: str
    program: str
    answers: list[_Answer]


def answered(evidence: Path, question: Question, of: type[R], make: Callable[[], R]) -> R:
    """Return the answer that is kept; without one make it, and keep it where that is possible.

    Args:
        evidence: a folder or a file.
        question: all that the answer depends on besides.
        of: the type of the answer.
        make: computes it. Whatever it raises is raised, and not kept.
    """
    key, digest = _key(), _digest(evidence)
    if key is None or digest is None:
        return make()
    file = evidence.with_name(evidence.name + ANSWERS) if evidence.is_file() else evidence / ANSWERS
    none = _Kept(evidence=digest, program=_program(), answers=[])
    kept = _read(file, key)
    if kept is None or (kept.evidence, kept.program) != (none.evidence, none.program):
        kept = none
    for one in kept.answers:
        if one.question == question:
            with contextlib.suppress(msgspec.DecodeError):
                return msgspec.json.decode(one.record, type=of)
    answer = make()
    record = msgspec.json.encode(answer)
    with contextlib.suppress(msgspec.DecodeError):  # JSON has no NaN
        # Evidence that is still being recorded has changed meanwhile.
        if msgspec.json.decode(record, type=of) == answer and _digest(evidence) == digest:
            others = [one for one in kept.answers if one.question != question][1 - _MOST_ANSWERS :]
            answers = [*others, _Answer(question, msgspec.Raw(record))]
            _write(file, key, msgspec.structs.replace(kept, answers=answers), evidence)
    return answer


def _read(file: Path, key: bytes) -> _Kept | None:
    """Return what is kept in a file of ours; None where there is none, or it is not what we wrote."""
    with contextlib.suppress(OSError, msgspec.DecodeError, zlib.error):
        with os.fdopen(open_of(file, os.geteuid(), os.O_RDONLY), "rb") as opened:
            data = read_bounded(opened, _MOST_BYTES, file)
        signature, packed = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
        # Before anything else is made of it.
        if hmac.compare_digest(signature, _signature(key, packed)):
            return msgspec.json.decode(zlib.decompress(packed), type=_Kept)
    return None


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
