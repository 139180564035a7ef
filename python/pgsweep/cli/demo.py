"""`pgsweep demo`: everything on a private server: workload, record, predict, prove, report."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import FileName, bindir_option
from pgsweep.cli.progress import ConsoleProgress

_REPORT_NAME = "pgsweep-demo.html"


@subcommand(prepared=False)
@click.option(
    "--all", "everything", is_flag=True, help="Three workloads at seven sizes instead of one at five."
)
@bindir_option
@click.option(
    "--work-dir",
    type=FileName(file_okay=False),
    help="Where the server's data directory is made (3 GB).  [default: the place for temporary files]",
)
@click.option(
    "--keep",
    type=FileName(file_okay=False),
    help="Keep the evidence in this folder, to look at it with `pgsweep predict`.",
)
def command(
    run: Run,
    /,
    *,
    everything: bool,
    pg_bindir: Path | None,
    work_dir: Path | None,
    keep: Path | None,
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
    given = run.output_options
    if not any(given[name] for name in ("html", "as_json", "as_csv")) and not any(
        path.suffix == ".html" for path in given["out"]
    ):
        given["html"] = _default_report()
    run.prepare()
    if keep is not None:
        run.settings.kept.append(keep)
    from pgsweep.sizing.demo import run_demo

    with ConsoleProgress(run.settings) as shown:
        result = run_demo(
            everything=everything, bindir=pg_bindir, work_dir=work_dir, output=keep, progress=shown
        )
    run.show(result, server="a private server")


def _default_report() -> Path:
    folder = Path.cwd() if os.access(Path.cwd(), os.W_OK) else Path(tempfile.gettempdir())
    return folder / _REPORT_NAME
