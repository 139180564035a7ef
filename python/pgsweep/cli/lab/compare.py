"""`pgsweep lab compare`: two results side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import FileName
from pgsweep.errors import UsageError

if TYPE_CHECKING:
    from pgsweep.records.lab import LabResult


@subcommand()
@click.argument("first", type=FileName(needed="file"))
@click.argument("second", type=FileName(needed="file"))
def command(
    run: Run,
    /,
    *,
    first: Path,
    second: Path,
) -> None:
    r"""Compare two results of `pgsweep lab run`, cell by cell.

    FIRST and SECOND are JSON files or HTML reports that `pgsweep lab run` wrote. Each difference is the ratio
    of the medians, with its 95% interval (bootstrap over runs, BCa), which needs 5 runs of a cell on both
    sides. Settings outside of the grid's lists, the server's version and the machine may differ, and are
    listed. Results with other workloads, another scale or another limit of memory are refused.

    \b
    Examples:
      pgsweep lab compare before.json after.json
      pgsweep lab compare pg15.html pg18.html --json
    """
    from pgsweep.lab.compare import compare

    names = (first.name, second.name) if first.name != second.name else (str(first), str(second))
    run.show(compare(_read(first), _read(second), names=names))


def _read(path: Path) -> LabResult:
    from pgsweep.records.lab import LabResult
    from pgsweep.ui.results import read_result

    result = read_result(path)
    if not isinstance(result, LabResult):
        raise UsageError(
            f"`{path}` is not a result of `pgsweep lab run`",
            cause=f"its schema is {result.schema}",
            hint="pgsweep lab run my-grid.toml -o before.json",
        )
    return result
