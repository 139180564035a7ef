"""`pgsweep verify`: after a change, whether the prediction was right."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import click

from pgsweep.cli.common import HELP_NAMES, Bytes, Duration, FileName, common_options, settings_of
from pgsweep.cli.connection import Target, connection_options
from pgsweep.cli.interrupt import stoppable
from pgsweep.cli.output import Output, output_options
from pgsweep.cli.progress import ConsoleProgress
from pgsweep.condition import parse_word_condition
from pgsweep.errors import CONDITION_HOLDS, INTERRUPTED, UsageError
from pgsweep.plain import shell_words

if TYPE_CHECKING:
    from pgsweep.cli.settings import Settings
    from pgsweep.evidence.record import Source

_VERDICTS: Final = ("as predicted", "not as predicted", "workload changed", "not known")


@click.command(context_settings={"help_option_names": HELP_NAMES})
@click.argument(
    "evidence",
    type=FileName(needed="evidence", hint="name the folder that `pgsweep record` wrote before the change"),
    metavar="EVIDENCE",
)
@connection_options
@click.option(
    "--after",
    type=FileName(needed="evidence", hint="leave out --after to record now"),
    metavar="EVIDENCE",
    help="Evidence that was recorded after the change, instead of recording it now.",
)
@click.option(
    "--for",
    "seconds",
    type=Duration(),
    metavar="TIME",
    help="How long to record now.  [default: as long as EVIDENCE]",
)
@click.option(
    "--ram",
    "memory_bytes",
    type=Bytes(),
    metavar="SIZE",
    help="Memory that the pool and the page cache share after the change.  [default: as before]",
)
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help="End with exit code 5 if the condition holds: 'verdict=not as predicted'. Repeatable; one of them "
    "is enough.",
)
@output_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    evidence: Path,
    after: Path | None,
    seconds: float | None,
    memory_bytes: int | None,
    fail_if: tuple[str, ...],
    as_json: bool,
    as_csv: bool,
    html: Path | None,
    out: tuple[Path, ...],
    no_password: bool,
    ask_password: bool,
    **names: str | None,
) -> int:
    r"""Record again after a change, and say whether the prediction was right.

    EVIDENCE was recorded before shared_buffers was changed. The server is recorded again in the same way, and
    what EVIDENCE predicts for the new size stands beside what is measured: misses, and where the host was
    looked at reads from disk and throughput. Each has its verdict. While the pool fills, which a restart has
    emptied, the recording waits for it, 10 min at most.

    \b
      as predicted      all measured values lie in intervals that hold all of them in 90 of 100 cases
      not as predicted  at least one does not, and the load is the same
      workload changed  the load has changed, so the prediction cannot be judged
      not known         there is nothing to compare, or the caches are not full yet

    \b
    Examples:
      pgsweep verify shop.evidence -h db1 -U postgres shop
      pgsweep verify shop.evidence --after later.evidence -o verified.html
      pgsweep verify shop.evidence shop --json | jq .verdict
    """
    settings = settings_of(ctx)
    output = Output(settings, as_json=as_json, as_csv=as_csv, html=html, out=out)
    conditions = [parse_word_condition(text, {"verdict": _VERDICTS}) for text in fail_if]
    target = Target(no_password=no_password, ask_password=ask_password, **names)
    if after is not None and target.is_named:
        raise UsageError("--after cannot be used together with a server", hint="leave one of them out")
    from pgsweep.cli.provenance import with_provenance
    from pgsweep.evidence.store import Evidence
    from pgsweep.evidence.subject import subject_of
    from pgsweep.sizing.verify import check_server, verify

    if after is None:
        meta = Evidence.open(evidence).meta
        refused = target.use(lambda conninfo: check_server(conninfo, evidence))
        if refused:
            settings.warn(f"nothing will be known, as the prediction is refused: {'; '.join(refused)}")
        after = Path(f"pgsweep-{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}.evidence")
        interrupted = _record(
            settings, target, evidence, after, cast("Source", meta.source), seconds or meta.seconds
        )
        if interrupted:
            return INTERRUPTED
    with ConsoleProgress(settings) as shown:
        shown.stage("predicting")
        result = verify(evidence, after, memory_bytes=memory_bytes)
    output.write(with_provenance(result, settings.arguments, subject=subject_of(after)))
    held = [condition for condition in conditions if condition.holds({"verdict": result.verdict})]
    for condition in held:
        settings.say(f"--fail-if {condition.text} holds: verdict is {result.verdict}")
    return CONDITION_HOLDS if held else 0


def _record(
    settings: Settings, target: Target, before: Path, out: Path, source: Source, seconds: float
) -> bool:
    """Record the server as it was recorded before; return whether that was interrupted.

    Raises:
        PgsweepError: the recording was cut short.
    """
    from pgsweep.cli.record import require_whole
    from pgsweep.evidence.record import record
    from pgsweep.sizing.full_pool import wait_until_full

    with stoppable(settings) as stop, ConsoleProgress(settings) as shown:
        target.use(lambda conninfo: wait_until_full(conninfo, progress=shown, stop=stop))
        if stop.is_set():
            return True
        settings.kept.append(out)
        recorded = target.use(
            lambda conninfo: record(conninfo, out, source=source, seconds=seconds, progress=shown, stop=stop)
        )
    settings.say(f"evidence: {out}")
    if not stop.is_set():
        require_whole(recorded, seconds, f"pgsweep verify {shell_words([str(before)])} --after {out}")
    return stop.is_set()
