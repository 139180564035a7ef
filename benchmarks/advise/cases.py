"""One case: a load on one version with one ratio of memory to database. Observed, advised, and measured.

Everything that is known is a line of samples.jsonl at once, and what has its line is not done again:

    observed    the state in which it was recorded, and what it was recorded with
    advice      what `advise` says of a recording, by source
    truth       one size in one round, as it was counted
    verify      what `verify` says after a restart (verifying.py)
    failed      a size at which the server could not run
    run         of no case: machine, versions and command of a run
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from benchmarks.advise.measure import Watch, measure, settle, start
from benchmarks.advise.turns import in_turns, reference
from benchmarks.advise.workloads import WORKLOADS, Load
from pgsweep.advice.ask import advise
from pgsweep.errors import ClusterError
from pgsweep.evidence.record import Source, record
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.advice import AdviceResult
from pgsweep.testbed.filling import PoolContent
from pgsweep.testbed.pgbench import DATABASE, create_database, prepare
from pgsweep.testbed.workloads import Workload
from pgsweep.units import parse_bytes

MB = 1 << 20
MEMORY_BYTES = 192 * MB
SCALES = {"1:1": 13, "1:2": 25, "1:4": 51}
BINDIRS = {"18": None, "15": Path("/usr/lib/postgresql/15/bin")}
OBSERVED_BYTES = 16 * MB
SIZES_BYTES = tuple(mb * MB for mb in (6, 16, 48, 76, 115, 153))
"""3, 8, 25, 40, 60 and 80% of the memory; 25 and 40% as the rules of thumb round them."""

LARGEST_BYTES = max(SIZES_BYTES)
SMALLEST_BYTES = 2 * MB
NEAR = 1.04
"""Sizes closer than this are measured once."""

SETTINGS = {
    "shared_buffers": f"{OBSERVED_BYTES // MB}MB",
    "track_io_timing": "on",
    "autovacuum": "off",
    "jit": "off",
    "max_connections": "24",
    "max_parallel_workers_per_gather": "0",
    "checkpoint_timeout": "1h",
}
SOURCES: tuple[Source, ...] = ("trace", "sql")


class Samples:
    """The lines of a file of samples; each is on disk when it is added."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = path.read_text().splitlines() if path.exists() else []
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in text]

    def add(self, kind: str, case: str, **values: Any) -> dict[str, Any]:
        line = {"kind": kind, "case": case, **values}
        self.lines.append(line)
        with self._path.open("a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
        return line

    def of(self, case: str, *kinds: str, **values: Any) -> list[dict[str, Any]]:
        """Return the lines of a case, of these kinds, with these values."""
        return [
            line
            for line in self.lines
            if line["case"] == case
            and line["kind"] in kinds
            and all(line.get(name) == value for name, value in values.items())
        ]

    def cases(self) -> list[str]:
        """Return the names of all cases, in the order in which they came."""
        return list(dict.fromkeys(line["case"] for line in self.lines if line["case"]))


@dataclass(frozen=True)
class Case:
    """What is run.

    Attributes:
        workload: one of WORKLOADS.
        ratio: of the memory to the database.
        version: of PostgreSQL.
    """

    workload: Workload
    ratio: str
    version: str

    @property
    def name(self) -> str:
        return f"{self.workload.name} {self.ratio} {self.version}"

    @classmethod
    def named(cls, name: str) -> Case:
        workload, ratio, version = name.split()
        return cls(WORKLOADS[workload], ratio, version)

    @property
    def scale(self) -> int:
        return SCALES[self.ratio]

    def folder(self, kept: Path) -> Path:
        return kept / self.name.replace(" ", "-").replace(":", "to")


def run_case(case: Case, samples: Samples, options: Namespace) -> None:
    """Do what is missing of a case."""
    folder = case.folder(options.keep)
    folder.mkdir(parents=True, exist_ok=True)
    advised = all(samples.of(case.name, "advice", source=source) for source in SOURCES)
    if advised and not _missing(case, samples, options.rounds):
        return
    with ExitStack() as stack:
        cluster = stack.enter_context(filled(case))
        if not samples.of(case.name, "observed"):
            _observe(case, cluster, folder, samples, options)
        for source in SOURCES:
            if not samples.of(case.name, "advice", source=source):
                # Snapshots do not say what memory there is, as over a connection from elsewhere.
                memory = None if source == "trace" else MEMORY_BYTES
                advice = advise(folder / f"{source}.evidence", memory_bytes=memory)
                samples.add("advice", case.name, source=source, **shown(advice))
                print(f"{case.name}: {source}: {advice.summary}", flush=True)
        missing = _missing(case, samples, options.rounds)
        if not missing:
            return
        same = (case.workload, case.scale, OBSERVED_BYTES, MEMORY_BYTES, options.settle)
        other = stack.enter_context(reference(stack.enter_context(filled(case)), *same))
        contents: dict[int, PoolContent] = {}
        for number, size in missing:
            _measure(case, cluster, other, number, size, contents, samples, options)


@contextmanager
def filled(case: Case) -> Iterator[Cluster]:
    """Give a server with the tables of a case, within its memory; the tables are filled with more."""
    with Cluster.create(BINDIRS[case.version], SETTINGS, memory_limit_bytes=2 << 30) as cluster:
        create_database(cluster, case.scale)
        prepare(cluster, case.workload)
        cluster.stop()
        cluster.set_memory_limit(MEMORY_BYTES)
        cluster.start()
        yield cluster


def shown(advice: AdviceResult) -> dict[str, Any]:
    """Return what a line keeps of advice."""
    return {
        "summary": advice.summary,
        "advised_bytes": advised_size(advice),
        "verdict": advice.verdict.level,
        "rules": {rule.name: rule.shared_buffers_bytes for rule in advice.rules},
        "points": msgspec.to_builtins(advice.points),
    }


def advised_size(advice: AdviceResult) -> int:
    """Return the size to set, or the one observed where the advice is to leave it."""
    value = next(one.value for one in advice.settings if one.name == "shared_buffers")
    return OBSERVED_BYTES if value is None else parse_bytes(value)


def sizes_of(advice: Iterable[dict[str, Any]]) -> list[int]:
    """Return the sizes to measure: the fixed ones, those advised and those of rules of thumb."""
    found = list(SIZES_BYTES)
    for line in advice:
        asked = [line["advised_bytes"], *line["rules"].values()]
        for size in asked:
            if size is not None and SMALLEST_BYTES <= size <= LARGEST_BYTES and stand_in(size, found) is None:
                found.append(size // 8192 * 8192)
    return sorted(found)


def stand_in(size: int, measured: Iterable[int]) -> int | None:
    """Return the size that was measured nearest to one, if it is near."""
    near = min(measured, key=lambda one: max(one, size) / min(one, size), default=None)
    return near if near is not None and max(near, size) / min(near, size) <= NEAR else None


def _missing(case: Case, samples: Samples, rounds: int) -> list[tuple[int, int]]:
    """Return which sizes are not yet measured in which rounds; those of each round in random order."""
    advice = samples.of(case.name, "advice")
    found = []
    for number in range(rounds):
        order = sizes_of(advice)
        random.Random(f"{case.name} {number}").shuffle(order)
        done = {line["size_bytes"] for line in samples.of(case.name, "truth", "failed", round=number)}
        found += [(number, size) for size in order if size not in done]
    return found if len(advice) == len(SOURCES) else found or [(0, OBSERVED_BYTES)]


def _observe(case: Case, cluster: Cluster, folder: Path, samples: Samples, options: Namespace) -> None:
    """Record both evidences from a settled state."""
    start(cluster, OBSERVED_BYTES, PoolContent(), 1)
    with Watch(cluster) as watch, Load(cluster, case.workload, case.scale, 1) as load:
        settled, waited = settle(watch, OBSERVED_BYTES, MEMORY_BYTES, options.settle * 2)
        found = {}
        for source, seconds in (("trace", options.trace), ("sql", options.sql)):
            path = folder / f"{source}.evidence"
            shutil.rmtree(path, ignore_errors=True)
            watch.window(0.0)
            begun = len(load.transactions_by_second())
            done = record(cluster.conninfo(DATABASE), path, source=source, seconds=seconds)  # type: ignore[arg-type]
            window = watch.window(0.0)
            found[source] = {
                "seconds": done.seconds,
                "accesses": window.accesses,
                "misses": window.misses,
                "transactions": window.transactions,
                "disk_bytes": window.disk_bytes,
                "transactions_by_second": load.transactions_by_second()[begun + 1 :],
                "warnings": done.warnings,
            }
    samples.add(
        "observed",
        case.name,
        size_bytes=OBSERVED_BYTES,
        memory_bytes=MEMORY_BYTES,
        database_bytes=cluster.database_bytes(DATABASE),
        settled=settled,
        settle_seconds=round(waited, 1),
        recordings=found,
    )


def _measure(
    case: Case,
    cluster: Cluster,
    other: Load,
    number: int,
    size: int,
    contents: dict[int, PoolContent],
    samples: Samples,
    options: Namespace,
) -> None:
    """Measure one size in one round."""
    smaller = max((one for one in contents if one <= size), default=None)
    carried = PoolContent() if smaller is None else contents[smaller]
    try:
        line, contents[size] = measure(
            cluster,
            case.workload,
            case.scale,
            size,
            MEMORY_BYTES,
            carried=carried,
            seed=100 + number,
            settle_seconds=options.settle,
            count_seconds=options.count,
            turns=lambda load: in_turns(load, other, options.turns),
        )
    except (ClusterError, psycopg.Error, RuntimeError) as error:
        said = f"{error} ({getattr(error, 'cause', None)})"
        samples.add("failed", case.name, round=number, size_bytes=size, error=said)
        print(f"{case.name}: {size // MB} MB: {said}", flush=True)
        return
    samples.add("truth", case.name, round=number, size_bytes=size, **line)
    own, others = (statistics.mean(rates) for rates in zip(*line["turns"], strict=True))
    print(
        f"{case.name}: round {number}, {size // MB:4} MB: {own:7.0f} tx/s, {own / others:.2f} of that at "
        f"{OBSERVED_BYTES // MB} MB, "
        f"misses {line['misses'] / max(line['accesses'], 1):.4f}, "
        f"disk {line['disk_bytes'] / 8192 / max(line['accesses'], 1):.4f} blocks/access, "
        f"started in {line['start_seconds']} s, settled {line['settled']} after {line['settle_seconds']} s, "
        f"others {line['others']:.0%}",
        flush=True,
    )
