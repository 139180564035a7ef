"""`pgsweep predict`: the miss ratio at other sizes, from evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import Bytes, FileName, Sizes, fresh_option
from pgsweep.cli.watched import Watched
from pgsweep.errors import CONDITION_HOLDS
from pgsweep.units import as_setting, format_bytes


@subcommand(prepared=False)
@click.argument(
    "evidence",
    type=FileName(needed="evidence", hint="record some: `pgsweep record -o {}`"),
    metavar="EVIDENCE",
)
@click.option(
    "--sizes",
    "sizes_bytes",
    type=Sizes(),
    help="Sizes of shared_buffers, such as 1GB,2GB,4GB.  [default: an eighth to eight times the observed "
    "size]",
)
@click.option(
    "--ram",
    "memory_bytes",
    type=Bytes(),
    help="Memory that the pool and the page cache share, to predict disk reads.  [default: that of the host "
    "or the memory cgroup, if the evidence was recorded on the server's host]",
)
@click.option(
    "--memory",
    is_flag=True,
    help="Show the page cache, disk reads and what more memory saves at each size, and what that rests on.",
)
@click.option(
    "--what-if",
    "what_if",
    multiple=True,
    metavar="CHANGE",
    help="Predict a changed load or memory too, such as 'orders grows 2x' (see above). Repeatable: all "
    "changes together give one curve, beside that of today.",
)
@click.option(
    "--executor",
    metavar="EXECUTOR",
    help="For a trace: replay the sizes in parallel, on N processes of this machine (processes:N) or through "
    "a dask scheduler (tcp://HOST:PORT).",
)
@fresh_option
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help="End with exit code 5 if the condition holds: 'verdict!=reliable'. Repeatable; one of them is "
    "enough.",
)
def command(
    run: Run,
    /,
    *,
    evidence: Path,
    memory: bool,
    fresh: bool,
    fail_if: tuple[str, ...],
    **asked: Any,
) -> int:
    r"""Predict the misses at other sizes of shared_buffers from evidence.

    EVIDENCE is a folder that `pgsweep record` wrote, or a trace in libCacheSim's oracleGeneral format (any
    file whose name ends in .oracleGeneral). The server is not needed any more. Every value carries its 90%
    interval, and a verdict says how far it may be trusted:

    \b
      reliable  the true values lie in the intervals in 90 of 100 cases
      rough     the curve is shown; note its intervals and the reasons
      refused   the evidence does not allow a prediction: no numbers, only reasons

    Where the memory of the server's host is known, from evidence recorded there or by --ram, it also says
    what the page cache makes of the misses: disk reads per second, and how much both caches hold twice, where
    the pool gets one part of the memory and the page cache the rest.

    With --what-if it also predicts what was not observed. The assumptions are named in the result, and the
    verdict is at best rough where the load is changed. What the evidence cannot answer is refused.

    \b
      'orders grows 2x'                   as many visits, over twice the blocks
      'insert into orders 1000 rows/s'    rows added at its end
      'scan orders every 60s'             all of it read in order
      'keep orders warm'                  all of it in the pool at all times
      'without orders'                    moved to another server
      'connections 2x'                    twice the sessions, each as today's
      'ram 64GB'                          another memory
      'huge_pages on'                     if recorded on the server's host
      'shared_buffers 8GB'                another size, added to --sizes

    \b
    Examples:
      pgsweep predict shop.evidence
      pgsweep predict shop.evidence --sizes 1GB,2GB,4GB,8GB -o shop.html
      pgsweep predict shop.evidence --ram 64GB --sizes 8GB,16GB,32GB
      pgsweep predict shop.evidence --what-if 'orders grows 2x' --what-if 'scan items every 60s'
      pgsweep predict cluster052.oracleGeneral --executor processes:8
      pgsweep predict shop.evidence --json | jq .verdict
      pgsweep predict shop.evidence --fail-if 'verdict!=reliable' -o shop.json
    """
    run.output_options["tables"] = memory
    run.prepare()
    from pgsweep.condition import parse_word_condition
    from pgsweep.evidence.subject import subject_of
    from pgsweep.host.machine import memory_bytes as machine_memory_bytes
    from pgsweep.records.prediction import LEVELS
    from pgsweep.sizing.predict import predict

    if asked["executor"] is not None:
        from pgsweep.workers import check_executor

        check_executor(asked["executor"])
    conditions = [parse_word_condition(text, {"verdict": LEVELS}) for text in fail_if]
    sizes = asked["sizes_bytes"]
    if sizes and sizes[-1] > machine_memory_bytes():
        run.settings.warn(
            f"{as_setting(sizes[-1])} is more than this machine's memory "
            f"({format_bytes(machine_memory_bytes())}); the prediction counts misses as if it were there"
        )
    with Watched(run.settings, run.output) as watched:
        result = predict(evidence, kept=not fresh, watch=watched, **asked)
    run.show(result, subject=subject_of(evidence))
    level = (result.changed or result).verdict.level
    return CONDITION_HOLDS if run.holding(conditions, level) else 0
