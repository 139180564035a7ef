"""Measure the throughput at the size advised, at those of rules of thumb, and at others.

Run by `make bench NAME=advise` as root, where memory cgroups can be made. A private server has half as much
memory as its database is large (a memory cgroup). It is traced once at a small shared_buffers, and advised.
Then it is restarted at each size, in random order and in several rounds; its transactions are counted when
it has settled. Where other programs use more than a tenth of the processors meanwhile, that is in the summary
(`others`), and the figures say little: two runs under such load contradicted each other.

The regret is what the size advised loses against the best size measured. `throughput_median` is the median
relative error of the throughput predicted as a ratio to that of the size observed, over the other sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.samples import keep, refuse_debug_build
from pgsweep.advice.gather import advise
from pgsweep.errors import MissingAbility
from pgsweep.evidence.record import record
from pgsweep.host.processor_time import host_seconds, server_seconds
from pgsweep.pg.cluster import Cluster
from pgsweep.records.advice import AdviceResult

HERE = Path(__file__).parent
MB = 1 << 20
SCALE = 24
MEMORY_BYTES = 192 * MB
OBSERVED_BYTES = 16 * MB
ZIPF = f"""\\set drawn random_zipfian(1, {100_000 * SCALE}, 1.05)
\\set aid permute(:drawn, {100_000 * SCALE})
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
"""


def transactions(cluster: Cluster) -> int:
    """Return how many have ended so far."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        row = connection.execute(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


