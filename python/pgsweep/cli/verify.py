"""`pgsweep verify`: after a change, whether the prediction was right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import Bytes, Duration, FileName
from pgsweep.cli.interrupt import stoppable
from pgsweep.cli.progress import ConsoleProgress
from pgsweep.condition import parse_word_condition
from pgsweep.errors import CONDITION_HOLDS, INTERRUPTED, UsageError
from pgsweep.plain import shell_words

if TYPE_CHECKING:
    from pgsweep.evidence.record import Source

_VERDICTS: Final = ("as predicted", "not as predicted", "workload changed", "not known")


@subcommand(server="database")
@click.argument(
    "evidence",
    type=FileName(needed="evidence", hint="name the folder that `pgsweep record` wrote before the change"),
    metavar="EVIDENCE",
)
@click.option(
    "--after",
    type=FileName(needed="evidence", hint="leave out --after to record now"),
    metavar="EVIDENCE",
    help="Evidence that was recorded after the change, instead of recording it now.",
)
@click.option(
    "--for", "seconds", type=Duration(), help="How long to record now.  [default: as long as EVIDENCE]"
)
@click.option(
    "--ram",
    "memory_bytes",
    type=Bytes(),
    help="Memory that the pool and the page cache share after the change.  [default: as before]",
)
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help="End with exit code 5 if the condition holds: 'verdict=not as predicted'. Repeatable; one of them "
    "is enough.",
)
def command(
    run: Run,
    /,
    *,
    evidence: Path,
    after: Path | None,
    seconds: float | None,
    memory_bytes: int | None,
    fail_if: tuple[str, ...],
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
    conditions = [parse_word_condition(text, {"verdict": _VERDICTS}) for text in fail_if]
    if after is not None and run.target.is_named:
        raise UsageError("--after cannot be used together with a server", hint="leave one of them out")
    from pgsweep.evidence.store import Evidence
    from pgsweep.evidence.subject import subject_of
    from pgsweep.sizing.verify import check_server, verify

    if after is None:
        from pgsweep.cli.record import new_evidence

        meta = Evidence.open(evidence).meta
        refused = run.target.use(lambda conninfo: check_server(conninfo, evidence))
        if refused:
            run.settings.warn(f"nothing will be known, as the prediction is refused: {'; '.join(refused)}")
        after = new_evidence()
        interrupted = _record(run, evidence, after, cast("Source", meta.source), seconds or meta.seconds)
        if interrupted:
            return INTERRUPTED
    with ConsoleProgress(run.settings) as shown:
        shown.stage("predicting")
        result = verify(evidence, after, memory_bytes=memory_bytes)
    run.show(result, subject=subject_of(after))
    return CONDITION_HOLDS if run.holding(conditions, result.verdict) else 0


def _record(run: Run, before: Path, out: Path, source: Source, seconds: float) -> bool:
    """Record the server as it was recorded before; return whether that was interrupted.

    Raises:
        PgsweepError: the recording was cut short.
    """
    from pgsweep.cli.record import require_whole
    from pgsweep.evidence.record import record
    from pgsweep.sizing.full_pool import wait_until_full

    settings, target = run.settings, run.target
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
