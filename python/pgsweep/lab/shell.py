"""The restart command: run by the shell as the user wrote it, with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from typing import Final

PATIENCE_SECONDS: Final = 300.0
_MOST_BYTES: Final = 4000


def run_command(command: str, patience_seconds: float = PATIENCE_SECONDS) -> tuple[int | None, str]:
    """Run a command by /bin/sh; return exit code (None if it did not end in time) and end of its output.

    Nothing is put into the command. It has no input, and a session of its own: Ctrl-C does not cut a
    restart short. Its output goes to a file, because the server that it starts keeps it open.
    """
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        code: int | None = None
        interrupted: KeyboardInterrupt | None = None
        try:
            code = process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            _end(process)
        except KeyboardInterrupt as error:
            interrupted = error
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience_seconds)
            _end(process)
        if interrupted is not None:
            raise interrupted
        size = said.seek(0, os.SEEK_END)
        said.seek(max(0, size - _MOST_BYTES))
        return code, said.read().decode(errors="backslashreplace").strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it has started, but not a server: that has a session of its own."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
