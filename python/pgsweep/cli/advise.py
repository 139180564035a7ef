"""`pgsweep advise`: settings with reasons, from evidence or from a server."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pgsweep.cli.common import HELP_NAMES, Bytes, Duration, common_options, settings_of
from pgsweep.cli.connection import Target, connection_flags
from pgsweep.cli.interrupt import stoppable
from pgsweep.cli.output import Output, output_options, write_stdout
from pgsweep.cli.progress import ConsoleProgress
from pgsweep.errors import INTERRUPTED, UsageError

if TYPE_CHECKING:
    from pgsweep.cli.settings import Settings
    from pgsweep.evidence.record import Source
    from pgsweep.records.advice import AdviceResult

_FORMATS = ("text", "json", "csv", "alter-system", "postgresql.conf")


@click.command(context_settings={"help_option_names": HELP_NAMES})
@click.argument("subject", metavar="[EVIDENCE | DBNAME]", required=False)
@connection_flags
@click.option(
    "--ram",
    "memory_bytes",
    type=Bytes(),
    metavar="SIZE",
    help="Memory that the pool and the page cache share. Without: that of the host or the memory cgroup that "
    "the evidence was recorded in.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    help="What goes to stdout: the advice as text, JSON or CSV, as statements, or as lines of "
    "postgresql.conf.  [default: text]",
)
@click.option(
    "--source",
    type=click.Choice(["auto", "peek", "sql", "trace"]),
    default="auto",
    show_default=True,
    help="Where a server is recorded first: how, as for `pgsweep record`. Only a trace says what comes from "
    "disk.",
)
@click.option(
    "--for",
    "seconds",
    type=Duration(),
    metavar="TIME",
    help="Where a server is recorded first: how long.  [default: until there is enough data; a trace 40s]",
)
@output_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    subject: str | None,
    memory_bytes: int | None,
    form: str | None,
    source: Source,
    seconds: float | None,
    as_json: bool,
    as_csv: bool,
    html: Path | None,
    out: tuple[Path, ...],
    no_password: bool,
    ask_password: bool,
    **names: str | None,
) -> int:
    r"""Advise settings of memory, each with its reason and what it gains.

    EVIDENCE is a folder that `pgsweep record` wrote. Anything else names a database, which is recorded first;
    the evidence is kept. With EVIDENCE and connection options huge pages and connections are counted on that
    server too. Nothing is changed.

    A setting is advised only where the 90 % interval of what it gains lies above zero; in all other cases the
    advice is to leave it. From a trace that was recorded on the server's host disk reads are simulated; from
    snapshots they are only bounded. Beside the advice stands what rules of thumb say, and what following them
    would change here.

    \b
    Examples:
      pgsweep advise shop.evidence
      pgsweep advise shop.evidence -h db1 -U postgres -d shop -o shop.html
      pgsweep advise shop.evidence --format alter-system
      sudo pgsweep advise -d shop --source trace --for 40s
      pgsweep advise shop.evidence --ram 64GB --json | jq .settings
    """
    settings = settings_of(ctx)
    if form is not None and (as_json or as_csv):
        raise UsageError(
            "--format and --json or --csv both want stdout", hint="leave one of them out: --format json"
        )
    as_json, as_csv = as_json or form == "json", as_csv or form == "csv"
    lines = form in ("alter-system", "postgresql.conf")
    output = Output(settings, as_json=as_json, as_csv=as_csv, html=html, out=out, text=not lines)
    evidence = _evidence_of(subject)
    if evidence is not None:
        target = Target(no_password=no_password, ask_password=ask_password, database=None, **names)
    else:
        target = Target(no_password=no_password, ask_password=ask_password, database=subject, **names)
    if evidence is None:
        evidence, interrupted = _record(settings, target, source, seconds)
        if interrupted:
            return INTERRUPTED
        named = True
    else:
        named = target.is_named
    result = _advise(settings, evidence, target if named else None, memory_bytes)
    output.write(result)
    if lines:
        from pgsweep.ui.advice import alter_system, postgresql_conf
        from pgsweep.ui.results import plain

        shown = plain(result)
        write_stdout(alter_system(shown) if form == "alter-system" else postgresql_conf(shown))
    return 0


def _evidence_of(subject: str | None) -> Path | None:
    """Return the evidence that is named; None where a database is.

    Raises:
        UsageError: it is named as evidence is, and there is none.
    """
    if subject is None:
        return None
    path = Path(subject)
    if path.exists():
        return path
    if subject.rstrip("/").endswith(".evidence") or "/" in subject.partition("://")[0].partition("=")[0]:
        raise UsageError(
            f"there is no evidence `{subject}`", hint="record some: pgsweep record -o NAME.evidence"
        )
    return None


def _record(settings: Settings, target: Target, source: Source, seconds: float | None) -> tuple[Path, bool]:
    """Record the server, and return where, and whether that was interrupted."""
    from pgsweep.evidence.record import record

    out = Path(f"pgsweep-{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}.evidence")
    settings.kept.append(out)
    with stoppable(settings) as stop, ConsoleProgress(settings) as shown:
        target.use(
            lambda conninfo: record(conninfo, out, source=source, seconds=seconds, progress=shown, stop=stop)
        )
    settings.say(f"evidence: {out}")
    return out, stop.is_set()


def _advise(
    settings: Settings, evidence: Path, target: Target | None, memory_bytes: int | None
) -> AdviceResult:
    from pgsweep.advice.gather import advise
    from pgsweep.cli.provenance import with_provenance
    from pgsweep.evidence.subject import subject_of

    with ConsoleProgress(settings) as shown:
        shown.stage("predicting")
        if target is None:
            result = advise(evidence, memory_bytes=memory_bytes)
        else:
            result = target.use(
                lambda conninfo: advise(evidence, conninfo=conninfo, memory_bytes=memory_bytes)
            )
    return with_provenance(result, settings.arguments, subject=subject_of(evidence))
