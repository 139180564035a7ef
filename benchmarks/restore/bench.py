"""After a restart with cold caches: saved heat restored, against autoprewarm, against nothing.

Run by `make bench NAME=restore`; PostgreSQL 18, a pool of 1 GB, point reads by Zipf's law over tables of
twice that size. Heat file and autoprewarm's own file are written at the same moment. Then, in turns: the
server is stopped, its files are dropped from the page cache, and it is started, with autoprewarm, with
`pgsweep warm restore` started at the same moment as the server, with one that waited for the server already
(`--next-start`), or with neither. The pace of a shared host changes, so ratios are of runs of one turn. The
workload runs from the moment the server accepts connections; time counts from the start of the server in each
case. The hit ratio is that of the workload's own backends (pg_stat_get_backend_io), so what the warming reads
is not in it.

The second part is a standby: made by pg_basebackup, replaying while the primary writes; its first queries
with cold caches, and after a restore of the primary's heat.
"""

from __future__ import annotations

import compileall
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

import pgsweep
from benchmarks.restore.picture import draw
from benchmarks.restore.standby import measure_standby
from benchmarks.samples import keep, refuse_debug_build
from pgsweep.pg.private.cluster import Cluster
from pgsweep.residency.access import opened
from pgsweep.testbed.cold import drop_from_page_cache
from pgsweep.testbed.pgbench import DATABASE, RunningWorkload, create_database
from pgsweep.testbed.workloads import ZIPF
from pgsweep.warm.heat.save import save

HERE = Path(__file__).parent
WORK_DIR = Path("/var/tmp/pgsweep-restore")
SCALE = 130
ROUNDS = 7
WATCHED_SECONDS = 32
HEATING_SECONDS = 45
STEADY_SECONDS = 12
SMOOTHED_SECONDS = 3
SETTINGS = {
    "shared_buffers": "1GB",
    "autovacuum": "off",
    "max_wal_size": "8GB",
    "shared_preload_libraries": "pg_prewarm",
    "pg_prewarm.autoprewarm_interval": "0",
    "pg_prewarm.autoprewarm": "on",
}
ARMS = ("autoprewarm", "restore", "waiting", "cold")
LEAD_SECONDS = 3.0
"""How long before the server the restore that waits for it is started."""


@dataclass(slots=True)
class Run:
    """One start of the server.

    Attributes:
        ready_seconds: from the start of the server until it accepted connections.
        seconds: end of each second, from the start of the server.
        tps: transactions a second.
        hit_ratios: of the workload's own accesses, by second.
        warm_seconds: when the warming had ended.
    """

    arm: str
    ready_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    tps: list[float] = field(default_factory=list)
    hit_seconds: list[float] = field(default_factory=list)
    hit_ratios: list[float] = field(default_factory=list)
    warm_seconds: float | None = None
    load_average: float = 0.0


def cool(cluster: Cluster) -> None:
    """Stop the server and drop all its files from the page cache."""
    cluster.stop()
    for folder, _, names in os.walk(cluster.data_directory):
        for name in names:
            with suppress(OSError):
                drop_from_page_cache(Path(folder) / name)


