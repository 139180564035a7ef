"""What was predicted beside what was measured, and the figures that follow.

A prediction is for the accesses per second of its recording. So disk reads are compared per access, which is
the same at equal throughput, and throughput as a ratio to that of the size observed, which ran in turns with
each. Disk reads are bytes of /proc/PID/io of the server's processes, readahead included.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.advise.cases import MEMORY_BYTES, OBSERVED_BYTES, SIZES_BYTES, Case, Samples, stand_in
from benchmarks.advise.workloads import UNSTEADY
from pgsweep.records.prediction import PredictResult
from pgsweep.sizing.predict import predict
from pgsweep.units import BLOCK_BYTES

FEWEST_READS = 10.0
"""Disk reads per second below which `predict` itself takes them for next to nothing: the errors of disk reads
are relative to this at least."""

MOST_OTHERS = 0.1
"""Of the processors: from there on throughput is not judged."""

_NAMING = (
    "drift",
    "moves",
    "in turn",
    "as a loop",
    "changed",
    "loop",
    "end to end",
    "one after the other",
    "not explain",
    "not visited",
)


@dataclass(frozen=True)
class Truth:
    """What was measured at one size, over all rounds.

    Attributes:
        miss_ratio: of the pool.
        disk_blocks: read from disk for each access.
        rates: transactions per second, by round; of today's in the turns, times the median of today's.
        today: the median of today's in all turns of the case.
        accesses: of a transaction.
        settled: in all rounds.
        others: the largest share of the processors that other programs had.
    """

    size_bytes: int
    miss_ratio: float
    disk_blocks: float
    rates: dict[int, float]
    today: float
    accesses: float
    settled: bool
    others: float

    @property
    def rate(self) -> float:
        return float(statistics.median(self.rates.values()))


def truths(samples: Samples, case: str) -> dict[int, Truth]:
    """Return what was measured at each size."""
    lines = samples.of(case, "truth")
    today = statistics.median([pair[1] for line in lines for pair in line["turns"]]) if lines else 0.0
    found = {}
    for size in sorted({line["size_bytes"] for line in lines}):
        own = [line for line in lines if line["size_bytes"] == size]
        found[size] = Truth(
            size_bytes=size,
            miss_ratio=_total(own, "misses") / max(_total(own, "accesses"), 1),
            disk_blocks=statistics.median(_disk_blocks(line) for line in own),
            rates={line["round"]: today * _ratio(line) for line in own},
            today=today,
            accesses=_total(own, "accesses") / max(_total(own, "transactions"), 1),
            settled=all(line["settled"] for line in own),
            others=max(line["others"] for line in own),
        )
    return found


def _total(lines: Sequence[dict[str, Any]], name: str) -> float:
    return float(sum(line[name] for line in lines))


def _ratio(line: dict[str, Any]) -> float:
    """Return the throughput of a size, of that of the size observed, from all turns."""
    own, today = (sum(rates) for rates in zip(*line["turns"], strict=True))
    return float(own / today)


def _disk_blocks(line: dict[str, Any]) -> float:
    """Return the blocks read from disk for each access.

    The server's counters lag up to a second behind, pgbench's and the kernel's do not.
    """
    per_second = float(statistics.mean(line["transactions_by_second"]))
    accesses = per_second * line["accesses"] / max(line["transactions"], 1)
    return float(line["disk_bytes"] / BLOCK_BYTES / line["seconds"] / accesses)


def predict_case(case: str, samples: Samples, kept: Path) -> list[dict[str, Any]]:
    """Predict the sizes that were measured from both recordings, without keeping it."""
    measured = sorted(truths(samples, case))
    found = []
    for source in ("trace", "sql"):
        path = Case.named(case).folder(kept) / f"{source}.evidence"
        if path.exists() and measured:
            result = predict(path, sizes_bytes=sorted({*measured, OBSERVED_BYTES}))
            found.append({"kind": "prediction", "case": case, "source": source, **_kept(result)})
    return found


def _kept(result: PredictResult) -> dict[str, Any]:
    memory = result.memory
    return {
        "observed": msgspec.to_builtins(result.observed),
        "verdict": {"level": result.verdict.level, "reasons": result.verdict.sentences},
        "points": msgspec.to_builtins(result.points),
        "unknown_bytes": result.unknown_bytes,
        "disk": [] if memory is None else msgspec.to_builtins(memory.points),
        "memory_reasons": [] if memory is None else memory.reasons,
        "other_bytes": None if memory is None else memory.other_bytes,
        "throughput": None if memory is None else msgspec.to_builtins(memory.throughput),
    }


@dataclass(frozen=True)
class Compared:
    """One predicted value beside the measured one.

    Attributes:
        what: `miss`, `disk` or `throughput`.
        floor: what the error is relative to at least.
    """

    case: str
    source: str
    what: str
    size_bytes: int
    measured: float
    predicted: float
    low: float
    high: float
    settled: bool
    floor: float = 0.0

    @property
    def error(self) -> float:
        return self.predicted - self.measured

    @property
    def relative(self) -> float:
        return abs(self.error) / max(self.measured, self.floor, 1e-9)

    @property
    def inside(self) -> bool:
        return self.low <= self.measured <= self.high


def compare(samples: Samples, predictions: Sequence[dict[str, Any]]) -> list[Compared]:
    """Return all pairs."""
    found: list[Compared] = []
    for one in predictions:
        measured = truths(samples, one["case"])
        of = (one["case"], one["source"])
        for point in one["points"]:
            at = measured.get(point["shared_buffers_bytes"])
            if at is not None:
                values = (at.miss_ratio, point["miss_ratio"], point["low"], point["high"])
                found.append(Compared(*of, "miss", at.size_bytes, *values, at.settled))
        found += _compare_disk(one, measured)
        found += _compare_throughput(one, measured)
    return found


def _compare_disk(one: dict[str, Any], measured: dict[int, Truth]) -> list[Compared]:
    accesses = one["observed"]["accesses"] / one["observed"]["seconds"]
    found = []
    for point in one["disk"]:
        at = measured.get(point["shared_buffers_bytes"])
        if at is not None:
            low, value, high = (
                point[name] / BLOCK_BYTES / accesses
                for name in ("disk_bytes_low", "disk_bytes_per_second", "disk_bytes_high")
            )
            found.append(
                Compared(
                    case=one["case"],
                    source=one["source"],
                    what="disk",
                    size_bytes=at.size_bytes,
                    measured=at.disk_blocks,
                    predicted=value,
                    low=low,
                    high=high,
                    settled=at.settled,
                    floor=FEWEST_READS / accesses,
                )
            )
    return found


def _compare_throughput(one: dict[str, Any], measured: dict[int, Truth]) -> list[Compared]:
    points = (one["throughput"] or {}).get("points", [])
    found = []
    for point in points:
        at = measured.get(point["shared_buffers_bytes"])
        if at is not None and at.size_bytes != OBSERVED_BYTES:
            values = (at.rate / at.today, point["ratio"], point["low"], point["high"])
            found.append(
                Compared(one["case"], one["source"], "throughput", at.size_bytes, *values, at.settled)
            )
    return found


def of_best(samples: Samples, case: str) -> dict[int, float]:
    """Return the throughput at each size, of the best one."""
    rates = {size: truth.rate for size, truth in truths(samples, case).items()}
    best = max(rates.values(), default=1.0)
    return {size: rate / best for size, rate in rates.items()}


def undisturbed(samples: Samples, case: str) -> bool:
    """Return whether no other program had more than a tenth of the processors while it was measured."""
    return all(truth.others <= MOST_OTHERS for truth in truths(samples, case).values())


def regret(samples: Samples, case: str, source: str) -> float | None:
    """Return what the size advised loses against the best; None where it was not measured."""
    advice = samples.of(case, "advice", source=source)
    found = of_best(samples, case)
    at = stand_in(advice[-1]["advised_bytes"], found) if advice else None
    return None if at is None else 1 - found[at]


def flagged(prediction: dict[str, Any]) -> bool:
    """Return whether a prediction is not called reliable, and says that the load is no steady one."""
    verdict = prediction["verdict"]
    named = any(word in reason for reason in verdict["reasons"] for word in _NAMING)
    return verdict["level"] != "reliable" and named


def summary(samples: Samples, predictions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures."""
    compared = compare(samples, predictions)
    grid = [one for one in compared if one.size_bytes in SIZES_BYTES]
    steady = [one for one in grid if one.case.split()[0] not in UNSTEADY]
    found: dict[str, Any] = {}
    for source, name in (("trace", "trace"), ("sql", "snapshots")):
        errors = [abs(one.error) for one in steady if one.source == source and one.what == "miss"]
        found[f"{name}_miss_mean"] = _rounded(statistics.mean, errors)
        found[f"{name}_miss_max"] = _rounded(max, errors)
    disk = [one.relative for one in steady if one.what == "disk"]
    found["disk_reads_median"] = _rounded(statistics.median, disk)
    found["disk_reads_max"] = _rounded(max, disk)
    through = [one.relative for one in steady if one.what == "throughput"]
    found["throughput_median"] = _rounded(statistics.median, through)
    found["coverage"] = _rounded(statistics.mean, [float(one.inside) for one in grid])
    widths = [(one.high - one.low) / max(one.measured, one.floor, 1e-3) for one in steady]
    found["width"] = _rounded(statistics.mean, widths)
    for what in ("miss", "disk", "throughput"):
        own = [one for one in grid if one.what == what]
        found[f"coverage_{what}"] = _rounded(statistics.mean, [float(one.inside) for one in own])
    found["coverage_steady"] = _rounded(statistics.mean, [float(one.inside) for one in steady if one.settled])
    # Where others had the processors, the throughput shows their work rather than the size.
    for source, name in (("trace", "regret"), ("sql", "regret_snapshots")):
        for quiet, ending in ((True, ""), (False, "_disturbed")):
            cases = [case for case in samples.cases() if undisturbed(samples, case) is quiet]
            lost = [regret(samples, case, source) for case in cases]
            found[name + ending] = _rounded(max, [one for one in lost if one is not None])
    for name in UNSTEADY:
        own_case = [one for one in predictions if one["case"].split()[0] == name]
        # By a source in all cases, or it does not count.
        missed = {one["source"] for one in own_case if not flagged(one)}
        found[f"flagged_{name}"] = sorted({one["source"] for one in own_case} - missed)
    found["flagged"] = all(found[f"flagged_{name}"] for name in UNSTEADY)
    checked = [line for case in samples.cases() for line in samples.of(case, "verify")]
    for load, verdict, name in (
        ("same", "as predicted", "verify_as_predicted"),
        ("changed", "workload changed", "verify_changed"),
    ):
        own_load = [line for line in checked if line["load"] == load]
        found[name] = f"{sum(line['verdict'] == verdict for line in own_load)} of {len(own_load)}"
    beaten = {case: rules_beaten(samples, case) for case in samples.cases() if undisturbed(samples, case)}
    found["rules_beaten"] = sum(one[0] for one in beaten.values())
    found["rules_measured"] = sum(one[1] for one in beaten.values())
    found["cases"] = len(samples.cases())
    measured = [truth for case in samples.cases() for truth in truths(samples, case).values()]
    found["unsettled"] = sum(not truth.settled for truth in measured)
    found["others"] = _rounded(max, [truth.others for truth in measured])
    found["memory_bytes"] = MEMORY_BYTES
    return found


def _rounded(of: Any, values: Sequence[float]) -> float | None:
    return round(float(of(values)), 4) if values else None


def rules_beaten(samples: Samples, case: str) -> tuple[int, int]:
    """Return how many rules do no better than the advice from the trace, within 2%, and of how many."""
    advice = samples.of(case, "advice", source="trace")
    found = of_best(samples, case)
    at = stand_in(advice[-1]["advised_bytes"], found) if advice else None
    if at is None:
        return 0, 0
    rules = [stand_in(size, found) for size in advice[-1]["rules"].values() if size is not None]
    known = [size for size in rules if size is not None]
    return sum(found[at] >= found[size] - 0.02 for size in known), len(known)
