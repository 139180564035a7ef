"""The keeper: a small process that is the parent of one private server and removes it when our process ends.

Why a process of its own: nothing that we do at exit runs after `kill -9`. The keeper holds the reading end of
a pipe whose only writer is the process that made the cluster. When that process ends, in whatever way, the
pipe ends, and the keeper ends the server at once and removes the data directory, the socket, the cgroup and
itself. If the keeper is killed too, the kernel sends its children SIGQUIT (PR_SET_PDEATHSIG, which
survives because it is set after the change of user), and the next run removes the files, because the folder's
lock was released with the keeper.

It speaks lines of JSON: `run` (a program to its end), `start` (the server), `poll`, `stop`, `quit`. It runs
as the user that made the cluster; what it starts runs as the server's user, in the cluster's memory cgroup.

Each private server waits for its start, so what it imports is little: no dataclasses, for example.

    python -P -m pgsweep.pg.private.keeper '{"run": ..., "lock": 5, "uid": 101, "gid": 104, "procs_file": ""}'
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from pgsweep.pg.private.rundir import remove_run

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class _OwnerGone(Exception):
    """The process that made the cluster has ended."""


class Keeper:
    """The parent of one server.

    Args:
        uid: the user to run programs as, or -1 for our own.
        gid: the group, or -1 for our own.
        procs_file: the cgroup's `cgroup.procs`, or empty.
        requests: the descriptor that requests come from.
    """

    def __init__(self, *, uid: int, gid: int, procs_file: str, requests: int) -> None:
        self._uid, self._gid, self._procs_file = uid, gid, procs_file
        self._requests = requests
        self._poll = select.poll()
        self._poll.register(requests, 0)  # POLLHUP is always reported
        self._server: int | None = None
        self._server_ended: int | None = None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request and return the answer."""
        match request["do"]:
            case "run":
                child = self._spawn(request["argv"], request["log"], request["environment"], signal.SIGKILL)
                return {"code": self._wait(child, request["patience_seconds"])}
            case "start":
                # A server that crashed must be reaped first: the next one takes a zombie for a running
                # postmaster.
                if self._poll_server() is None and self._server is not None:
                    return {"error": "it is running already"}
                self._server = self._spawn(
                    request["argv"], request["log"], request["environment"], signal.SIGQUIT
                )
                self._server_ended = None
                return {"pid": self._server}
            case "poll":
                return {"code": self._poll_server()}
            case "stop":
                return {"code": self._stop(request["signal"], request["patience_seconds"])}
            case _:
                return {"error": "unknown request"}

    def _spawn(self, argv: list[str], log: str, environment: dict[str, str], on_our_death: int) -> int:
        keeper = os.getpid()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        child = os.fork()
        if child == 0:
            self._become(argv, environment, log=descriptor, on_our_death=on_our_death, keeper=keeper)
        os.close(descriptor)
        return child

    def _become(
        self, argv: list[str], environment: dict[str, str], *, log: int, on_our_death: int, keeper: int
    ) -> NoReturn:
        """Execute the program in the forked child; write to the log why that failed."""
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.setsid()  # a Ctrl-C on the terminal is for the client program, not for the server
            if self._procs_file:
                Path(self._procs_file).write_text("0")
            if self._uid >= 0:
                os.setgroups([self._gid])
                os.setgid(self._gid)
                os.setuid(self._uid)
            _libc.prctl(_PR_SET_PDEATHSIG, on_our_death, 0, 0, 0)
            if os.getppid() != keeper:
                os._exit(125)  # the keeper died before the request to die with it was made
            os.umask(0o077)
            os.chdir("/")
            os.execve(argv[0], argv, environment)  # noqa: S606 - no shell is wanted
        except BaseException as error:
            os.write(2, f"cannot run {argv[0]}: {error}\n".encode())
        os._exit(126)

    def _wait(self, child: int, patience_seconds: float) -> int | None:
        """Wait for a child and return its exit code (negative: the signal); None after the time limit."""
        deadline = time.monotonic() + patience_seconds
        pause_ms = 2
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                return None
            if self._poll.poll(pause_ms):
                raise _OwnerGone
            pause_ms = min(50, pause_ms * 2)

    def _poll_server(self) -> int | None:
        if self._server is not None:
            pid, status = os.waitpid(self._server, os.WNOHANG)
            if pid:
                self._server, self._server_ended = None, os.waitstatus_to_exitcode(status)
        return self._server_ended

    def _stop(self, number: int, patience_seconds: float) -> int | None:
        if self._poll_server() is None and self._server is not None:
            os.kill(self._server, number)
            self._server_ended = self._wait(self._server, patience_seconds)
            if self._server_ended is None:
                os.kill(self._server, signal.SIGQUIT)
                self._server_ended = self._wait(self._server, 5.0)
            if self._server_ended is None:
                os.kill(self._server, signal.SIGKILL)
                self._server_ended = self._wait(self._server, 5.0)
            self._server = None
        return self._server_ended

    def end(self) -> None:
        """End the server at once."""
        if self._poll_server() is None and self._server is not None:
            os.kill(self._server, signal.SIGQUIT)
            for attempt in range(250):
                if attempt == 200:
                    os.kill(self._server, signal.SIGKILL)
                if os.waitpid(self._server, os.WNOHANG)[0]:
                    break
                time.sleep(0.02)
            self._server = None


def _end_by_signal(_number: int, _frame: object) -> None:
    raise _OwnerGone


def main() -> None:
    """Serve requests until `quit` or until the owner is gone; then remove everything."""
    spec = json.loads(sys.argv[1])
    os.set_inheritable(spec["lock"], False)
    signal.signal(signal.SIGTERM, _end_by_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    keeper = Keeper(uid=spec["uid"], gid=spec["gid"], procs_file=spec["procs_file"], requests=0)
    answers = sys.stdout
    try:
        for line in sys.stdin:
            request = json.loads(line)
            if request["do"] == "quit":
                break
            try:
                answer = keeper.handle(request)
            except OSError as error:
                answer = {"error": str(error)}
            answer["number"] = request["number"]
            print(json.dumps(answer), file=answers, flush=True)
    except (_OwnerGone, BrokenPipeError):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        keeper.end()
        remove_run(Path(spec["run"]))


if __name__ == "__main__":
    main()
