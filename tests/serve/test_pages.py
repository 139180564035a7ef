"""The pages of `pgsweep serve` in a real browser, on a real server under load."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.prediction import CurvePoint, Observed, PredictResult, Verdict
from pgsweep.records.serve import ServeCurve, ServeVerification
from pgsweep.records.verification import VerifiedValue, VerifyResult
from pgsweep.serve.consumers import Key, Values, total_key
from pgsweep.serve.history import History, Interval, KeptCurve, KeptVerification, sqlite_store
from pgsweep.ui.kit.numbers import format_bytes
from tests.fix_page import load_running
from tests.fix_serve import Served, Tab, serving

STATIC = Path(__file__).parents[2] / "python/pgsweep/serve/web/static"


@pytest.fixture(scope="module")
def shop(wheel18: Cluster) -> Iterator[str]:
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE paged")
        with psycopg.connect(wheel18.conninfo("paged"), autocommit=True) as inside:
            inside.execute("CREATE EXTENSION pg_buffercache")
            inside.execute("CREATE TABLE page (id int PRIMARY KEY, filler text, long text)")
            inside.execute("ALTER TABLE page ALTER filler SET STORAGE PLAIN")
            inside.execute(
                "INSERT INTO page SELECT g, repeat('x', 1800), '' FROM generate_series(1, 12000) g"
            )
            inside.execute('CREATE TABLE "<b>&quot;" AS SELECT generate_series(1, 20000) AS n')
            inside.execute("VACUUM ANALYZE")
        with load_running(wheel18, "paged", sessions=1):
            yield wheel18.conninfo("paged")
        connection.execute("DROP DATABASE paged WITH (FORCE)")


@pytest.fixture(scope="module")
def served(shop: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve")
    config = folder / "serve.toml"
    config.write_text(f"[[server]]\nname = 'shop'\nconninfo = {json.dumps(shop)}\n")
    keep_what_was(folder / "history")
    with serving(folder / "history", options=("--config", str(config))) as running:
        running.wait_for("/servers/shop/series.json", lambda s: len(s["at"]) >= 3)
        yield running


def keep_what_was(folder: Path) -> None:
    """Write consumers, curves of two hours and a verification as if they had been collected earlier."""
    kept = History(sqlite_store(folder / "history.sqlite"), most_bytes=1 << 30)
    kept.start()
    rows: dict[Key, Values] = {
        ("user", "<b>anna", "", ""): {"reads": 300.0, "calls": 4.0, "active_seconds": 6.0},
        ("user", "bert", "", ""): {"reads": 100.0, "calls": 3.0, "memory_byte_seconds": 60.0 * (5 << 20)},
        ("statement", "<b>anna", "paged", "-77"): {"reads": 300.0, "calls": 4.0},
        total_key(): {"reads": 400.0, "calls": 7.0, "active_seconds": 6.0},
    }
    now = time.time()
    kept.add(Interval("shop", now - 5400, 60.0, rows))
    kept.add(KeptCurve("shop", flat_curve(now - 7200, 0.4312, 32 << 20)))
    kept.add(KeptCurve("shop", flat_curve(now - 3600, 0.0123, 16 << 20)))
    kept.add(KeptVerification("shop", held(now)))
    kept.stop()


def flat_curve(at: float, ratio: float, advised: int) -> ServeCurve:
    """A curve of an hour with one miss ratio at every size."""
    sizes = [size << 20 for size in (2, 4, 8, 16, 32, 64, 128)]
    points = [CurvePoint(shared_buffers_bytes=size, miss_ratio=ratio, low=0.0, high=1.0) for size in sizes]
    observed = Observed(shared_buffers_bytes=16 << 20, miss_ratio=ratio, accesses=1, seconds=1.0)
    verdict = Verdict(level="reliable", reasons=[])
    result = PredictResult(source="peek", observed=observed, points=points, verdict=verdict)
    return ServeCurve(
        window_seconds=3600, covered_seconds=3600.0, at=at, result=result, advised_bytes=advised
    )


def held(now: float) -> ServeVerification:
    """A prediction that came true."""
    value = VerifiedValue(
        name="misses", unit="ratio", before=0.4, predicted=0.21, low=0.17, high=0.26, measured=0.22,
        measured_error=0.0, within=True,
    )  # fmt: skip
    result = VerifyResult(
        server_version="18.0", database="paged", before="a", after="b", shared_buffers_before=8 << 20,
        shared_buffers_after=16 << 20, verdict="as predicted", reasons=[], values=[value], workload=[],
    )  # fmt: skip
    return ServeVerification(at=now - 600, changed_at=now - 7000, result=result)


@pytest.fixture
def tab(browser: Any, served: Served) -> Iterator[Tab]:
    opened = Tab(browser, served)
    yield opened
    opened.context.close()
    assert opened.complaints == []
    assert opened.elsewhere == []


def test_values_on_the_page_are_those_of_the_records(tab: Tab, served: Served) -> None:
    page = tab.page
    page.goto(served.address)
    page.get_by_role("link", name="shop").click()
    page.locator("[data-chart=reads] canvas").first.wait_for()
    page.locator("[data-chart=sweep] canvas").first.wait_for()
    summary = served.json("/servers/shop/summary.json")
    assert page.text_content("[data-fact=shared_buffers]") == format_bytes(summary["shared_buffers_bytes"])
    served.wait_for("/servers/shop/memory.json", lambda memory: memory is not None)
    page.reload()
    memory = served.json("/servers/shop/memory.json")
    shown = page.text_content('[data-part="other shared memory"]')
    assert shown == format_bytes(memory["parts"][1]["size_bytes"])
    buffers = [int(cell.replace(" ", "")) for cell in page.locator("[data-usage]").all_text_contents()]
    assert len(buffers) == 6
    assert 0 < sum(buffers) <= 2048
    # The legend of the chart names what the series have.
    assert "pool (right axis)" in page.locator("[data-chart=reads] .u-legend").inner_text()


def test_it_updates_by_itself(tab: Tab, served: Served) -> None:
    page = tab.page
    page.goto(f"{served.address}/servers/shop?range=15m")
    assert page.locator("p.note").first.inner_text().endswith(", database paged")
    page.locator("[data-chart=reads] canvas").first.wait_for()
    with page.expect_response(re.compile("/servers/shop/facts")):
        pass
    with page.expect_response(re.compile("/servers/shop/series.json")):
        pass


def test_relations_by_keyboard_only(tab: Tab, served: Served) -> None:
    page = tab.page
    page.goto(f"{served.address}/servers/shop")
    page.keyboard.press("/")
    with page.expect_response(re.compile("relations.*filter=page_p")):
        page.keyboard.type("page_p")
    page.wait_for_function("document.querySelectorAll('#relations tbody tr').length === 1")
    assert "page_pkey" in page.locator("#relations tbody").inner_text()
    page.keyboard.press("Control+a")
    with page.expect_response(re.compile("relations.*filter=(&|$)")):
        page.keyboard.press("Delete")
    button = page.locator("#relations th button", has_text="Relation")
    button.focus()
    with page.expect_response(re.compile("relations.*sort=name")):
        page.keyboard.press("Enter")
    page.locator("#relations th[aria-sort=ascending]").first.wait_for()
    names = [line.split()[0] for line in page.locator("#relations tbody th").all_inner_texts()]
    assert names.index('"<b>&quot;"') < names.index("page_pkey")
    link = page.locator("#relations a", has_text=re.compile("^page$"))
    link.focus()
    page.keyboard.press("Enter")
    page.locator("svg.map rect").first.wait_for()
    assert page.locator("svg.map rect").count() >= 1000


def test_consumers_by_each_kind(tab: Tab, served: Served) -> None:
    page = tab.page
    # A range that is over: what is collected meanwhile would change the averages.
    over = f"begin={time.time() - 7000:.0f}&end={time.time() - 3600:.0f}"
    page.goto(f"{served.address}/servers/shop?{over}")
    assert page.locator("[data-consumers=user] tbody th").all_inner_texts()[:2] == ["<b>anna", "bert"]
    cells = page.locator("[data-consumers=user] tbody tr").nth(1).locator("td").all_inner_texts()
    found = served.json(f"/servers/shop/consumers.json?{over}")
    bert = next(each for each in found["consumers"] if each["user"] == "bert")
    assert (bert["reads"], bert["calls"]) == (100.0, 3.0)
    assert cells[0] == format_bytes(100 * 8192)
    assert cells[1].startswith("25")
    assert cells[8 - 1] == format_bytes(round(bert["memory_bytes"]))
    with page.expect_response(re.compile("consumers.*by=statement")):
        page.select_option("#by", "statement")
    page.locator("[data-consumers=statement]").first.wait_for()
    assert "-77" in page.locator("[data-consumers=statement] tbody").inner_text()
    rows = served.ask(f"/servers/shop/consumers.csv?{over}")[2].splitlines()
    assert rows[0].startswith("kind,user,database,id,")
    assert len(rows) == 1 + len(found["consumers"])
    assert served.ask("/servers/shop/consumers?by=nosuch")[0] == 400


def test_curves_of_different_hours_side_by_side(tab: Tab, served: Served) -> None:
    page = tab.page
    page.goto(f"{served.address}/servers/shop?range=6h")
    page.locator("#hours input").first.wait_for()
    assert page.locator("#hours input").count() == 2
    assert [line.split(": ")[-1] for line in page.locator("#hours label").all_inner_texts()] == [
        "32 MB",
        "leave it",
    ]
    for number in range(2):
        page.locator("#hours input").nth(number).check()
    page.locator("[data-chart=curve] canvas").first.wait_for()
    legend = page.locator("[data-chart=curve] .u-legend")
    over = page.locator("[data-chart=curve] .u-over").bounding_box()
    assert over is not None
    # The legend has the values at the size under the pointer; not every curve has every size.
    for step in range(1, 40):
        page.mouse.move(over["x"] + over["width"] * step / 40, over["y"] + over["height"] / 2)
        if "43.12%" in (said := legend.inner_text()) and "1.23%" in said:
            break
    else:
        raise AssertionError(legend.inner_text())
    kept = served.json("/servers/shop/curves.json?range=6h")["hours"]
    assert [curve["result"]["points"][0]["miss_ratio"] for curve in kept] == [0.4312, 0.0123]


def test_what_other_sizes_would_have_saved_in_the_chosen_time(tab: Tab, served: Served) -> None:
    now, page = time.time(), tab.page
    page.goto(f"{served.address}/servers/shop?begin={now - 7300:.0f}&end={now - 5600:.0f}")
    assert "no hour of the chosen time has a curve" in page.locator("#saved").inner_text(), (
        "the middle of the hour decides"
    )
    page.goto(f"{served.address}/servers/shop?begin={now - 10000:.0f}&end={now - 7300:.0f}")
    assert page.locator("[data-saved] tbody tr").count() == 7
    known = served.json(f"/servers/shop/curves.json?begin={now - 10000:.0f}&end={now - 3000:.0f}")["saved"]
    assert known["hours"] == 2
    assert known["reads"] == pytest.approx(0.4312 + 0.0123)


def test_a_refused_curve_is_not_called_too_early(tab: Tab, served: Served) -> None:
    def said_with(result: object) -> str:
        def answer(route: Any) -> None:
            found = route.fetch().json()
            route.fulfill(json=found | {"now": [{"window_seconds": 900, "result": result}]})

        tab.page.route("**/curves.json?*", answer)
        tab.page.goto(f"{served.address}/servers/shop?range=15m")
        chart = tab.page.locator("[data-chart=curve]", has_text="No curve")
        chart.wait_for()
        return str(chart.inner_text())

    assert "minute" in said_with(None)
    assert "minute" not in said_with({"points": []})


# What is written on canvases, and where, in pixels of the page.
_WRITTEN = """
window.written = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (word, x, y) {
  window.written.push([word, y / devicePixelRatio]);
  return fill.call(this, word, x, y);
};
"""


def test_charts_can_be_read_without_a_pointer(browser: Any, served: Served) -> None:
    """As on a phone: legends have values, words stand above the lines, labels beside their fields."""
    tab = Tab(browser, served, viewport={"width": 390, "height": 800})
    page = tab.page
    page.add_init_script(_WRITTEN)
    page.goto(f"{served.address}/servers/shop?range=15m")
    page.locator("#hours input").first.check()
    page.locator("[data-chart=curve] canvas").first.wait_for()
    said = page.locator("[data-chart=curve] .u-legend").inner_text()
    assert re.search(r"shared_buffers\W*16 MB", said), said
    assert "43.12%" in said
    top = page.evaluate("document.querySelector('[data-chart=curve] .u-over').offsetTop")
    rows = [y for word, y in page.evaluate("window.written") if word.startswith("today")]
    assert rows
    assert all(8 < y < top for y in rows), (rows, top)
    page.locator("[data-chart=reads] canvas").first.wait_for()
    said = page.locator("[data-chart=reads] .u-legend").inner_text()
    assert re.search(r"pool \(right axis\)\W*[\d\s]+(\.\d+)?/s", said), said
    for name in ("from", "until"):
        word, field = (page.locator(one).bounding_box() for one in (f"label[for={name}]", f"#{name}"))
        assert word is not None
        assert field is not None
        assert field["y"] < word["y"] + word["height"] / 2 < field["y"] + field["height"], name
    tab.context.close()
    assert tab.complaints == []


def test_the_range_picker_and_the_readers_own_times(tab: Tab, served: Served) -> None:
    page = tab.page
    page.goto(f"{served.address}/servers/shop")
    with page.expect_navigation(url=re.compile("range=24h")):
        page.select_option("#range", "24h")
    assert page.input_value("#range") == "24h"
    assert "range=24h" in (page.get_attribute("[data-ranged] a", "href") or "")
    page.fill("#from", "2020-01-01T00:00")
    page.fill("#until", "2020-01-01T01:00")
    with page.expect_navigation(url=re.compile("begin=.*end=")):
        page.click("#own")
    page.locator("text=The history has nothing of this time yet.").first.wait_for()


def test_it_fits_a_phone_and_paper_and_the_dark(browser: Any, served: Served) -> None:
    for options in ({"viewport": {"width": 390, "height": 800}}, {"viewport": {"width": 800, "height": 900}}):
        tab = Tab(browser, served, **options)
        for path in ("/", "/servers/shop"):
            tab.page.goto(served.address + path)
            width = tab.page.evaluate("document.documentElement.scrollWidth")
            assert width <= options["viewport"]["width"], (path, width)
        tab.page.emulate_media(media="print")
        assert not tab.page.locator("header").is_visible()
        tab.context.close()
        assert tab.complaints == []
    tab = Tab(browser, served, color_scheme="dark")
    tab.page.goto(served.address)
    dark = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.page.click("#theme")
    assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    tab.context.close()


def test_the_advice_and_whether_the_last_one_held(tab: Tab, served: Served) -> None:
    page = tab.page
    page.goto(f"{served.address}/servers/shop")
    found = served.json("/servers/shop/advice.json")["verification"]["result"]
    text = page.locator("#advice").inner_text()
    assert found["verdict"] == "as predicted"
    assert "changed from 8MB to 16MB" in text
    [value] = found["values"]
    numbers = [f"{100 * value[name]:.0f}" for name in ("predicted", "low", "high", "measured")]
    shown = re.search(r"Misses: predicted ([\d.]+)% \(([\d.]+)% to ([\d.]+)%\), measured ([\d.]+)%", text)
    assert shown is not None, text
    assert [f"{float(word):.0f}" for word in shown.groups()] == numbers
    # The card itself comes with the first curve, without a reload.
    served.wait_for("/servers/shop/advice.json", lambda a: a["best"] is not None, patience=240)
    page.locator("#advice [data-fact=advised]").first.wait_for()
    page.reload()
    best = served.json("/servers/shop/advice.json")["best"]["result"]
    words = {"set": best["settings"][0]["value"], "leave": "leave it", "unknown": "not known"}
    assert page.text_content("#advice [data-fact=advised]") == words[best["settings"][0]["action"]]
    assert page.locator("#advice tr[data-setting]").count() == len(best["settings"])


def test_a_page_that_is_open_outlives_a_restart_of_the_server(
    browser: Any, shop: str, tmp_path: Path
) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(f"[[server]]\nname = 'shop'\nconninfo = {json.dumps(shop)}\n")
    options = ("--config", str(config))
    with serving(tmp_path / "h", options=options) as served:
        address, port = served.address, served.port
        tab = Tab(browser, served)
        tab.page.goto(f"{address}/servers/shop")
        tab.page.locator("[data-chart=reads] canvas").first.wait_for()
        assert served.stop() == 0
        tab.page.locator("#away:not([hidden])").first.wait_for()
    with serving(tmp_path / "h", options=options, listen=f"127.0.0.1:{port}") as served:
        tab.page.locator("#away").first.wait_for(state="hidden")
        with tab.page.expect_response(re.compile("/servers/shop/facts")) as answer:
            pass
        assert answer.value.status == 200
        tab.context.close()
        # What the browser says of the time without a server is its own.
        assert all("ERR_" in text or "htmx:" in text for text in tab.complaints), tab.complaints
        assert tab.elsewhere == []


def test_the_libraries_are_those_that_are_named() -> None:
    table = (STATIC / "vendor/README.md").read_text(encoding="utf-8")
    htmx = re.search(r'version:"([\d.]+)"', (STATIC / "vendor/htmx.min.js").read_text(encoding="utf-8"))
    plot = re.search(
        r"\(v([\d.]+)\)", (STATIC / "vendor/uPlot.iife.min.js").read_text(encoding="utf-8")[:200]
    )
    assert htmx is not None
    assert plot is not None
    assert f"| {htmx[1]} |" in table
    assert f"| {plot[1]} |" in table
    assert (STATIC / "vendor/htmx.LICENSE").exists()
    assert (STATIC / "vendor/uPlot.LICENSE").exists()
