"""`pgsweep report`: a result that was made before, shown again in any form."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import FileName
from pgsweep.cli.output import check_writable, write_stdout
from pgsweep.cli.progress import ConsoleProgress
from pgsweep.cli.settings import Settings
from pgsweep.errors import UsageError

_TRACE = ".oraclegeneral"


@subcommand(prepared=False)
@click.argument("result", type=FileName(needed="result", allow_dash=True), required=False)
@click.option(
    "--from",
    "source",
    type=FileName(needed="result", allow_dash=True),
    help="The same as RESULT: --from old.html --json",
)
def command(
    run: Run,
    /,
    *,
    result: Path | None,
    source: Path | None,
) -> None:
    r"""Write any result as one offline HTML file.

    RESULT is a JSON file that a command wrote with --json, or an HTML report, which carries its result
    within; `-` reads from stdin. Without an option for the output, a JSON file becomes an HTML report beside
    it, and an HTML report is shown as text. A file that ends in .svg gets the figures alone.

    Of evidence with a trace, a file that ends in .oracleGeneral gets every page access, for libCacheSim and
    other simulators. FILE.relations.csv beside it names the relation and the block of each object, and the
    folder FILE.start holds what the format has no room for: the pool when the trace began, sizes of
    relations, rings. With both, `pgsweep predict` gives the same result as from the evidence; it reads such
    files of others too, also compressed with Zstandard (.zst).

    \b
    Examples:
      pgsweep report demo.json
      pgsweep report demo.json -o slides/demo.html
      pgsweep report --from demo.html --csv
      pgsweep report lab.json -o lab.svg
      pgsweep report shop.evidence -o shop.oracleGeneral
    """
    from pgsweep.regular import read_bounded
    from pgsweep.ui.results import MOST_BYTES, from_json, makers, read_result

    given = run.output_options
    if (result is None) == (source is None):
        raise UsageError(
            "name one result to show",
            cause=f"a result is a file that one of these wrote with --json or -o FILE: {makers()}",
            hint="pgsweep report RESULT.json -o REPORT.html",
        )
    path = result if result is not None else source
    assert path is not None
    if path.is_dir() and given["html"] is None and [one.suffix.lower() for one in given["out"]] == [_TRACE]:
        export(run.settings, path, given["out"][0], as_json=given["as_json"])
        return
    if not any(given.values()) and path.suffix == ".json":
        given["html"] = path.with_suffix(".html")
    given["text"] = given["html"] is None and not given["out"]
    run.prepare()
    record = (
        from_json(read_bounded(sys.stdin.buffer, MOST_BYTES, Path("-")), "-")
        if str(path) == "-"
        else read_result(path)
    )
    run.output.write(record)


def export(settings: Settings, evidence: Path, output: Path, *, as_json: bool) -> None:
    """Write the accesses of a trace in the oracleGeneral format, and say on stdout what was written.

    Raises:
        UsageError: the file cannot be written.
        EvidenceError: it holds no accesses, or there are files of these names already.
    """
    check_writable(output)
    from pgsweep.evidence.oracle_export import export_oracle_general
    from pgsweep.ui.results import plain, to_json
    from pgsweep.ui.views.record import export_text

    with ConsoleProgress(settings) as shown:
        result = export_oracle_general(evidence, output, progress=shown)
    write_stdout(to_json(result) if as_json else export_text(plain(result), settings.terminal()))
