"""What the processes of a server read from disks, as the kernel counts it for each process.

`read_bytes` of /proc/PID/io counts bytes that a process caused to be fetched from storage (proc(5)). A
child that has ended is added to its parent when the parent waits for it (wait_task_zombie, kernel/exit.c of
Linux: task_io_accounting_add), so the postmaster with its living children has all that the server ever read:
files of relations with what the kernel read ahead, and also WAL, temporary files and the programs themselves.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pgsweep.host.procfile import PROC
from pgsweep.host.procmem import read_family


class DiskReads:
    """The bytes that one server has read from disks; never less than at the call before.

    Args:
        postmaster_pid: the server's first process.
    """

    def __init__(self, postmaster_pid: int, proc: Path = PROC) -> None:
        self._pid = postmaster_pid
        self._proc = proc
        self._most = 0

    def read_bytes(self) -> int | None:
        """Return the sum; None where the kernel does not let us read it (root and the server's user may).

        A child that ends between the reading of the parent and its own is not in the sum, so it is no less
        than the last one by definition.
        """
        own = self._of(self._pid)
        if own is None:
            return None
        total = own
        for process in read_family(self._pid, self._proc):
            if process.pid != self._pid:
                total += self._of(process.pid) or 0
        self._most = max(self._most, total)
        return self._most

    def _of(self, pid: int) -> int | None:
        with suppress(OSError, ValueError):
            for line in (self._proc / str(pid) / "io").read_text().splitlines():
                name, _, value = line.partition(":")
                if name == "read_bytes":
                    return int(value)
        return None
