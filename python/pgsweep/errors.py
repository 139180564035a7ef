"""The one tree of errors: each says what failed, carries a hint to paste, and knows its exit code.

Exit codes are part of the interface: 0 ok, 1 error, 2 usage, 3 connection, 4 privilege or missing
ability, 5 a condition of `--fail-if` holds, 130 interrupted.
"""

from __future__ import annotations

from typing import ClassVar, Final

CONDITION_HOLDS: Final = 5
"""A condition of `--fail-if` holds."""

INTERRUPTED: Final = 130
"""Ctrl-C, as a shell has it: 128 and the number of SIGINT."""


class PgsweepError(Exception):
    """Something failed that the user can understand.

    Args:
        message: one sentence: what failed, on what.
        cause: the likely cause, one sentence; None if the message says it.
        hint: what to do next, usually a command to paste.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, cause: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.hint = hint


class UsageError(PgsweepError):
    """The arguments are invalid or contradict each other."""

    exit_code = 2


class ConnectionFailed(PgsweepError):
    """The server cannot be reached, refuses us, or went away.

    Attributes:
        by_server: whether it is the server that refuses the connection, as far as its message shows.
    """

    exit_code = 3
    by_server = False


class ConnectionLost(ConnectionFailed):
    """A session has gone that was there."""


class UnexpectedAnswer(PgsweepError):
    """A server gave an answer that PostgreSQL does not give."""


class MissingAbility(PgsweepError):
    """A privilege, an extension or a kernel facility is missing."""

    exit_code = 4


class ServerTooOld(MissingAbility):
    """The server is of a version whose rules are not known."""


class EvidenceError(PgsweepError):
    """Evidence cannot be written or read."""


class NotEvidence(EvidenceError, UsageError):
    """What was named is there, and is no evidence."""


class ClusterError(PgsweepError):
    """A private cluster cannot be made, started or stopped."""


class HeatError(PgsweepError):
    """A heat file cannot be written or read."""
