"""Where the command `pgsweep` begins: the fast answers first, all else through click.

`--version`, `--help` and no arguments at all are answered before click is imported: help must come at once,
also on a busy server, and with nothing configured. This is also the outermost place that an interrupt or a
closed pipe can reach.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from pgsweep.cli.clean import clean_streams
from pgsweep.cli.streams import steady_stderr
from pgsweep.errors import INTERRUPTED, PgsweepError

_VERSION = (["--version"], ["-V"])
_COMPLETION = "_PGSWEEP_COMPLETE"
_NO_STDOUT = """\
error: stdout is closed
cause: the command was started with `>&-`, or by a service that gives it no stdout
hint: send it somewhere: >/dev/null
"""
_YOUNG_OBJECTS = 50_000
"""Python looks for garbage when there are so many more objects, 700 by default: what is imported stays."""

_HELP: tuple[list[str], ...] = ([], ["--help"], ["-?"], ["help"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: the arguments after the command's name; those of the process when not given.
    """
    if argv is None:
        gc.set_threshold(_YOUNG_OBJECTS)
    arguments = list(sys.argv[1:] if argv is None else argv)
    with steady_stderr(), clean_streams() as has_stdout:
        if not has_stdout:
            sys.stderr.write(_NO_STDOUT)
            return PgsweepError.exit_code
        try:
            code = _run(arguments, whole_process=argv is None)
            sys.stdout.flush()
            if argv is None:
                _leave_what_is_computed(code)
                gc.freeze()  # at its end Python would look for garbage in all that there is
        except KeyboardInterrupt:
            sys.stderr.write("\ninterrupted\n")
            return INTERRUPTED
        except BrokenPipeError:
            # The reader (head, less) has gone. What is left in the buffer must not fail again when Python
            # ends, so stdout is pointed at nothing:
            # https://docs.python.org/3/library/signal.html#note-on-sigpipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
    return code


def _leave_what_is_computed(code: int) -> None:
    """End the process now where a recording is still judged that has ended: Python would wait for that."""
    outlook = sys.modules.get("pgsweep.evidence.outlook")
    if outlook is not None and outlook.is_judging():
        sys.stderr.flush()
        os._exit(code)


def _run(arguments: list[str], *, whole_process: bool) -> int:
    if _COMPLETION in os.environ:
        # The shell asks for completions: the words are in the environment, not in the arguments.
        from pgsweep.cli.app import run

        return run(arguments)
    # With numpy OpenBLAS starts a thread for each processor, which takes time and helps nothing here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if arguments in _VERSION:
        from pgsweep.cli.version import version_text

        sys.stdout.write(version_text())
        return 0
    if arguments in _HELP:
        from pgsweep.cli.overview import overview_text

        sys.stdout.write(overview_text(short=not arguments))
        return 0
    from pgsweep.cli.app import run

    if whole_process:
        # Otherwise it is somebody else's, and the value would stay when the command is over.
        from pgsweep.host.procfile import be_killed_first

        be_killed_first()
    return run(arguments)
