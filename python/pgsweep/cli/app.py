"""The click application: commands loaded when they are called, and one place where errors become words."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from pgsweep.cli.branches import Branching
from pgsweep.cli.common import HELP_NAMES, common_options
from pgsweep.cli.config import defaults_for, name_in_environment
from pgsweep.cli.failures import describe
from pgsweep.cli.interrupt import (
    ended_for_sure,
    ended_like_interrupt,
    no_session_left,
    suspended_between_answers,
)
from pgsweep.cli.overview import COMMANDS, overview_text
from pgsweep.cli.settings import Settings
from pgsweep.cli.streams import reader_gone
from pgsweep.commands import asked_by
from pgsweep.errors import PgsweepError


class ReaderGone(Exception):
    """Nobody reads stdout any more."""


class Application(click.Group):
    """The group of subcommands; a subcommand's module is imported when it is asked for, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the overview."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the subcommand and return it, or None where there is none of that name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = importlib.import_module(f"pgsweep.cli.{entry.module}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand; an unknown one is answered with the nearest name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1, cutoff=0.5)
            if near:
                raise click.UsageError(f"no such command `{args[0]}`; did you mean `pgsweep {near[0]}`?", ctx)
            raise click.UsageError(f"no such command `{args[0]}`", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        # Help must come whatever the configuration is.
        if command is not None and name is not None and not any(word in HELP_NAMES for word in rest):
            ctx.default_map = _defaults(command, name, rest)
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A reader of stdout that has gone is not an error; click would exit with code 1.

        Raises:
            ReaderGone: nobody reads stdout any more.
            PgsweepError: another pipe was closed at its other end.
        """
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            if reader_gone():
                raise ReaderGone from error
            raise PgsweepError(
                "a pipe was closed at its other end",
                cause="a process that this one worked with has ended",
                hint="run it again; with `--debug` it says where that was",
            ) from error
        return result

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the same page as the fast path in main.py."""
        formatter.write(overview_text())


def _defaults(command: click.Command, name: str, words: list[str]) -> dict[str, Any]:
    """Return the defaults of the file by the name that the command, or its branch, will be called by."""
    if isinstance(command, Branching) and words and words[0] in command.branches:
        name, command = f"{name} {words[0]}", command.branch(words[0])
    name_in_environment(command, name)
    return {name: defaults_for(command, name)}


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from pgsweep.cli.version import version_text

        click.echo(version_text(), nl=False)
        ctx.exit()


@click.group(
    cls=Application,
    name="pgsweep",
    context_settings={"help_option_names": HELP_NAMES, "max_content_width": 100},
)
@click.option("-V", "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version)
@common_options
def application() -> None:
    """Find out how a PostgreSQL server's memory should be used."""


def run(arguments: Sequence[str]) -> int:
    """Run the command and return the exit code; every failure is explained on stderr.

    Raises:
        BrokenPipeError: nobody reads stdout any more; main.py ends quietly.
    """
    settings = Settings(arguments=list(arguments))
    with asked_by(settings.command, lambda: settings.named()):  # noqa: PLW0108 (it changes)
        try:
            with ended_for_sure(), ended_like_interrupt(), suspended_between_answers(), no_session_left():
                code = application.main(
                    args=list(arguments),
                    prog_name="pgsweep",
                    standalone_mode=False,
                    obj=settings,
                    auto_envvar_prefix="PGSWEEP",
                )
        except ReaderGone as gone:
            raise BrokenPipeError from gone
        except BaseException as error:
            return describe(error, settings)
    return code if isinstance(code, int) else 0
