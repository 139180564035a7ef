"""`pgsweep lab list`: the experiments, and which of them can run here."""

from __future__ import annotations

from pgsweep.cli.command import Run, subcommand


@subcommand()
def command(run: Run, /) -> None:
    r"""List the published experiments: what each asks, how long it takes, whether it can run here.

    What an experiment needs besides a private server (a memory cgroup, huge pages that are free) is listed
    with it. One that can run in part leaves out what it cannot measure, and says so.

    \b
    Examples:
      pgsweep lab list
      pgsweep lab list --json | jq '.experiments[] | select(.state == "runs") | .name'
    """
    from pgsweep.lab.catalog import list_experiments

    run.show(list_experiments())
