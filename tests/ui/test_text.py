"""Tables, charts and numbers as text."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

import pgsweep
from pgsweep.records.warm import WarmResult
from pgsweep.ui.kit import numbers
from pgsweep.ui.kit.chart import chart
from pgsweep.ui.kit.scales import RatioAxis, SizeAxis, interpolate
from pgsweep.ui.kit.series import Series, predict_series
from pgsweep.ui.kit.table import Column, Field, Table, table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.results import read_result, to_text
from tests.fix_advice import advice_result
from tests.fix_results import MB, demo_result, predict_result, record_result
from tests.fuzz.targets import SEEDS

PLAIN = Terminal(width=80)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 blocks"), (1, "1 block"), (1.0, "1 block"), (0.9999, "1 block"), (1.4, "1.4 blocks"),
     (12345, "12 345 blocks")],
)  # fmt: skip
def test_counts_with_their_noun(number: float, text: str) -> None:
    assert numbers.counted(number, "block") == text


def test_counts_with_an_irregular_plural() -> None:
    words = ("touch of a block", "touches of blocks")
    assert [numbers.counted(number, *words) for number in (1, 2)] == [
        "1 touch of a block",
        "2 touches of blocks",
    ]


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.146, "14.60%"), (1.0, "100.00%"), (0.0, "0.00%"), (0.0004, "0.040%"), (None, "–")],
)
def test_percent(ratio: float | None, text: str) -> None:
    assert numbers.percent(ratio) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250 ms"),
        (2.5, "2.5 s"),
        (28.3, "28 s"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (3960, "1 h 6 min"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert numbers.seconds(seconds) == text


def test_points_have_a_sign_unless_zero() -> None:
    assert [numbers.points(value) for value in (0.0012, -0.0012, 0.00001, None)] == [
        "+0.12",
        "-0.12",
        "0.00",
        "–",
    ]


@pytest.mark.parametrize("most", [1e-9, 0.0009, 0.003, 0.0123, 0.284, 0.3039, 0.5, 0.999, 1.0])
def test_ratio_axis_holds_its_values_in_few_round_steps(most: float) -> None:
    axis = RatioAxis.up_to(most)
    assert axis.high >= most
    assert 4 <= len(axis.ticks()) <= 8
    assert axis.high <= max(2 * most, 0.0011)
    labels = [axis.label(tick) for tick in axis.ticks()]
    assert len(set(labels)) == len(labels), "no two ticks look alike"


def test_size_axis_is_logarithmic() -> None:
    axis = SizeAxis.around([8 * MB, 512 * MB])
    assert axis.at(8 * MB) == 0.0
    assert axis.at(64 * MB) == pytest.approx(0.5)
    assert axis.ticks(9) == [size * MB for size in (8, 16, 32, 64, 128, 256, 512)]
    assert len(axis.ticks(3)) <= 3
    assert SizeAxis.around([64 * MB]).at(64 * MB) == pytest.approx(0.5)


def test_interpolate() -> None:
    assert interpolate([0, 1, 2], [0, 10, 10], 0.5) == 5
    assert interpolate([0, 1, 2], [0, 10, 10], 2) == 10
    assert interpolate([0, 1], [0, 1], 1.5) is None
    assert interpolate([], [], 0) is None


def test_table_aligns_and_marks() -> None:
    fields = [Field("size", ["8 MB"]), Field("ratio\n%", ["1.5"]), Field("", [""], left=True)]
    text = table(fields, PLAIN)
    assert text.split("\n") == ["      ratio", "size      %", "8 MB    1.5"]


def test_sizes_beyond_all_that_is_used_are_one_row() -> None:
    def lines(misses: Sequence[str], marked: int | None = None) -> list[str]:
        columns: list[Column[tuple[str, str]]] = [
            Column("size", lambda row: row[0]),
            Column("misses", lambda row: row[1]),
        ]
        rows = list(zip(["1 MB", "2 MB", "4 MB", "8 MB"], misses, strict=True))
        return Table(columns, rows, marked, by_size=True).text(PLAIN).splitlines()

    assert lines(["5", "0", "0", "0"])[-1].split() == ["2", "MB", "to", "8", "MB", "0"]
    assert len(lines(["5", "0", "0", "0"], marked=2)) == 5, "today's stays a row of its own"
    assert len(lines(["5", *["not known"] * 3])) == 5


def test_chart_marks_every_point_and_today() -> None:
    text = chart(predict_series(predict_result()), PLAIN, today_bytes=64 * MB)
    body = text.split("└")[0]
    assert body.count("●") == 5, "the sixth lies under the measured mark"
    assert body.count("◆") == 1
    assert "▲ today 64 MB" in text
    assert "16 MB" in text
    assert "512 MB" in text
    assert all(len(line) <= 80 for line in text.split("\n"))


def test_chart_falls_back_to_ascii() -> None:
    text = chart(predict_series(predict_result()), Terminal(width=70, unicode=False), today_bytes=64 * MB)
    assert text.isascii()
    assert text.split("\n+-")[0].count("o") >= 5
    assert "^ today 64 MB" in text


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_chart_keeps_to_its_width(width: int) -> None:
    text = chart(predict_series(predict_result()), Terminal(width=width), today_bytes=512 * MB)
    plot = [line for line in text.split("\n") if "│" in line or "┤" in line or "└" in line]
    assert max(len(line) for line in plot) <= width


def test_chart_of_no_misses_and_of_one_size() -> None:
    flat = Series("trace", "predicted", [8 * MB, 16 * MB], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0])
    assert "0.00%" in chart([flat], PLAIN)
    assert "▲" in chart([Series("trace", "predicted", [8 * MB], [0.5])], PLAIN, today_bytes=8 * MB)


def test_predict_text_says_what_is_measured_and_what_predicted() -> None:
    text = to_text(predict_result(), PLAIN)
    assert "Measured there: shared_buffers 64 MB, 3 000 000 accesses, miss ratio 15.00%" in text
    assert re.search(r"64 MB +15.00% +14.40 to 15.60% +15 000 +◀ today", text)
    assert "✓ The prediction is reliable" in text
    assert "3% more misses" in text


def test_a_rough_prediction_says_so_in_words() -> None:
    text = to_text(predict_result(level="rough"), Terminal(unicode=False))
    assert "The prediction is rough" in text
    assert "14.40 to 15.60%" in text


def test_text_without_a_server_behind_the_trace() -> None:
    base = predict_result(source="import")
    observed = msgspec.structs.replace(base.observed, shared_buffers_bytes=0, seconds=0.0)
    text = to_text(msgspec.structs.replace(base, observed=observed), PLAIN)
    assert "today" not in text
    assert "an imported trace" in text


def test_text_of_a_refused_prediction_has_its_reason_and_no_numbers() -> None:
    text = to_text(predict_result(level="refused"), PLAIN)
    assert "✗ No prediction" in text
    assert "3% more misses" in text
    assert "interval" not in text


def test_demo_text_names_every_column_and_the_misses_of_the_interval() -> None:
    text = to_text(demo_result(), PLAIN)
    for word in ("predicted", "measured", "(snapshots)", "(trace)", "error"):
        assert word in text
    assert "outside the interval of snapshots" in text
    assert "trace: mean error 0.10, worst 0.10 percentage points" in text
    assert "note: no trace of zipf: not root" in text


def test_record_text() -> None:
    text = to_text(record_result(), PLAIN)
    assert "overhead, measured  21.00%" in text
    assert "lost events         0" in text
    assert "warning: the server was restarted" in text


def test_terminal_heeds_the_environment() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    assert not Terminal.of(stream).colour
    assert Terminal.of(stream, "always").colour
    assert Terminal.of(stream, "auto", {"FORCE_COLOR": "1"}).colour
    assert not Terminal.of(stream, "auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}).colour
    assert Terminal.of(stream, "auto", {"PG_COLOR": "always"}).colour
    assert not Terminal.of(stream, "never", {"FORCE_COLOR": "1"}).colour
    assert Terminal.of(stream).unicode
    assert not Terminal.of(io.TextIOWrapper(io.BytesIO(), encoding="ascii")).unicode


def test_colour_changes_no_word() -> None:
    coloured = to_text(demo_result(), Terminal(width=80, colour=True))
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == to_text(demo_result(), PLAIN)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (6.7e-07, "below 0.001"),
        (0.0123, "0.012"),
        (0, "0"),
        (9.96, "10"),
        (123.4, "123"),
        (12345, "12 345"),
        (5_000_000, "5 000 000"),
    ],
)
def test_numbers_have_one_thousands_separator_and_no_powers_of_ten(value: float, text: str) -> None:
    assert numbers.count(value) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1536 << 10, "1.5 MB"),
        (round(999.4 * (1 << 20)), "999 MB"),
        (round(999.7 * (1 << 20)), "1000 MB"),
        (round(1023.4 * (1 << 20)), "1023 MB"),
        (round(1023.9 * (1 << 20)), "1 GB"),
        (5000 << 40, "5000 TB"),
    ],
)
def test_sizes_have_three_digits_and_no_powers_of_ten(size: int, text: str) -> None:
    assert numbers.format_bytes(size) == text


def test_short_waits_of_advice_have_no_powers_of_ten() -> None:
    result = advice_result()
    points = [
        msgspec.structs.replace(point, wait_ratio=4.14e-06, wait_low=1.2e-07, wait_high=1.2345)
        for point in result.points
    ]
    text = to_text(msgspec.structs.replace(result, points=points), PLAIN)
    assert "waiting" in text and "ms/s" in text
    assert "0.004  0 to 1 234" in re.sub(r" {3,}", "  ", text)


def test_no_module_formats_thousands_or_powers_of_ten_by_itself() -> None:
    """`{n:,}` writes another separator; `{n:g}` and `{n:.3g}` write 5e+06 and 6.7e-07."""
    sources = Path(pgsweep.__file__).parent
    found = []
    for path in sources.rglob("*.py"):
        # Coordinates in pictures, and pgbench's own options.
        if path.name in ("units.py", "svg.py", "plot.py", "served.py", "pgbench.py"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"\{[^{}]*:(,|\.\d+g\}|g\})", line):
                found.append(f"{path.relative_to(sources)}:{number}: {line.strip()}")
    # Options, values of files that are refused, values of CSV, and one within bounds.
    allowed = (
        *("{every:g}", "{COPY_SECONDS:g}", "{ROUND_SECONDS:g}", "asked_seconds:g", "{schedule.seconds:g}"),
        *("evidence/checks.py:", "ui/kit/sound.py:", "{run:.6g}", "{heat:.3g}"),
    )
    assert [line for line in found if not any(word in line for word in allowed)] == []


def test_numbers_that_can_be_large_have_their_thousands_apart() -> None:
    """`{result.blocks} blocks` writes 1048576."""
    sources = Path(pgsweep.__file__).parent
    units = "blocks|buffers|pages|bytes|connections|processes|relations|rows|huge pages"
    plain = re.compile(rf"\{{\w+(?:\.\w+)+\}} (?:{units})\b")
    found = [
        f"{path.relative_to(sources)}:{number}: {line.strip()}"
        for path in sources.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if plain.search(line) and "block_size_bytes}" not in line
    ]
    # Values of settings, and numbers of damaged files.
    files = (
        "lab/steps.py",
        "host/cgroup.py",
        "evidence/oracle_general.py",
        "evidence/reader.py",
        "advice/apply.py",
    )
    allowed = tuple(f"{file}:" for file in files)
    assert [line for line in found if not any(word in line for word in allowed)] == []


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_plan_to_warm_is_no_wider_than_the_terminal(width: int) -> None:
    """The reason stays beside the sizes where there is room for it, in as many lines as it takes."""
    result = read_result(SEEDS / "result" / "warm.json")
    assert isinstance(result, WarmResult)
    why = "index; no index of its table was used yet, so as hot as the table: 155"
    row = msgspec.structs.replace(result.relations[0], relation="customer_orders_2024_pkey", why=why)
    text = to_text(
        msgspec.structs.replace(result, relations=[row, row]), Terminal(width=width, interactive=True)
    )
    assert max(len(line) for line in text.splitlines()) <= width, text
    assert "customer_orders_2024_pkey" in text
    assert ("no index of" in " ".join(text.split())) == (width == 120)
    assert len([line for line in text.splitlines() if "customer_orders_2024_pkey" in line]) == 2
    assert "\n\n    2  " not in text
    assert why in to_text(msgspec.structs.replace(result, relations=[row]), Terminal(width=width))
