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

    Attributes:
        code: of the kind, for programs; it stays where words change. docs/reference/errors.md lists all.
    """

    exit_code: ClassVar[int] = 1
    code = "failed"

    def __init_subclass__(cls) -> None:
        # From the name, `not-evidence` of NotEvidence; the page of the reference shows where that changes.
        if "code" not in cls.__dict__:
            cls.code = "".join(f"-{c.lower()}" if c.isupper() else c for c in cls.__name__).strip("_-")

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


class LacksPrivilege(MissingAbility):
    """The role lacks a privilege on the server."""


class LacksExtension(MissingAbility):
    """The database lacks an extension, or the server its files or its library."""


class LacksPackage(MissingAbility):
    """A package of Python is not installed."""


class OnStandby(MissingAbility):
    """The server is a standby, which takes no writes."""


class KeptElsewhere(MissingAbility):
    """A provider, an operator or a tool keeps the server's settings."""


class NotOnHost(MissingAbility):
    """The server does not run on this host."""


class NeedsRoot(MissingAbility):
    """The user who runs pgsweep may not do this on the host; root may."""


class Pooled(MissingAbility):
    """The connection goes through a connection pooler."""


class AtWork(PgsweepError):
    """Another process does the same on the same data."""


class NotThere(UsageError):
    """A file or a folder that was named is not there."""


class NotConfirmed(UsageError):
    """What would be changed was not confirmed, and there is no terminal to ask on."""


class OtherServer(UsageError):
    """The evidence is of another server than the one that is named."""


class LoadUnfinished(UsageError):
    """A load of the table has begun and not ended."""


class EvidenceError(PgsweepError):
    """Evidence cannot be written or read."""


class NotEvidence(EvidenceError, UsageError):
    """What was named is there, and is no evidence."""


class ClusterError(PgsweepError):
    """A private cluster cannot be made, started or stopped."""


class HeatError(PgsweepError):
    """A heat file cannot be written or read."""
