"""How long a server is observed for a decision."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pgsweep.advice.observation import MOST_SNAPSHOT_SECONDS, MOST_TRACE_SECONDS, doubt_of, observe
from pgsweep.evidence.record import record
from pgsweep.evidence.store import Evidence
from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener
from pgsweep.records.advice import AdviceResult
from pgsweep.records.prediction import RecordResult
from tests.fix_advice import GB, advised, growing, refusing, situation
from tests.fix_shop import shop_under_load

MISSES = {GB: 0.2, 4 * GB: 0.15}


def certain() -> AdviceResult:
    return advised(growing())


def leaving() -> AdviceResult:
    """Advice in which no size may save enough."""
    return advised(situation(MISSES, {GB: 9_000.0, 4 * GB: 9_500.0}, width=0.001))


def open_by(width: float, *, kept_seconds: float = 1.0) -> AdviceResult:
    """Return advice that is in doubt, for a page cache that keeps what it has read for so long."""
    advice = advised(situation(MISSES, {GB: 9_000.0, 4 * GB: 8_000.0}, width=width))
    assert advice.memory_bytes is not None
    reads = (advice.memory_bytes - GB) / (kept_seconds * 8192)
    points = [msgspec.structs.replace(one, disk_reads_per_second=reads) for one in advice.points]
    return msgspec.structs.replace(advice, points=points)


def test_only_an_interval_around_the_least_gain_leaves_a_decision_open() -> None:
    assert doubt_of(certain()) is None
    assert doubt_of(leaving()) is None
    doubt = doubt_of(open_by(0.2))
    assert doubt is not None
    assert "4 GB may change the time waiting for reads by -" in doubt.text
    narrower = doubt_of(open_by(0.1))
    assert doubt.width is not None
    assert narrower is not None
    assert narrower.width is not None
    assert narrower.width < doubt.width


def test_a_refused_prediction_is_open_and_bounds_are_not() -> None:
    refused = doubt_of(advised(refusing()))
    assert refused is not None
    assert refused.width is None
    assert doubt_of(advised(situation({GB: 0.2, 4 * GB: 0.1}))) is None


class Heard(NullListener):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def shop(wheel18: Cluster) -> Iterator[str]:
    with shop_under_load(wheel18) as conninfo:
        yield conninfo


def observed(
    conninfo: str, out: Path, answers: list[AdviceResult]
) -> tuple[RecordResult, list[str], list[float | None]]:
    """Record for 2 s where a recording is to find by itself when it suffices; these are its advices."""
    heard, stop = Heard(), threading.Event()
    lengths: list[float | None] = []

    def recorded(path: Path, seconds: float | None) -> RecordResult:
        lengths.append(seconds)
        return record(
            conninfo, path, source="sql", seconds=seconds or 2.0, rng_seed=7, progress=heard, stop=stop
        )

    left = iter(answers)
    result = observe(out, recorded, lambda _: next(left), progress=heard, stop=stop)
    assert next(left, None) is None, "every advice was asked for"
    assert [path for path in out.parent.iterdir() if path.name.startswith(f"{out.stem}.")] == [out]
    return result, heard.notes, lengths


@pytest.mark.slow
def test_snapshots_are_continued_until_the_decision_is_settled(shop: str, tmp_path: Path) -> None:
    out = tmp_path / "shop.evidence"
    _, notes, lengths = observed(shop, out, [open_by(0.2), certain()])
    assert lengths == [None, pytest.approx(2.0, abs=0.5)]
    assert any("recording further 2 s" in note for note in notes)
    evidence = Evidence.open(out)
    assert evidence.complete
    assert evidence.meta.seconds > 3.9
    times = evidence.table("snapshot_times", ["begin_seconds"])["begin_seconds"]
    assert times.min() < 2 < times.max()


@pytest.mark.slow
def test_it_ends_where_longer_does_not_narrow_it(shop: str, tmp_path: Path) -> None:
    _, notes, lengths = observed(shop, tmp_path / "a.evidence", [open_by(0.2), open_by(0.2)])
    assert len(lengths) == 2
    assert any("a longer recording does not narrow this" in note for note in notes)
    _, notes, lengths = observed(shop, tmp_path / "b.evidence", [certain()])
    assert lengths == [None]


def recording(path: Path, source: str, seconds: float) -> RecordResult:
    """Return what a recording says that found by itself that it suffices."""
    return RecordResult(
        path=str(path),
        source=source,
        seconds=seconds,
        shared_buffers_bytes=GB,
        snapshots=60,
        accesses=1000,
        lost_events=0,
        bytes_written=1,
        ended_by="enough",
        expected_overhead_ratio=0.0,
        measured_overhead_ratio=0.0,
        warnings=[],
    )


def lengths_with(tmp_path: Path, kept_seconds: float, *, source: str) -> list[float | None]:
    """Return for how long is recorded where the page cache keeps what it has read for so long."""
    lengths: list[float | None] = []

    def recorded(path: Path, seconds: float | None) -> RecordResult:
        lengths.append(seconds)
        path.mkdir()
        return recording(path, source, seconds or 20.0)

    answers = iter([open_by(0.2, kept_seconds=kept_seconds), certain()])
    observe(
        tmp_path / "a.evidence", recorded, lambda _: next(answers), progress=Heard(), stop=threading.Event()
    )
    return lengths


def test_the_next_recording_is_as_long_as_the_page_cache_keeps_what_it_has_read(tmp_path: Path) -> None:
    for number, (kept_seconds, length) in enumerate(((5.0, 40.0), (100.0, 100.0), (1e6, MOST_TRACE_SECONDS))):
        (tmp_path / str(number)).mkdir()
        lengths = lengths_with(tmp_path / str(number), kept_seconds, source="trace")
        assert lengths == [None, pytest.approx(length, rel=0.01)]


def test_there_is_a_limit(tmp_path: Path) -> None:
    """A recording that took most of the time that there is: it is not made again."""
    heard, made = Heard(), []

    def recorded(path: Path, seconds: float | None) -> RecordResult:
        made.append(seconds)
        path.mkdir()
        return recording(path, "peek", 0.6 * MOST_SNAPSHOT_SECONDS)

    observe(tmp_path / "a.evidence", recorded, lambda _: open_by(0.2), progress=heard, stop=threading.Event())
    assert made == [None]
    assert any("it stays open after 6 min of recording" in note for note in heard.notes)
