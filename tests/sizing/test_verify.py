"""`pgsweep verify`: a real server before and after a restart at another size, under two loads."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from pgsweep.evidence.sql import record_sql
from pgsweep.evidence.store import Evidence, EvidenceMeta, EvidenceWriter
from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener
from pgsweep.records.prediction import MemoryPrediction, PredictResult, Throughput, ThroughputPoint
from pgsweep.records.verification import VerifiedValue, VerifyResult
from pgsweep.serve.recording import pieces_of
from pgsweep.serve.verification import verify_change
from pgsweep.sizing.comparable import filling, just_filled
from pgsweep.sizing.full_pool import wait_until_full
from pgsweep.sizing.observed import Observation
from pgsweep.sizing.predict import predict
from pgsweep.sizing.verify import _each, _moved, _within_together, miss_error, verify
from pgsweep.sizing.workload_change import Drift, compare_loads, load_of
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.results import from_json, to_json
from pgsweep.ui.views.verification import VIEW
from pgsweep.units import BLOCK_BYTES
from tests.fix_cli import run
from tests.fix_page import load_running, wait_for_pages
from tests.fix_process import wait_until
from tests.fix_recording import WhenRecording, forget_cluster
from tests.fix_results import cells_of, heads_of
from tests.fix_shop import point_reads
from tests.fix_workload import load

MB = 1 << 20
SCALE = 8


@contextmanager
def pgbench(cluster: Cluster, *options: str) -> Iterator[None]:
    load = subprocess.Popen(
        [str(cluster.bindir / "pgbench"), *options, "-T", "300", cluster.conninfo()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        load.terminate()
        load.wait()


def blocks_read(cluster: Cluster) -> int:
    text = "SELECT blks_read FROM pg_stat_database WHERE datname = current_database()"
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        row = connection.execute(text).fetchone()
    assert row is not None
    return int(row[0])


def in_use(cluster: Cluster) -> float:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        text = "SELECT count(relfilenode)::float8 / count(*) FROM pg_buffercache"
        row = connection.execute(text).fetchone()
    assert row is not None
    return float(row[0])


def reset_statistics(cluster: Cluster) -> None:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute("SELECT pg_stat_reset()")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give evidence at 16 MB, at 32 MB with the same load, and at 32 MB with another one."""
    path = tmp_path_factory.mktemp("verify")
    other = path / "other.sql"
    other.write_text("SELECT count(*) FROM pgbench_branches b, pgbench_tellers t WHERE t.bid = b.bid;\n")

    def record(cluster: Cluster, name: str, seconds: int) -> None:
        options = ["--source", "sql", "--for", f"{seconds}s", "-o", name]
        done = run("record", cluster.conninfo(), *options, cwd=path)
        assert done.returncode == 0, done.stderr

    with Cluster.create(None, {"shared_buffers": "16MB"}) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        fill = [str(cluster.bindir / "pgbench"), "-i", "-q", "-s", str(SCALE), cluster.conninfo()]
        subprocess.run(fill, check=True, capture_output=True)
        with pgbench(cluster, *point_reads(3000, SCALE)):
            # On a busy machine the load may be so uneven that it is refused; no verdict follows from that.
            for _ in range(4):
                shutil.rmtree(path / "before.evidence", ignore_errors=True)
                record(cluster, "before.evidence", 25)
                if predict(path / "before.evidence").verdict.level != "refused":
                    break
        cluster.restart({"shared_buffers": "32MB"})
        with pgbench(cluster, *point_reads(3000, SCALE)):
            begin = blocks_read(cluster)
            # Three times what the pool holds.
            wait_until(lambda: blocks_read(cluster) - begin > 3 * 32 * MB // 8192, 120)
            wait_until(lambda: in_use(cluster) > 0.99, 120)
            record(cluster, "after.evidence", 10)
            # A reset half way: with the last value less the first one nothing would have happened.
            reset = WhenRecording(lambda: reset_statistics(cluster), after_seconds=3)
            record_sql(cluster.conninfo(), path / "reset.evidence", seconds=6, progress=reset)
            reset.join()
        with pgbench(cluster, "-n", "-M", "prepared", "-R", "300", "-f", str(other)):
            record(cluster, "other.evidence", 5)
    return path


def test_the_same_load_after_a_restart(folder: Path) -> None:
    done = run("verify", "before.evidence", "--after", "after.evidence", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["schema"] == "pgsweep.verify/1"
    assert (result["shared_buffers_before"], result["shared_buffers_after"]) == (16 * MB, 32 * MB)
    assert not any(one["changed"] for one in result["workload"]), result["workload"]
    assert result["values"], result["reasons"]
    miss = result["values"][0]
    assert miss["name"] == "miss ratio of the pool"
    assert miss["measured"] == pytest.approx(miss["predicted"], abs=0.02)
    assert miss["before"] > miss["measured"] + 0.02, "the pool is twice as large"
    within = all(value["within"] for value in result["values"])
    assert (result["verdict"] == "as predicted") == within


def with_throughput(found: PredictResult) -> PredictResult:
    """Return a prediction as that of evidence which has a throughput."""
    points = [ThroughputPoint(shared_buffers_bytes=16 * MB, ratio=1.0, low=1.0, high=1.0)]
    memory = MemoryPrediction(
        memory_bytes=1 << 34,
        memory_from="host",
        other_bytes=1 << 30,
        measured_disk_bytes_per_second=None,
        policy="two-lists",
        points=[],
        reasons=[],
        throughput=Throughput(points=points, reasons=[]),
    )
    changed = found.changed
    if changed is not None:
        changed = structs.replace(changed, memory=memory)
    return structs.replace(found, memory=memory, changed=changed)


def test_huge_pages_since_the_change_are_taken_into_account(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the huge pages differs between the recordings, so nothing else forbids the comparison."""
    asked: list[list[str]] = []

    def predicted(path: Path, *, what_if: list[str], **options: Any) -> PredictResult:
        asked.append(what_if)
        return with_throughput(predict(path, what_if=what_if, **options))

    monkeypatch.setattr("pgsweep.sizing.verify.predict", predicted)
    before = folder / "before.evidence"
    after = Path(shutil.copytree(before, tmp_path / "after.evidence"))
    meta = json.loads((after / "meta.json").read_text())
    assert meta["host"]["huge_pages"] == "off"
    meta["host"]["huge_pages"] = "on"
    (after / "meta.json").write_text(json.dumps(meta))
    again = recorded_again(before, tmp_path / "again.evidence")
    same, changed = (verify(before, path) for path in (again, after))
    assert asked == [[], ["huge_pages on"]]
    assert [one.name for one in same.values][-1] == "throughput"
    assert [one.name for one in changed.values] == [one.name for one in same.values][:-1]
    assert not any("huge pages" in reason for reason in same.reasons)
    assert any("shared memory lies in huge pages now" in reason for reason in changed.reasons)


def test_another_load_is_no_wrong_prediction(folder: Path) -> None:
    done = run(
        "verify",
        "before.evidence",
        "--after",
        "other.evidence",
        "--fail-if",
        "verdict=workload changed",
        cwd=folder,
    )
    assert done.returncode == 5, done.stderr
    assert "The workload changed: shared_buffers from 16 MB to 32 MB" in done.stdout
    assert "pgbench_accounts" in done.stdout


def test_a_reset_of_the_statistics_is_no_other_load(folder: Path) -> None:
    done = run("verify", "before.evidence", "--after", "reset.evidence", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert not any(one["changed"] for one in result["workload"]), result["workload"]
    assert [one["name"] for one in result["values"]] == ["miss ratio of the pool"]
    assert (
        "the recording after the change: the server's statistics were reset during the recording"
        in (result["reasons"])
    )
    assert any("what the server counted shortly before" in reason for reason in result["reasons"])
    halves = [load_of(Observation(Evidence.open(folder / f"{name}.evidence"))) for name in ("after", "reset")]
    assert halves[1].transactions_per_second == pytest.approx(halves[0].transactions_per_second, rel=0.5)


def test_each_value_has_a_verdict_and_an_unfilled_pool_none(folder: Path, tmp_path: Path) -> None:
    settled = verify(folder / "before.evidence", folder / "after.evidence")
    assert {one.verdict for one in settled.values} <= {"as predicted", "not as predicted"}
    assert settled.values
    half = Path(shutil.copytree(folder / "after.evidence", tmp_path / "half.evidence"))
    for part in (half / "snapshot_times").glob("*.parquet"):
        table = pq.read_table(part)
        at = table.schema.get_field_index("used_frames")
        used = pa.array([int(n) // 2 for n in table["used_frames"].to_pylist()], table.schema.field(at).type)
        pq.write_table(table.set_column(at, table.schema.field(at), used), part, write_page_checksum=True)
    result = verify(folder / "before.evidence", half)
    assert result.verdict == "not known"
    assert [one.verdict for one in result.values] == ["not known"] * len(settled.values)
    assert "the pool was not full after the change (50% of 32 MB)" in result.reasons[0]
    shown = VIEW.text(result, Terminal(width=100, unicode=False)).splitlines()
    assert sum(line.endswith("not known") for line in shown) == len(result.values)


def test_the_pool_is_looked_at_before_it_is_recorded() -> None:
    """A pool that fills is waited for; one that no longer grows holds all that is used."""

    class Notes(NullListener):
        def __init__(self) -> None:
            self.notes: list[str] = []

        def note(self, text: str) -> None:
            self.notes.append(text)

    stop = threading.Event()
    with Cluster.create(None, {"shared_buffers": "16MB"}) as cluster:
        bare = wait_until_full(cluster.conninfo(), progress=Notes(), stop=stop)
        assert bare is None, "without pg_buffercache nothing is seen"
        cluster.create_extensions("postgres", "pg_buffercache")
        idle = Notes()
        share = wait_until_full(cluster.conninfo(), progress=idle, stop=stop)
        assert share is not None
        assert share < 0.98
        assert [one.split(")")[-1] for one in idle.notes][-1] == " and no longer fills: recorded as it is"
        fill = [str(cluster.bindir / "pgbench"), "-i", "-q", "-s", "3", cluster.conninfo()]
        subprocess.run(fill, check=True, capture_output=True)
        cluster.restart({"shared_buffers": "24MB"})
        with pgbench(cluster, *point_reads(1000, 3)):
            busy = Notes()
            share = wait_until_full(cluster.conninfo(), progress=busy, stop=stop)
        assert share is not None
        assert share >= 0.98
        assert not any("recorded as it is" in one for one in busy.notes)
        cluster.restart({"shared_buffers": "512MB"})
        with pgbench(cluster, *point_reads(30, 3)):
            slow = Notes()
            share = wait_until_full(cluster.conninfo(), progress=slow, stop=stop)
        assert share is not None and share < 0.5
        assert re.search(r"and needs .* more to fill, or longer: recorded as it is", slow.notes[-1])


def test_serve_verifies_by_its_own_pieces(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of before and after the change, each joined to a window, give what `verify` says of them."""
    monkeypatch.setattr("pgsweep.serve.verification.LEAST_SECONDS", 2.0)
    for number, name in enumerate(("before", "after"), 1000):
        shutil.copytree(folder / f"{name}.evidence", tmp_path / f"{number}.evidence")
    found = verify_change(tmp_path, pieces_of(tmp_path))
    assert found is not None
    assert found.changed_at == 1001.0
    result = found.result
    assert (result.shared_buffers_before, result.shared_buffers_after) == (16 * MB, 32 * MB)
    # A recording of ten seconds may be refused; then that is the result.
    assert result.values or (result.verdict == "not known" and result.reasons)
    for value in result.values:
        # Of ten seconds: a fiftieth of the accesses beside the interval at most, or of the blocks of each.
        each = 1 if value.unit == "ratio" else BLOCK_BYTES
        margin = 0.02 * each + 1.645 * value.measured_error
        assert value.low - margin <= value.measured <= value.high + margin, value
        assert value.within == (
            value.low - margin + 0.02 * each <= value.measured <= value.high + margin - 0.02 * each
        )
        # What is read at all is known to within a few blocks, also where hardly anything is.
        assert value.measured_error > 0 or value.measured == 0
    assert (result.before, result.after) == ("1000.evidence", "1001.evidence")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1000.evidence", "1001.evidence"]
    monkeypatch.setattr("pgsweep.serve.verification.LEAST_SECONDS", 600.0)
    assert verify_change(tmp_path, pieces_of(tmp_path)) is None, "too little evidence yet"


def recorded_again(before: Path, after: Path) -> Path:
    """Write evidence with the same observations, of another time."""
    shutil.copytree(before, after)
    text = (after / "meta.json").read_text()
    at = json.loads(text)["started_at"]
    (after / "meta.json").write_text(text.replace(at, "2026-01-01T00:00:00+00:00"))
    return after


def test_without_a_change_that_is_said(folder: Path) -> None:
    recorded_again(folder / "before.evidence", folder / "again.evidence")
    done = run("verify", "before.evidence", "--after", "again.evidence", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "shared_buffers is still 16 MB" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.evidence", "--after", "after.evidence"], "there is no evidence `absent.evidence`"),
        (["before.evidence", "shop", "--after", "after.evidence"], "cannot be used together with a server"),
        (["before.evidence", "--after", "other.sql"], "is neither evidence nor a trace"),
        (["before.evidence", "--after", "copied.evidence"], "are the same recording"),
    ],
)
def test_mistakes(folder: Path, arguments: list[str], words: str) -> None:
    shutil.copytree(folder / "before.evidence", folder / "copied.evidence", dirs_exist_ok=True)
    done = run("verify", *arguments, cwd=folder)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_another_server_is_refused(folder: Path) -> None:
    shutil.copytree(folder / "before.evidence", folder / "older.evidence")
    forget_cluster(folder / "older.evidence")
    with Cluster.create(None, {"shared_buffers": "24MB"}) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        other = run("verify", "before.evidence", cluster.conninfo(), "--for", "1s", cwd=folder)
        assert other.returncode == 2
        assert "`before.evidence` was recorded on another server" in other.stderr
        assert not list(folder.glob("pgsweep-*.evidence")), "it is refused before it is recorded"
        database = psycopg.conninfo.make_conninfo(cluster.conninfo(), dbname="template1")
        other = run("verify", "older.evidence", database, "--for", "1s", cwd=folder)
        assert other.returncode == 2
        assert "not of the same database" in other.stderr
        assert not list(folder.glob("pgsweep-*.evidence"))
        idle = run("record", cluster.conninfo(), "--for", "1s", "-o", "idle.evidence", cwd=folder)
        assert idle.returncode == 0, idle.stderr
        done = run("verify", "idle.evidence", cluster.conninfo(), "--for", "1h", cwd=folder)
        assert (done.returncode, "nothing happened" in done.stderr) == (1, True)
        assert not list(folder.glob("pgsweep-*.evidence")), "what shows nothing is not compared with an hour"
        # What an earlier pgsweep recorded does not say which cluster it was.
        done = run("verify", "older.evidence", cluster.conninfo(), "--for", "1s", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "not known", "an idle server shows nothing"
    assert any("the first recording does not have the cluster's system" in one for one in result["reasons"])
    [recorded] = folder.glob("pgsweep-*.evidence")
    done = run("verify", "before.evidence", "--after", recorded.name, cwd=folder)
    assert done.returncode == 2
    assert "are not of the same server" in done.stderr


def test_counters_read_at_other_times_change_no_load(folder: Path, tmp_path: Path) -> None:
    """A trace has the clock hand too, read before the server's first counters."""
    shutil.copytree(folder / "before.evidence", tmp_path / "traced.evidence")
    part = min((tmp_path / "traced.evidence" / "counters").glob("*.parquet"))
    table = pq.read_table(part)
    early = {"sample": [0], "seconds": [0.0], "scope": ["pool"], "object": [""], "name": ["next_victim"],
             "value": [7.0]}  # fmt: skip
    added = pa.table(early).cast(table.schema)
    pq.write_table(pa.concat_tables([added, table]), part, write_page_checksum=True)
    before, traced = (
        load_of(Observation(Evidence.open(path)))
        for path in (folder / "before.evidence", tmp_path / "traced.evidence")
    )
    assert table.column("seconds")[0].as_py() > 0
    assert traced.accesses_per_transaction == before.accesses_per_transaction
    assert traced.rows_per_transaction == before.rows_per_transaction
    assert not any(one.changed for one in compare_loads(before, traced))


@pytest.mark.parametrize(
    ("measured", "drift", "verdict"),
    [
        (0.065, Drift(low=1.0, high=1.0), "not as predicted"),
        (0.065, Drift(low=0.8, high=1.2), "not known"),
        (0.09, Drift(low=0.8, high=1.2), "not as predicted"),
        (0.09, None, "not known"),
        (0.056, Drift(low=0.8, high=1.2), "as predicted"),
        (0.056, None, "as predicted"),
    ],
)
def test_a_load_that_moved_is_no_wrong_prediction(measured: float, drift: Drift | None, verdict: str) -> None:
    value = VerifiedValue(
        name="miss ratio of the pool", unit="ratio", before=0.056, predicted=0.056, low=0.053, high=0.059,
        measured=measured, measured_error=0.001, within=measured < 0.06,
    )  # fmt: skip
    wrong = [] if value.within else [value]
    moved = _moved(wrong, 1, drift)
    judged, _ = _each([value], wrong, None, None, moved)
    assert [one.verdict for one in judged] == [verdict]
    assert bool(moved) == (verdict == "not known")


@pytest.mark.one_server
def test_an_unchanged_server_whose_load_drifts(server: Cluster, database: str, tmp_path: Path) -> None:
    """At the same size the prediction is what was measured, and any difference is the load's own."""
    paths = [tmp_path / f"{number}.evidence" for number in range(2)]
    for path, exponent in zip(paths, (3.0, 2.0), strict=True):
        with load_running(server, database, exponent=exponent):
            wait_for_pages(server, database)
            record_sql(server.conninfo(database), path, seconds=8, rng_seed=1)
    result = verify(*paths)
    assert result.shared_buffers_before == result.shared_buffers_after
    miss = result.values[0]
    assert miss.measured > 1.2 * miss.predicted
    assert not miss.within
    assert miss.verdict == result.verdict == "not known"
    assert any("the load differs" in reason for reason in result.reasons)


def test_what_was_counted_is_no_more_certain_than_chance_allows() -> None:
    totals = load({"public.a": 1.0}).totals
    assert totals.miss_ratio_error == 0.0
    assert miss_error(totals) == pytest.approx((0.1 * 0.9 / 1000) ** 0.5)
    assert miss_error(replace(totals, miss_ratio_error=0.5)) == 0.5
    assert miss_error(replace(totals, hits=0.0, misses=0.0)) == 0.0


def test_a_page_cache_that_is_filling_is_no_wrong_prediction() -> None:
    """After a boot the memory is empty, and every page is read from disk once."""
    host = {
        "memory_bytes": "1000",
        "memory_other_bytes": "100",
        "memory_shared_bytes": "300",
        "memory_page_cache_bytes": "500",
        "memory_page_tables_bytes": "10",
        "server_processes": "8",
        "readahead_bytes": "131072",
        "folio_order": "0",
    }
    full, empty = (
        EvidenceMeta(source="trace", host={**host, "memory_page_cache_bytes": cached})
        for cached in ("500", "160")
    )
    value = VerifiedValue(
        name="read from disk",
        unit="bytes per access",
        before=100.0,
        predicted=100.0,
        low=90.0,
        high=110.0,
        measured=150.0,
        measured_error=0.0,
        within=False,
    )
    reason = filling(full, empty, [value])
    assert reason is not None
    assert "44% of the memory was still unused (10% before)" in reason
    assert filling(full, full, [value]) is None
    assert filling(empty, empty, [value]) is None, "no more was unused than before"
    fewer, alike = (structs.replace(value, measured=one, within=one == 105.0) for one in (50.0, 105.0))
    assert filling(full, empty, [fewer]) is None
    assert filling(full, empty, [alike]) is None
    assert filling(full, EvidenceMeta(source="trace"), [value]) is None


def test_a_cold_page_cache_leaves_the_misses_a_verdict() -> None:
    """What depends on the page cache is not known then; the pool has nothing to do with it."""
    names = ("miss ratio of the pool", "read from disk", "throughput")
    values = [
        VerifiedValue(name=name, unit="ratio", before=None, predicted=1.0, low=0.9, high=1.1, measured=2.0,
                      measured_error=0.0, within=False) for name in names
    ]  # fmt: skip
    judged, why = _each(values, values, "the page cache was filling", None)
    assert [one.verdict for one in judged] == ["not as predicted", "not known", "not known"]
    assert why == ["the page cache was filling"]
    judged, why = _each(values, values[:1], None, "just filled")
    assert [one.verdict for one in judged] == ["not known", "as predicted", "as predicted"]
    assert why == ["just filled"]


def test_the_verdict_is_that_of_all_values_together() -> None:
    """Of three values one lies beside its own 90% interval in every fourth case."""
    value = VerifiedValue(
        name="throughput",
        unit="of before",
        before=1.0,
        predicted=1.0,
        low=0.9,
        high=1.2,
        measured=1.25,
        measured_error=0.0,
        within=False,
    )
    normal = NormalDist()
    wider = normal.inv_cdf(0.05 / 3) / normal.inv_cdf(0.05)
    assert wider == pytest.approx(1.29, abs=0.01)
    bounds = 1 - 0.1 * wider, 1 + 0.2 * wider
    for measured, together in (
        (bounds[0] - 0.001, False),
        (bounds[0] + 0.001, True),
        (bounds[1] - 0.001, True),
        (bounds[1] + 0.001, False),
    ):
        one = structs.replace(value, measured=measured)
        assert _within_together(one, 3) == together
        assert not _within_together(one, 1), "alone it has its own interval"
    unsure = structs.replace(value, measured=1.3, measured_error=0.1)
    assert _within_together(unsure, 1)


def hand_after(path: Path, name: str, *counters: tuple[str, float]) -> Observation:
    """Return evidence of a pool of 4096 blocks that says where the clock hand stood."""
    meta = EvidenceMeta(source="trace", shared_buffers_blocks=4096)
    with EvidenceWriter(path / name, meta) as writer:
        for sample, more in enumerate((0.0, 1e6)):
            for counter, value in counters:
                row = {"sample": sample, "seconds": 8.0 * sample, "scope": "pool", "object": ""}
                row |= {"name": counter, "value": value + more}
                writer.append("counters", {key: [one] for key, one in row.items()})
        writer.close(meta)
    return Observation(Evidence.open(path / name))


def test_a_pool_that_was_just_filled_is_named(tmp_path: Path) -> None:
    """What the hand passed by the first sample counts."""
    of_trace = hand_after(tmp_path, "trace", ("complete_passes", 2.0), ("next_victim", 2048.0))
    reason = just_filled(of_trace)
    assert reason is not None
    assert "had passed the pool 2.5 times since the server started" in reason
    assert "verify again" in reason
    of_peek = hand_after(tmp_path, "peek", ("hand_frames", 5.9 * 4096))
    assert "5.9 times" in (just_filled(of_peek) or "")
    assert just_filled(hand_after(tmp_path, "long", ("complete_passes", 6.0), ("next_victim", 0.0))) is None
    assert just_filled(hand_after(tmp_path, "long peek", ("hand_frames", 6.1 * 4096))) is None
    assert just_filled(hand_after(tmp_path, "unseen", ("first_free", 1.0))) is None


def test_how_it_is_shown() -> None:
    value = VerifiedValue(
        name="miss ratio of the pool",
        unit="ratio",
        before=0.2,
        predicted=0.1,
        low=0.09,
        high=0.11,
        measured=0.15,
        measured_error=0.001,
        within=False,
    )
    result = VerifyResult(
        server_version="18.0",
        database="shop",
        before="a.evidence",
        after="b.evidence",
        shared_buffers_before=16 * MB,
        shared_buffers_after=32 * MB,
        verdict="not as predicted",
        reasons=["outside the interval: miss ratio of the pool"],
        values=[value],
        workload=compare_loads(load({"public.a": 1.0}), load({"public.a": 1.0})),
    )
    text = VIEW.text(result, Terminal(width=100, unicode=False))
    assert text.startswith("Not as predicted: shared_buffers from 16 MB to 32 MB.")
    assert "9.00% to 11.00%" in text
    assert "outside" in text
    assert "15.00% (14.84% to 15.16%)" in text, "1.645 standard errors"
    for quiet in (structs.replace(value, measured_error=0.0001), structs.replace(value, measured=0.0)):
        shown = VIEW.text(structs.replace(result, values=[quiet]), Terminal(width=100, unicode=False))
        assert "% (" not in shown
    page = VIEW.page(result)
    assert all(len(row) == len(heads_of(section)) for section in page.sections for row in cells_of(section))
    assert from_json(to_json(result).encode(), "x") == result
