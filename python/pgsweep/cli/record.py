"""`pgsweep record`: watch a running server, write evidence."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import Bytes, Count, Duration, FileName, Percent
from pgsweep.cli.interrupt import stoppable
from pgsweep.cli.output import check_writable, write_stdout
from pgsweep.cli.progress import ConsoleProgress
from pgsweep.errors import INTERRUPTED, ConnectionFailed, PgsweepError, UsageError
from pgsweep.plain import shell_word
from pgsweep.ui.kit.numbers import seconds as seconds_text

if TYPE_CHECKING:
    from pgsweep.evidence.record import Source
    from pgsweep.records.prediction import RecordResult


class _Length(Duration):
    """A time, or `enough`: until there is enough data."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the seconds, or `enough`.

        Raises:
            UsageError: the text is neither.
        """
        return ENOUGH if value == ENOUGH else super().convert(value, param, ctx)


ENOUGH = "enough"


@dataclass(frozen=True)
class _Asked:
    """The options, by name."""

    source: Source
    seconds: float | str | None
    until: float | None
    max_events: int | None
    max_bytes: int | None
    time_reads: bool
    budget: float | None
    out: Path | None
    as_json: bool
    script: bool
    dry_run: bool

    @property
    def length(self) -> float | None:
        """How many seconds; None for a source that knows when there is enough data.

        Raises:
            UsageError: the source does not.
        """
        if self.seconds == ENOUGH and self.source == "trace":
            raise UsageError(
                "a trace does not know when there is enough data", hint="give it a time: --for 40s"
            )
        if self.until is not None and self.source == "trace":
            raise UsageError("--until is for snapshots", hint="give the trace a time: --for 10min")
        return None if isinstance(self.seconds, str) else self.seconds


@subcommand(server="database", output=False, prepared=False, takes=_Asked)
@click.option(
    "--source",
    type=click.Choice(["auto", "peek", "sql", "trace"]),
    default="auto",
    help="peek: snapshots of the server's memory; no load on the server; on its host only, as root or "
    "its user. sql: snapshots of pg_buffercache; low load; works on any server. trace: every page access; "
    "exact; needs root on the server's host. auto: the first of these that is possible.",
)
@click.option(
    "--for",
    "seconds",
    type=_Length(),
    help="How long to record: 40s, 2min, 1h, or `enough`: until there is enough data.  [default: enough; "
    "for trace 40s]",
)
@click.option(
    "--until",
    type=Percent(),
    help="End when the 90% intervals are this narrow from half to twice today's size: 0.5% is half a point "
    "up and down. After 10 minutes it ends anyway, or after --for. Not for a trace.",
)
@click.option("--max-events", type=Count(min=1), help="End a trace after N events.")
@click.option("--max-bytes", type=Bytes(), help="End a trace when its files reach this size: 2GB.")
@click.option(
    "--time-reads",
    is_flag=True,
    help="Time how long the server's reads take, by probes for half a second in every five; a trace does so "
    "anyway. Needs root on the server's host.",
)
@click.option(
    "--budget",
    type=Percent(),
    help="The share of this host's processors that the recording may take, such as 1%. auto then takes a "
    "trace where one is expected to take no more, else snapshots at longer intervals. A trace that takes "
    "more is ended.",
)
@click.option(
    "-o",
    "--out",
    type=FileName(),
    metavar="NAME.evidence",
    help="The folder to write.  [default: pgsweep-DATE-TIME.evidence]",
)
@click.option("--json", "as_json", is_flag=True, help="Write what was gathered as JSON to stdout.")
@click.option(
    "--script",
    is_flag=True,
    help="Print a script for psql that gathers what `--source sql` does, for hosts without pgsweep; "
    "`pgsweep import` makes evidence from its output.  [--for: 5min]",
)
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be done to the server; do nothing.")
def command(run: Run, asked: _Asked) -> int:
    r"""Watch a running server and write what was observed as evidence.

    The server is only read: the session is read-only and has timeouts, a trace's probes end with this
    process. The expected cost is shown before recording begins. Ctrl-C ends the recording early and keeps
    what was gathered. Without --for it ends when there is enough data for a prediction, after 10 min at the
    latest, or as soon as what it sees shows that none will be possible.

    DBNAME and the connection options mean what they mean for psql; DBNAME may be a conninfo string or a URI,
    and what is not given comes from libpq's environment variables, service and password files.

    \b
    Examples:
      pgsweep record -h db1 -U postgres -d shop -o shop.evidence
      pgsweep record service=shop --for 5min
      pgsweep record service=shop --until 0.5%
      sudo pgsweep record -d shop --budget 1%
      sudo pgsweep record -d shop --source trace --for 20s --max-bytes 2GB
      pgsweep record --script --for 10min > gather.sql
    """
    if asked.script:
        _print_script(run, asked.seconds)
        return 0
    run.prepare()
    settings, seconds = run.settings, asked.length
    out = asked.out or new_evidence()
    check_evidence_path(out)
    if asked.dry_run:
        _plan(run, asked, out)
        return 0
    settings.kept.append(out)
    result, stopped = _record(run, asked, seconds, out)
    show_recording(run, result, as_json=asked.as_json)
    if stopped:
        settings.say(f"interrupted; kept: {result.path}")
        return INTERRUPTED
    code = _ENDED_EARLY.get(result.ended_by, 0)
    if code:
        wanted = "" if seconds is None else f" of {seconds_text(seconds)}"
        settings.warn(f"ended after {seconds_text(result.seconds)}{wanted}; kept: {result.path}")
    return code


def _record(run: Run, asked: _Asked, seconds: float | None, out: Path) -> tuple[RecordResult, bool]:
    """Record, and return what there is, and whether that was interrupted."""
    from pgsweep.evidence.outlook import Judge
    from pgsweep.evidence.record import record
    from pgsweep.sizing.outlook import refusal_of

    until = asked.until
    with stoppable(run.settings) as stop, ConsoleProgress(run.settings) as shown:
        result = run.target.use(
            lambda conninfo: record(
                conninfo,
                out,
                source=asked.source,
                seconds=seconds,
                max_events=asked.max_events,
                max_bytes=asked.max_bytes,
                time_reads=asked.time_reads,
                budget=asked.budget,
                progress=shown,
                stop=stop,
                judge=Judge(lambda evidence: refusal_of(evidence, until), decides=until is not None),
            )
        )
    return result, stop.is_set()


def new_evidence() -> Path:
    """Return the name of a recording that was given none."""
    return Path(f"pgsweep-{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}.evidence")


_ENDED_EARLY = {
    "server": ConnectionFailed.exit_code,
    "session": ConnectionFailed.exit_code,
    "dropped": ConnectionFailed.exit_code,
    "connection": ConnectionFailed.exit_code,
    "refused": PgsweepError.exit_code,
    "cancelled": PgsweepError.exit_code,
    "disk": PgsweepError.exit_code,
}
"""The exit codes of recordings that ended before they were complete, by `ended_by`."""


def require_whole(result: RecordResult, asked_seconds: float | None, again: str) -> None:
    """Check that a recording which something else rests on was not cut short.

    Args:
        result: what was recorded.
        asked_seconds: how long it should have been; None for until there is enough.
        again: the command that goes on from the part that is kept.

    Raises:
        ConnectionFailed: the server has gone.
        PgsweepError: the server refused statements, or there is no room on the disk.
    """
    code = _ENDED_EARLY.get(result.ended_by, 0)
    if not code:
        return
    from pgsweep.ui.views.record import ending

    asked = "" if asked_seconds is None else f" of {seconds_text(asked_seconds)}"
    kind = ConnectionFailed if code == ConnectionFailed.exit_code else PgsweepError
    raise kind(
        f"the recording ended after {seconds_text(result.seconds)}{asked}",
        cause=ending(result.ended_by).removeprefix("ended early: "),
        hint=f"record again, or take the part that is kept: {again}",
    )


_OF_SCRIPT = {"script", "seconds"}
"""Parameters of the command that a script has; the server is named to psql."""


def _print_script(run: Run, seconds: float | str | None) -> None:
    """Print the script for psql.

    Raises:
        UsageError: something was asked for that a script does not do.
    """
    ctx, given = run.ctx, click.core.ParameterSource.COMMANDLINE
    others = [
        parameter
        for parameter in ctx.command.params
        if ctx.get_parameter_source(parameter.name or "") is given
        and parameter.name not in _OF_SCRIPT
        and parameter.expose_value
        and not (parameter.name == "source" and ctx.params["source"] in {"auto", "sql"})
    ]
    if others:
        name = others[0].opts[0] if isinstance(others[0], click.Option) else others[0].human_readable_name
        raise UsageError(
            f"--script takes no {name}: it connects to no server and records nothing",
            hint="give the connection to psql: pgsweep record --script > gather.sql; "
            "psql -X -h HOST -d DBNAME -f gather.sql -o FILE",
        )
    if seconds == ENOUGH:
        raise UsageError(
            "a script does not know when there is enough data", hint="give it a time: --for 10min"
        )
    assert not isinstance(seconds, str)
    from pgsweep.evidence.script import record_script

    write_stdout(record_script(seconds), data=True)
    run.settings.say("next: psql -X -d DBNAME -f SCRIPT -o FILE, then pgsweep import FILE")


def check_evidence_path(out: Path) -> None:
    """Fail now rather than after the work, where evidence cannot be written.

    Raises:
        UsageError: there is something already, or the folder could not be made there.
    """
    from pgsweep.evidence.writer import holds_nothing

    if not out.exists():
        check_writable(out)
    elif not holds_nothing(out):
        # Otherwise a recording was killed there before it had seen anything.
        raise UsageError(
            f"`{out}` exists already", hint=f"name another folder, or remove it: rm -r {shell_word(str(out))}"
        )


def show_recording(run: Run, result: RecordResult, *, as_json: bool) -> None:
    """Write what was recorded to stdout, and on stderr what comes next."""
    from pgsweep.evidence.subject import subject_of

    run.output_options["as_json"] = as_json
    run.show(result, subject=subject_of(Path(result.path)))
    run.settings.say(f"next: pgsweep predict {shell_word(result.path)}")


def _plan(run: Run, asked: _Asked, out: Path) -> None:
    """Show what would be done."""
    from pgsweep.evidence.record import plan_record
    from pgsweep.ui.results import to_json
    from pgsweep.ui.views.record import plan_text

    plan = run.target.use(
        lambda conninfo: plan_record(
            conninfo, out, source=asked.source, time_reads=asked.time_reads, budget=asked.budget
        )
    )
    for refusal in plan.passed_over:
        run.settings.say(f"not possible by {refusal}")
    write_stdout(to_json(plan) if asked.as_json else plan_text(plan))
    if plan.refused:
        run.settings.warn(": ".join(plan.refused))
    run.settings.say("dry run: nothing was done")