def watch(cluster: Cluster, arm: str, heat: Path, dumped: bytes, seed: int) -> Run:
    """Start the cold server, warm it as the arm says, and watch the workload."""
    cool(cluster)
    cluster.settings["pg_prewarm.autoprewarm"] = "on" if arm == "autoprewarm" else "off"
    # A stop writes it anew: every run begins with the same.
    blocks = cluster.data_directory / "autoprewarm.blocks"
    blocks.write_bytes(dumped)
    run = Run(arm, load_average=os.getloadavg()[0])
    warmer: subprocess.Popen[bytes] | None = None
    answer = heat.with_suffix(".json")
    said_before = cluster.log_path.stat().st_size
    begin = time.monotonic()
    if arm in ("restore", "waiting"):
        command = [str(Path(sys.executable).parent / "pgsweep"), "warm", "restore", str(heat)]
        command += ["--wait" if arm == "restore" else "--next-start", "60s"]
        command += ["--json", "--quiet", "-d", cluster.conninfo(DATABASE)]
        # A file, not a pipe: one that is full would keep the command from ending.
        with answer.open("w") as said:
            warmer = subprocess.Popen(command, stdout=said)
    if arm == "waiting":
        time.sleep(LEAD_SECONDS)
        begin = time.monotonic()
    cluster.start()
    run.ready_seconds = time.monotonic() - begin
    try:
        with RunningWorkload(cluster, ZIPF, seed=seed, scale=SCALE, timed=True) as workload:
            stop = threading.Event()
            sampler = threading.Thread(target=sample, args=(cluster, run, begin, stop))
            sampler.start()
            try:
                while time.monotonic() - begin < WATCHED_SECONDS:
                    workload.check()
                    if run.warm_seconds is None and is_warm(cluster, warmer, arm, said_before):
                        run.warm_seconds = time.monotonic() - begin
                    time.sleep(0.1)
            finally:
                stop.set()
                sampler.join()
            for at, tps in workload.seconds():
                run.seconds.append(round(run.ready_seconds + at, 2))
                run.tps.append(tps)
    finally:
        if warmer is not None:
            if warmer.wait(timeout=120) != 0:
                raise RuntimeError(f"warm restore ended with {warmer.returncode}")
            result = json.loads(answer.read_text())
            answer.unlink()
            print(f"  restore: {result['seconds']:.1f} s, resident after {result['after']['resident']:.4f}")
    return run


def is_warm(cluster: Cluster, warmer: subprocess.Popen[bytes] | None, arm: str, said_before: int) -> bool:
    """Return whether the warming has ended."""
    if warmer is not None:
        return warmer.poll() is not None
    said = cluster.log_tail(30, start_bytes=said_before)
    return arm == "autoprewarm" and "autoprewarm successfully prewarmed" in said


def sample(cluster: Cluster, run: Run, begin: float, stop: threading.Event) -> None:
    """Note the workload's hit ratio four times a second; its backends report their counts once a second."""
    query = """
        SELECT coalesce(sum(io.hits), 0), coalesce(sum(io.reads), 0)
        FROM pg_stat_activity AS a, pg_stat_get_backend_io(a.pid) AS io
        WHERE a.application_name = 'pgbench' AND io.object = 'relation'
    """
    with psycopg.connect(cluster.conninfo("postgres"), autocommit=True) as connection:
        before = (0, 0)
        while not stop.wait(0.5):
            row = connection.execute(query).fetchone()
            assert row is not None
            hits, reads = int(row[0]) - before[0], int(row[1]) - before[1]
            if hits + reads > 0:
                before = (int(row[0]), int(row[1]))
                run.hit_seconds.append(round(time.monotonic() - begin, 2))
                run.hit_ratios.append(round(hits / (hits + reads), 4))


def heated(cluster: Cluster, heat: Path) -> bytes:
    """Fill the pool by the workload; write the heat file and autoprewarm's at the same moment."""
    with RunningWorkload(cluster, ZIPF, seed=1, scale=SCALE) as workload:
        time.sleep(HEATING_SECONDS)
        workload.check()
    with psycopg.connect(cluster.conninfo(DATABASE), autocommit=True) as connection:
        row = connection.execute("SELECT autoprewarm_dump_now()").fetchone()
        assert row is not None
        with opened(cluster.conninfo(DATABASE)) as access:
            saved = save(access, heat)
    print(f"saved: {saved.pool_blocks} blocks (autoprewarm: {row[0]}), usage counts {saved.usage_counts}")
    return (cluster.data_directory / "autoprewarm.blocks").read_bytes()


def steady_tps(runs: list[Run]) -> float:
    """Return the transactions a second of the last seconds of all warmed runs, the median."""
    tails = [tps for run in runs if run.arm != "cold" for tps in run.tps[-STEADY_SECONDS:]]
    return statistics.median(tails)


def seconds_to(run: Run, wanted: float) -> float:
    """Return when the smoothed transactions a second first reach what is wanted; the last second if never."""
    for index in range(len(run.tps)):
        window = run.tps[index : index + SMOOTHED_SECONDS]
        if len(window) == SMOOTHED_SECONDS and statistics.median(window) >= wanted:
            return run.seconds[index]
    return run.seconds[-1]


