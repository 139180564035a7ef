"""`pgsweep prove`: the accesses of a trace through a real server at other sizes, beside the prediction."""

from __future__ import annotations

from pathlib import Path

import click

from pgsweep.cli.common import HELP_NAMES, FileName, Sizes, bindir_option, common_options, settings_of
from pgsweep.cli.output import Output, output_options
from pgsweep.cli.progress import ConsoleProgress


@click.command(context_settings={"help_option_names": HELP_NAMES})
@click.argument(
    "evidence",
    type=FileName(needed="evidence", hint="record some: `pgsweep record --source trace --for 20s -o {}`"),
    metavar="EVIDENCE",
)
@click.option(
    "--sizes",
    type=Sizes(),
    metavar="SIZE,SIZE,...",
    help="Sizes of shared_buffers, such as 64MB,256MB.  [default: an eighth to eight times the observed "
    "size]",
)
@click.option(
    "--max-accesses",
    type=click.IntRange(min=1000),
    default=1_000_000,
    show_default=True,
    metavar="N",
    help="Replay no more than the first N accesses of the trace.",
)
@bindir_option
@click.option(
    "--work-dir",
    type=FileName(file_okay=False),
    metavar="DIR",
    help="Where the private server's data directory is made.  [default: the place for temporary files]",
)
@output_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    evidence: Path,
    sizes: list[int] | None,
    max_accesses: int,
    pg_bindir: Path | None,
    work_dir: Path | None,
    as_json: bool,
    as_csv: bool,
    html: Path | None,
    out: tuple[Path, ...],
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
    settings = settings_of(ctx)
    output = Output(settings, as_json=as_json, as_csv=as_csv, html=html, out=out)
    from pgsweep.cli.provenance import with_provenance
    from pgsweep.evidence.subject import subject_of
    from pgsweep.sizing.prove import prove

    with ConsoleProgress(settings) as shown:
        result = prove(
            evidence,
            sizes_bytes=sizes,
            max_accesses=max_accesses,
            bindir=pg_bindir,
            work_dir=work_dir,
            progress=shown,
        )
    output.write(with_provenance(result, settings.arguments, subject=subject_of(evidence)))
