"""What `pgsweep serve` costs and how fast it answers, in four parts.

serving  20 servers of which 10 are dead: nine sessions go to one small private server, one to a server with
         1,000,000 buffers and 20,000 relations; ten addresses have no server. Processor time of the
         collecting process and of its predictions, its memory, times of the server's page and of /metrics,
         and by how much looks come late. The processor time of an answer is that of all threads meanwhile: on
         a machine that does other work too, it says more than the time that passes.
growth   resident memory over 100,000 samples, taken as fast as can be (growth.py).
many     memory for a server with 100,000 relations, read by peek and by SQL (relations.py): resident memory
         each five seconds for twelve minutes, and the most that the kernel has seen.
tps      transactions a second of pgbench with `pgsweep serve` and without it, in pairs of short turns whose
         order alternates. One process serves all the time; without it means that it is stopped (SIGSTOP).

`--only PART` measures a part again and keeps the others as they are in `samples.json`; each part says when
and on which machine it was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.samples import keep, provenance, refuse_debug_build
from benchmarks.serve.growth import resident_bytes
from benchmarks.serve.relations import children, make_relations, measure
from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.pgbench import DATABASE, RunningWorkload, create_database, prepare
from pgsweep.testbed.workloads import ZIPF, Workload

_TICK = os.sysconf("SC_CLK_TCK")
_INTERVAL_SECONDS = 10.0
_SETTLE_SECONDS = 2
_PARTS = ("serving", "growth", "many", "tps")


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _with_children_seconds(pid: int) -> float:
    return sum(_processor_seconds(one) for one in (pid, *children(pid)))


def _threads_seconds(pid: int) -> float:
    """Return the processor time of a process's threads that live, to the nanosecond."""
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += int((task / "schedstat").read_text().split()[0])
    return found / 1e9


def _timed(address: str, pid: int) -> tuple[float, float]:
    """Return the time that an answer took, and the processor time of the process meanwhile."""
    before, begin = _threads_seconds(pid), time.monotonic()
    with urllib.request.urlopen(address, timeout=60) as answer:
        answer.read()
    return time.monotonic() - begin, _threads_seconds(pid) - before


def _start(
    config: Path, history: Path, source: str = "auto", *, half_the_time: bool = False
) -> tuple[subprocess.Popen[str], str]:
    """Start `pgsweep serve`; return it and its first line.

    Args:
        half_the_time: it will be stopped for half of the time. Its share of a processor is a share of all the
            time, so that it would take twice as much while it runs: it gets half the share.
    """
    program = "from pgsweep.cli.main import main; main()"
    if half_the_time:
        halved = "SHARES.update({window: share / 2 for window, share in SHARES.items()})"
        program = f"from pgsweep.serve.turns import SHARES; {halved}; {program}"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "serve", "--quiet", "--config", config, "--history", history,
         "--listen", "127.0.0.1:0", "--interval", f"{_INTERVAL_SECONDS:g}s", "--source", source],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def _serving(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return what was measured of 20 servers."""
    large_settings = {"shared_buffers": "8GB", "max_locks_per_transaction": "4096"}
    with _small() as small, Cluster.create(None, large_settings) as large:
        make_relations(large, options.relations)
        config = folder / "serve.toml"
        entries = [("large", large.conninfo())]
        entries += [(f"small{n}", small.conninfo(DATABASE)) for n in range(9)]
        entries += [(f"dead{n}", f"host=127.0.0.1 port={n + 1}") for n in range(10)]
        _write_config(config, entries)
        with RunningWorkload(small, ZIPF, seed=1):
            process, address = _start(config, folder / "history")
            try:
                time.sleep(60.0)
                begin, before = time.monotonic(), _processor_seconds(process.pid)
                memory, pages, metrics = [], [], []
                predicting: list[int] = []
                while time.monotonic() - begin < 60 * options.minutes:
                    pages.append(_timed(f"{address}servers/large", process.pid))
                    metrics.append(_timed(f"{address}metrics", process.pid))
                    memory.append(resident_bytes(process.pid))
                    predicting.append(sum(map(resident_bytes, children(process.pid))))
                    time.sleep(5.0)
                seconds = time.monotonic() - begin
                share = (_processor_seconds(process.pid) - before) / seconds
                forecasts = sum(_processor_seconds(child) for child in children(process.pid)) / seconds
                late: list[float] = []
                for name in ["large", *(f"small{n}" for n in range(9))]:
                    with urllib.request.urlopen(f"{address}servers/{name}/series.json", timeout=60) as answer:
                        columns = json.load(answer)["columns"]["covered_seconds"]
                    late += [max(0.0, covered - _INTERVAL_SECONDS) for covered in columns]
                with urllib.request.urlopen(f"{address}metrics", timeout=60) as answer:
                    text = answer.read().decode()
                up = len(re.findall(r"^pgsweep_up\{.*\} 1.0$", text, re.MULTILINE))
            finally:
                process.terminate()
                process.wait(30)
    return {
        "processor_share": share, "forecast_processor_share": forecasts, "servers_up": up,
        "minutes": options.minutes, "relations": options.relations, "memory_bytes": memory,
        "forecast_memory_bytes": predicting, "page_seconds": pages, "metrics_seconds": metrics, "late": late,
    }  # fmt: skip


def _growth(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the resident memory by samples taken."""
    folder.mkdir()
    with _small("8MB") as small, RunningWorkload(small, paced(ZIPF), seed=1):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.serve.growth", small.conninfo(DATABASE), str(options.samples),
             str(folder)],
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {
        "samples_and_bytes": [[int(word) for word in line.split()] for line in done.stdout.splitlines()],
        "history_bytes": size,
    }


