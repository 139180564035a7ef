"""The command line as a process: arguments, two streams, an exit code."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

from tests.fix_initdb import TEMPLATES
from tests.forked_cli import MOST_BYTES

ROOT = Path(__file__).parents[1]
PGSWEEP = str(Path(sys.executable).with_name("pgsweep"))
WRITES_SOON = (
    sys.executable,
    "-c",
    "import sys; from pgsweep.evidence import writer; from pgsweep.cli.main import main;"
    " writer.FLUSH_SECONDS = 0.2; sys.argv[0] = 'pgsweep'; sys.exit(main())",
)
"""The program, whose first part of evidence is on disk at once: otherwise that takes five seconds."""
_OF_THE_START = ("LANG", "LC_", "LD_", "MALLOC_", "OPENBLAS_", "PYTHON", "RAYON_", "TZ")
"""Variables that are read when a process starts, so that no fork can have others."""

forked_seconds: list[float] = []
"""Processor time that each command took: they are not children of this process (see fix_quick.py)."""

_STARTING = threading.Lock()


def start(
    *arguments: str | bytes,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    stdin: str = "",
    timeout_seconds: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run the program pgsweep in a plain environment."""
    return subprocess.run(
        [PGSWEEP, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
        cwd=cwd,
        env=_environment(env),
        input=stdin,
    )


def run(
    *arguments: str | bytes,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    stdin: str = "",
    timeout_seconds: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run a command of pgsweep as `start` does, in a process forked from one that has its imports."""
    if any(name.startswith(_OF_THE_START) for name in env or {}):
        return start(*arguments, cwd=cwd, env=env, stdin=stdin, timeout_seconds=timeout_seconds)
    words = [PGSWEEP, *(os.fsdecode(argument) for argument in arguments)]
    return _forked(words, cwd, env, stdin, timeout_seconds)


def run_code(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in Python as `python -c` does, in a process that has pgsweep's imports already."""
    return _forked(["-c", code, *arguments], None, None, "", 120)


def _forked(
    words: list[str], cwd: Path | None, env: dict[str, str] | None, stdin: str, timeout_seconds: float
) -> subprocess.CompletedProcess[str]:
    request = {"arguments": words, "folder": str(cwd or Path.cwd()), "environment": _environment(env)}
    message = json.dumps(request).encode()
    assert len(message) < MOST_BYTES
    reads, writes = zip(*(os.pipe() for _ in range(3)), strict=True)
    answers, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(answers):
        with closing(answering):
            its = (reads[0], *writes[1:])
            socket.send_fds(_requests(), [message], [*its, answering.fileno()])
        for descriptor in its:
            os.close(descriptor)
        number = json.loads(answers.recv(100))
        texts = ["", ""]
        readers = [threading.Thread(target=_read, args=(reads[at + 1], texts, at)) for at in (0, 1)]
        for reader in readers:
            reader.start()
        with suppress(BrokenPipeError), os.fdopen(writes[0], "w", encoding="utf-8") as writer:
            writer.write(stdin)
        answers.settimeout(timeout_seconds)
        try:
            status, seconds = json.loads(answers.recv(100))
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
            raise subprocess.TimeoutExpired(words, timeout_seconds) from None
    for reader in readers:
        reader.join()
    forked_seconds.append(seconds)
    return subprocess.CompletedProcess(words, os.waitstatus_to_exitcode(status), texts[0], texts[1])


def _environment(env: dict[str, str] | None) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "COLUMNS": "80", "LC_ALL": "C.UTF-8", **(env or {})}


def _read(descriptor: int, texts: list[str], at: int) -> None:
    with os.fdopen(descriptor, encoding="utf-8") as stream:
        texts[at] = stream.read()


def _requests() -> socket.socket:
    """Return the socket to the process that forks commands, which is started when first needed."""
    with _STARTING:
        return _start_server()


@cache
def _start_server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(theirs):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked_cli", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env=_environment({name: os.environ[name] for name in (TEMPLATES,) if name in os.environ}),
        )
    atexit.register(process.wait)
    atexit.register(ours.close)  # the first of these, and the process ends
    return ours
