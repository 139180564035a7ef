"""`pgsweep memory`: what every process of the server costs the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pgsweep.cli.branches import Branching
from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import Count, Duration
from pgsweep.commands import on_server
from pgsweep.errors import UsageError

if TYPE_CHECKING:
    from pgsweep.records.memory import MemoryResult

_BRANCHES = {"budget": "memory.budget", "kernel": "memory.kernel"}


@subcommand(server="database", cls=Branching, branches=_BRANCHES)
@click.option("--top", type=Count(min=1), help="Only the N processes that cost the most.")
@click.option(
    "--queries",
    is_flag=True,
    help="Show each session's statement, which may contain passwords; files are readable by their owner "
    "only.",
)
@click.option("--watch", "watching", is_flag=True, help="Repeat until Ctrl-C.")
@click.option("--interval", type=Duration(), default="2s", help="Time from one sample to the next.")
def command(
    run: Run,
    /,
    *,
    top: int | None,
    queries: bool,
    watching: bool,
    interval: float,
) -> None:
    r"""Show what every process of the server costs the host, and what a connection truly costs.

    The true cost of a process is its private memory and its page tables: this much is freed when it
    ends. RSS, which ps and top show, counts shared memory again for each process that ever touched it. The
    sum at the top is what the host spends: shared memory once, private memory, page tables.

    Needs the server's host, as the server's user or root. Nothing is changed.

    \b
    Examples:
      sudo pgsweep memory
      sudo pgsweep memory -h localhost -U postgres shop --top 10
      sudo pgsweep memory --watch --interval 5s
      sudo pgsweep memory --json | jq .cost
      sudo pgsweep memory budget
      pgsweep memory kernel
    """
    if watching and any(run.output_options.values()):
        raise UsageError(
            "--watch shows text on the terminal only",
            hint="leave it out for a file, --json or --csv: "
            f"`watch -n 2 {on_server('pgsweep memory', '--json')}`",
        )
    from pgsweep.memory.processes import look, opened

    def looked(conninfo: str) -> MemoryResult | None:
        with opened(conninfo) as server:

            def once() -> MemoryResult:
                return run.made(look(server, top=top, queries=queries))

            if watching:
                from pgsweep.cli.watch import watch

                watch(once, interval, run.settings)
                return None
            return once()

    result = run.target.use(looked)
    if result is not None:
        run.output.write(result)
