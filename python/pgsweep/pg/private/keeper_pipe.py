"""Our end of the pipes to a keeper: requests go out as lines of JSON, answers come back.

The keeper's own end, and its purpose, are described in `keeper`. Its standard input is a pipe. It ends
when the pipe is closed, so no other process may hold our end: it is closed in `end`, or by the kernel when
this process ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pgsweep.errors import ClusterError
from pgsweep.pg.private.identity import ServerUser
from pgsweep.pg.private.rundir import RunFolder

_END_PATIENCE_SECONDS = 30.0


class KeeperPipe:
    """A keeper that was started, and the way to speak with it.

    Args:
        run: the cluster's folder; the keeper shares its lock.
        user: as whom the keeper runs the server's programs.
        procs_file: `cgroup.procs` of the memory cgroup to run them in, where there is one.
        log_path: receives the output of the keeper and its programs.

    Attributes:
        pid: of the keeper.
    """

    def __init__(self, run: RunFolder, user: ServerUser, procs_file: Path | None, log_path: Path) -> None:
        self._log_path = log_path
        self._requests = 0
        spec = {
            "run": str(run.path),
            "lock": run.lock_descriptor,
            "uid": user.uid if user.changed else -1,
            "gid": user.gid,
            "procs_file": str(procs_file) if procs_file else "",
        }
        with log_path.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pgsweep.pg.private.keeper", json.dumps(spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                pass_fds=[run.lock_descriptor],
                start_new_session=True,
            )
        self.pid = self._process.pid

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Send the keeper a request and return its answer.

        Args:
            what: `run`, `start`, `poll` or `stop`.
            arguments: as the keeper's `handle` takes them.

        Raises:
            ClusterError: the keeper is gone, or could not do it.
        """
        assert self._process.stdout is not None
        self._requests += 1
        request = {"do": what, "number": self._requests, "log": str(self._log_path)}
        answer: dict[str, Any] = {}
        try:
            # The server's programs see nothing of ours that could redirect them, such as PGDATA.
            environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
            self.write({**request, "environment": environment, **arguments})
            # The answer to an earlier request may still lie there, when a Ctrl-C came between.
            while answer.get("number") != self._requests:
                answer = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            answer = {}
        if not answer:
            raise ClusterError(
                "the process that keeps the private PostgreSQL has ended",
                cause=log_tail(self._log_path, 5) or "it was killed",
                hint="run again; what is left of it is removed then",
            )
        if "error" in answer:
            raise ClusterError(f"the private PostgreSQL could not be run ({what})", cause=answer["error"])
        return answer

    def write(self, request: Mapping[str, Any]) -> None:
        """Send a request and do not wait for its answer.

        Raises:
            OSError: the keeper is gone.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Have the keeper end the server, remove its files and exit; one that has exited is not an error."""
        with suppress(OSError, ValueError):
            self.write({"do": "quit"})
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_PATIENCE_SECONDS)


def log_tail(log_path: Path, lines: int, *, start_bytes: int = 0) -> str:
    """Return the last lines of a server's log, from an offset on; empty where there is none."""
    try:
        with log_path.open("rb") as log:
            log.seek(start_bytes)
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
