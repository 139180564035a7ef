"""Which settings follow from what is known, and how they are written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pgsweep.advice.apply import to_apply
from pgsweep.advice.candidates import candidates
from pgsweep.advice.situation import rounded_down
from pgsweep.commands import sudo
from pgsweep.errors import UsageError
from pgsweep.records.advice import AdviceResult, AdvisedSetting
from pgsweep.records.prediction import (
    NoEviction,
    RelationCurve,
    RelationReads,
    Throughput,
    ThroughputPoint,
)
from pgsweep.sizing.page_cache.memory_shares import MemoryFacts
from pgsweep.ui.forms import patch
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.advice import VIEW
from pgsweep.ui.views.advised import gain_text
from pgsweep.units import as_setting, format_count
from tests.fix_advice import GB, MB, SETTINGS, advised, facts, growing, pages, refusing, situation
from tests.fix_memory import budget_of, seen
from tests.fix_results import cells_of, heads_of


def of(result: AdviceResult, name: str) -> AdvisedSetting:
    [found] = [one for one in result.settings if one.name == name]
    return found


def test_libraries_that_the_role_did_not_see_are_not_said_to_be_missing() -> None:
    """Only members of pg_read_all_settings, and so of pg_monitor, see shared_preload_libraries."""
    unseen = {name: value for name, value in SETTINGS.items() if name != "shared_preload_libraries"}
    warming = of(advised(replace(growing(), settings=unseen)), "warm-up")
    assert warming.action == "set"
    assert "whether pg_prewarm brings it back by itself (autoprewarm) is not known" in warming.reason
    assert "autoprewarm" not in of(advised(growing()), "warm-up").reason


def test_a_certain_gain_is_advised_with_its_interval_and_its_undo() -> None:
    result = advised(growing())
    size = of(result, "shared_buffers")
    assert (size.today, size.value, size.action) == ("1GB", "4GB", "set")
    assert (size.kind, size.takes_effect) == ("predicted", "restart")
    assert size.undo == "ALTER SYSTEM SET shared_buffers = '1GB'"
    assert size.gain is not None
    # 9000 disk reads and 11 000 copies against 3000 and 2000.
    assert size.gain.value == pytest.approx(1 - (0.3 + 0.004) / (0.9 + 0.022))
    assert 0.6 < size.gain.low < size.gain.value < size.gain.high < 0.75
    assert result.decision == "change"
    assert result.summary.startswith("Set shared_buffers = 4GB")
    warm = of(result, "warm-up")
    assert warm.value is not None
    assert "public.orders 700 MB" in warm.reason


def test_the_nearest_of_sizes_that_save_as_much() -> None:
    """6.4 GB save a little more than 4 GB, which take less from everything else."""
    assert of(advised(growing()), "shared_buffers").value == "4GB"


@pytest.mark.parametrize(
    ("disk", "width", "words"),
    [
        ({GB: 9_000.0, 4 * GB: 8_900.0}, 0.01, "no size is expected to save 5%"),
        ({GB: 9_000.0, 4 * GB: 6_000.0}, 0.4, "the gain is not certain: 4 GB"),
        ({GB: 9_000.0, 4 * GB: 12_000.0}, 0.01, "no size is expected to save 5%"),
        ({GB: 10.0, 4 * GB: 0.0}, 0.01, "there is nothing to gain"),
        ({GB: 9_000.0}, 0.01, "no other size is possible within the memory"),
    ],
)
def test_leave_it(disk: dict[int, float], width: float, words: str) -> None:
    misses = {size: max(reads, 20) / 100_000 for size, reads in disk.items()}
    result = advised(situation(misses, disk, width=width))
    size = of(result, "shared_buffers")
    assert (size.action, size.value, size.gain) == ("leave", None, None)
    assert words in size.reason
    assert of(result, "warm-up").action == "leave"


@pytest.mark.parametrize(
    ("ratio", "low", "high", "value", "words"),
    [
        (1.08, 1.03, 1.13, "4GB", "misses"),
        (1.08, 0.99, 1.16, None, "and expected to raise it by at least 2%; the best, 4 GB"),
        (1.01, 1.005, 1.02, None, "would change it by +0% to +2%"),
    ],
)
def test_a_throughput_that_is_predicted_decides(
    ratio: float, low: float, high: float, value: str | None, words: str
) -> None:
    """Though sessions would wait no less for reads: a disk read takes processor time too."""
    known = situation({GB: 0.2, 4 * GB: 0.1}, {GB: 9_000.0, 4 * GB: 8_950.0})
    assert known.prediction.memory is not None
    loop = Throughput(
        points=[
            ThroughputPoint(shared_buffers_bytes=GB, ratio=1.0, low=1.0, high=1.0),
            ThroughputPoint(shared_buffers_bytes=4 * GB, ratio=ratio, low=low, high=high),
        ],
        reasons=[],
    )
    memory = msgspec.structs.replace(known.prediction.memory, throughput=loop)
    known = replace(known, prediction=msgspec.structs.replace(known.prediction, memory=memory))
    size = of(advised(known), "shared_buffers")
    assert size.value == value
    assert words in size.reason
    if value is not None:
        assert size.gain is not None
        assert size.gain.of == "throughput"
        assert size.gain.value == pytest.approx(0.08)


def test_a_refused_prediction_advises_no_size() -> None:
    """All forms of the result say that it is not known, why, and what to record; none says to leave it."""
    result = advised(refusing())
    size = of(result, "shared_buffers")
    assert (result.decision, size.action, size.value) == ("unknown", "unknown", None)
    words = "is not known, because no prediction is possible: the load moves; it is short. Record"
    assert words in result.summary
    assert result.summary.endswith(size.reason)
    text = VIEW.text(result, Terminal(width=100, unicode=False))
    assert text.startswith("What shared_buffers should be is not known, because no prediction is possible")
    assert "pgsweep record --source trace" in text
    assert "shared_buffers: not known (today 1GB)" in text
    assert VIEW.page(result).title.startswith("What shared_buffers should be is not known")
    pasted = patch(result, "alter-system")
    assert "What shared_buffers should be is not known" in pasted
    for said in (text, pasted, VIEW.page(result).title):
        assert "leave shared_buffers" not in said.lower()
        assert not said.startswith("Leave")
    with pytest.raises(UsageError, match="what shared_buffers should be is not known"):
        to_apply(result)


def test_what_the_caches_hold_is_not_advised_from_a_refused_prediction() -> None:
    result = advised(refusing(settings={**SETTINGS, "effective_cache_size": "1024"}))
    assert result.decision == "unknown"
    assert (of(result, "effective_cache_size").action, of(result, "shared_buffers").action) == (
        "unknown",
        "unknown",
    )


def test_what_follows_from_a_named_memory_alone_is_advised() -> None:
    settings = {**SETTINGS, "effective_cache_size": "1024"}
    result = advised(refusing(settings=settings, memory_named=True))
    assert (result.decision, of(result, "shared_buffers").action) == ("unknown", "unknown")
    assert of(result, "effective_cache_size").action == "set"
    assert result.summary.startswith("What shared_buffers should be is not known"), "a gain, or no headline"
    assert "Leave" not in result.summary


def test_other_settings_are_advised_where_the_size_is_not_known() -> None:
    few = msgspec.structs.replace(budget_of(seen(2 * GB), 1000), connections=10)
    settings = {**SETTINGS, "max_connections": "1000"}
    result = advised(refusing(settings=settings, budget=few))
    assert (result.decision, of(result, "shared_buffers").action) == ("unknown", "unknown")
    assert result.summary.startswith("Set max_connections = ")
    assert "(a restart). What shared_buffers should be is not known, because no prediction" in result.summary
    assert "Leave" not in result.summary


def test_a_refused_trace_is_to_be_recorded_for_longer() -> None:
    known = refusing()
    known = replace(known, prediction=msgspec.structs.replace(known.prediction, source="trace"))
    reason = of(advised(known), "shared_buffers").reason
    assert reason.endswith("pgsweep record --source trace --for 2m")


def test_what_was_never_used_is_named() -> None:
    known = situation({GB: 0.00001}, {GB: 0.1})
    calm = NoEviction(
        used_bytes=300 * MB,
        removable_bytes=724 * MB,
        known_from_bytes=300 * MB,
        known_below_bytes=None,
        filling_bytes=0,
        unknown_bytes=[],
    )
    known = replace(known, prediction=msgspec.structs.replace(known.prediction, no_eviction=calm))
    size = of(advised(known), "shared_buffers")
    assert size.action == "leave"
    assert "724 MB of shared_buffers held no page" in size.reason


class TestSnapshots:
    """Disk reads are only bounded."""

    def test_data_that_fit_into_the_page_cache_are_not_read(self) -> None:
        # All misses are copies: with eight times the pool there are nearly none.
        misses = {GB: 0.2, 4 * GB: 0.001}
        known = situation(misses, data_bytes=5 * GB, per_second=1e6)
        result = advised(known)
        assert result.disk_reads_from == "bounded"
        assert [point.disk_reads_high for point in result.points] == [0, 0]
        assert of(result, "shared_buffers").value == "4GB"
        assert of(result, "shared_buffers").kind == "assumed"

    def test_wide_bounds_leave_it(self) -> None:
        result = advised(situation({GB: 0.2, 4 * GB: 0.1}))
        now = result.points[0]
        assert now.disk_reads_low == 0
        assert now.disk_reads_high == pytest.approx(21_000)
        assert of(result, "shared_buffers").action == "leave"
        assert "a trace" in of(result, "shared_buffers").reason

    def test_without_the_memory_nothing_is_known_of_the_disk(self) -> None:
        result = advised(situation({GB: 0.2, 4 * GB: 0.1}, facts=None, memory_bytes=None))
        assert result.disk_reads_from == "unknown"
        assert "--ram" in of(result, "shared_buffers").reason
        assert result.rules[0].says == "the memory is not known"
        assert of(result, "effective_cache_size").action == "unknown"


def test_rules_of_thumb_are_priced() -> None:
    result = advised(growing())
    rules = {rule.name: rule for rule in result.rules}
    assert rules["25% of the memory"].shared_buffers_bytes == 4 * GB
    gain = rules["25% of the memory"].gain
    assert gain is not None
    assert gain == of(result, "shared_buffers").gain
    assert "effective_cache_size 12 GB, huge_pages off" in rules["PGTune"].says
    assert rules["hit ratio over 99%"].says == "80.00% today, and at no size considered over 99%"
    assert rules["usage counts of 4 and 5"].shared_buffers_bytes == 700 * MB
    often = rules["usage counts of 4 and 5"].gain
    assert often is not None
    assert often.low <= often.value <= often.high
    # 9300 disk reads and 15 700 copies against 9000 and 11 000.
    assert often.value == pytest.approx(1 - (0.93 + 0.0314) / (0.9 + 0.022))
    text = VIEW.text(result, Terminal(width=100, unicode=False))
    assert "waiting for" in text.split("rules of thumb say")[1].split("Reads by size")[0]


def test_rules_are_priced_by_throughput_where_that_is_predicted() -> None:
    """As the decision is; the header says so."""
    known = growing()
    assert known.prediction.memory is not None
    ratios = {512 * MB: 0.9, 700 * MB: 0.95, GB: 1.0, 4 * GB: 1.2, 6528 * MB: 1.21}
    loop = Throughput(
        points=[
            ThroughputPoint(shared_buffers_bytes=size, ratio=ratio, low=ratio - 0.03, high=ratio + 0.04)
            for size, ratio in ratios.items()
        ],
        reasons=[],
    )
    memory = msgspec.structs.replace(known.prediction.memory, throughput=loop)
    known = replace(known, prediction=msgspec.structs.replace(known.prediction, memory=memory))
    result = advised(known)
    rules = {rule.name: rule.gain for rule in result.rules}
    for name, change in (("25% of the memory", 0.2), ("usage counts of 4 and 5", -0.05)):
        gain = rules[name]
        assert gain is not None
        assert gain.of == "throughput"
        assert gain.value == pytest.approx(change)
        assert gain.low == pytest.approx(change - 0.03)
    section = VIEW.page(result).sections[2]
    assert heads_of(section)[2:] == ["throughput predicted"]
    gained = cells_of(section)[0][2]
    assert (gained.text, gained.note) == ("+20%", "+17% to +24%")
    text = VIEW.text(result, Terminal(width=100, unicode=False))
    table = text.split("rules of thumb say")[1].split("Reads by size")[0]
    assert "throughput" in table
    assert "waiting" not in table


def test_a_size_of_a_rule_is_priced_but_not_advised() -> None:
    """It is no size that people set, even where it is the best by a little."""
    sizes = candidates(GB, 16 * GB, facts(), 700 * MB + 8192)
    assert 700 * MB + 8192 in sizes
    assert min(candidates(GB, 16 * GB, facts(), 16384)) == 128 << 10, "the least that a server takes"
    assert min(candidates(GB, 16 * GB, facts())) > 8 * MB
    misses = {128 << 10: 0.2, GB: 0.2, 2 * GB + 8192: 0.05, 4 * GB: 0.05}
    disk = {128 << 10: 2_000.0, GB: 9_000.0, 2 * GB + 8192: 2_900.0, 4 * GB: 3_000.0}
    assert of(advised(situation(misses, disk)), "shared_buffers").value == "4GB"


def test_warming_is_priced_by_the_reads_that_it_saves() -> None:
    """1000 MB are 128 000 blocks, 700 MB of them accessed again since they were read."""
    gain = of(advised(growing()), "warm-up").gain
    assert gain is not None
    assert gain.unit == "seconds"
    # No block lies in both caches: at the most all are read from disk, each in 100 microseconds.
    assert gain.value == gain.high == pytest.approx(12.8)
    assert gain.low == pytest.approx(700 * 128 * 100e-6)
    assert "13 s less waiting for reads after the restart (9.0 s to 13 s)" in gain_text(gain)
    # From snapshots it is not known what lies in both: all of it, or nothing.
    bounded = of(advised(situation({GB: 0.2, 4 * GB: 0.001}, data_bytes=5 * GB, per_second=1e6)), "warm-up")
    assert bounded.gain is not None
    assert bounded.kind == "assumed"
    assert bounded.gain.low == pytest.approx(700 * 128 * 2e-6)
    assert bounded.gain.high == pytest.approx(12.8)
    assert bounded.gain.low < bounded.gain.value < bounded.gain.high


def test_what_gains_no_throughput_says_what_it_is_for() -> None:
    result = advised(replace(growing(), budget=budget_of(seen()), huge_pages=pages(saved=GB, status="on")))
    for name in ("effective_cache_size", "max_connections", "vm.nr_hugepages"):
        one = of(result, name)
        assert one.gain is None
        assert one.purpose
        assert f"No gain in throughput is expected: {one.purpose}." in patch(result, "alter-system").replace(
            "\n--     ", " "
        )
    assert "page tables would take 1 GB to 2 GB more without them" in of(result, "huge_pages").reason
    rows = {row[0].text: row for row in cells_of(VIEW.page(result).sections[1])}
    assert rows["effective_cache_size"][3].note.startswith("it only informs the planner")
    assert rows["effective_cache_size"][5].text == "no gain in throughput"
    unknown = of(advised(growing()), "max_connections")
    assert (unknown.action, unknown.purpose) == ("unknown", "")


def test_page_has_what_each_relation_gains() -> None:
    """9000 disk reads a second at 1 GB, 3000 at 4 GB: 2000 for each added gigabyte, with its interval."""
    known = growing()
    assert known.prediction.memory is not None
    reads = {512 * MB: 9_500.0, GB: 9_000.0, 4 * GB: 3_000.0}
    curve = RelationCurve(
        name="public.orders",
        points=[
            RelationReads(
                shared_buffers_bytes=size,
                misses_per_second=2 * count,
                disk_reads_per_second=count,
                disk_reads_low=count - 300,
                disk_reads_high=count + 300,
            )
            for size, count in reads.items()
        ],
    )
    memory = msgspec.structs.replace(known.prediction.memory, relations=[curve])
    result = advised(replace(known, prediction=msgspec.structs.replace(known.prediction, memory=memory)))
    [section] = [one for one in VIEW.page(result).sections if one.ident == "relations"]
    assert heads_of(section) == [
        "relation",
        "disk reads per second at 1 GB",
        "512 MB to 1 GB",
        "1 GB to 4 GB",
    ]
    [row] = cells_of(section)
    assert [(cell.text, cell.note) for cell in row] == [
        ("public.orders", ""),
        ("9 000", "8 700 to 9 300"),
        ("1 000", "-200 to 2 200"),
        ("2 000", "1 800 to 2 200"),
    ]
    assert "relations" not in [one.ident for one in VIEW.page(advised(growing())).sections]


def test_effective_cache_size_is_what_both_caches_hold() -> None:
    result = advised(growing())
    planner = of(result, "effective_cache_size")
    assert (planner.today, planner.value, planner.takes_effect) == ("4GB", "15104MB", "reload")
    shared = of(advised(replace(growing(), facts=replace(facts(), other_files_bytes=2 * GB))), planner.name)
    assert shared.value == planner.value, "what is likely, not the least"
    assert "(at least 8." in shared.reason
    near = replace(growing(), settings={**growing().settings, "effective_cache_size": str(14 * GB // 8192)})
    assert of(advised(near), "effective_cache_size").action == "leave"


def test_huge_pages_where_page_tables_are_large() -> None:
    result = advised(replace(growing(), huge_pages=pages(saved=GB)))
    kernel = of(result, "vm.nr_hugepages")
    assert (kernel.value, kernel.where, kernel.undo) == (
        "2200",
        "kernel",
        f"{sudo()}sysctl -w vm.nr_hugepages=0",
    )
    assert kernel.gain is not None
    assert kernel.gain.value == GB
    assert of(result, "huge_pages").action == "leave", "try takes them"
    small = advised(replace(growing(), huge_pages=pages(saved=10 * MB)))
    assert [one.name for one in small.settings if "huge" in one.name] == ["huge_pages"]
    used = advised(replace(growing(), huge_pages=pages(saved=GB, status="on")))
    assert of(used, "vm.nr_hugepages").value == "2200"
    forbidden = advised(replace(growing(), huge_pages=pages(saved=GB, limit=0)))
    assert of(forbidden, "huge_pages").action == "leave"
    assert "hugetlb cgroup" in of(forbidden, "huge_pages").reason
    assert not any(one.where in ("cgroup", "kernel") for one in forbidden.settings)


@pytest.mark.parametrize(
    ("setting", "limit", "available", "words"),
    [
        ("on", ".rsvd", 0, "does not start"),
        ("on", "", 2200, "is killed"),
        ("try", "", 2200, "is killed"),
        ("try", "", 0, None),  # mapping is refused already
        ("try", ".rsvd", 2200, None),
        ("off", "", 2200, None),
    ],
)
def test_what_a_limit_of_huge_pages_would_stop_is_not_applied(
    setting: str, limit: str, available: int, words: str | None
) -> None:
    found = msgspec.structs.replace(
        pages(saved=GB, limit=4 * MB),
        available=available,
        after_stop=available,
        binding_limit=f"/pod/hugetlb.2MB{limit}.max",
    )
    settings = {**growing().settings, "huge_pages": setting}
    result = advised(replace(growing(), huge_pages=found, settings=settings))
    limits = [one for one in result.settings if one.where == "cgroup"]
    assert [one.name for one in limits] == ([] if words is None else [f"hugetlb.2MB{limit}.max"])
    if words is None:
        assert "shared_buffers" in to_apply(result) or setting == "on"
        return
    assert words in of(result, "huge_pages").reason
    assert limits[0].value == str(2200 * 2 * MB)
    with pytest.raises(UsageError, match="of the server's cgroup"):
        to_apply(result)


def test_surplus_pages_are_not_set_aside() -> None:
    """They come and go by themselves: they are neither what there is today nor what undo puts back."""
    found = pages(saved=GB)
    pool = msgspec.structs.replace(found.pools[0], total=900, surplus=800)
    result = advised(replace(growing(), huge_pages=msgspec.structs.replace(found, pools=[pool])))
    kernel = of(result, "vm.nr_hugepages")
    assert (kernel.today, kernel.undo) == ("100", f"{sudo()}sysctl -w vm.nr_hugepages=100")


def test_connections_come_from_the_budget() -> None:
    budget = budget_of(seen())
    found = of(advised(replace(growing(), budget=budget)), "max_connections")
    assert f"{format_count(budget.possible_connections)} connections like today's fit" in found.reason
    assert "pooler" not in found.reason
    none = budget_of(seen(GB))
    assert none.possible_connections < none.connections
    found = of(advised(replace(growing(), budget=none)), "max_connections")
    assert (found.action, found.value) == ("leave", None)
    assert "the memory does not suffice" in found.reason
    assert "use a connection pooler" in found.reason
    assert of(advised(growing()), "max_connections").action == "unknown"


def test_statements_and_lines_to_paste() -> None:
    result = advised(growing())
    statements = [line for line in patch(result, "alter-system").splitlines() if not line.startswith("--")]
    assert "ALTER SYSTEM SET shared_buffers = '4GB';" in statements
    assert statements[-1] == "SELECT pg_catalog.pg_reload_conf();"
    lines = [
        line for line in patch(result, "postgresql.conf").splitlines() if line and not line.startswith("#")
    ]
    assert lines[0] == "shared_buffers = '4GB'"
    left = advised(situation({GB: 0.2}, {GB: 9_000.0}, settings={}))
    assert all(not line or line.startswith("--") for line in patch(left, "alter-system").splitlines())


def test_text_and_page_lead_with_the_decision() -> None:
    result = advised(growing())
    text = VIEW.text(result, Terminal(width=100, unicode=False))
    assert text.startswith("Set shared_buffers = 4GB")
    assert "< advised" in text
    assert "(predicted)" in text
    page = VIEW.page(result)
    assert page.title.startswith("Set shared_buffers = 4GB")
    assert [section.ident for section in page.sections] == [
        "served",
        "settings",
        "rules",
        "reads",
        "observed",
    ]
    assert all(len(row) == len(heads_of(section)) for section in page.sections for row in cells_of(section))


@pytest.mark.parametrize(
    ("size", "text"), [(12 * GB, "12GB"), (1536 * MB, "1536MB"), (128 << 10, "128kB"), (17 * GB + 5, "17GB")]
)
def test_sizes_are_written_as_settings(size: int, text: str) -> None:
    assert as_setting(rounded_down(size)) == text


def test_candidates_leave_a_page_cache() -> None:
    sizes = candidates(GB, 16 * GB, facts())
    assert GB in sizes
    assert 4 * GB in sizes
    assert rounded_down(round(0.4 * 16 * GB)) in sizes
    assert max(sizes) <= 0.8 * 16 * GB
    full: MemoryFacts = replace(facts(), other_bytes=14 * GB)
    assert max(candidates(GB, 16 * GB, full)) < 2 * GB
    assert max(candidates(GB, None, None)) == 8 * GB


def test_it_is_no_result_of_a_trace_without_a_server(tmp_path: Path) -> None:
    from pgsweep.advice.ask import advise

    path = tmp_path / "x.oracleGeneral"
    path.touch()
    with pytest.raises(UsageError, match="a trace without its server"):
        advise(path)
