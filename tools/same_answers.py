"""Ask questions of committed evidence again, and compare the answers byte for byte with those of before.

    python -m tools.same_answers [NAME...] [--write] [--close TOLERANCE] [--added] [--processes]

tests/answers/evidence holds small recordings, tests/answers/NAME.txt what was asked of them: each
line `$ pgsweep ...` is a question, and what follows is its answer: both streams and the exit code. A change
of the code that is to change no number leaves all of them as they are. To ask more, add a line and
run with --write; likewise where answers are meant to change. Read the difference before you commit it.
"""

from __future__ import annotations

import argparse
import difflib
import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO, cast

from pgsweep.cli.main import main as pgsweep
from pgsweep.errors import INTERRUPTED

ROOT: Final = Path(__file__).parents[1]
ANSWERS: Final = ROOT / "tests" / "answers"
EVIDENCE: Final = ANSWERS / "evidence"

MASKED: Final = (
    "pgsweep_version",
    "native_build",
    "created_at",
    "kernel",
    "architecture",
    "cpus",
    "memory_bytes",
    "python_version",
)
"""Fields of `provenance` that say when and where an answer was made: nothing else is left out."""

_PROVENANCE: Final = re.compile(
    r'^(?P<indent> *)"provenance": \{\n.*?^(?P=indent)\}', re.MULTILINE | re.DOTALL
)
_JSON: Final = re.compile(r"^(\{$.*?^\}$)", re.MULTILINE | re.DOTALL)
_NUMBER: Final = re.compile(r"(-?\d+\.\d+(?:e-?\d+)?)")
_QUESTION: Final = re.compile(r"^\$ (.+)$", re.MULTILINE)
_ENVIRONMENT: Final = {
    "COLUMNS": "100",
    "LC_ALL": "C.UTF-8",
    "PGSWEEP_CONFIG": "",
    # Answers are computed, and none are kept beside the evidence.
    "PGSWEEP_PREDICT_FRESH": "1",
    "PGSWEEP_ADVISE_FRESH": "1",
}
_KEPT: Final = ("PATH", "HOME", "TMPDIR", "OPENBLAS_NUM_THREADS")

Program = Callable[[Sequence[str], bytes], tuple[int, bytes, str]]
"""Runs pgsweep with arguments and a standard input; returns the exit code, stdout and stderr."""


def names() -> list[str]:
    """Return the names of all files of answers."""
    return sorted(path.stem for path in ANSWERS.glob("*.txt"))


def kept(name: str) -> str:
    """Return the questions of a file, and the answers as they were."""
    return (ANSWERS / f"{name}.txt").read_text(encoding="utf-8")


def asked(name: str, program: Program | None = None) -> str:
    """Return the questions of a file, and the answers as they are now."""
    with _in_folder(EVIDENCE):
        answers = [answer(line, program or in_process) for line in _QUESTION.findall(kept(name))]
    return "\n".join(answers)


def answer(question: str, program: Program) -> str:
    """Return a question with its answer: what a shell would show, with the exit code.

    Args:
        question: a command of pgsweep, or several with `|` between them.
        program: runs each.
    """
    given, said, code = b"", "", 0
    for command in question.split(" | "):
        name, *arguments = shlex.split(command)
        if name != "pgsweep":
            raise ValueError(f"not a command of pgsweep: {command}")
        code, given, text = program(arguments, given)
        said += text
    shown = given.decode()
    parts = [f"$ {question}\n", _masked(shown)]
    parts += [f"--- stderr\n{said}"] if said else []
    return "".join([*parts, f"--- exit {code}\n"])


def in_process(arguments: Sequence[str], given: bytes) -> tuple[int, bytes, str]:
    """Run pgsweep in this process."""
    written, err = io.BytesIO(), io.StringIO()
    out = io.TextIOWrapper(written, encoding="utf-8")
    streams = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = io.TextIOWrapper(io.BytesIO(given), encoding="utf-8")
    sys.stdout, sys.stderr = out, cast(TextIO, err)
    environment = dict(os.environ)
    _replace(os.environ, _plain(environment))
    try:
        code = pgsweep(list(arguments))
        if code == INTERRUPTED:
            raise KeyboardInterrupt
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        _replace(os.environ, environment)
    out.flush()
    return code, written.getvalue(), err.getvalue()


