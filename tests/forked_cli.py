"""Runs commands of pgsweep in processes forked from this one: `python -m tests.forked_cli DESCRIPTOR`.

A start of pgsweep takes about a third of a second of a processor, nearly all of it for imports, and the tests
run many hundreds of commands. So this process imports first, and then forks for every command: that one is a
process of its own, with its own arguments, streams, environment, folder, exit code and end. The clients
are `run` and `launch` of fix_cli.py. What is about the start of a process is tested with the program itself
(`start`).

A request is one message on the socket, with four descriptors: the command's streams, and a socket for the
answers. These are the number of the process, then its wait status, the seconds of processor time that it and
its children took, and the most memory that one of them had (ru_maxrss). This process ends with the socket.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import termios
import threading
import traceback
import warnings
from importlib import import_module

import pgsweep
from pgsweep.cli.main import main
from tests.fix_initdb import TEMPLATES, share_templates

_ALSO = (
    "click._textwrap",
    "getpass",
    "jinja2",
    "prometheus_client",
    "pyarrow.compute",
    "pyarrow.csv",
    "pyarrow.parquet",
    "rich.progress",
    "scipy.optimize",
    "uvicorn",
)
"""What modules of pgsweep import only when they are called; all of those are imported too."""
_LEFT_OUT = ("pgsweep.__main__", "pgsweep.mcp")
"""The last has the libraries of a protocol, which few commands use: each fork would take a sixth longer."""
MOST_BYTES = 100_000
"""Of a request."""


def wait_for_command(requests: socket.socket) -> None:
    """Serve requests; return in the process of each command, with its streams and arguments in place.

    In this process it does not return.
    """
    ended, ends = os.pipe()
    os.set_blocking(ends, False)
    signal.set_wakeup_fd(ends)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers: dict[int, socket.socket] = {}
    while True:
        readable, _, _ = select.select([requests.fileno(), ended], [], [])
        if ended in readable:
            os.read(ended, 4096)
            _report(answers)
        if requests.fileno() not in readable:
            continue
        message, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 4)
        if not message:
            os._exit(0)
        *streams, last = descriptors
        answer = socket.socket(fileno=last)
        with warnings.catch_warnings():
            # numpy and pyarrow have threads, which they take care of at a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            number = os.fork()
        if not number:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for other in (requests, answer, *answers.values()):
                other.close()
            os.close(ended)
            os.close(ends)
            _begin(json.loads(message), streams)
            return
        for descriptor in streams:
            os.close(descriptor)
        answers[number] = answer
        answer.send(json.dumps(number).encode())


def _report(answers: dict[int, socket.socket]) -> None:
    """Answer for the commands that have ended."""
    while answers:
        number, status, usage = os.wait4(-1, os.WNOHANG)
        if not number:
            return
        with answers.pop(number) as answer:
            try:
                seconds = usage.ru_utime + usage.ru_stime
                answer.send(json.dumps([status, seconds, usage.ru_maxrss << 10]).encode())
            except OSError:
                continue  # nobody waits any more


def _begin(request: dict[str, object], streams: list[int]) -> None:
    """Take over folder, environment, arguments and streams of a request, and do what comes first."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if request["terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(str(request["folder"]))
    environment, arguments = request["environment"], request["arguments"]
    assert isinstance(environment, dict)
    assert isinstance(arguments, list)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    exec(str(request["first"]), {})


def _run() -> int:
    """Do what the arguments say, and return the exit code."""
    if sys.argv[0] != "-c":
        return main()
    code = sys.argv.pop(1)
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    return 0


if __name__ == "__main__":
    ours = (module.name for module in pkgutil.walk_packages(pgsweep.__path__, "pgsweep."))
    for name in (*_ALSO, *ours):
        if name not in _LEFT_OUT:
            import_module(name)
    if TEMPLATES in os.environ:
        share_templates(os.getppid())
    gc.freeze()
    wait_for_command(socket.socket(fileno=int(sys.argv[1])))
    try:
        ended_with = _run()
    except BaseException:
        traceback.print_exc()
        ended_with = 1
    # What the interpreter does at its end, but for taking apart all modules: that takes .15 s of a processor.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(ended_with)
