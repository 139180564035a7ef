"""Inputs of some kB that ask for gigabytes, or for minutes: refused in words, in little memory and time.

They are those that fuzzing begins with (tests/fuzz/bombs.py). Each is read in a process of its own. That is
forked from one that has the imports: its memory is at least theirs, 160 MB.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from pathlib import Path

import msgspec
import pytest

from pgsweep.regular import open_at_once
from pgsweep.serve.storage import HistoryError, SqliteStore
from pgsweep.ui.results import read_result
from pgsweep.warm.run.journal import Header
from tests.fix_cli import run_code
from tests.fuzz.mutate import unpack
from tests.fuzz.targets import SEEDS

MOST_BYTES = 500 << 20
MOST_SECONDS = 60.0
BOMBS = sorted(SEEDS.glob("*/bomb-*"))

_READ = """
import resource, sys, tempfile, time
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from pgsweep.errors import PgsweepError
from tests.fuzz.targets import load, seed
target, data = load(sys.argv[1]), seed(Path(sys.argv[2]))
with tempfile.TemporaryDirectory() as workdir:
    try:
        said = target.run_one(data, Path(workdir))
    except PgsweepError as error:
        said = f"refused: {error.message}; {error.cause}"
print(said)
peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(int(peak) << 10, time.process_time())
"""


def read(path: Path) -> tuple[str, int, float]:
    """Return what reading an input says, and what the process takes in all: bytes, seconds of a processor."""
    done = run_code(_READ, path.parent.name, str(path))
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    *said, numbers = done.stdout.splitlines()
    peak_bytes, seconds = numbers.split()
    return "\n".join(said), int(peak_bytes), float(seconds)


@pytest.mark.parametrize("path", BOMBS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_small_file_takes_little(path: Path) -> None:
    said, peak_bytes, seconds = read(path)
    assert peak_bytes < MOST_BYTES and seconds < MOST_SECONDS, (said, peak_bytes >> 20, seconds)
    assert not said.startswith("refused") or not said.endswith("; None"), said


_CALL = """
import resource, sys, time
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from pgsweep.errors import PgsweepError
path = Path(sys.argv[1])
try:
    said = repr({call})
except PgsweepError as error:
    said = f"refused: {error.message}; {error.cause}"
