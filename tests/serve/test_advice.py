"""The advice of `serve`: which window counts, what is to be gained, and how it is shown."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psycopg
import pytest

from pgsweep.evidence.sql import record_sql
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.advice import AdviceResult, LeastMemory
from pgsweep.records.prediction import NoEviction
from pgsweep.records.serve import (
    ServeAdvice,
    ServeAdvised,
    ServeChange,
    ServeCurve,
    ServeStanding,
    ServeSummary,
)
from pgsweep.serve.board import Board, best_advice, waiting_saved
from pgsweep.serve.config import ServeConfig, ServerConfig
from pgsweep.serve.forecast import predict_pieces
from pgsweep.serve.metrics import Metrics, exposed
from pgsweep.serve.rules import expressions
from pgsweep.serve.service import Service
from pgsweep.serve.steady import steadied
from pgsweep.serve.verification import last_change, seen_change
from pgsweep.serve.web.pages import render
from tests.fix_advice import GB, MB, advised, growing, leaving, one, planner, refusing, situation


def refused(found: ServeAdvised) -> ServeAdvised:
    return msgspec.structs.replace(found, size_bytes=None, result=advised(refusing()))


def card_of(advice: ServeAdvice) -> str:
    server = ServeSummary(key="s", name="s", place="here", state="up")
    return re.sub("</?time.*?>", "", render("_advice.html.j2", server=server, advice=advice, curves=[]))


def test_the_window_with_most_evidence_counts_if_there_is_a_prediction() -> None:
    short, day = one(growing_result(), 900, 600.0, 4 * GB), one(leaving(), 86_400, 120.0, GB)
    assert best_advice([short, day]) is short, "the day has two minutes yet"
    day = msgspec.structs.replace(day, covered_seconds=7200.0)
    assert best_advice([short, day]) is day
    assert best_advice([short, refused(day)]) is short
    assert best_advice([refused(day)]) is not None
    assert best_advice([]) is None


def growing_result() -> AdviceResult:
    return advised(growing())


def test_what_is_to_be_gained() -> None:
    result = growing_result()
    waits = {point.shared_buffers_bytes: point.wait_ratio for point in result.points}
    assert waiting_saved(one(result, 900, 1.0, 4 * GB)) == pytest.approx(waits[GB] - waits[4 * GB])
    assert waiting_saved(one(result, 900, 1.0, GB)) == 0.0
    assert waiting_saved(one(result, 900, 1.0, None)) is None


@pytest.fixture
def board(tmp_path: Path) -> Board:
    names = ("calm", "new", "slow")
    servers = [ServerConfig(key=name, name=name, conninfo="") for name in names]
    config = ServeConfig(servers=servers, host="", port=1, history=tmp_path, evidence=tmp_path)
    found = Board(config, ["here"] * len(names), lambda: None)
    found.servers["slow"].advised[900] = one(growing_result(), 900, 600.0, 4 * GB)
    found.servers["calm"].advised[900] = one(leaving(), 900, 600.0, GB)
    return found


def test_the_overview_begins_where_most_is_to_be_gained(board: Board) -> None:
    found = board.overview().servers
    assert [server.name for server in found] == ["slow", "calm", "new"]
    slow, calm, new = found
    assert slow.advised_bytes == 4 * GB
    assert slow.advice_gain is not None
    assert (calm.advised_bytes, calm.waiting_saved_ratio, calm.advice_gain) == (GB, 0.0, None)
    assert calm.advice is not None
    assert calm.advice.startswith("Leave")
    assert new.advised_bytes is None
    page = render("_overview.html.j2", overview=board.overview())
    assert page.count("leave it") == 1
    assert "<b>4GB</b>" in page


def test_what_the_pool_has_outgrown_is_dropped(board: Board) -> None:
    """All that was used fitted into 160 MB when it was recorded, and 244 MB are used now."""
    calm = NoEviction(
        used_bytes=160 * MB, removable_bytes=96 * MB, known_from_bytes=160 * MB,
        known_below_bytes=None, filling_bytes=0, unknown_bytes=[],
    )  # fmt: skip
    known = situation({GB: 0.00001}, {GB: 0.1})
    known = replace(known, prediction=msgspec.structs.replace(known.prediction, no_eviction=calm))
    result = advised(known)
    assert "96 MB of shared_buffers held no page" in result.settings[0].reason
    server = board.servers["new"]
    server.advised[900] = one(result, 900, 600.0, GB)
    server.curves[900] = ServeCurve(
        window_seconds=900, covered_seconds=600.0, at=time.time(), result=known.prediction,
        advised_bytes=GB, advice=result.summary,
    )  # fmt: skip

    def holding(used_bytes: int) -> Any:
        return SimpleNamespace(
            head=SimpleNamespace(pool=SimpleNamespace(size_bytes=GB, used_bytes=used_bytes))
        )

    server.sample = holding(161 * MB)
    assert [found.result for found in board.advised("new")] == [result]
    assert board.curves("new") == [server.curves[900]]
    server.sample = holding(244 * MB)
    assert board.advised("new") == []
    (curve,) = board.curves("new")
    assert (curve.result, curve.advised_bytes, curve.advice) == (None, None, None)
    assert curve.why is not None
    assert curve.why.startswith(
        "at most 160 MB of shared_buffers held pages in the evidence, and 244 MB do now"
    )


def test_metrics_have_the_advice(board: Board) -> None:
    text = exposed(board, [], 5).decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, value in lines}
    assert found['pgsweep_advised_shared_buffers_bytes{server="slow"}'] == 4 * GB
    assert found['pgsweep_advised_shared_buffers_bytes{server="calm"}'] == GB, "to leave it is advice too"
    assert 'pgsweep_advised_shared_buffers_bytes{server="new"}' not in found
    assert found['pgsweep_advice_waiting_saved_ratio{server="calm"}'] == 0
    disk = f'pgsweep_predicted_disk_reads_per_second{{bound="%s",server="%s",shared_buffers_bytes="{GB}"}}'
    points = {p.shared_buffers_bytes: p for p in growing_result().points}
    assert found[disk % ("low", "slow")] == points[GB].disk_reads_low
    assert found[disk % ("estimate", "slow")] == points[GB].disk_reads_per_second
    assert disk % ("low", "calm") in found
    assert disk % ("estimate", "calm") not in found, "between bounds the middle is no estimate"


def test_without_a_prediction_no_place_says_to_leave_it(board: Board) -> None:
    """The card, the overview, the metrics and the rows say that the size is not known."""
    found = refused(one(leaving(), 900, 600.0, GB))
    board.servers["new"].advised[900] = found
    line = next(server for server in board.overview().servers if server.name == "new")
    assert (line.advised_bytes, line.advice_gain, line.waiting_saved_ratio) == (None, None, None)
    assert line.advice is not None
    assert line.advice.startswith("What shared_buffers should be is not known")
    page = render("_overview.html.j2", overview=board.overview())
    row = page[page.index('data-server="new"') :].partition("</tr>")[0]
    assert "not known <small>refused</small>" in row
    assert "leave it" not in row
    text = card_of(ServeAdvice(server="new", best=found, windows=[found]))
    card, _, table = text.partition("<table")
    assert '<dd data-fact="advised">not known</dd>' in card
    words = "What shared_buffers should be is not known, because no prediction is possible: the load moves"
    assert words in card
    assert "pgsweep record --source trace" in card
    assert "leave" not in card.lower()
    assert "predicted" not in card, "there is no prediction behind it"
    assert "not known" in table.partition("shared_buffers")[2].partition("</tr>")[0]
    assert text.count("A third reason") == 1
    samples = [line for line in exposed(board, [], 5).decode().splitlines() if 'server="new"' in line]
    about = [line for line in samples if re.match("pgsweep_(advi|predicted_disk|predicted_through)", line)]
    assert [line.partition("{")[0] for line in about] == ["pgsweep_advice_timestamp_seconds"]


def test_dashboard_and_alerts_ask_for_metrics_and_labels_that_there_are(board: Board) -> None:
    """Also those without a value yet: of them too the name and the labels are known."""
    labels = {}
    for family in Metrics(board, [], 5).collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels[name] = set(family._labelnames)  # type: ignore[attr-defined]
    asked: set[str] = set()
    for expression in expressions():
        for name, selectors in re.findall(r"(pgsweep_\w+)(?:\{([^}]*)\})?", expression):
            assert name in labels, expression
            assert set(re.findall(r"(\w+)[=!]", selectors)) <= labels[name], expression
            asked.add(name)
    # What the advice and the predictions say is on the dashboard, but for what snapshots do not predict.
    shown = {
        name for name in labels if re.match("pgsweep_(predicted|advised|advice_waiting|prediction)", name)
    }
    assert shown - asked == {"pgsweep_predicted_throughput_ratio"}


def test_metrics_and_overview_have_what_the_host_gives_and_what_could_be_reclaimed(board: Board) -> None:
    text = exposed(board, [], 5).decode()
    assert "pgsweep_huge_pages{" not in text
    assert "pgsweep_advised_memory_reclaim_bytes{" not in text
    board.servers["slow"].standing = ServeStanding(
        huge_pages_wanted=70,
        huge_pages_used=0,
        huge_pages_missing=65,
        memory_limit_bytes=GB,
        memory_room_bytes=MB,
        pending_restart=["shared_buffers", "wal_level"],
    )
    least = LeastMemory(
        loss_ratio=0.02,
        today_bytes=16 * GB,
        memory_bytes=5 * GB,
        low_bytes=4 * GB,
        reclaim_bytes=11 * GB,
        shared_buffers_bytes=GB,
        throughput_ratio=0.99,
        throughput_low=0.98,
        throughput_high=1.0,
        reason="it suffices",
        assumed=[],
    )
    reclaiming = msgspec.structs.replace(growing_result(), least=least)
    pays = msgspec.structs.replace(least, reclaim_bytes=0, pays_bytes=4 * GB)
    board.servers["slow"].advised[900] = one(reclaiming, 900, 600.0, 4 * GB)
    board.servers["calm"].advised[900] = one(msgspec.structs.replace(leaving(), least=pays), 900, 600.0, GB)
    text = exposed(board, [], 5).decode()
    states = re.findall(r'pgsweep_huge_pages\{server="slow",state="(\w+)"\} (\S+)', text)
    assert dict(states) == {"wanted": "70.0", "used": "0.0", "missing": "65.0"}
    found = dict(re.findall(r'^(pgsweep_\w+)\{server="slow"\} (\S+)$', text, re.MULTILINE))
    assert float(found["pgsweep_memory_room_bytes"]) == MB
    assert float(found["pgsweep_memory_limit_bytes"]) == GB
    assert found["pgsweep_settings_pending_restart"] == "2.0"
    assert float(found["pgsweep_advised_memory_reclaim_bytes"]) == 11 * GB
    page = render("_overview.html.j2", overview=board.overview())
    for words in ("11 GB to reclaim", "4 GB more would pay", "shared_buffers, wal_level: new value"):
        assert words in page, words


@pytest.mark.parametrize(
    ("result", "size", "words"),
    [
        (growing_result(), 4 * GB, ["4GB", "today 1GB", "ALTER SYSTEM SET shared_buffers = &#39;4GB&#39;"]),
        (leaving(), GB, ["leave it", "none that is certain", "Leave shared_buffers at 1GB"]),
    ],
)
def test_the_card(result: AdviceResult, size: int, words: list[str]) -> None:
    found = one(result, 900, 600.0, size)
    text = card_of(ServeAdvice(server="s", best=found, windows=[found]))
    assert "\\n" not in text
    for word in [*words, "10 min of evidence", "60 s ago", "could be verified", "effective_cache_size"]:
        assert word in text, word


def test_the_card_without_advice() -> None:
    text = card_of(ServeAdvice(server="s", why="nothing happened <b>"))
    assert "No advice yet: nothing happened &lt;b&gt;" in text
    assert "No advice yet: the first comes" in card_of(ServeAdvice(server="s"))


def test_a_change_that_cannot_be_verified_yet_is_said() -> None:
    """It was denied for ten minutes: until there was enough evidence."""
    change = ServeChange(at=time.time() - 120, before_bytes=64 * MB, after_bytes=256 * MB)
    text = card_of(ServeAdvice(server="s", change=change))
    assert "shared_buffers was changed from 64MB to 256MB 2 min ago" in text
    assert "was not changed" not in text


def test_a_change_is_seen_with_the_first_sample_after_it(board: Board) -> None:
    server = board.servers["new"]
    for size, seen in ((64 * MB, None), (64 * MB, None), (256 * MB, (64 * MB, 256 * MB))):
        server.sample = None  # the server was restarted
        server.note_size()
        server.sample = SimpleNamespace(  # type: ignore[assignment]
            head=SimpleNamespace(pool=SimpleNamespace(size_bytes=size, used_bytes=0))
        )
        server.note_size()
        change = server.change
        assert (None if change is None else (change.before_bytes, change.after_bytes)) == seen


def test_the_evidence_shows_a_change_too(tmp_path: Path) -> None:
    """Of the time before `serve` was started anew."""
    assert seen_change(pieces(tmp_path, [8192, 8192])) is None
    (tmp_path / "more").mkdir()
    change = seen_change(pieces(tmp_path / "more", [8192, 32768]))
    assert change == ServeChange(at=1001.0, before_bytes=64 * MB, after_bytes=256 * MB)


def test_a_setting_without_a_gain_keeps_the_value_that_was_advised() -> None:
    """What is free for the page cache comes and goes by gigabytes: 3 GB an hour were no news."""
    shown = planner("20GB")
    for value in ("23GB", "17GB", "26GB", "15GB"):
        shown = steadied(planner(value), shown)
        [setting] = [each for each in shown.result.settings if each.name == "effective_cache_size"]
        assert (setting.value, shown.result.decision) == ("20GB", "leave")
        assert "effective_cache_size" not in shown.result.summary, "what gains nothing is no headline"

    def advised_for_planner(found: ServeAdvised) -> tuple[str, str | None]:
        [setting] = [each for each in found.result.settings if each.name == "effective_cache_size"]
        return setting.action, setting.value

    assert advised_for_planner(steadied(planner("40GB"), shown)) == ("set", "40GB")
    left = planner(None)
    assert advised_for_planner(left) == ("leave", None)
    assert advised_for_planner(steadied(planner("7GB"), left)) == ("leave", None)
    assert steadied(planner("7GB"), left).result.summary == left.result.summary
    assert advised_for_planner(steadied(planner("9GB"), left)) == ("set", "9GB")
    assert advised_for_planner(steadied(planner(None), shown)) == ("leave", None), "no news to wait with"
    other = planner("23GB", today="8GB")
    assert steadied(other, shown) == other, "it was set meanwhile"
    assert steadied(other, None) == other


def test_a_failed_forecast_leaves_what_was_predicted(tmp_path: Path) -> None:
    server = ServerConfig(key="s", name="s", conninfo="")
    service = Service(
        ServeConfig(servers=[server], host="", port=1, history=tmp_path, evidence=tmp_path / "evidence")
    )
    for held in service._held:
        held.close()
    service.history.store.close()
    curve = ServeCurve(window_seconds=900, covered_seconds=600.0, at=7.0, result=growing().prediction)
    service._show_curve("s", curve, None)
    failed = ServeCurve(
        window_seconds=900, covered_seconds=0.0, at=99.0, result=None, failed="signal 9", failed_at=99.0
    )
    service._show_curve("s", failed, None)
    [shown] = service.board.curves("s")
    assert (shown.at, shown.result, shown.failed, shown.failed_at) == (7.0, curve.result, "signal 9", 99.0)
    service._show_curve("s", msgspec.structs.replace(curve, at=120.0), None)
    [shown] = service.board.curves("s")
    assert (shown.at, shown.failed) == (120.0, None)


def test_too_little_evidence_is_a_state_of_its_own(wheel18: Cluster, tmp_path: Path) -> None:
    """Seconds of evidence contradicted themselves, which is no news of the server."""
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
    record_sql(wheel18.conninfo(), tmp_path / "1.evidence", seconds=1, max_snapshots=1)
    answer = predict_pieces([tmp_path / "1.evidence"], 900, advise=True)
    assert answer.early, answer
    assert (answer.result, answer.advice) == (None, None)
    assert answer.why is not None
    assert "s of evidence" in answer.why


def pieces(folder: Path, sizes: list[Any]) -> list[Path]:
    found = []
    for number, size in enumerate(sizes):
        piece = folder / f"{1000 + number}.evidence"
        piece.mkdir()
        if size is not None:
            (piece / "meta.json").write_text(json.dumps({"shared_buffers_blocks": size}))
        found.append(piece)
    return found


@pytest.mark.parametrize(
    ("sizes", "before", "after"),
    [
        ([16, 16, 32, 32, 32], [0, 1], [2, 3, 4]),
        ([16, 32, None, 64], [1], [3]),
        ([16, 16], None, None),
        ([None], None, None),
        ([], None, None),
    ],
)
def test_the_last_change_of_the_size(
    tmp_path: Path, sizes: list[Any], before: list[int] | None, after: list[int] | None
) -> None:
    found = pieces(tmp_path, sizes)
    change = last_change(found)
    if before is None or after is None:
        assert change is None
    else:
        assert change == ([found[n] for n in before], [found[n] for n in after])