def in_own_process(arguments: Sequence[str], given: bytes) -> tuple[int, bytes, str]:
    """Run pgsweep as a user does."""
    program = Path(sys.executable).with_name("pgsweep")
    done = subprocess.run(
        [program, *arguments], input=given, capture_output=True, check=False, env=_plain(os.environ)
    )
    return done.returncode, done.stdout, done.stderr.decode()


def _plain(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what an answer could depend on."""
    return {name: environment[name] for name in _KEPT if name in environment} | _ENVIRONMENT


def _replace(environment: os._Environ[str], values: Mapping[str, str]) -> None:
    environment.clear()
    environment.update(values)


@contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _masked(text: str) -> str:
    """Return an answer without what says when and where it was made."""
    return _PROVENANCE.sub(lambda found: _masked_provenance(found[0]), text)


def _masked_provenance(text: str) -> str:
    created = re.search(r'"created_at": "(.+?)"', text)
    if created is not None:
        # A foreign trace does not say when it was recorded: that is when it was read.
        text = text.replace(created[1], "...")
    fields = re.compile(rf'^( *"(?:{"|".join(MASKED)})": ).*?(,?)$', re.MULTILINE)
    return fields.sub(r'\1"..."\2', text)


def is_same(before: str, now: str, *, tolerance: float = 0.0, added: bool = False) -> bool:
    """Return whether answers are the same.

    Args:
        before: the answers of one file as they were.
        now: the same as they are now.
        tolerance: by which numbers may differ, relative to them; those within texts of JSON may not.
        added: fields that are new in JSON make no difference, nor does a text that is now the field `text`.
    """
    if before == now or not (tolerance or added):
        return before == now
    old, new = _JSON.split(before), _JSON.split(now)
    return len(old) == len(new) and all(
        _alike(one, other, tolerance, added) for one, other in zip(old, new, strict=True)
    )


def _alike(before: str, now: str, tolerance: float, added: bool) -> bool:
    if before == now:
        return True
    if not before.startswith("{"):
        old, new = _NUMBER.split(before), _NUMBER.split(now)
        return old[::2] == new[::2] and all(
            math.isclose(float(one), float(other), rel_tol=tolerance)
            for one, other in zip(old[1::2], new[1::2], strict=True)
        )
    return _equal(json.loads(before), json.loads(now), tolerance, added)


def _equal(before: Any, now: Any, tolerance: float, added: bool) -> bool:
    if added and isinstance(before, str) and isinstance(now, dict):
        return bool(now.get("text") == before)
    if isinstance(before, dict) and isinstance(now, dict):
        wrong = before.keys() - now.keys() if added else before.keys() ^ now.keys()
        return not wrong and all(_equal(before[name], now[name], tolerance, added) for name in before)
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(
            _equal(*pair, tolerance, added) for pair in zip(before, now, strict=True)
        )
    if isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=tolerance)
    return type(before) is type(now) and bool(before == now)


def difference(name: str, before: str, now: str) -> str:
    """Return what is different, as a patch."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), now.splitlines(keepends=True), f"{name} before", f"{name} now"
    )
    return "".join(lines)


def run(arguments: argparse.Namespace) -> int:
    """Ask, compare or write, and return the exit code."""
    different, questions, begin = [], 0, time.process_time()
    program = in_own_process if arguments.processes else in_process
    for name in arguments.names or names():
        before, now = kept(name), asked(name, program)
        questions += len(_QUESTION.findall(before))
        if is_same(before, now, tolerance=arguments.close, added=arguments.added):
            continue
        different.append(name)
        if arguments.write:
            (ANSWERS / f"{name}.txt").write_text(now, encoding="utf-8")
        else:
            sys.stdout.write(difference(name, before, now))
    verb = "written" if arguments.write else "different"
    found = f"{verb}: {', '.join(different)}" if different else "all the same"
    sys.stdout.write(
        f"{questions} questions in {time.process_time() - begin:.1f} s of a processor, {found}\n"
    )
    return 1 if different and not arguments.write else 0


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.same_answers", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="files of answers; all by default")
    parser.add_argument("--write", action="store_true", help="write the answers as they are now")
    parser.add_argument(
        "--close",
        type=float,
        default=0.0,
        metavar="TOLERANCE",
        help="numbers may differ by so much, such as 1e-9",
    )
    parser.add_argument("--added", action="store_true", help="fields that are new in JSON make no difference")
    parser.add_argument("--processes", action="store_true", help="run each command in a process of its own")
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