print(said[:1000])
peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(int(peak) << 10, time.process_time())
"""

CALLS = {
    "config": "__import__('pgsweep.toml_file', fromlist=['x']).TomlFile(path, of_user=True).values",
    "serve": "__import__('pgsweep.toml_file', fromlist=['x']).TomlFile(path).values",
    "grid": "__import__('pgsweep.lab.grid', fromlist=['x']).read_grid(path)",
    "samples": "__import__('pgsweep.lab.store', fromlist=['x']).read_samples(path)",
    "journal": "__import__('pgsweep.warm.run.journal', fromlist=['x']).read_journal(path)",
    "trace": "__import__('pgsweep.evidence.oracle_general', fromlist=['x']).read_oracle_general(path)",
    "result": "__import__('pgsweep.ui.results', fromlist=['x']).read_result(path)",
    "heat": "__import__('pgsweep.warm.heat.file', fromlist=['x']).read_heat(path)",
    "evidence": "__import__('pgsweep.sizing.predict', fromlist=['x']).predict(path)",
    "log": "__import__('pgsweep.cli.hugepages', fromlist=['x'])._explained(path, None)",
    "holds_nothing": "__import__('pgsweep.evidence.writer', fromlist=['x']).holds_nothing(path)",
}


def called(name: str, path: Path) -> str:
    """Return what a reader says of a file, after a look at what the process took in all."""
    done = run_code(_CALL.replace("{call}", CALLS[name]), str(path))
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    *said, numbers = done.stdout.splitlines()
    peak_bytes, seconds = numbers.split()
    assert int(peak_bytes) < MOST_BYTES and float(seconds) < MOST_SECONDS, (said, numbers)
    return "\n".join(said)


@pytest.mark.parametrize("reader", ["config", "serve", "grid"])
@pytest.mark.parametrize(
    "text",
    [
        "a." * 50_000 + "a = 1",
        '[x]\nb = { "\\"" ' + '. "\\""' * 50_000 + " = 1 }",
        "[" + "a." * 200_000 + "a]",
        "a = " + "[" * 100_000,
        "a = " + "{a = " * 100_000,
        "a = " + "9" * 100_000,
        "host = 0x" + "f" * 100_000,
        "a" * 1_000_000,
        '"\\"' * 300_000,
    ],
    ids=["keys", "quoted", "table", "lists", "tables", "digits", "hex", "word", "quotes"],
)
def test_toml_that_takes_memory_by_its_square_is_refused(reader: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    assert called(reader, path).startswith("refused")


def sparse(path: Path, begin: bytes = b"") -> Path:
    path.write_bytes(begin)
    os.truncate(path, 1 << 40)
    return path


JOURNAL = msgspec.json.encode(
    Header(server="x", started_us=1, block_size_bytes=8192, into="pool", mode="buffer")
)


@pytest.mark.parametrize(
    ("reader", "begin"),
    [
        ("trace", b""),
        ("journal", JOURNAL + b"\n"),
        ("heat", b"PAR1"),
        ("result", b"{"),
        ("samples", b'{"kind":"plan"'),
        ("config", b"a = 1\n"),
    ],
)
def test_a_hole_of_a_terabyte_is_not_read(reader: str, begin: bytes, tmp_path: Path) -> None:
    called(reader, sparse(tmp_path / "x", begin))


def test_a_hole_in_a_trace_does_not_count(tmp_path: Path) -> None:
    assert "would become more than" in called("trace", sparse(tmp_path / "x.oracleGeneral", bytes(24)))


@pytest.mark.parametrize("reader", ["trace", "journal", "heat", "result", "samples", "config", "log"])
def test_a_fifo_is_not_waited_for(reader: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    assert called(reader, tmp_path / "x").startswith("refused")


def test_a_result_still_comes_by_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    data = (SEEDS / "result" / "predict.json").read_bytes()
    with open_at_once(tmp_path / "x"):  # otherwise the writer would wait for the reader
        writer = threading.Thread(target=lambda: (tmp_path / "x").write_bytes(data))
        writer.start()
        descriptor = os.open(tmp_path / "x", os.O_WRONLY)
        found: list[object] = []
        reading = threading.Thread(target=lambda: found.append(read_result(tmp_path / "x")))
        reading.start()
        writer.join()
        os.close(descriptor)
        reading.join(30)
    assert len(found) == 1


def test_more_parts_than_can_be_numbered_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "x.evidence"
    for name, data in unpack((SEEDS / "evidence" / "sql.zip").read_bytes()).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    for number in range(100_000):
        (folder / "counters" / f"part-x{number}.parquet").touch()
    assert "has more than 100 000 parts" in called("evidence", folder)


def test_a_record_that_is_a_fifo_or_too_deep_is_no_evidence_to_replace(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "meta.json")
    assert called("holds_nothing", tmp_path) == "False"
    (tmp_path / "meta.json").unlink()
    (tmp_path / "meta.json").write_text("[" * 100_000)
    assert called("holds_nothing", tmp_path) == "False"


def test_samples_of_millions_of_numbers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.samples"
    path.write_bytes(b'{"kind":"plan","x":[' + b"1," * 10_000_000 + b"1]}\n")
    assert "too long" in called("samples", path)


def test_a_log_longer_than_memory_is_read_line_by_line(tmp_path: Path) -> None:
    path = sparse(tmp_path / "x.log")
    os.truncate(path, 600 << 20)
    with path.open("ab") as file:
        file.write(b"\nHINT: ... (currently 4194304 bytes) ... shared_buffers or max_connections.\n")
    assert "4194304" in called("log", path)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW samples AS WITH RECURSIVE n AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT * FROM n",
        "CREATE TABLE servers (id INTEGER PRIMARY KEY, name TEXT AS (hex(zeroblob(100000000))))",
        "CREATE TABLE x (a); CREATE TRIGGER t AFTER INSERT ON x BEGIN DELETE FROM x; END",
    ],
)
def test_a_history_that_computes_is_refused(statement: str, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "history.sqlite")) as connection:
        connection.executescript(statement)
    with pytest.raises(HistoryError, match="is not a history of"):
        SqliteStore(tmp_path / "history.sqlite", []).open()
    store = SqliteStore(tmp_path / "history.sqlite", [])
    with pytest.raises(HistoryError, match="is not a history of"), store.reading():
        pass
