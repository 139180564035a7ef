"""`pgsweep prove`: the accesses of a trace through a real server at other sizes, beside the prediction."""

from __future__ import annotations

from pathlib import Path

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import Count, FileName, Sizes, bindir_option
from pgsweep.cli.progress import ConsoleProgress


@subcommand()
@click.argument(
    "evidence",
    type=FileName(needed="evidence", hint="record some: `pgsweep record --source trace --for 20s -o {}`"),
    metavar="EVIDENCE",
)
@click.option(
    "--sizes",
    type=Sizes(),
    help="Sizes of shared_buffers, such as 64MB,256MB.  [default: an eighth to eight times the observed "
    "size]",
)
@click.option(
    "--max-accesses",
    type=Count(min=1000),
    default=1_000_000,
    help="Replay no more than the first N accesses of the trace.",
)
@bindir_option
@click.option(
    "--work-dir",
    type=FileName(file_okay=False),
    help="Where the private server's data directory is made.  [default: the place for temporary files]",
)
def command(
    run: Run,
    /,
    *,
    evidence: Path,
    sizes: list[int] | None,
    max_accesses: int,
    pg_bindir: Path | None,
    work_dir: Path | None,
) -> None:
    r"""Replay a recorded trace through a real server at other sizes.

    EVIDENCE is a folder that `pgsweep record --source trace` wrote. A private PostgreSQL is started with each
    size of shared_buffers in turn, the traced page accesses are repeated in their order, and the server
    counts its own hits and misses. The prediction and the simulator are shown beside them. Neither the
    observed server nor its data is needed: the pages are empty.

    \b
    Examples:
      pgsweep prove shop.evidence
      pgsweep prove shop.evidence --sizes 64MB,256MB,1GB -o proof.html
      pgsweep prove shop.evidence --pg-bindir /usr/lib/postgresql/15/bin --json
    """
    from pgsweep.evidence.subject import subject_of
    from pgsweep.sizing.prove import prove

    with ConsoleProgress(run.settings) as shown:
        result = prove(
            evidence,
            sizes_bytes=sizes,
            max_accesses=max_accesses,
            bindir=pg_bindir,
            work_dir=work_dir,
            progress=shown,
        )
    run.show(result, subject=subject_of(evidence))
