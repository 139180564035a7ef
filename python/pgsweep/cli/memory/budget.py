"""`pgsweep memory budget`: whether the memory suffices, now and at max_connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import Bytes, Count
from pgsweep.errors import UsageError

if TYPE_CHECKING:
    from pgsweep.records.budget import BudgetResult


class _WorkMem(Bytes):
    """A value of work_mem: a number without a unit is kB, as in PostgreSQL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes.

        Raises:
            UsageError: PostgreSQL would not take it.
        """
        text = str(value).strip()
        size_bytes = super().convert(f"{text}kB" if text.isdecimal() else value, param, ctx)
        if size_bytes < _LEAST_WORK_MEM:
            raise UsageError(f"work_mem = `{value}` is refused by PostgreSQL", hint="it is at least 64kB")
        return size_bytes


_LEAST_WORK_MEM: Final = 64 << 10
"""guc_tables.c."""


@subcommand(server="database")
@click.option(
    "--max-connections",
    type=Count(min=1),
    help="Compute the budget for N connections.  [default: the setting]",
)
@click.option(
    "--plan-nodes",
    type=Count(min=0),
    default=2,
    help="Sorts and hashes that each connection is assumed to hold at once, at the high end.",
)
@click.option(
    "--work-mem", type=_WorkMem(), help="Compute the budget for this work_mem.  [default: the setting]"
)
@click.option(
    "--ram",
    "ram_bytes",
    type=Bytes(),
    help="Compute the budget for this much memory.  [default: what the server may use of its host]",
)
def command(
    run: Run,
    /,
    *,
    work_mem: int | None,
    ram_bytes: int | None,
    **wanted: Any,
) -> None:
    r"""Show whether the memory suffices, now and at max_connections, and what is left for cached files.

    Shared memory, page tables, connections and background processes are measured; from these it is predicted
    what max_connections would take: at the low end that many connections like today's, at the high end
    each with all of the shared memory touched and as much work_mem as the settings allow. The verdict is
    fits, tight or will be killed, with the number of connections that fit at both ends. A smaller limit of
    the server's memory cgroup counts instead of the host's memory. It also shows the largest work_mem and the
    largest number of connections for which the verdict would be fits.

    Needs the server's host, as the server's user or root. With --ram it is computed over SQL alone, too: what
    processes take is assumed then, and said to be. Nothing is changed.

    \b
    Examples:
      sudo pgsweep memory budget
      sudo pgsweep memory budget --max-connections 1000 --plan-nodes 4
      sudo pgsweep memory budget --max-connections 500 --work-mem 64MB
      sudo pgsweep memory budget --json | jq .verdict
      pgsweep memory budget -h db.example.com --ram 16GB
    """
    from pgsweep.errors import MissingAbility
    from pgsweep.memory.assumed import budget_by_settings
    from pgsweep.memory.budget import budget
    from pgsweep.memory.processes import opened
    from pgsweep.pg.session.connect import connect

    def budget_of(conninfo: str) -> BudgetResult:
        try:
            return measured(conninfo)
        except MissingAbility:
            # Over SQL alone, where the memory is named: what processes take is assumed then.
            if ram_bytes is None:
                raise
        with connect(conninfo) as connection:
            return budget_by_settings(connection, ram_bytes, work_mem_bytes=work_mem, **wanted)

    def measured(conninfo: str) -> BudgetResult:
        with opened(conninfo) as server:
            return budget(server, work_mem_bytes=work_mem, ram_bytes=ram_bytes, **wanted)

    run.show(run.target.use(budget_of))
