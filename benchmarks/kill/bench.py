"""kill -9 at random moments of four commands: nothing stays that the next run does not find and undo."""

from __future__ import annotations

import fcntl
import json
import os
import random
import tempfile
import time
from pathlib import Path

from benchmarks.kill.kills import Kill, kill_at, samples, span_of, summary
from benchmarks.kill.scenarios import hugepages, killed_server, record, warm_keep, warm_run
from benchmarks.samples import keep, refuse_debug_build

MOMENTS = int(os.environ.get("KILL_MOMENTS", "100"))
SECONDS = float(os.environ.get("KILL_SECONDS", "inf"))
"""After which no further moment of a scenario is begun."""

ONLY = os.environ.get("KILL_ONLY", "")
"""Part of the names of the scenarios to run; the samples of earlier runs stay, and these are added."""

HERE = Path(__file__).parent
LOCK = Path(tempfile.gettempdir()) / "pgsweep-hugepages.lock"
"""Tests that change huge pages hold it too."""


def former() -> tuple[list[Kill], dict[str, float]]:
    """Return what earlier runs kept, where this one runs only some of the scenarios."""
    file = HERE / "samples.json"
    if not ONLY or not file.exists():
        return [], {}
    content = json.loads(file.read_text())
    return [Kill(**sample) for sample in content["samples"]], content["summary"]["span_seconds"]


def main() -> None:
    """Kill each command at different times, and keep the samples."""
    refuse_debug_build()
    kills, spans = former()
    chance = random.Random(10)
    with (
        LOCK.open("a") as lock,
        tempfile.TemporaryDirectory(prefix="pgsweep-kill-") as made,
        killed_server() as cluster,
    ):
        for scenario in (
            hugepages(cluster, buffers="4GB"),
            record(cluster, "sql", seconds=4),
            record(cluster, "peek", seconds=4),
            record(cluster, "trace", seconds=4),
            warm_run(cluster),
            warm_keep(cluster),
        ):
            if ONLY not in scenario.name:
                continue
            fcntl.flock(lock, fcntl.LOCK_EX if scenario.name == "hugepages" else fcntl.LOCK_UN)
            folder = Path(made) / scenario.name.replace(" ", "-")
            folder.mkdir()
            span = span_of(scenario, folder / "whole")
            spans[scenario.name] = round(span.seconds, 3)
            begin = time.monotonic()
            for number in range(MOMENTS):
                if time.monotonic() - begin < SECONDS:
                    kills.append(kill_at(scenario, cluster, folder / str(number), chance, span))
            print(f"{scenario.name}: {json.dumps(summary(kills)[scenario.name])}", flush=True)
    found = {"span_seconds": spans, **summary(kills)}
    keep(HERE, found, samples(kills))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
