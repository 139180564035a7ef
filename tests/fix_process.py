"""Processes: what they need, waiting for them, and code in one of its own with fewer rights than ours."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

import pytest

from pgsweep.host import cgroup

#: What precedes the code: a seccomp filter that lets all system calls pass but the given ones.
_FILTER = """
import ctypes, struct
ALLOW, REFUSE, LOAD, JUMP_IF_EQUAL, RETURN = 0x7FFF0000, 0x00050000 | {errno}, 0x20, 0x15, 0x06
program = [(LOAD, 0, 0, 0)]
for call in {calls}:
    program += [(JUMP_IF_EQUAL, 0, 1, call), (RETURN, 0, 0, REFUSE)]
program += [(RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
libc = ctypes.CDLL(None, use_errno=True)
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2
assert libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
assert libc.prctl(SECCOMP, FILTER, header, 0, 0) == 0, ctypes.get_errno()
"""
_OTHER_USER = """
import os
os.setgroups([])
os.setgid({gid})
os.setuid({uid})
"""
NOBODY = (65534, 65534)
_IMPORTS = """
import errno, resource, sys
import numpy
from pgsweep import _native
"""


def run_restricted(
    code: str,
    *arguments: object,
    user: tuple[int, int] | None = None,
    refuse: tuple[int, ...] = (),
    errno: int = 1,
) -> str:
    """Run code that has `_native` and `sys.argv`, and return what it prints.

    Args:
        code: Python.
        arguments: for `sys.argv[1:]`.
        user: uid and gid of another user to run as, without capabilities; where we are not root the test is
            skipped.
        refuse: numbers of system calls (x86-64) that fail, as a container's seccomp filter has it.
        errno: how these fail; EPERM by default.
    """
    program = _IMPORTS
    if user is not None:
        if os.geteuid() != 0:
            pytest.skip("becoming another user needs root")
        program += _OTHER_USER.format(uid=user[0], gid=user[1])
    if refuse:
        if os.uname().machine != "x86_64":
            pytest.skip("the numbers of system calls are those of x86-64")
        program += _FILTER.format(calls=refuse, errno=errno)
    program += textwrap.dedent(code)
    command = [sys.executable, "-c", program, *(str(argument) for argument in arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


needs_cgroup = pytest.mark.skipif(cgroup.find_parent() is None, reason="needs a memory cgroup of our own")
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root")


def busyness() -> float:
    """Return how many processes want each processor, 1 at least: each of them gets its share."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Patience:
    """Time that passes as on a machine of our own: beside others' work a second of it takes several.

    Args:
        seconds: how long to wait there.
    """

    def __init__(self, seconds: float) -> None:
        self._left, self._at = seconds, time.monotonic()

    def left(self) -> float:
        """Return how many seconds are left; negative where none are."""
        now = time.monotonic()
        self._left -= (now - self._at) / busyness()
        self._at = now
        return self._left


def wait_until(
    condition: Callable[[], object], seconds: float = 60.0, why: Callable[[], object] | str = ""
) -> None:
    """Wait until the condition holds.

    Args:
        condition: asked again after 0.02 s, or after a longer time where it takes much of a processor itself.
        seconds: how long it is waited for on a quiet machine.
        why: is said, or called to say it, where the condition does not hold in that time.

    Raises:
        AssertionError: it did not.
    """
    patience = Patience(seconds)
    begun = time.thread_time()
    while not condition():
        if patience.left() < 0:
            raise AssertionError(f"not in {seconds:.0f} s: {why() if callable(why) else why}")
        time.sleep(max(0.02, 3 * (time.thread_time() - begun)))
        begun = time.thread_time()
