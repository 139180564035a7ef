"""The same rows in each format, with and without refused records, against `\\copy` of CSV; peak memory."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow.csv
import pyarrow.parquet

from benchmarks.load.crash import PGSWEEP
from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.bulk import COLUMNS, TABLE

_NAMES: Final = COLUMNS.split(", ")
_BAD_EACH: Final = 100
PLAIN: Final = "CREATE TABLE plain (LIKE items)"
REFUSED: Final = {
    "1 % refused by a type": ("price", "cheap"),
    "1 % refused by a check": ("parent", "-1"),
}


def write_formats(path: Path, folder: Path) -> dict[str, Path]:
    """Write a file of CSV in the other formats, and with refused records; return the files by their names."""
    files = {"csv": path} | {kind: folder / f"items.{kind}" for kind in ("tsv", "jsonl", "parquet")}
    files |= {name: folder / f"{place[1]}.csv" for name, place in REFUSED.items()}
    with (
        path.open(newline="") as read,
        files["tsv"].open("w") as tsv,
        files["jsonl"].open("w") as lines,
        files["1 % refused by a type"].open("w") as typed,
        files["1 % refused by a check"].open("w") as checked,
    ):
        for number, row in enumerate(csv.reader(read)):
            tsv.write("\t".join(row) + "\n")
            typed_row = {**dict(zip(_NAMES, row, strict=True))}
            lines.write(
                json.dumps(typed_row | {"id": int(row[0]), "parent": int(row[1]), "price": float(row[4])})
                + "\n"
            )
            for name, out_file in (("1 % refused by a type", typed), ("1 % refused by a check", checked)):
                column, bad = REFUSED[name]
                out = {**typed_row, column: bad} if number % _BAD_EACH == _BAD_EACH // 2 else typed_row
                out_file.write(",".join(out.values()) + "\n")
    read_as = pyarrow.csv.ReadOptions(column_names=_NAMES)
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(path, read_options=read_as), files["parquet"])
    for file in files.values():
        file.chmod(0o644)
    return files


def _load(cluster: Cluster, file: Path, table: str, options: Sequence[str]) -> int:
    """Load a file, and return the peak memory of the command in bytes."""
    words = [PGSWEEP, "load", str(file), table, "-d", cluster.conninfo(), "--yes", "-q", "--json"]
    # By a small process: a process begins with the memory of the one that makes it, for the kernel's account.
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, *map(str, words), *options],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout.split()[-1]) * 1024


_PEAK: Final = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def compare_formats(
    path: Path, rows: int, rounds: int, folder: Path, settings: dict[str, str]
) -> dict[str, Any]:
    """Return seconds and peak memory of each way by round, into a table with keys and into one without."""
    files = write_formats(path, folder)
    found: dict[str, dict[str, list[float]]] = {"seconds": {}, "peak_bytes": {}}
    with Cluster.create(None, settings) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
            session.execute(f"{TABLE}; {PLAIN}; ALTER TABLE plain ADD CHECK (parent >= 0)".encode())
        for done in range(rounds):
            for table in ("items", "plain"):
                ways: dict[str, tuple[str, list[str] | None]] = {
                    "copy": ("csv", None),
                    **{kind: (kind, []) for kind in ("csv", "tsv", "jsonl", "parquet")},
                }
                if table == "plain":
                    rejecting = ["--rejects", str(folder / "rejects.csv"), "--max-rejects", str(rows)]
                    ways |= {name: (name, rejecting) for name in REFUSED}
                    ways["none refused, --rejects"] = ("csv", rejecting)
                for way, (name, options) in ways.items():
                    seconds, peak = _timed(
                        cluster, files[name], table, rows, options, refused=name in REFUSED
                    )
                    where = f"{table}: {way}"
                    found["seconds"].setdefault(where, []).append(round(seconds, 3))
                    if peak is not None:
                        found["peak_bytes"].setdefault(where, []).append(peak)
                    print(f"round {done}, {where}: {seconds:.2f} s, {peak}", file=sys.stderr, flush=True)
    return {"rows": rows, **found}


def _timed(
    cluster: Cluster, file: Path, table: str, rows: int, options: Sequence[str] | None, *, refused: bool
) -> tuple[float, int | None]:
    """Time one way from an empty table after a checkpoint; look that all rows are there."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
        session.execute(f"TRUNCATE {table}".encode())
        session.execute("CHECKPOINT")
    begin, peak = time.monotonic(), None
    if options is None:
        psql = shutil.which("psql") or str(cluster.bindir / "psql")
        command = f"\\copy {table} ({COLUMNS}) FROM '{file}' (FORMAT csv)"
        subprocess.run([psql, "-X", "-q", "-d", cluster.conninfo(), "-c", command], check=True)
    else:
        named = (
            [] if file.suffix in (".jsonl", ".parquet") else ["--no-header", "--columns", ",".join(_NAMES)]
        )
        peak = _load(cluster, file, table, [*options, *named])
    seconds = time.monotonic() - begin
    with psycopg.connect(cluster.conninfo()) as session:
        wanted = rows - (rows + _BAD_EACH // 2 - 1) // _BAD_EACH * refused
        count = session.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
        assert count is not None
        assert abs(count[0] - wanted) <= refused, (count, wanted)
    return seconds, peak
