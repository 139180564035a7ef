"""Whether this kernel lets a user read the memory of processes of the same user.

Yama's ptrace scope (Documentation/admin-guide/LSM/Yama.rst): 0 lets it; 1 only from a parent process, which
pgsweep is not; 2 only with CAP_SYS_PTRACE; 3 not even then. Without Yama it is allowed. What is read from
/proc/PID/smaps_rollup and status is not concerned.
"""

from __future__ import annotations

from pathlib import Path

from pgsweep.commands import sudo, this_command
from pgsweep.host.procfile import PROC


def ptrace_scope(proc: Path = PROC) -> int:
    """Return Yama's ptrace scope; 0 where the kernel has no Yama."""
    try:
        return int((proc / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0


def why_not_the_same_user(proc: Path = PROC) -> str | None:
    """Return why the server's own user may not read the memory of its processes; None where he may."""
    scope = ptrace_scope(proc)
    if scope == 0:
        return None
    if scope >= 3:
        return f"Yama's ptrace scope is {scope} (kernel.yama.ptrace_scope): nobody may, until the next boot"
    return f"Yama's ptrace scope is {scope} (kernel.yama.ptrace_scope): only root may"


def who_may(proc: Path = PROC, *, user: str | None = None) -> str:
    """Return as whom to run this command, which reads the server's memory, as a hint.

    Args:
        proc: procfs.
        user: whom the server runs as; usually postgres.
    """
    why = why_not_the_same_user(proc)
    if why is None:
        return f"run it as the server's user or as root: {sudo(user or 'postgres')}{this_command()}"
    return f"run it as root: {sudo()}{this_command()}; as the server's user it would be refused: {why}"
