"""Where a result goes: text on stdout, or JSON or CSV there, and files by their suffix."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pgsweep.cli.common import FileName, options
from pgsweep.cli.settings import Settings
from pgsweep.errors import PgsweepError, UsageError
from pgsweep.files import where_to_look, write_whole
from pgsweep.plain import cleaned, shell_word

if TYPE_CHECKING:
    from pgsweep.ui.kit.view import Result

SUFFIXES = {".json": "json", ".csv": "csv", ".html": "html", ".htm": "html", ".txt": "text", ".svg": "svg"}


output_options = options(
    click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout."),
    click.option("--csv", "as_csv", is_flag=True, help="Write CSV to stdout."),
    click.option("--html", type=FileName(), help="Write an HTML report."),
    click.option(
        "-o",
        "--out",
        type=FileName(),
        multiple=True,
        help="Write a file: .html, .json, .csv or .txt by its suffix. May be repeated.",
    ),
)
"""Those for a result; they arrive as as_json, as_csv, html and out."""


class Output:
    """The places where one result will be written, checked before the work begins."""

    def __init__(
        self,
        settings: Settings,
        *,
        as_json: bool = False,
        as_csv: bool = False,
        html: Path | None = None,
        out: tuple[Path, ...] = (),
        text: bool = True,
        tables: bool = True,
        rows: int | None = None,
    ) -> None:
        """Take the options; `text` says whether stdout gets the text where neither JSON nor CSV goes there.

        Args:
            tables: whether that text has all tables; a file always has.
            rows: the most that long tables have in that text; None for all, as in a file.

        Raises:
            UsageError: they contradict each other, a suffix says nothing, or a place cannot be written.
        """
        if as_json and as_csv:
            raise UsageError(
                "--json and --csv both want stdout",
                hint="write one of them to a file: `--json -o result.csv`",
            )
        self._settings = settings
        self._tables, self._rows = tables, rows
        self._stdout = "json" if as_json else "csv" if as_csv else "text" if text else ""
        self._files: list[tuple[Path, str]] = [(html, "html")] if html is not None else []
        for path in out:
            kind = SUFFIXES.get(path.suffix.lower())
            if kind is None:
                raise UsageError(
                    f"the suffix of `{path}` does not name a format",
                    hint="end its name in .html, .json, .csv or .txt, or in .svg for the figures",
                )
            self._files.append((path, kind))
        for path, _ in self._files:
            check_writable(path)

    def write(self, result: Result) -> None:
        """Write the result to stdout and to every file, and say on stderr which files there are.

        A file that cannot be written keeps the result neither from stdout nor from the other files.

        Raises:
            PgsweepError: a file cannot be written.
        """
        failed: PgsweepError | None = None
        written = []
        for path, kind in self._files:
            try:
                text = self._rendered(result, kind, to_file=True)
                write_file(path, text, private=bool(getattr(result, "private", False)))
                written.append((path, kind))
            except PgsweepError as error:
                failed = failed or error
        if self._stdout:
            write_stdout(self._rendered(result, self._stdout, to_file=False), data=self._stdout == "csv")
        for path, kind in written:
            self._settings.say(f"{'report' if kind == 'html' else 'result'}: {path}")
        if failed is not None:
            raise failed

    def for_terminal(self, result: Result) -> str | None:
        """Return the text of a result where a person gets it on a terminal that can be written anew."""
        if self._stdout != "text" or os.environ.get("TERM", "dumb") == "dumb" or not sys.stdout.isatty():
            return None
        return self._rendered(result, "text", to_file=False)

    def _rendered(self, result: Result, kind: str, *, to_file: bool) -> str:
        if kind == "json":
            from pgsweep.ui.results import to_json

            return to_json(result)
        if kind == "csv":
            from pgsweep.ui.results import to_csv

            return to_csv(result)
        if kind == "html":
            from pgsweep.ui.kit.report import to_html

            return to_html(result)
        if kind == "svg":
            from pgsweep.ui.kit.pictures import to_svg

            return to_svg(result)
        from pgsweep.ui.kit.terminal import Terminal
        from pgsweep.ui.results import to_text

        # A file has what a pipe gets.
        terminal = Terminal() if to_file else self._settings.terminal()
        return to_text(
            result, terminal if to_file else replace(terminal, tables=self._tables, rows=self._rows)
        )


def write_stdout(text: str, *, data: bool = False, control: bool = False) -> None:
    """Write to stdout in UTF-8, whatever the locale: it may be data.

    Args:
        text: a result; cleaned here, as all text that leaves.
        data: rows whose texts must stay as they are, unless a person sees them.
        control: sequences of ours that move the cursor of a terminal.
    """
    sys.stdout.flush()
    if not control and (not data or sys.stdout.isatty()):
        text = cleaned(text, colours=True)
    # A lone surrogate, from a name in the environment that is not UTF-8, has no bytes in UTF-8.
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
    sys.stdout.buffer.flush()


def check_writable(path: Path) -> None:
    """Fail now rather than after minutes of work.

    Raises:
        UsageError: the file could not be written there.
    """
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"`{path}` is a folder", hint="name a file in it")
    if path.exists() and not path.is_file():
        # Renaming a file over /dev/null would replace the device, and root is allowed to.
        raise UsageError(f"`{path}` is a device or a pipe", hint="name a plain file")
    if not folder.is_dir():
        raise UsageError(f"there is no folder `{folder}`", hint=f"mkdir -p {shell_word(str(folder))}")
    if (folder / "meta.json").is_file():
        # A result in the place of one of its files would destroy a recording.
        raise UsageError(
            f"`{folder}` is evidence, which no result is written into", hint="name a file in another folder"
        )
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"`{path}` may not be written", hint="name a file in a folder of yours")


def write_file(path: Path, text: str, *, private: bool = False) -> None:
    """Write the file whole or not at all; where it is private, only its owner may read it.

    Raises:
        PgsweepError: the disk is full, or the folder has gone.
    """
    try:
        write_whole(path, text.encode(), mode=0o600 if private else 0o666)
    except OSError as error:
        raise PgsweepError(
            f"cannot write `{path}`: {error.strerror}",
            hint=where_to_look(path),
        ) from error