class Load:
    """pgbench beside the server, until the block ends."""

    def __init__(self, cluster: Cluster, script: list[str], clients: int) -> None:
        command = [str(cluster.bindir / "pgbench"), "-n", "-T", "3600", "-s", str(SCALE)]
        command += ["-c", str(clients), *script]
        self._process = subprocess.Popen(
            [*command, cluster.conninfo()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> Load:
        return self

    def processor_seconds(self) -> float:
        """Return the processor time of pgbench so far."""
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def measured(
    cluster: Cluster, script: list[str], options: argparse.Namespace, size: int
) -> tuple[float, float]:
    """Restart at a size; return its transactions per second once settled, and what others use meanwhile."""
    cluster.restart({"shared_buffers": f"{size // 1024}kB"})
    with Load(cluster, script, options.clients) as load:
        time.sleep(options.settle)
        before, begin, times = transactions(cluster), time.monotonic(), _processors(cluster, load)
        time.sleep(options.count)
        seconds = time.monotonic() - begin
        after = _processors(cluster, load)
        others = (after[0] - times[0]) - (after[1] - times[1])
        rate = (transactions(cluster) - before) / seconds
        return rate, max(0.0, others) / seconds / (os.cpu_count() or 1)


def _processors(cluster: Cluster, load: Load) -> tuple[float, float]:
    """Return the processor time of the host so far, and that of the server and of pgbench."""
    assert cluster.postmaster_pid is not None
    host, server = host_seconds(), server_seconds(cluster.postmaster_pid)
    assert host is not None
    assert server is not None
    return host, server + load.processor_seconds()


def advised_size(result: AdviceResult) -> int:
    """Return the size to set, or the one observed where the advice is to leave it."""
    value = next(one.value for one in result.settings if one.name == "shared_buffers")
    if value is None:
        return OBSERVED_BYTES
    number = int(value.rstrip("kMGB"))
    return number * {"k": 1024, "M": MB, "G": 1024 * MB}[value[-2]]


def workload(name: str, script: list[str], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Observe, advise, and measure each size."""
    settings = {"shared_buffers": f"{OBSERVED_BYTES // MB}MB", "track_io_timing": "on", "autovacuum": "off"}
    with Cluster.create(None, settings, memory_limit_bytes=MEMORY_BYTES) as cluster:
        fill = [str(cluster.bindir / "pgbench"), "-i", "-q", "-s", str(SCALE), cluster.conninfo()]
        subprocess.run(fill, check=True, capture_output=True)
        evidence = folder / f"{name}.evidence"
        with Load(cluster, script, options.clients):
            time.sleep(options.settle)
            record(cluster.conninfo(), evidence, source="trace", seconds=options.trace)
        result = advise(evidence)
        advised = advised_size(result)
        rules = {rule.name: rule.shared_buffers_bytes for rule in result.rules}
        sizes = {OBSERVED_BYTES, advised, 8 * MB, 128 * MB}
        sizes |= {size for rule, size in rules.items() if size is not None and "%" in rule and size >= 8 * MB}
        order = sorted(size for size in sizes if size < MEMORY_BYTES * 0.75)
        raw: dict[int, list[float]] = {size: [] for size in order}
        others = []
        shuffle = random.Random(1)
        for _ in range(options.rounds):
            shuffle.shuffle(order)
            for size in order:
                rate, share = measured(cluster, script, options, size)
                raw[size].append(rate)
                others.append(share)
        found = {size: statistics.median(rates) for size, rates in raw.items()}
    best = max(found.values())
    points = {point.shared_buffers_bytes: point for point in result.points}
    rows = []
    print(f"\n{name}: {result.summary}")
    for size in sorted(found):
        point = points.get(size)
        predicted = None if point is None else point.throughput_ratio
        ratio = found[size] / found[OBSERVED_BYTES]
        said = [rule for rule, asked in rules.items() if asked == size] + ["advised"] * (size == advised)
        rows.append(
            {
                "shared_buffers_bytes": size,
                "transactions_per_second": found[size],
                "rounds": raw[size],
                "of_best": found[size] / best,
                "ratio_measured": ratio,
                "ratio_predicted": predicted,
                "low": None if point is None else point.throughput_low,
                "high": None if point is None else point.throughput_high,
                "disk_reads_predicted": None if point is None else point.disk_reads_per_second,
                "who": said,
            }
        )
        shown = "" if predicted is None else f", predicted {predicted:.2f}"
        print(
            f"{size // MB:5} MB {found[size]:8.0f}/s {found[size] / best:6.1%} of the best, "
            f"{ratio:.2f} of today{shown}  {', '.join(said)}",
            flush=True,
        )
    return {
        "workload": name,
        "summary": result.summary,
        "remarks": result.remarks,
        "verdict": result.verdict.level,
        "advised_bytes": advised,
        "regret": 1 - found[advised] / best,
        "others": max(others),
        "rows": rows,
    }


def main() -> None:
    """Measure both workloads and keep the samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settle", type=float, default=25.0, help="seconds after each start")
    parser.add_argument("--count", type=float, default=15.0, help="seconds that transactions are counted")
    parser.add_argument("--trace", type=float, default=12.0, help="seconds of the trace")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--only", choices=["zipf", "tpcb"])
    options = parser.parse_args()
    refuse_debug_build()
    samples = []
    with tempfile.TemporaryDirectory(prefix="pgsweep-advise-") as made:
        script = Path(made) / "zipf.sql"
        script.write_text(ZIPF)
        for name, arguments in (("zipf", ["-f", str(script)]), ("tpcb", ["-b", "tpcb-like"])):
            if options.only in (None, name):
                try:
                    samples.append(workload(name, arguments, options, Path(made)))
                except MissingAbility as error:
                    sys.exit(f"error: nothing can be measured here\n\ncause: {error.message}")
    rows = [row for sample in samples for row in sample["rows"]]
    others = [row for row in rows if row["ratio_predicted"] and row["ratio_measured"] != 1]
    errors = [abs(row["ratio_predicted"] / row["ratio_measured"] - 1) for row in others]
    inside = [row["low"] <= row["ratio_measured"] <= row["high"] for row in others]
    summary = {
        "regret": max(sample["regret"] for sample in samples),
        "throughput_median": statistics.median(errors) if errors else None,
        "throughput_max": max(errors, default=None),
        "coverage": sum(inside) / len(inside) if inside else None,
        "others": max(sample["others"] for sample in samples),
        "advised": {sample["workload"]: sample["advised_bytes"] for sample in samples},
    }
    keep(HERE, summary, samples)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
