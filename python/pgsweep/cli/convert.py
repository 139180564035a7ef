"""`pgsweep convert`: a recorded trace in the format of other cache simulators."""

from __future__ import annotations

from pathlib import Path

import click

from pgsweep.cli.common import HELP_NAMES, FileName, common_options, settings_of
from pgsweep.cli.output import check_writable, write_stdout
from pgsweep.cli.progress import ConsoleProgress
from pgsweep.errors import UsageError


@click.command(context_settings={"help_option_names": HELP_NAMES})
@click.argument("evidence", type=FileName(), metavar="EVIDENCE")
@click.argument("output", type=FileName(), metavar="OUTPUT.oracleGeneral")
@click.option("--json", "as_json", is_flag=True, help="Write a summary of the output as JSON to stdout.")
@common_options
@click.pass_context
def command(ctx: click.Context, /, *, evidence: Path, output: Path, as_json: bool) -> None:
    r"""Write a recorded trace in libCacheSim's oracleGeneral format.

    Every page access of the evidence becomes one record of 24 bytes. OUTPUT.relations.csv beside it names
    the relation and the block of each object. What the format has no room for (the pool when the trace
    began, sizes of relations, rings) goes into the folder OUTPUT.start. With both beside the trace,
    `pgsweep predict` gives the same result as from the evidence; without them, it starts from an empty
    pool. The other way needs no conversion: `pgsweep predict` reads such files as they are, also compressed
    with Zstandard (.zst).

    \b
    Examples:
      pgsweep convert shop.evidence shop.oracleGeneral
      pgsweep predict shop.oracleGeneral --sizes 64MB,256MB,1GB
    """
    settings = settings_of(ctx)
    if not evidence.exists():
        raise UsageError(
            f"there is no evidence `{evidence}`",
            hint="record some: `pgsweep record --source trace -o NAME.evidence`",
        )
    check_writable(output)
    from pgsweep.evidence.oracle_export import export_oracle_general
    from pgsweep.ui.record import export_text
    from pgsweep.ui.results import plain, to_json

    with ConsoleProgress(settings) as shown:
        result = export_oracle_general(evidence, output, progress=shown)
    write_stdout(to_json(result) if as_json else export_text(plain(result), settings.terminal()))
