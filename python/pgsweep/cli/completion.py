"""`pgsweep completion`: the script that makes a shell complete commands, options and files."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from pgsweep.cli.common import HELP_NAMES, common_options

_VARIABLE = "_PGSWEEP_COMPLETE"


@click.command(context_settings={"help_option_names": HELP_NAMES})
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
@click.pass_context
def command(ctx: click.Context, /, *, shell: str) -> None:
    r"""Print the completion script for bash, zsh or fish.

    \b
    Examples:
      pgsweep completion bash > ~/.local/share/bash-completion/completions/pgsweep
      pgsweep completion zsh > "${fpath[1]}/_pgsweep"
      pgsweep completion fish > ~/.config/fish/completions/pgsweep.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root().command
    # The script is made from the template itself: click's `source()` would start bash only to warn of old
    # ones.
    completer = kind(root, {}, "pgsweep", _VARIABLE)
    click.echo(completer.source_template % completer.source_vars())
