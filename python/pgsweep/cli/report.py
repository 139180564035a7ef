"""`pgsweep report`: a result that was made before, shown again in any form."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pgsweep.cli.common import HELP_NAMES, FileName, common_options, settings_of
from pgsweep.cli.output import Output, output_options
from pgsweep.errors import UsageError


@click.command(context_settings={"help_option_names": HELP_NAMES})
@click.argument("result", type=FileName(allow_dash=True), required=False)
@click.option(
    "--from",
    "source",
    type=FileName(allow_dash=True),
    metavar="FILE",
    help="The same as RESULT: --from old.html --json",
)
@output_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    result: Path | None,
    source: Path | None,
    as_json: bool,
    as_csv: bool,
    html: Path | None,
    out: tuple[Path, ...],
) -> None:
    r"""Write any result as one offline HTML file.

    RESULT is a JSON file that a command wrote with --json, or an HTML report, which carries its result
    within; `-` reads from stdin. Without an option for the output, a JSON file becomes an HTML report beside
    it, and an HTML report is shown as text. A file that ends in .svg gets the figures alone.

    \b
    Examples:
      pgsweep report demo.json
      pgsweep report demo.json -o slides/demo.html
      pgsweep report --from demo.html --csv
      pgsweep report lab.json -o lab.svg
    """
    from pgsweep.regular import read_bounded
    from pgsweep.ui.results import MOST_BYTES, from_json, makers, read_result

    settings = settings_of(ctx)
    if (result is None) == (source is None):
        raise UsageError(
            "name one result to show",
            cause=f"a result is a file that one of these wrote with --json or -o FILE: {makers()}",
            hint="pgsweep report RESULT.json -o REPORT.html",
        )
    path = result if result is not None else source
    assert path is not None
    asked = as_json or as_csv or html is not None or bool(out)
    if not asked and path.suffix == ".json":
        html = path.with_suffix(".html")
    output = Output(
        settings, as_json=as_json, as_csv=as_csv, html=html, out=out, text=html is None and not out
    )
    record = (
        from_json(read_bounded(sys.stdin.buffer, MOST_BYTES, Path("-")), "-")
        if str(path) == "-"
        else read_result(path)
    )
    output.write(record)
