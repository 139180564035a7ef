"""`pgsweep advise`: settings with reasons, from evidence or from a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pgsweep.cli.command import Run, require_terminal, subcommand
from pgsweep.cli.common import (
    Bytes,
    Duration,
    FileName,
    Percent,
    existing,
    fresh_option,
    similar,
)
from pgsweep.cli.interrupt import stoppable
from pgsweep.cli.output import write_stdout
from pgsweep.cli.progress import ConsoleProgress
from pgsweep.cli.watched import Watched
from pgsweep.commands import on_server, recording
from pgsweep.errors import INTERRUPTED, UsageError
from pgsweep.plain import shell_word

if TYPE_CHECKING:
    from pgsweep.cli.connection import Target
    from pgsweep.cli.settings import Settings
    from pgsweep.evidence.record import Source
    from pgsweep.records.advice import AdviceResult, AppliedSetting
    from pgsweep.records.prediction import RecordResult

_FORMATS = (
    *("text", "json", "csv", "patch", "alter-system", "postgresql.conf", "patroni", "cnpg", "pgo", "zalando"),
    *("stackgres", "bitnami", "compose", "rds", "aurora", "cloudsql", "azure", "terraform-aws", "ansible"),
)
"""What goes to stdout; from `patch` on, the forms of pgsweep.ui.forms."""


@dataclass(frozen=True)
class _Asked:
    """The options, by name."""

    subject: str | None
    memory_bytes: int | None
    least: bool
    loss: float | None
    form: str | None
    source: Source
    seconds: float | None
    time_reads: bool
    wants_apply: bool
    undo: bool
    undo_from: Path | None
    dry_run: bool
    yes: bool
    fresh: bool

    @property
    def is_patch(self) -> bool:
        """Whether stdout gets one of the forms of pgsweep.ui.forms."""
        return self.form in _FORMATS[_FORMATS.index("patch") :]


@subcommand(server="options", prepared=False, takes=_Asked)
@click.argument("subject", metavar="[EVIDENCE | DBNAME]", required=False)
@click.option(
    "--ram",
    "memory_bytes",
    type=Bytes(),
    help="Memory that the pool and the page cache share.  [default: that of the host or the memory cgroup in "
    "which the evidence was recorded]",
)
@click.option(
    "--least",
    is_flag=True,
    help="Look for the least memory whose throughput is within --loss of today's, and advise for that.",
)
@click.option(
    "--loss",
    type=Percent(),
    help="With --least: by how much the throughput may be less than today's.  [default: 2%]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    metavar="FORM",
    help="What goes to stdout: the advice as text, json or csv, or as a patch to review, with the reasons as "
    "comments, in one of the forms above; patch chooses the form of the place where the server runs.  "
    "[default: text]",
)
@click.option(
    "--source",
    type=click.Choice(["auto", "peek", "sql", "trace"]),
    default="auto",
    help="If a server is recorded first: the source, as for `pgsweep record`. With a trace, the intervals of "
    "disk reads are narrowest.",
)
@click.option(
    "--for",
    "seconds",
    type=Duration(),
    help="If a server is recorded first: for how long.  [default: until the decision is settled: snapshots "
    "10min at most, a trace from 40s to 160s]",
)
@click.option(
    "--time-reads",
    is_flag=True,
    help="If a server is recorded first: time how long its reads take, by probes for half a second in "
    "every five, so that the throughput is predicted without track_io_timing. Needs root on the server's "
    "host.",
)
@click.option(
    "--apply", "wants_apply", is_flag=True, help="Write the settings with ALTER SYSTEM; asks first."
)
@click.option("--undo", is_flag=True, help="Restore the settings from before --apply; asks first.")
@click.option(
    "--undo-from",
    type=FileName(dir_okay=False),
    help="With --undo: use this file of former settings, although it was kept for another server of the same "
    "cluster, or for this one before it was moved.",
)
@click.option(
    "-n",
    "--dry-run",
    is_flag=True,
    help="With --apply or --undo: print the statements, and do nothing.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@fresh_option
def command(run: Run, asked: _Asked) -> int:
    r"""Advise memory settings, each with its reason and its expected gain.

    EVIDENCE is a folder that `pgsweep record` wrote. Anything else names a database, which is recorded first,
    until a longer recording would not change the advice; the evidence is kept. With EVIDENCE and connection
    options huge pages and connections are counted on that server too. Nothing is changed without --apply,
    which asks, keeps what was before for --undo, and never restarts the server.

    Another shared_buffers is advised only if the 90% interval of its gain lies above zero. Otherwise the
    advice is to leave it; if the prediction is refused, nothing is advised. Disk reads are simulated where
    the memory of the server's host is known: from evidence that was recorded there, or by --ram. From
    snapshots their intervals are wider than from a trace.
    With --least the question is another: which memory suffices for a throughput within 2% of today's? The
    pool, the page cache and the sessions are one budget, and the settings are those for that memory.
    Beside the advice stands what rules of thumb say, and what following them would change here.

    With --format it is written as it is applied, for review: statements and lines of a file, a manifest or
    values of an operator (memory, /dev/shm and the exact number of huge pages too), or the provider's own
    commands, with values in the units that they take. Names in capitals are for you to fill in.

    \b
      alter-system, postgresql.conf         a server of your own
      patroni                               patronictl edit-config --apply FILE
      cnpg, pgo, zalando, stackgres         the operators' resources
      bitnami                               values of the chart
      compose                               docker compose, an override file
      rds, aurora, cloudsql, azure          the provider's command line
      terraform-aws, ansible                a parameter group, a playbook

    \b
    Examples:
      pgsweep advise shop.evidence
      pgsweep advise shop.evidence -h db1 -U postgres -d shop -o shop.html
      pgsweep advise shop.evidence --format alter-system
      pgsweep advise shop.evidence -h db1 -d shop --format cnpg > patch.yaml
      sudo pgsweep advise -d shop --source trace --for 40s
      pgsweep advise shop.evidence --ram 64GB --json | jq .settings
      pgsweep advise shop.evidence -U postgres -d shop --apply
      sudo pgsweep advise -d shop --source trace --least --loss 2%
      pgsweep advise --undo -U postgres -d shop
    """
    evidence = _prepared(run, asked)
    asks = evidence is None or run.target.is_named
    if asked.undo:
        _undo(run, asked)
        return 0
    if asked.wants_apply and not asks:
        raise UsageError("--apply needs the server", hint="name it: -h HOST -U ROLE -d DBNAME")
    if evidence is None:
        evidence, interrupted = _record(run, asked)
        if interrupted:
            return INTERRUPTED
    result = _advise(run, evidence, asked, asks=asks)
    try:
        if asked.wants_apply:
            result = _apply(run, result, asked)
    finally:
        # Also where it is refused: what should be set elsewhere stands in the advice.
        run.output.write(result)
        if asked.is_patch:
            from pgsweep.ui.forms import patch
            from pgsweep.ui.results import plain

            form = result.form if asked.form in (None, "patch") else asked.form
            write_stdout(patch(plain(result), form))
    return 0


def _prepared(run: Run, asked: _Asked) -> Path | None:
    """Check the options, and return the evidence that is named; None where a server is asked."""
    given = run.output_options
    if asked.form is not None and (given["as_json"] or given["as_csv"]):
        raise UsageError(
            "--format and --json or --csv both want stdout", hint="leave one of them out: --format json"
        )
    if asked.form in ("json", "csv"):
        given[f"as_{asked.form}"] = True
    given["text"] = not asked.is_patch
    _check(asked)
    evidence = None if asked.undo else _evidence_of(asked.subject)
    run.server_options["database"] = asked.subject if evidence is None else None
    run.prepare()
    return evidence


def _check(asked: _Asked) -> None:
    wants_apply, undo, dry_run = asked.wants_apply, asked.undo, asked.dry_run
    if wants_apply and undo:
        raise UsageError("--apply and --undo contradict each other", hint="leave one of them out")
    if dry_run and not (wants_apply or undo):
        raise UsageError("--dry-run goes with --apply or --undo", hint="without them nothing is changed")
    if wants_apply and not (dry_run or asked.yes):
        require_terminal(_CHANGES)
    if asked.loss is not None and not asked.least:
        raise UsageError("--loss goes with --least", hint="--least --loss 2%")
    if asked.least and asked.memory_bytes is not None:
        raise UsageError("--ram names the memory, and --least looks for it", hint="leave one of them out")
    if asked.undo_from is not None and not undo:
        raise UsageError("--undo-from goes with --undo", hint="--undo --undo-from FILE")


def _apply(run: Run, result: AdviceResult, asked: _Asked) -> AdviceResult:
    """Write the settings, after asking, and return the result with what was written."""
    import msgspec

    from pgsweep.advice.apply import apply, order_on_standbys, to_apply

    settings, target = run.settings, run.target
    wanted = to_apply(result)
    planned = target.use(lambda conninfo: apply(conninfo, wanted, dry_run=True))
    if (order := target.use(lambda conninfo: order_on_standbys(conninfo, planned))) is not None:
        settings.warn(order)
    _confirm(run.target, planned, asked)
    if asked.dry_run:
        settings.say("dry run: nothing was changed")
        return result
    applied = target.use(lambda conninfo: apply(conninfo, wanted))
    if all(change.before == change.after for change in applied):
        settings.say("postgresql.auto.conf has these settings already: nothing was written")
    else:
        _show(applied if asked.yes else [])
        undo = on_server("pgsweep advise", "--undo")
        settings.say(f"settings written and reloaded; to restore the previous ones: {undo}")
    _say_restarts(settings, applied)
    return msgspec.structs.replace(result, applied=applied)


def _confirm(target: Target, planned: list[AppliedSetting], asked: _Asked) -> None:
    """Show what is to be written and ask; with --yes what was written is shown afterwards.

    Raises:
        Abort: the answer is no.
    """
    if asked.dry_run or not asked.yes:
        _show(planned)
    if not (asked.dry_run or asked.yes):
        click.confirm(f"Write this on {target.server}?", abort=True, err=True)


def _show(changes: list[AppliedSetting]) -> None:
    for change in changes:
        click.echo(f"{change.statement};", err=True)


def _say_restarts(settings: Settings, changes: list[AppliedSetting]) -> None:
    from pgsweep.advice.apply import restarts

    later = restarts(changes)
    if later:
        settings.say(f"{', '.join(later)}: will take effect when you restart the server")


_CHANGES = "this changes the server's settings"


def _undo(run: Run, asked: _Asked) -> None:
    from pgsweep.advice.apply import order_on_standbys, undo

    settings, target, file = run.settings, run.target, asked.undo_from
    planned = target.use(lambda conninfo: undo(conninfo, dry_run=True, file=file))
    if (order := target.use(lambda conninfo: order_on_standbys(conninfo, planned.changes))) is not None:
        settings.warn(order)
    if planned.changes:
        if not (asked.dry_run or asked.yes):
            require_terminal(_CHANGES)
        _confirm(run.target, planned.changes, asked)
    if asked.dry_run:
        settings.say("dry run: nothing was changed")
    undone = planned if asked.dry_run else target.use(lambda conninfo: undo(conninfo, file=file))
    if not undone.changes:
        settings.say("there is nothing to undo here: no setting is as --apply made it")
    elif not asked.dry_run:
        _show(undone.changes if asked.yes else [])
        settings.say("previous settings written and reloaded")
        _say_restarts(settings, undone.changes)
    for name in undone.left:
        settings.warn(f"{name} has been changed by somebody else since, and is left as it is")
    if undone.file is not None:
        settings.say(f"kept: {shell_word(str(undone.file))}, of {undone.server}")
    for other in undone.others:
        settings.say(other)


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
    named = subject.rstrip("/").endswith(".evidence") or "/" in subject.partition("://")[0].partition("=")[0]
    if named or (path.suffix and similar(path) is not None):
        return existing(path, "evidence", f"record some: {recording()}")
    return None


def _record(run: Run, asked: _Asked) -> tuple[Path, bool]:
    """Record the server, and return where, and whether that was interrupted.

    Raises:
        PgsweepError: the recording was cut short.
    """
    from pgsweep.advice.ask import advise
    from pgsweep.advice.observation import observe
    from pgsweep.cli.record import new_evidence, require_whole
    from pgsweep.evidence.observe import seed_of
    from pgsweep.evidence.record import record

    settings, seconds, out = run.settings, asked.seconds, new_evidence()
    settings.kept.append(out)
    seed = seed_of(None)
    with stoppable(settings) as stop, ConsoleProgress(settings) as shown:

        def recorded(path: Path, length: float | None) -> RecordResult:
            return run.target.use(
                lambda conninfo: record(
                    conninfo,
                    path,
                    source=asked.source,
                    seconds=length,
                    rng_seed=seed,
                    time_reads=asked.time_reads,
                    progress=shown,
                    stop=stop,
                )
            )

        if seconds is not None:
            result = recorded(out, seconds)
        else:
            result = observe(
                out,
                recorded,
                lambda path: advise(path, memory_bytes=asked.memory_bytes, kept=not asked.fresh),
                progress=shown,
                stop=stop,
            )
    settings.say(f"evidence: {out}")
    if not stop.is_set():
        require_whole(result, seconds, f"pgsweep advise {out}")
    return out, stop.is_set()


def _advise(run: Run, evidence: Path, asked: _Asked, *, asks: bool) -> AdviceResult:
    """Return the advice; `asks` says whether the server is asked for what the evidence does not hold."""
    from pgsweep.advice.ask import advise
    from pgsweep.advice.least import DEFAULT_LOSS
    from pgsweep.evidence.subject import subject_of

    loss = None
    if asked.least:
        loss = DEFAULT_LOSS if asked.loss is None else asked.loss
    with Watched(run.settings) as watched:

        def advised(conninfo: str | None) -> AdviceResult:
            return advise(
                evidence,
                conninfo=conninfo,
                memory_bytes=asked.memory_bytes,
                loss=loss,
                kept=not asked.fresh,
                watch=watched,
            )

        result = run.target.use(advised) if asks else advised(None)
    return run.made(result, subject=subject_of(evidence))
