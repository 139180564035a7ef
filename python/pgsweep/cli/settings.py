"""Settings of one run of a command, the same for all commands: how to report, and what to keep."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TextIO

from pgsweep.plain import cleaned
from pgsweep.ui.terminal import Terminal


class ConnectionOptions(Protocol):
    """The options of psql that lead to a server."""

    def options(self) -> tuple[list[str], list[str]]:
        """Return those that name the server, and those that name role and database too."""


@dataclass
class Settings:
    """The options common to all commands, as they were given."""

    color: str = "auto"
    quiet: bool = False
    progress: bool = True
    debug: bool = False
    arguments: list[str] = field(default_factory=list)
    target: ConnectionOptions | None = None
    """The server that the options name, once they were read."""
    kept: list[Path] = field(default_factory=list)
    """Files that stay, usable, if the command is interrupted now."""

    def terminal(self, stream: TextIO | None = None) -> Terminal:
        """Return what the stream (stdout when not given) can show under these settings."""
        return Terminal.of(sys.stdout if stream is None else stream, self.color, os.environ)

    def say(self, text: str) -> None:
        """Write one line for the user on stderr, unless `--quiet` was given."""
        if not self.quiet:
            sys.stderr.write(cleaned(text.rstrip("\n")) + "\n")
            sys.stderr.flush()

    def warn(self, text: str) -> None:
        """Write one warning on stderr, also when quiet."""
        terminal = self.terminal(sys.stderr)
        sys.stderr.write(terminal.paint("warning:", "yellow", "bold") + f" {cleaned(text)}\n")
        sys.stderr.flush()
