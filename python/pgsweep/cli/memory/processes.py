"""`pgsweep memory`: what every process of the server costs the host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pgsweep.cli.branches import Branching
from pgsweep.cli.common import HELP_NAMES, Duration, common_options, settings_of
from pgsweep.cli.connection import Target, connection_options
from pgsweep.cli.output import Output, output_options
from pgsweep.errors import UsageError

if TYPE_CHECKING:
    from pgsweep.records.memory import MemoryResult

_BRANCHES = {"budget": "memory.budget", "kernel": "memory.kernel"}


@click.command(cls=Branching, branches=_BRANCHES, context_settings={"help_option_names": HELP_NAMES})
@connection_options
@click.option(
    "--top", type=click.IntRange(min=1), metavar="N", help="Only the N processes that cost the most."
)
@click.option(
    "--queries",
    is_flag=True,
    help="Show each session's statement, which may contain passwords; files are readable by their owner "
    "only.",
)
@click.option("--watch", "watching", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--interval", type=Duration(), default="2s", show_default=True, help="Time from one sample to the next."
)
@output_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    top: int | None,
    queries: bool,
    watching: bool,
    interval: float,
    as_json: bool,
    as_csv: bool,
    html: Path | None,
    out: tuple[Path, ...],
    no_password: bool,
    ask_password: bool,
    **names: str | None,
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
    settings = settings_of(ctx)
    target = Target(no_password=no_password, ask_password=ask_password, **names)
    if watching and (as_json or as_csv or html or out):
        raise UsageError(
            "--watch shows text on the terminal only",
            hint="leave it out for a file, --json or --csv: `watch -n 2 pgsweep memory --json`",
        )
    output = Output(settings, as_json=as_json, as_csv=as_csv, html=html, out=out)
    from pgsweep.cli.provenance import with_provenance
    from pgsweep.memory.processes import look, opened

    def looked(conninfo: str) -> MemoryResult | None:
        with opened(conninfo) as server:

            def once() -> MemoryResult:
                result = look(server, top=top, queries=queries)
                return with_provenance(result, settings.arguments, server=target.server)

            if watching:
                from pgsweep.cli.watch import watch

                watch(once, interval, settings)
                return None
            return once()

    result = target.use(looked)
    if result is not None:
        output.write(result)
