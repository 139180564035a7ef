"""`pgsweep demo`: everything on a private server: workload, record, predict, prove, report."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from pgsweep.cli.common import HELP_NAMES, FileName, bindir_option, common_options, settings_of
from pgsweep.cli.output import Output, output_options
from pgsweep.cli.progress import ConsoleProgress

_REPORT_NAME = "pgsweep-demo.html"


@click.command(context_settings={"help_option_names": HELP_NAMES})
@click.option(
    "--all", "everything", is_flag=True, help="Three workloads at seven sizes instead of one at five."
)
@bindir_option
@click.option(
    "--work-dir",
    type=FileName(file_okay=False),
    metavar="DIR",
    help="Where the server's data directory is made (3 GB).  [default: the place for temporary files]",
)
@click.option(
    "--keep",
    type=FileName(file_okay=False),
    metavar="DIR",
    help="Keep the evidence in this folder, to look at it with `pgsweep predict`.",
)
@output_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    everything: bool,
    pg_bindir: Path | None,
    work_dir: Path | None,
    keep: Path | None,
    as_json: bool,
    as_csv: bool,
    html: Path | None,
    out: tuple[Path, ...],
) -> None:
    r"""Record, predict and prove on a private PostgreSQL, with an HTML report.

    Makes a private server (no TCP port, removed at the end), runs a workload on it, records that at one size
    of shared_buffers, predicts the misses at others, and then measures them by restarting the server at each
    size. Without --json or --csv the report goes to pgsweep-demo.html in the current folder.

    \b
    Examples:
      pgsweep demo
      pgsweep demo --all -o demo.html -o demo.json
      pgsweep demo --pg-bindir /usr/lib/postgresql/15/bin
    """
    settings = settings_of(ctx)
    if html is None and not as_json and not as_csv and not any(p.suffix == ".html" for p in out):
        html = _default_report()
    output = Output(settings, as_json=as_json, as_csv=as_csv, html=html, out=out)
    if keep is not None:
        settings.kept.append(keep)
    from pgsweep.cli.provenance import with_provenance
    from pgsweep.sizing.demo import run_demo

    with ConsoleProgress(settings) as shown:
        result = run_demo(
            everything=everything, bindir=pg_bindir, work_dir=work_dir, output=keep, progress=shown
        )
    output.write(with_provenance(result, settings.arguments, server="a private server"))


def _default_report() -> Path:
    folder = Path.cwd() if os.access(Path.cwd(), os.W_OK) else Path(tempfile.gettempdir())
    return folder / _REPORT_NAME
