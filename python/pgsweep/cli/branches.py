"""A command that does something by itself and has subcommands too: `pgsweep memory`, `pgsweep memory budget`.

click's groups do not take arguments of their own beside subcommands. Here the first word chooses: the name
of a branch is that branch, everything else is the command itself. A database of such a name is meant by `-d`.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

import click
from click.shell_completion import CompletionItem


class Branching(click.Command):
    """A command with branches: `branches` gives the module in pgsweep.cli of each by its name."""

    def __init__(self, *args: Any, branches: dict[str, str], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.branches = branches

    def branch(self, name: str) -> click.Command:
        """Import a branch and return its command."""
        command = importlib.import_module(f"pgsweep.cli.{self.branches[name]}").command
        assert isinstance(command, click.Command)
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the command that the first word names, its arguments parsed."""
        if args and args[0] in self.branches:
            name = args[0]
            if parent is not None and parent.auto_envvar_prefix is not None:
                extra["auto_envvar_prefix"] = f"{parent.auto_envvar_prefix}_{info_name}_{name}".upper()
            return self.branch(name).make_context(f"{info_name} {name}", args[1:], parent, **extra)
        if args and not args[0].startswith("-") and not self._takes_arguments:
            raise self._unknown(info_name, args[0], parent)
        return super().make_context(info_name, args, parent, **extra)

    @property
    def _takes_arguments(self) -> bool:
        return any(isinstance(parameter, click.Argument) for parameter in self.params)

    def _unknown(self, info_name: str | None, word: str, parent: click.Context | None) -> click.UsageError:
        context = click.Context(self, parent, info_name)
        near = difflib.get_close_matches(word, self.branches, n=1, cutoff=0.5)
        meant = f"; did you mean `{context.command_path} {near[0]}`?" if near else ""
        return click.UsageError(f"no such command `{context.command_path} {word}`{meant}", context)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then the branches with one line of each."""
        super().format_options(ctx, formatter)
        shown = [(name, branch) for name in self.branches if not (branch := self.branch(name)).hidden]
        if shown:
            with formatter.section("Subcommands"):
                formatter.write_dl([(name, one.get_short_help_str(limit=200)) for name, one in shown])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the branches that begin like this, then what any command completes."""
        names = [CompletionItem(name) for name in self.branches if name.startswith(incomplete)]
        return [*names, *super().shell_complete(ctx, incomplete)]
