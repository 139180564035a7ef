"""`pgsweep import`: evidence from what psql gathered."""

from __future__ import annotations

from pathlib import Path

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import FileName
from pgsweep.cli.progress import ConsoleProgress
from pgsweep.cli.record import check_evidence_path, show_recording


@subcommand(output=False)
@click.argument(
    "file",
    type=FileName(
        needed="file", hint="name what psql wrote: psql -X -d DBNAME -f gather.sql -o {}", dir_okay=False
    ),
    metavar="FILE",
)
@click.option(
    "-o",
    "--out",
    type=FileName(),
    metavar="NAME.evidence",
    help="The folder to write.  [default: FILE with the suffix .evidence]",
)
@click.option("--json", "as_json", is_flag=True, help="Write what was gathered as JSON to stdout.")
def command(run: Run, /, *, file: Path, out: Path | None, as_json: bool) -> None:
    r"""Make evidence from what psql gathered on a host without pgsweep.

    FILE is what the script of `pgsweep record --script` wrote, compressed with gzip or not. The evidence is
    what `pgsweep record --source sql` makes. A file that was cut short gives what stands before the cut.

    \b
    Examples:
      pgsweep record --script --for 10min > gather.sql
      psql -X -d shop -f gather.sql -o shop.gathered      (there)
      pgsweep import shop.gathered
      pgsweep predict shop.evidence
    """
    if out is None:
        out = file.with_name(file.name.removesuffix(".gz")).with_suffix(".evidence")
    check_evidence_path(out)
    from pgsweep.evidence.gathered import import_gathered

    with ConsoleProgress(run.settings) as shown:
        result = import_gathered(file, out, progress=shown)
    show_recording(run, result, as_json=as_json)
