"""`pgsweep memory kernel`: the kernel's settings that matter to a database host."""

from __future__ import annotations

import click

from pgsweep.cli.common import HELP_NAMES, common_options
from pgsweep.cli.connection import Target, connection_options
from pgsweep.cli.observing import observing
from pgsweep.cli.output import Output, output_options
from pgsweep.cli.settings import Settings


@click.command(context_settings={"help_option_names": HELP_NAMES})
@connection_options
@output_options
@common_options
@observing
def command(settings: Settings, target: Target, output: Output, /) -> None:
    r"""Show the kernel's settings that matter to a database host, and the recommended values.

    For each setting: the present value, a recommendation, the reason, the source, and how certain the advice
    is. The settings concern writing back of dirty pages, overcommit, swapping, transparent huge pages, NUMA,
    the postmaster's OOM score, and read-ahead. Nothing is set. Without a connection this host's settings are
    shown all the same.

    \b
    Examples:
      pgsweep memory kernel
      pgsweep memory kernel -h localhost -U postgres --json
    """
    from pgsweep.cli.provenance import with_provenance
    from pgsweep.memory.kernel import examine

    output.write(with_provenance(target.use(examine), settings.arguments, server=target.server))
