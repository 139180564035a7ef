"""Which process of this host is the server that a session is connected to.

A server says the process id of the session's backend and when its postmaster started. Its postmaster is the
parent of that backend, if the server runs here: the start time, kept in every server process to the
microsecond, is read from that parent's memory and compared. In a container the process ids that the server
knows are others than ours; then all postmasters of this host are asked.
"""

from __future__ import annotations

import os
import platform
import pwd
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pgsweep._native import postmaster_start_time
from pgsweep.commands import on_server, sudo, this_command
from pgsweep.errors import MissingAbility, NeedsRoot, NotOnHost
from pgsweep.host.procfile import lines_of, parse_fields, read_kernel_text
from pgsweep.host.yama import why_not_the_same_user
from pgsweep.plain import shown
from pgsweep.regular import open_of, read_bounded

_PROC = Path("/proc")
_LOCK_FILE_BYTES = 16384
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]+")
_ACCEPTS = 0x10000
"""A socket that listens (linux/net.h, __SO_ACCEPTCON)."""


@dataclass(frozen=True, slots=True)
class Search:
    """What a search for a postmaster found.

    Attributes:
        pid: the postmaster; None where it was not found.
        closed: postmasters of this host whose memory we may not read, the likeliest first: it may be one of
            them.
    """

    pid: int | None
    closed: tuple[int, ...]


def search(backend_pid: int, start_time_microseconds: int) -> Search:
    """Look for the postmaster of a backend among the processes of this host.

    Args:
        backend_pid: as `pg_backend_pid()` says it.
        start_time_microseconds: `pg_postmaster_start_time()` in microseconds since 2000-01-01.
    """
    closed = []
    for pid in _candidates(_parent(backend_pid)):
        try:
            if postmaster_start_time(pid) == start_time_microseconds:
                return Search(pid, ())
        except PermissionError:
            closed.append(pid)
        except (OSError, RuntimeError):
            continue
    return Search(None, tuple(closed))


def find_postmaster(backend_pid: int, start_time_microseconds: int) -> int:
    """Return the process id of the postmaster of a backend.

    Args:
        backend_pid: as `pg_backend_pid()` says it.
        start_time_microseconds: `pg_postmaster_start_time()` in microseconds since 2000-01-01.

    Raises:
        MissingAbility: the server does not run on this host, or its memory may not be read.
    """
    found = search(backend_pid, start_time_microseconds)
    if found.pid is not None:
        return found.pid
    doctor = on_server("pgsweep doctor")
    if found.closed:
        user = user_of(found.closed[0])
        raise NeedsRoot(
            "the memory of the server's processes may not be read",
            cause=f"pgsweep runs as user {user_name(os.geteuid())}, the server as {user or 'another'}"
            + (f"; {yama}" if (yama := why_not_the_same_user()) else ""),
            hint=f"run the same as root: {sudo()}{this_command()}; `{doctor}` lists what works without root, "
            "such as `record --source sql`",
        )
    if (elsewhere := why_not_linux()) is not None:
        raise MissingAbility(
            elsewhere, hint=f"`{doctor}` lists what works from here, such as `record --source sql`"
        )
    raise NotOnHost(
        "the server does not run on this host",
        cause="no process here is the postmaster of this session",
        hint=f"run pgsweep on the server's host; `{doctor}` lists what works from here, such as "
        "`record --source sql`",
    )


def why_not_linux() -> str | None:
    """Return why no process of a server can be found, on a system other than Linux."""
    system = platform.system()
    return None if system == "Linux" else f"a server's processes are seen on Linux only, and this is {system}"


def process_exists(pid: int) -> bool:
    """Return whether a process is still there."""
    return (_PROC / str(pid)).exists()


def executable_of(pid: int) -> Path | None:
    """Return the program that a process runs; None where it may not be seen, or was removed meanwhile."""
    try:
        return (_PROC / str(pid) / "exe").resolve(strict=True)
    except OSError:
        return None


def pid_namespaces(pid: int, proc: Path = _PROC) -> int:
    """Return in how many PID namespaces a process has a number: more than one in a container."""
    return len(_status(pid, proc).get("NSpid", "0").split())


