"""What `pgsweep serve` costs and how fast it answers: 20 servers of which 10 are dead, and one large one.

Nine sessions go to one small private server, one to a server with 1,000,000 buffers and 20,000 relations;
ten addresses have no server. Measured: processor time of the collecting process and of its predictions,
its memory over the run, times of the server's page and of /metrics, by how much looks come late, and the
transactions a second of pgbench with and without it, in turns. The processor time of an answer is that of
all threads meanwhile: on a machine that does other work too, it says more than the time that passes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.samples import keep, refuse_debug_build
from pgsweep.pg.cluster import Cluster
from pgsweep.testbed.pgbench import DATABASE, RunningWorkload, create_database, prepare
from pgsweep.testbed.workloads import ZIPF

_TICK = os.sysconf("SC_CLK_TCK")
_TURN_SECONDS = 20.0
_INTERVAL_SECONDS = 10.0


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(word) for word in text.read_text().split()]
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return sorted(set(found))


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


def _transactions(conninfo: str) -> float:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return float(row[0])


def _many_relations(cluster: Cluster, count: int) -> None:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_buffercache")
        for begin in range(0, count, 500):
            statements = "; ".join(
                f"CREATE TABLE t{n} (a int); INSERT INTO t{n} VALUES (1)" for n in range(begin, begin + 500)
            )
            connection.execute(statements.encode())


def _start(config: Path, history: Path) -> tuple[subprocess.Popen[str], str]:
    command = Path(sys.executable).with_name("pgsweep")
    process = subprocess.Popen(
        [command, "serve", "--quiet", "--config", str(config), "--history", str(history), "--listen",
         "127.0.0.1:0", "--interval", f"{_INTERVAL_SECONDS:g}s"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def _rates(small: Cluster, start: Any, turns: int) -> tuple[list[float], list[float]]:
    """Return transactions a second with and without, in turns."""
    with_it: list[float] = []
    without: list[float] = []
    for _ in range(turns):
        for collected, rates in ((True, with_it), (False, without)):
            process = start() if collected else None
            time.sleep(5.0)
            begin, before = time.monotonic(), _transactions(small.conninfo(DATABASE))
            time.sleep(_TURN_SECONDS)
            rates.append((_transactions(small.conninfo(DATABASE)) - before) / (time.monotonic() - begin))
            if process is not None:
                process.terminate()
                process.wait(30)
    return with_it, without


def main() -> None:
    """Run it."""
    refuse_debug_build()
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--relations", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    large_settings = {"shared_buffers": "8GB", "max_locks_per_transaction": "4096"}
    samples: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster.create(None, {"shared_buffers": "64MB", "max_connections": "100"}) as small,
        Cluster.create(None, large_settings) as large,
    ):
        create_database(small, 10)
        prepare(small, ZIPF)
        _many_relations(large, options.relations)
        config = Path(folder, "serve.toml")
        entries = [("large", large.conninfo())]
        entries += [(f"small{n}", small.conninfo(DATABASE)) for n in range(9)]
        entries += [(f"dead{n}", f"host=127.0.0.1 port={n + 1}") for n in range(10)]
        config.write_text("".join(
            f"[[server]]\nname = {json.dumps(name)}\nconninfo = {json.dumps(conninfo)}\n"
            for name, conninfo in entries
        ))  # fmt: skip
        with RunningWorkload(small, ZIPF, seed=1):
            process, address = _start(config, Path(folder, "history"))
            try:
                time.sleep(60.0)
                begin, before = time.monotonic(), _processor_seconds(process.pid)
                memory, pages, metrics = [], [], []
                predicting: list[int] = []
                while time.monotonic() - begin < 60 * options.minutes:
                    pages.append(_timed(f"{address}servers/large", process.pid))
                    metrics.append(_timed(f"{address}metrics", process.pid))
                    memory.append(_rss_bytes(process.pid))
                    predicting.append(sum(map(_rss_bytes, _children(process.pid))))
                    time.sleep(5.0)
                seconds = time.monotonic() - begin
                share = (_processor_seconds(process.pid) - before) / seconds
                forecasts = sum(_processor_seconds(child) for child in _children(process.pid)) / seconds
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
            one = Path(folder, "one.toml")
            one.write_text(f"[[server]]\nname = 'one'\nconninfo = {json.dumps(small.conninfo(DATABASE))}\n")
            with_it, without = _rates(small, lambda: _start(one, Path(folder, "other"))[0], options.turns)
    half = len(memory) // 2
    samples |= {"memory_bytes": memory, "forecast_memory_bytes": predicting,
                "page_seconds": pages, "metrics_seconds": metrics, "late": late,
                "tps_with": with_it, "tps_without": without}  # fmt: skip
    summary = {
        "collector_processor_share": share,
        "forecast_processor_share": forecasts,
        "memory_growth_bytes": int(np.median(memory[half:]) - np.median(memory[: max(1, half)])),
        "memory_bytes": int(np.median(memory[half:])),
        "forecast_memory_bytes": int(np.median(predicting[half:])),
        "page_seconds": float(np.median([seconds for seconds, _ in pages])),
        "metrics_seconds": float(np.median([seconds for seconds, _ in metrics])),
        "page_processor_seconds": float(np.median([processor for _, processor in pages])),
        "metrics_processor_seconds": float(np.median([processor for _, processor in metrics])),
        "interval_late_p99_seconds": float(np.percentile(late, 99)),
        "server_tps_ratio": float(np.median(np.array(with_it) / np.array(without))),
        "servers_up": up,
        "minutes": options.minutes,
        "relations": options.relations,
    }
    keep(Path(__file__).parent, summary, samples, ("starlette", "uvicorn"))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
