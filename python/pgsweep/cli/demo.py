"""`pgsweep demo`: everything on a private server: workload, record, predict, prove, report."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import FileName, bindir_option
from pgsweep.cli.progress import ConsoleProgress
from pgsweep.errors import UsageError

_REPORT_NAME = "pgsweep-demo.html"


@subcommand(prepared=False)
@click.option(
    "--all", "everything", is_flag=True, help="Three workloads at seven sizes instead of one at five."
)
@click.option(
    "--large",
    is_flag=True,
    help="A pool of 2 GB before a database of 6 GB, recorded for two minutes: a part of a clock pass. Takes "
    "some 10 minutes, 8 GB of memory and 10 GB of disk.",
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
    large: bool,
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
      pgsweep demo --large --work-dir /srv/tmp
      pgsweep demo --pg-bindir /usr/lib/postgresql/15/bin
    """
    given = run.output_options
    if not any(given[name] for name in ("html", "as_json", "as_csv")) and not any(
        path.suffix == ".html" for path in given["out"]
    ):
        given["html"] = _default_report()
    run.prepare()
    if everything and large:
        raise UsageError("--all and --large exclude each other", hint="pgsweep demo --large")
    if keep is not None:
        run.settings.kept.append(keep)
    from pgsweep.sizing.demo import run_demo

    with ConsoleProgress(run.settings) as shown:
        result = run_demo(
            everything=everything,
            large=large,
            bindir=pg_bindir,
            work_dir=work_dir,
            output=keep,
            progress=shown,
        )
    run.show(result, server="a private server")


def _default_report() -> Path:
    folder = Path.cwd() if os.access(Path.cwd(), os.W_OK) else Path(tempfile.gettempdir())
    return folder / _REPORT_NAME
