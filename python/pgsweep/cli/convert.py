"""`pgsweep convert`: the former name of `pgsweep report EVIDENCE -o OUTPUT.oracleGeneral`."""

from __future__ import annotations

from pathlib import Path

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import FileName
from pgsweep.cli.report import export
from pgsweep.plain import shell_words


@subcommand(output=False)
@click.argument(
    "evidence",
    type=FileName(needed="evidence", hint="record some: `pgsweep record --source trace -o {}`"),
    metavar="EVIDENCE",
)
@click.argument("output", type=FileName(), metavar="OUTPUT.oracleGeneral")
@click.option("--json", "as_json", is_flag=True, help="Write a summary of the output as JSON to stdout.")
def command(run: Run, /, *, evidence: Path, output: Path, as_json: bool) -> None:
    r"""Write a recorded trace in libCacheSim's oracleGeneral format: now part of `report`.

    It does what `pgsweep report EVIDENCE -o OUTPUT.oracleGeneral` does.

    \b
    Examples:
      pgsweep report shop.evidence -o shop.oracleGeneral
    """
    run.settings.say(
        f"this is now: pgsweep report {shell_words([str(evidence)])} -o {shell_words([str(output)])}"
    )
    export(run.settings, evidence, output, as_json=as_json)
