"""Whose prediction is next, so that all of them keep to a share of a processor, whatever each of them takes.

Each window of each server has a share of its own. What a prediction took is paid off at that share before the
window's next turn: one that takes 4 s of a processor, of a window with 2%, comes 200 s later. So no window
takes the others' turns, and it is known at once when the next one is due.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

WINDOWS: Final = (900, 3600, 86400)
"""Lengths of the sliding windows in seconds."""

VERIFYING: Final = 0
"""The turn in which it is checked whether shared_buffers was changed, and the prediction held."""

SHARES: Final = {900: 0.02, 3600: 0.006, 86400: 0.0025, VERIFYING: 0.0015}
"""Of one processor, for the turns of one server; 3% together. They are about as the usual pauses are."""

SERVER_SHARE: Final = sum(SHARES.values())

_MOST_SHARE: Final = 0.25
"""Of one processor, for all servers together."""

_CREDIT_SECONDS: Final = 300.0
"""At first, and after a pause, as much may be taken in advance as this time gives."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One server's window, or its verification.

    Attributes:
        window: its length in seconds, or `VERIFYING`.
    """

    key: str
    window: int


class Turns:
    """When each turn comes.

    Args:
        keys: of the servers.
        now: in seconds by a clock that is not set, as are all times here.
        verify_after: seconds until the first verification.
    """

    def __init__(self, keys: Iterable[str], now: float, verify_after: float = 0.0) -> None:
        servers = list(keys)
        self._scale = min(1.0, _MOST_SHARE / (SERVER_SHARE * max(1, len(servers))))
        self._due = {Turn(key, window): now for key in servers for window in WINDOWS}
        self._due |= {Turn(key, VERIFYING): now + verify_after for key in servers}
        self._paid = dict.fromkeys(self._due, now - _CREDIT_SECONDS)

    def share(self, window: int) -> float:
        """Return the share of one processor that a window of each server has."""
        return SHARES[window] * self._scale

    def next(self, now: float) -> Turn | None:
        """Return the turn that has been due for longest; of those due at once the shortest window."""
        ready = [turn for turn, at in self._due.items() if at <= now]
        return min(ready, key=lambda turn: (self._due[turn], turn.window or max(WINDOWS) + 1), default=None)

    def took(self, turn: Turn, begin: float, processor_seconds: float, pause: float) -> float:
        """Note what a turn took; return the seconds from its beginning to the next.

        Args:
            turn: that was taken.
            begin: when it began.
            processor_seconds: that it took.
            pause: seconds from its beginning after which the next is wanted, as soon as it is paid off.
        """
        self._paid[turn] = max(self._paid[turn], begin - _CREDIT_SECONDS)
        self._paid[turn] += processor_seconds / self.share(turn.window)
        self._due[turn] = max(begin + pause, self._paid[turn])
        return self._due[turn] - begin