def user_of(pid: int) -> str | None:
    """Return the name of the user that a process runs as; None if there is no such process."""
    uids = _status(pid).get("Uid", "").split()
    return user_name(int(uids[1])) if len(uids) > 1 else None


def has_account(name: str) -> bool:
    """Return whether this host has a user of that name."""
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):
        return False
    return True


def place_of(pid: int) -> str | None:
    """Return where a postmaster listens: port and folder of the socket; None where that may not be read."""
    lines = _lock_file(pid, _PROC)
    if lines is None:
        return None
    folder = f", socket in {lines[4].strip()}" if lines[4].strip() else ""
    return f"port {lines[3].strip()}{folder}"


def port_of(pid: int, proc: Path = _PROC) -> int | None:
    """Return the port of a postmaster; None where that may not be read."""
    lines = _lock_file(pid, proc)
    port = "" if lines is None else lines[3].strip()
    return int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else None


def data_directory_of(pid: int, proc: Path = _PROC) -> str | None:
    """Return the data directory of a postmaster, where it works; None where that may not be seen."""
    try:
        return str((proc / str(pid) / "cwd").readlink())
    except OSError:
        return None


def _lock_file(pid: int, proc: Path) -> list[str] | None:
    """Return the lines of a postmaster's postmaster.pid (miscinit.c, `CreateLockFile`), or nothing.

    A server in a container writes the process id that it has there. The server's user may have put anything
    in the file's place.
    """
    status = _status(pid, proc)
    path = proc / str(pid) / "cwd" / "postmaster.pid"
    try:
        descriptor = open_of(path, int(status["Uid"].split()[1]), os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            lines = read_bounded(file, _LOCK_FILE_BYTES, path).decode().splitlines()
    except (OSError, KeyError, ValueError, IndexError):
        return None
    known = {str(pid), *status.get("NSpid", "").split()}
    return lines if len(lines) >= 5 and lines[0].strip() in known else None


def listening_sockets() -> list[str]:
    """Return the Unix sockets on which servers listen on this host: `port 5432, socket in /run/postgresql`.

    Anybody may read them, but not which process has which. Sockets of other network namespaces are not there.
    """
    try:
        lines = lines_of(read_kernel_text(_PROC / "net" / "unix"))[1:]
    except OSError:
        return []
    found = set()
    for line in lines:
        # Num, RefCount, Protocol, Flags, Type, St, Inode, Path (net/unix/af_unix.c, unix_seq_show).
        words = line.split(maxsplit=7)
        # A path may hold a line feed, so that what follows is no such line.
        if len(words) < 8 or not _HEXADECIMAL.fullmatch(words[3]) or not int(words[3], 16) & _ACCEPTS:
            continue
        path = Path(shown(words[7]))
        port = path.name.removeprefix(".s.PGSQL.")
        if port != path.name and port.isdecimal():
            found.add(f"port {port}, socket in {path.parent}")
    return sorted(found)


def user_name(uid: int) -> str:
    """Return the name of a user, or the number where the account has none here (as in containers)."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _status(pid: int, proc: Path = _PROC) -> dict[str, str]:
    """Return the lines of /proc/PID/status; nothing if there is no such process."""
    try:
        return parse_fields(read_kernel_text(proc / str(pid) / "status"))
    except OSError:
        return {}


def _parent(pid: int) -> int | None:
    status = _status(pid)
    return int(status["PPid"]) if "PPid" in status and status.get("Name", "").startswith("post") else None


def _candidates(parent: int | None) -> Iterator[int]:
    """Yield the likeliest postmaster first; /proc is searched only if it is not that one."""
    if parent is not None:
        yield parent
    yield from (pid for pid in postmasters() if pid != parent)


def postmasters(proc: Path = _PROC) -> list[int]:
    """Return the processes of this host that are a server's first, whose parent is another program."""
    found: list[int] = []
    for entry in proc.iterdir() if proc.is_dir() else ():
        if entry.name.isdigit():
            status = _status(int(entry.name), proc)
            if status.get("Name", "") not in {"postgres", "postmaster"}:
                continue
            with suppress(KeyError, ValueError):
                if _status(int(status["PPid"]), proc).get("Name") != status["Name"]:
                    found.append(int(entry.name))
    return sorted(found)
