"""A listener to long jobs that writes their steps to stderr."""

from __future__ import annotations

import sys


class Steps:
    """Writes stages and notes; a benchmark's stdout is for its result."""

    def stage(self, title: str, total_seconds: float | None = None) -> None:
        print(title, file=sys.stderr)

    def advance(self, done_seconds: float) -> None:
        pass

    def note(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr)
