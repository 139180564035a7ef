"""The command line as a process: arguments, two streams, an exit code."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, suppress
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import IO, Any, TypeAlias

from tests.fix_initdb import TEMPLATES
from tests.fix_process import Patience
from tests.forked_cli import MOST_BYTES

Stream: TypeAlias = int | IO[Any]

ROOT = Path(__file__).parents[1]
PGSWEEP = str(Path(sys.executable).with_name("pgsweep"))
WRITES_SOON = "from pgsweep.evidence import writer; writer.FLUSH_SECONDS = 0.2"
"""The first part of evidence is on disk at once; otherwise that takes five seconds."""
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
    timeout_seconds: float = 600,
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


def launch(
    *arguments: str | bytes,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    stdin: Stream = DEVNULL,
    stdout: Stream = PIPE,
    stderr: Stream = PIPE,
    first: str = "",
    terminal: bool = False,
) -> Command:
    """Begin a command of pgsweep as `run` does, to be watched, signalled and waited for.

    Args:
        stdin: `subprocess.PIPE`, `subprocess.DEVNULL`, a file or a descriptor; so are `stdout` and `stderr`.
        first: what is done in its process before it begins, in Python.
        terminal: in a session of its own, with the terminal `stdin`, as a terminal emulator does it.
    """
    words = [PGSWEEP, *(os.fsdecode(argument) for argument in arguments)]
    environment = _environment(env)
    if terminal:  # its size is known
        del environment["COLUMNS"]
    return Command(words, cwd, environment, (stdin, stdout, stderr), first=first, terminal=terminal)


class Command:
    """A command in a process forked from one that has its imports, with what is used of `subprocess.Popen`.

    Its streams are of text, and there where a pipe was asked for. Once it has ended, `processor_seconds` is
    what it and its children took, and `peak_bytes` the most memory that one of them had: at least that of the
    process that it was forked from.
    """

    def __init__(
        self,
        words: list[str],
        folder: Path | None,
        environment: dict[str, str],
        streams: tuple[Stream, Stream, Stream],
        *,
        first: str = "",
        terminal: bool = False,
    ) -> None:
        request = {
            "arguments": words,
            "folder": str(folder or Path.cwd()),
            "environment": environment,
            "first": first,
            "terminal": terminal,
        }
        message = json.dumps(request).encode()
        assert len(message) < MOST_BYTES
        self.args = words
        self.returncode: int | None = None
        self.peak_bytes, self.processor_seconds = 0, 0.0
        self._answers, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with closing(answering), ExitStack() as given:
            ends = [_ends(stream, given, reads=not number) for number, stream in enumerate(streams)]
            socket.send_fds(_requests(), [message], [*(its for its, _ in ends), answering.fileno()])
        self.pid = int(json.loads(self._answers.recv(100)))
        ours = [own for _, own in ends]
        self.stdin = None if ours[0] is None else os.fdopen(ours[0], "w", encoding="utf-8")
        self.stdout, self.stderr = (
            None if own is None else os.fdopen(own, encoding="utf-8") for own in ours[1:]
        )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self.wait()

    def poll(self) -> int | None:
        """Return the exit code, None while the command runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code as soon as the command has ended; negative for a signal.

        Args:
            timeout: for how many seconds to wait on a quiet machine.
        """
        if self.returncode is None:
            patience = Patience(timeout or 0.0)
            while not select.select([self._answers], [], [], None if timeout is None else min(timeout, 1.0))[
                0
            ]:
                if timeout is not None and patience.left() <= 0:
                    raise subprocess.TimeoutExpired(self.args, timeout)
            status, self.processor_seconds, self.peak_bytes = json.loads(self._answers.recv(100))
            self._answers.close()
            self.returncode = os.waitstatus_to_exitcode(status)
            forked_seconds.append(self.processor_seconds)
        return self.returncode

    def communicate(self, given: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Return what it writes to its pipes until it ends."""
        texts = ["", ""]

        def read(stream: IO[str], at: int) -> None:
            with stream:
                texts[at] = stream.read()

        pipes = [(stream, at) for at, stream in enumerate((self.stdout, self.stderr)) if stream is not None]
        readers = [threading.Thread(target=read, args=pipe, daemon=True) for pipe in pipes]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with suppress(BrokenPipeError), self.stdin as writer:
                writer.write(given)
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the command has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)


def _ends(stream: Stream, given: ExitStack, *, reads: bool) -> tuple[int, int | None]:
    """Return the command's end of a stream, which is closed with `given`, and ours, None if it is no pipe."""
    if stream == PIPE:
        reading, writing = os.pipe()
        its, own = (reading, writing) if reads else (writing, reading)
        given.callback(os.close, its)
        return its, own
    if stream == DEVNULL:
        its = os.open(os.devnull, os.O_RDWR)
        given.callback(os.close, its)
        return its, None
    return (stream if isinstance(stream, int) else stream.fileno()), None


def _forked(
    words: list[str], cwd: Path | None, env: dict[str, str] | None, stdin: str, timeout_seconds: float
) -> subprocess.CompletedProcess[str]:
    command = Command(words, cwd, _environment(env), (PIPE, PIPE, PIPE))
    try:
        out, err = command.communicate(stdin, timeout_seconds)
    except subprocess.TimeoutExpired:
        command.kill()
        command.wait()
        raise
    return subprocess.CompletedProcess(words, command.wait(), out, err)


def _environment(env: dict[str, str] | None) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    # Beside committed evidence nothing is written.
    fresh = {f"PGSWEEP_{command}_FRESH": "1" for command in ("PREDICT", "ADVISE")}
    return {**kept, **fresh, "COLUMNS": "80", "LC_ALL": "C.UTF-8", **(env or {})}


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