def early_hits(run: Run, until: float = 5.0) -> float:
    """Return the mean hit ratio of the samples in the first seconds after connections are accepted."""
    ratios = [
        ratio
        for at, ratio in zip(run.hit_seconds, run.hit_ratios, strict=True)
        if at <= run.ready_seconds + until
    ]
    return statistics.fmean(ratios) if ratios else 0.0


def first_transactions(run: Run, until: float = 5.0) -> float:
    """Return the transactions of the first seconds after connections are accepted."""
    ends = [0.0, *(at - run.ready_seconds for at in run.seconds)]
    steps = zip(ends, ends[1:], run.tps, strict=False)
    return sum(tps * (end - begin) for begin, end, tps in steps if end < until + 0.5)


def measure() -> list[Run]:
    """Return all runs, in turns."""
    WORK_DIR.mkdir(exist_ok=True)
    heat = WORK_DIR / "bench.heat"
    try:
        with Cluster.create(None, SETTINGS, work_dir=WORK_DIR) as cluster:
            create_database(cluster, SCALE)
            dumped = heated(cluster, heat)
            runs = []
            for turn in range(ROUNDS):
                for arm in ARMS[:: 1 if turn % 2 == 0 else -1]:
                    run = watch(cluster, arm, heat, dumped, seed=100 + turn)
                    runs.append(run)
                    rates = [round(tps) for tps in run.tps[:14]]
                    print(f"{arm}: warm {run.warm_seconds}, first hits {early_hits(run):.3f}, tps {rates}")
            return runs
    finally:
        heat.unlink(missing_ok=True)
        WORK_DIR.rmdir()


def against_autoprewarm(runs: list[Run], arm: str) -> list[float]:
    """Return the transactions of the first seconds by those with autoprewarm in the same turn, ascending.

    The pace of a shared host changes from turn to turn, which a ratio within a turn leaves out.
    """
    others, own = ([run for run in runs if run.arm == name] for name in ("autoprewarm", arm))
    return sorted(
        round(first_transactions(run) / first_transactions(other), 3)
        for other, run in zip(others, own, strict=True)
    )


def compile_package() -> None:
    """Compile the package, as pip does when it installs it."""
    compileall.compile_dir(Path(pgsweep.__file__).parent, quiet=1)


def main() -> None:
    """Measure, keep the samples, print the summary."""
    refuse_debug_build()
    compile_package()
    runs = measure()
    steady = steady_tps(runs)

    def median(arm: str, value: Callable[[Run], float]) -> float:
        return round(statistics.median([value(run) for run in runs if run.arm == arm]), 3)

    standby = measure_standby()
    summary = {
        "seconds_to_95_percent": median("restore", lambda run: seconds_to(run, 0.95 * steady)),
        "autoprewarm_seconds_to_95_percent": median(
            "autoprewarm", lambda run: seconds_to(run, 0.95 * steady)
        ),
        "first_transactions": median("restore", first_transactions),
        "waiting_first_transactions": median("waiting", first_transactions),
        "autoprewarm_first_transactions": median("autoprewarm", first_transactions),
        "cold_first_transactions": median("cold", first_transactions),
        **{f"{arm}_by_autoprewarm": statistics.median(against_autoprewarm(runs, arm)) for arm in ARMS[1:]},
        "waiting_seconds_to_95_percent": median("waiting", lambda run: seconds_to(run, 0.95 * steady)),
        "early_hit_ratio": median("restore", early_hits),
        "waiting_early_hit_ratio": median("waiting", early_hits),
        "autoprewarm_early_hit_ratio": median("autoprewarm", early_hits),
        "steady_tps": round(steady),
        "standby_first_queries_speedup": standby["speedup"],
    }
    fields = [{name: getattr(run, name) for name in Run.__slots__} for run in runs]
    (HERE / "curve.svg").write_text(draw(fields, 0.95 * steady))
    keep(HERE, summary, {"runs": fields, "standby": standby}, packages=("psycopg",))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
