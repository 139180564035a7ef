"""The HTML report: whole in itself, readable without scripts, and every kind of number named."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pgsweep.errors import UsageError
from pgsweep.records.reasons import evidence
from pgsweep.ui.kit.pictures import to_svg
from pgsweep.ui.kit.report import to_html
from pgsweep.ui.kit.view import Result
from pgsweep.ui.results import read_result
from tests.fix_advice import advice_result
from tests.fix_memory import budget_of, kernel_result, memory_result, seen
from tests.fix_results import (
    cache_result,
    demo_result,
    doctor_result,
    lab_all_result,
    lab_compare_result,
    lab_list_result,
    lab_result,
    load_compare_result,
    load_result,
    predict_result,
    prove_result,
    record_result,
)
from tests.fuzz.targets import SEEDS

RESULTS: list[Result] = [predict_result(), demo_result(), prove_result(), record_result(), doctor_result()]
IDS = ["predict", "demo", "prove", "record", "doctor"]
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Collects what a page refers to, and checks that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "action", "data", "poster", "srcset"}:
                self.references.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take an element that closes itself (SVG's) as such."""


@pytest.mark.parametrize("result", RESULTS, ids=IDS)
def test_page_is_whole_and_refers_to_nothing_outside(result: Result) -> None:
    text = to_html(result)
    page = Page(text)
    assert page.open == []
    assert all(reference.startswith("#") for reference in page.references), page.references
    assert {reference[1:] for reference in page.references} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    outside = re.findall(r"(?:https?:)?//[\w.]+", text.replace('xmlns="http://www.w3.org/2000/svg"', ""))
    # The namespace of SVG is a name, not an address; the script needs it once more to make an element.
    assert set(outside) <= {"http://www.w3.org"}
    assert "@import" not in text
    assert not re.search(r"url\((?!data:)", text)
    assert len(text.encode()) < 1_000_000


@pytest.mark.parametrize(("result", "count"), list(zip(RESULTS, (1, 4, 2, 0, 0), strict=True)), ids=IDS)
def test_pictures_are_there_and_well_formed(result: Result, count: int) -> None:
    pictures = re.findall(r"<svg.*?</svg>", to_html(result), re.DOTALL)
    assert len(pictures) == count
    for picture in pictures:
        root = ET.fromstring(picture)
        for element in root.iter():
            for value in element.attrib.values():
                assert "nan" not in value.lower().split()
                assert "inf" not in value.lower().split()


def test_everything_is_in_the_page_without_scripts() -> None:
    text = re.sub(r"<script.*?</script>", "", to_html(demo_result()), flags=re.DOTALL)
    for word in ("16 MB", "25.00", "24.60", "25.10", "-0.40", "+0.10", "outside the interval", "Provenance"):
        assert word in text
    for word in ("measured", "predicted from snapshots", "predicted from a trace", "90% interval"):
        assert word in text


def test_a_proof_names_where_measured_lies_outside() -> None:
    text = re.sub(r"<script.*?</script>", "", to_html(prove_result()), flags=re.DOTALL)
    for word in (
        "2 of 3",
        "-0.40",
        "simulated",
        "outside the interval",
        "predicted from the trace",
        "Notes",
    ):
        assert word in text
    assert text.count("<svg") == 2
    assert "shop &lt;&amp;&gt;.evidence" in text
    assert "The prediction is reliable" in text


def test_names_cannot_break_the_page() -> None:
    base = predict_result()
    verdict = msgspec.structs.replace(base.verdict, reasons=[evidence('</script><img src="x:y">')])
    text = to_html(msgspec.structs.replace(base, verdict=verdict))
    assert "<img" not in text
    assert text.count("</script>") == 3
    assert "mix &lt;&amp;&gt; more" in to_html(demo_result())


def test_page_of_a_single_size_and_of_none() -> None:
    base = predict_result()
    assert "<svg" in to_html(msgspec.structs.replace(base, points=base.points[:1]))
    refused = to_html(predict_result(level="refused"))
    assert 'class="verdict refused"' in refused
    assert "No prediction" in refused
    assert "3% more misses" in refused
    body = refused.split("<script")[0]
    assert "<svg" not in body
    assert "90% interval, %" not in body


def test_dark_and_print_are_cared_for() -> None:
    text = to_html(predict_result())
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert 'name="viewport"' in text


@pytest.mark.slow
def test_a_browser_shows_it_without_complaint_and_without_requests(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(to_html(demo_result()), encoding="utf-8")
    page = browser.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    shown = page.content()
    page.close()
    assert (said, asked) == ([], [path.as_uri()])
    assert shown.count('class="saves"') == 4, "the script ran to its end"
    assert 'class="tip"' in shown
    assert "save CSV" in shown


@pytest.mark.slow
def test_no_page_is_cut_off(browser: Any, tmp_path: Path) -> None:
    """Whatever the result: no table is wider than the page at 1200 pixels, and no word is broken.

    On a telephone tables may be moved in a box of their own, and the page itself is no wider than it.
    """
    results = [read_result(path) for path in sorted((SEEDS / "result").glob("*.json"))]
    results += [kernel_result(), memory_result(), budget_of(seen()), doctor_result(), cache_result()]
    results += [predict_result(), advice_result(), load_result(), load_compare_result()]
    results += [lab_result(experiment=True), lab_compare_result(), lab_list_result(), lab_all_result()]
    assert len({result.schema for result in results}) >= 20
    measure = """() => {
    const range = document.createRange();
    function broken(cell) {
        const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        let words = 0;
        for (let node = texts.nextNode(); node; node = texts.nextNode())
            for (const word of node.data.matchAll(/(?<!\\S)\\w{1,40}(?!\\S)/g)) {
                range.setStart(node, word.index);
                range.setEnd(node, word.index + word[0].length);
                words += new Set([...range.getClientRects()].map(r => r.top)).size > 1;
            }
        return words;
    }
    return [
        [...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth).length,
        [...document.querySelectorAll('td code span:not(.long)')]
            .filter(span => span.getClientRects().length > 1).length
            + [...document.querySelectorAll('td, th')].map(broken).reduce((a, b) => a + b, 0),
        document.documentElement.scrollWidth - innerWidth,
    ]}"""
    tab = browser.new_page()
    cut = {}
    for number, result in enumerate(results):
        page = tmp_path / f"{number}.html"
        page.write_text(to_html(result), encoding="utf-8")
        tab.goto(page.as_uri())
        for width in (1200, 390):
            tab.set_viewport_size({"width": width, "height": 1600})
            tables, words, beyond = tab.evaluate(measure)
            if beyond > 0 or (width == 1200 and (tables or words)):
                cut[number, result.schema, width] = (tables, words, beyond)
    assert cut == {}


def test_the_pictures_alone_are_one_svg_that_stands_by_itself() -> None:
    result = predict_result()
    root = ET.fromstring(to_svg(result))
    nested = root.findall("{http://www.w3.org/2000/svg}svg")
    assert len(nested) == to_html(result).count("<figure>") > 0
    assert float(root.attrib["height"]) > sum(float(each.attrib["height"]) for each in nested)
    assert "--snapshots: #0072b2" in (root.findtext("{http://www.w3.org/2000/svg}style") or "")
    with pytest.raises(UsageError, match="has no figures"):
        to_svg(doctor_result())
