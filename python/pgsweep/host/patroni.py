"""Whether Patroni runs a server of this host: the postmaster's parent, its configuration file, its REST API.

The API is asked only where a process of the server's user that is Patroni listens on this host: one GET,
which changes nothing, without a name or a password, within a second.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from pgsweep.host.procfile import PROC, lines_of, parse_fields, read_kernel_text
from pgsweep.regular import open_of

_PROGRAMS: Final = {b"patroni", b"patroni.py", b"patroni.__main__"}
_LISTENING: Final = "0A"
"""TCP_LISTEN in /proc/net/tcp (include/net/tcp_states.h)."""

_ANSWER_BYTES: Final = 1 << 13
_PATIENCE_SECONDS: Final = 1.0
_MOST_PROCESSES: Final = 4
_BANNER_BYTES: Final = 4096
_OVERWRITTEN: Final = re.compile(rb"overwritten by Patroni", re.IGNORECASE)


def patroni_above(pid: int, proc: Path = PROC) -> str | None:
    """Return the process number of a postmaster's parent where that is Patroni, run by Python or not."""
    with suppress(OSError, KeyError):
        parent = parse_fields(read_kernel_text(proc / str(pid) / "status"))["PPid"]
        words = (proc / parent / "cmdline").read_bytes().split(b"\0")[:3]
        names = [os.path.basename(word) for word in words]  # noqa: PTH119 (bytes)
        if any(name in _PROGRAMS for name in names):
            return parent
    return None


class _About(msgspec.Struct):
    scope: str = ""
    name: str = ""


class _Changed(msgspec.Struct):
    new_value: str | int | float | bool | None = None


class PatroniMember(msgspec.Struct):
    """What the REST API of Patroni says of its server (GET /patroni).

    Attributes:
        role: `primary`, `replica` and so on.
        patroni: the cluster (`scope`) and the member's name.
        pending_restart_reason: settings whose new values it gives the server at its next start.
    """

    role: str = ""
    patroni: _About = msgspec.field(default_factory=_About)
    pending_restart_reason: dict[str, _Changed] = msgspec.field(default_factory=dict)


def member_of(pid: int, cluster_name: str, proc: Path = PROC) -> PatroniMember | None:
    """Return what Patroni says of a server by its REST API on this host; None where it does not answer.

    Patroni makes the name of its cluster the server's cluster_name, which tells it from another on the host.

    Args:
        pid: the postmaster.
        cluster_name: the server's setting.
    """
    for address in _addresses(pid, proc):
        with suppress(OSError, msgspec.MsgspecError, ValueError):
            found = _asked(*address)
            if found.patroni.scope and found.patroni.scope == cluster_name:
                return found
    return None


def _addresses(pid: int, proc: Path) -> Iterator[tuple[str, int]]:
    """Yield where processes of the server's user that are Patroni listen, the one above the server first."""
    parent = patroni_above(pid, proc)
    with suppress(OSError, ValueError):
        owner = (proc / str(pid)).stat().st_uid
        others = [entry for entry in proc.iterdir() if entry.name.isdecimal()]
        found = [] if parent is None else [proc / parent]
        for entry in others:
            with suppress(OSError):
                if entry.stat().st_uid == owner and entry not in found and _is_patroni(entry):
                    found.append(entry)
        for entry in found[:_MOST_PROCESSES]:
            with suppress(OSError, ValueError, IndexError):
                yield from _listening(entry)


def _is_patroni(entry: Path) -> bool:
    words = (entry / "cmdline").read_bytes().split(b"\0")[:3]
    return any(os.path.basename(word) in _PROGRAMS for word in words)  # noqa: PTH119 (bytes)


def _listening(entry: Path) -> list[tuple[str, int]]:
    """Return the addresses at which a process listens; the loopback for all of them.

    Where Patroni is told to listen everywhere, it is one socket of IPv6 that takes both; the
    loopback of IPv4 is there where IPv6 is disabled too.
    """
    inodes = set()
    for file in (entry / "fd").iterdir():
        with suppress(OSError):
            inodes.add(str(file.readlink()).removeprefix("socket:[").removesuffix("]"))
    found = []
    for name in ("tcp", "tcp6"):
        with suppress(OSError):  # a kernel may have no IPv6
            for line in lines_of(read_kernel_text(entry / "net" / name))[1:]:
                words = line.split()
                if words[3] == _LISTENING and words[9] in inodes:
                    address, _, port = words[1].partition(":")
                    found.append((_address(address), int(port, 16)))
    return found


def _address(shown: str) -> str:
    """Return an address that the kernel shows as numbers of 32 bits, each in the machine's byte order."""
    words = (int(shown[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(shown), 8))
    address = ipaddress.ip_address(b"".join(words))
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return "127.0.0.1" if address.is_unspecified else str(address)


def _asked(host: str, port: int) -> PatroniMember:
    """Ask by HTTP/1.0, whose answer ends with the connection, within a second in all: it may come by drips.

    Raises:
        OSError: nothing answers in that time.
        MsgspecError: it is no answer of Patroni's.
    """
    end, answer = time.monotonic() + _PATIENCE_SECONDS, b""
    with socket.create_connection((host, port), _PATIENCE_SECONDS) as connection:
        connection.sendall(b"GET /patroni HTTP/1.0\r\n\r\n")
        while len(answer) < _ANSWER_BYTES:
            connection.settimeout(max(end - time.monotonic(), 1e-3))
            part = connection.recv(_ANSWER_BYTES)
            if not part:
                break
            answer += part
    return msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=PatroniMember)


def is_overwritten_by_patroni(pid: int, config: str, proc: Path = PROC) -> bool:
    """Return whether a server's configuration file says that Patroni writes it anew.

    Args:
        pid: the postmaster.
        config: the file as the server names it; empty for the one in its data directory.
    """
    place = proc / str(pid)
    file = place / "root" / config.lstrip("/") if config else place / "cwd/postgresql.conf"
    return _OVERWRITTEN.search(_beginning(file, pid, proc)) is not None


def _beginning(file: Path, pid: int, proc: Path) -> bytes:
    """Return the beginning of a file of the server's user; nothing where it cannot be read."""
    with suppress(OSError, KeyError, ValueError, IndexError):
        uid = int(parse_fields(read_kernel_text(proc / str(pid) / "status"))["Uid"].split()[1])
        with os.fdopen(open_of(file, uid, os.O_RDONLY), "rb") as opened:
            return opened.read(_BANNER_BYTES)
    return b""
