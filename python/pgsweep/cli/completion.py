"""`pgsweep completion`: the script that makes a shell complete commands, options and files."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from pgsweep.cli.command import Run, subcommand

_VARIABLE = "_PGSWEEP_COMPLETE"


@subcommand(output=False)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(run: Run, /, *, shell: str) -> None:
    r"""Print the completion script for bash, zsh or fish.

    \b
    Examples:
      pgsweep completion bash > ~/.local/share/bash-completion/completions/pgsweep
      pgsweep completion zsh > "${fpath[1]}/_pgsweep"
      pgsweep completion fish > ~/.config/fish/completions/pgsweep.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = run.ctx.find_root().command
    # The script is made from the template itself: click's `source()` would start bash only to warn of old
    # ones.
    completer = kind(root, {}, "pgsweep", _VARIABLE)
    click.echo(completer.source_template % completer.source_vars())
