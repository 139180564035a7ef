"""`pgsweep memory kernel`: the kernel's settings that matter to a database host."""

from __future__ import annotations

from pgsweep.cli.command import Run, subcommand


@subcommand(server="database")
def command(run: Run, /) -> None:
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
    from pgsweep.memory.kernel import examine

    run.show(run.target.use(examine))