def _many(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the memory that many relations take."""
    folder.mkdir()
    return measure(options.many_relations, options.many_minutes, folder, _start)


def paced(workload: Workload) -> Workload:
    """Return a workload that leaves most of the machine to others."""
    return replace(
        workload,
        scripts=tuple(replace(one, text="\\sleep 20 ms\n" + one.text) for one in workload.scripts),
    )


def _tps(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return transactions a second with and without, in pairs whose order alternates."""
    folder.mkdir()
    with _small() as small:
        config = folder / "one.toml"
        _write_config(config, [("one", small.conninfo(DATABASE))])
        with RunningWorkload(small, ZIPF, seed=1, timed=True) as load:
            process, _ = _start(config, folder / "history", half_the_time=True)
            turns: list[tuple[str, float, float]] = []
            try:
                time.sleep(60.0)  # the first looks and the first predictions
                used, begun = _with_children_seconds(process.pid), time.monotonic()
                for pair in range(options.pairs):
                    for kind in ("with", "without") if pair % 2 == 0 else ("without", "with"):
                        _let_run(process.pid, kind == "with")
                        time.sleep(_SETTLE_SECONDS)
                        begin = load.seconds()[-1][0]
                        time.sleep(options.turn_seconds)
                        turns.append((kind, begin, load.seconds()[-1][0]))
                load.check()
                share = 2 * (_with_children_seconds(process.pid) - used) / (time.monotonic() - begun)
            finally:
                _let_run(process.pid, True)
                process.terminate()
                process.wait(30)
            by_second = load.seconds()
    rates: dict[str, list[float]] = {"with": [], "without": []}
    for kind, begin, end in turns:
        rates[kind].append(float(np.mean([tps for at, tps in by_second if begin < at <= end])))
    return {"tps_with": rates["with"], "tps_without": rates["without"], "turn_seconds": options.turn_seconds,
            "processor_share_while_it_ran": share}  # fmt: skip


def _let_run(pid: int, runs: bool) -> None:
    """Stop a process and its children, or let them go on."""
    for one in (*children(pid), pid):
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGCONT if runs else signal.SIGSTOP)


