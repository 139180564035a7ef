"""Settings of one run of a command, the same for all commands: how to report, and what to keep."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from pgsweep.plain import cleaned, shell_words
from pgsweep.ui.kit.terminal import Terminal


@dataclass
class Settings:
    """The options common to all commands, as they were given."""

    color: str = "auto"
    quiet: bool = False
    progress: bool = True
    debug: bool = False
    arguments: list[str] = field(default_factory=list)
    named: Callable[[], dict[str, str]] = dict
    """Returns psql's options for the server that the command line names, as far as it was read."""
    kept: list[Path] = field(default_factory=list)
    """Files that stay, usable, if the command is interrupted now."""

    def command(self) -> str:
        """Return the command line, without passwords."""
        from pgsweep.pg.session.secrets import without_secrets

        return shell_words(["pgsweep", *(without_secrets(word) for word in self.arguments)])

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