def ratio_of(with_it: Sequence[float], without: Sequence[float], *, seed: int = 1) -> dict[str, float]:
    """Return the ratio of the medians, its 95% bootstrap interval over pairs, and the spread."""
    first, second = np.asarray(with_it), np.asarray(without)
    chosen = np.random.default_rng(seed).integers(0, len(first), (10_000, len(first)))
    ratios = np.median(first[chosen], axis=1) / np.median(second[chosen], axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    quarter, three = np.percentile(second, [25, 75])
    return {
        "server_tps_ratio": float(np.median(first) / np.median(second)),
        "server_tps_ratio_low": float(low),
        "server_tps_ratio_high": float(high),
        "server_tps_spread": float((three - quarter) / np.median(second)),
        "server_tps_pairs": len(first),
    }


def _small(shared_buffers: str = "64MB") -> Cluster:
    cluster = Cluster.create(None, {"shared_buffers": shared_buffers, "max_connections": "100"})
    create_database(cluster, 10)
    prepare(cluster, ZIPF)
    return cluster


def _write_config(path: Path, entries: Sequence[tuple[str, str]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(
        f"[[server]]\nname = {json.dumps(name)}\nconninfo = {json.dumps(conninfo)}\n"
        for name, conninfo in entries
    ))  # fmt: skip


def _summary(parts: dict[str, Any], this_run: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if serving := parts.get("serving"):
        half = len(serving["memory_bytes"]) // 2
        found |= {
            "collector_processor_share": serving["processor_share"],
            "forecast_processor_share": serving["forecast_processor_share"],
            "memory_bytes": int(np.median(serving["memory_bytes"][half:])),
            "forecast_memory_bytes": int(np.median(serving["forecast_memory_bytes"][half:])),
            "page_seconds": float(np.median([seconds for seconds, _ in serving["page_seconds"]])),
            "metrics_seconds": float(np.median([seconds for seconds, _ in serving["metrics_seconds"]])),
            "page_processor_seconds": float(np.median([one for _, one in serving["page_seconds"]])),
            "metrics_processor_seconds": float(np.median([one for _, one in serving["metrics_seconds"]])),
            "interval_late_p99_seconds": float(np.percentile(serving["late"], 99)),
            "servers_up": serving["servers_up"],
            "minutes": serving["minutes"],
            "relations": serving["relations"],
        }
    if growth := parts.get("growth"):
        rows = growth["samples_and_bytes"]
        tenth = rows[len(rows) // 10 - 1]
        found |= {
            "samples": rows[-1][0],
            "memory_growth_bytes": rows[-1][1] - tenth[1],
            "memory_growth_from_samples": tenth[0],
        }
    if many := parts.get("many"):
        for source, run in many["sources"].items():
            found |= {
                f"many_relations_{source}_bytes": run["peak_bytes"],
                f"many_relations_{source}_predicting_bytes": run["predicting_peak_bytes"],
            }
        found["many_relations"] = many["relations"]
    if tps := parts.get("tps"):
        found |= ratio_of(tps["tps_with"], tps["tps_without"])
    found["of_earlier_runs"] = {
        name: part["measured"]["at"] for name, part in parts.items() if name not in this_run
    }
    return found


def main() -> None:
    """Measure, keep the samples after each part, print the summary."""
    refuse_debug_build()
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", choices=_PARTS, help="a part; the others stay as they are")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--relations", type=int, default=20_000)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--many-relations", type=int, default=100_000)
    parser.add_argument("--many-minutes", type=float, default=12.0)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--turn-seconds", type=float, default=10.0)
    options = parser.parse_args()
    here = Path(__file__).parent
    parts: dict[str, Any] = json.loads((here / "samples.json").read_text())["samples"] if options.only else {}
    measures = {"serving": _serving, "growth": _growth, "many": _many, "tps": _tps}
    done: list[str] = []
    summary: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or _PARTS:
            parts[name] = measures[name](options, Path(folder, name)) | {"measured": provenance()}
            done.append(name)
            summary = _summary(parts, done)
            keep(here, summary, parts, ("starlette", "uvicorn"))
            print(f"{name}: measured", file=sys.stderr, flush=True)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
