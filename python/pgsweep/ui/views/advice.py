"""Settings advised: as text, as a page and as rows."""

from __future__ import annotations

import textwrap
from typing import Final

from pgsweep.plain import sentence
from pgsweep.records.advice import AdviceResult, AdvisedSetting, ReadsPoint, RuleOfThumb
from pgsweep.ui.forms import patch
from pgsweep.ui.kit.missing import missing_lines
from pgsweep.ui.kit.numbers import count, factor, factors, format_bytes, millis, percent, seconds
from pgsweep.ui.kit.section import Fact, Page, Section
from pgsweep.ui.kit.series import SOURCES
from pgsweep.ui.kit.table import HERE, PREDICTED, Cell, Column, Measured, Table, predicted
from pgsweep.ui.kit.terminal import Paint, Terminal
from pgsweep.ui.kit.view import View, listed
from pgsweep.ui.views.advised import ACTIONS, about, change, gain_text
from pgsweep.ui.views.prediction import verdict_text
from pgsweep.ui.views.relation_reads import relations_section
from pgsweep.ui.views.served import Loop, Served, served_section
from pgsweep.units import as_setting, format_percent

_BASIS: Final = {
    "simulated": "simulated from the recording",
    "bounded": "bounded from the misses and the memory",
    "unknown": "not known",
}


def advice_text(result: AdviceResult, terminal: Terminal) -> str:
    """Return the decision, the settings with their reasons, the rules of thumb, and what it rests on."""
    width = min(terminal.width, 110)
    parts = ["\n".join(textwrap.wrap(sentence(result.summary), width)), _settings(result, width, terminal)]
    pasted = patch(result, "alter-system", comments=False)
    if pasted:
        parts.append("To paste:\n" + textwrap.indent(pasted.rstrip(), "  "))
    parts.append(
        "What rules of thumb say, and what that would change here:\n" + _rules(result).text(terminal)
    )
    if result.points:
        parts.append(
            f"Reads by size, predicted; disk reads {_BASIS[result.disk_reads_from]}:\n"
            + _reads(result).text(terminal)
        )
    parts.append(_remarks(result, width))
    parts.append(verdict_text(result.verdict, terminal))
    return "\n\n".join(parts + missing_lines(result.missing, terminal)) + "\n"


def _settings(result: AdviceResult, width: int, terminal: Terminal) -> str:
    lines = []
    for one in result.settings:
        what = f"{one.name}: {ACTIONS[one.action]}"
        if one.action == "set":
            what = f"{one.name}: {one.value}"
        paint: Paint | None = "bold" if one.action == "set" else "dim" if one.action == "unknown" else None
        today = "" if one.today is None else f" (today {one.today})"
        lines.append((terminal.paint(what, paint) if paint else what) + today)
        # Where a prediction is refused, the summary has just said why.
        said = one.action == "unknown" and one.reason in result.summary
        for text in about(one)[said:]:
            lines += textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _rules(result: AdviceResult) -> Table[RuleOfThumb]:
    throughput = _by_throughput(result)
    columns: list[Column[RuleOfThumb]] = [
        Column("rule", lambda rule: rule.name, left=True),
        Column("says", lambda rule: rule.says, left=True),
        *predicted(
            "throughput\npredicted" if throughput else "waiting for\nreads, predicted",
            lambda rule: _rule_cells(result, rule),
        ),
    ]
    return Table(columns, result.rules)


def _by_throughput(result: AdviceResult) -> bool:
    """Return whether the rules are priced by throughput, not by the time that sessions wait for reads."""
    return any(rule.gain is not None and rule.gain.of == "throughput" for rule in result.rules)


def _rule_cells(result: AdviceResult, rule: RuleOfThumb) -> tuple[str, str]:
    gain = rule.gain
    if gain is not None and gain.of == "throughput":
        value, low, high = (format_percent(one, sign=True) for one in (gain.value, gain.low, gain.high))
        return value, f"{low} to {high}"
    if gain is not None:
        waiting = " waiting for reads" if _by_throughput(result) else ""
        return f"{change(gain.value)}{waiting}", f"{change(gain.high)} to {change(gain.low)}"
    if rule.shared_buffers_bytes == result.observed.shared_buffers_bytes:
        return "as today", ""
    return "not known", ""


def _reads(result: AdviceResult) -> Table[ReadsPoint]:
    def disk(point: ReadsPoint) -> tuple[str, str]:
        known = result.disk_reads_from == "simulated"
        interval = f"{count(point.disk_reads_low)} to {count(point.disk_reads_high)}"
        return count(point.disk_reads_per_second) if known else "", interval

    points = result.points
    columns: list[Column[ReadsPoint]] = [
        Column("shared_buffers", lambda point: format_bytes(point.shared_buffers_bytes)),
        Column("misses/s\npredicted", lambda point: count(point.misses_per_second), rank=5, group=PREDICTED),
        *predicted("disk\nreads/s", disk, 2, 3),
        *predicted("waiting\nms/s", _waiting, 4, 6),
    ]
    if any(_throughput(point)[0] for point in points):
        columns += predicted("throughput\npredicted", _throughput)
    sizes = [point.shared_buffers_bytes for point in points]
    today, advised = result.observed.shared_buffers_bytes, _advised(result)
    names = [(today, "today"), (advised, "advised")]
    words = [", ".join(word for at, word in names if at == size) for size in sizes]
    best = advised or today
    marked = sizes.index(best) if best in sizes else None
    return Table(columns, points, marked, [f"{HERE}{word}" if word else "" for word in words], by_size=True)


def _throughput(point: ReadsPoint) -> tuple[str, str]:
    """Return the throughput as a ratio to today's, and its interval."""
    ratio, low, high = point.throughput_ratio, point.throughput_low, point.throughput_high
    if ratio is None or low is None or high is None:
        return "", ""
    return factor(ratio), factors(low, high)


def _waiting(point: ReadsPoint) -> tuple[str, str]:
    return millis(point.wait_ratio), f"{millis(point.wait_low)} to {millis(point.wait_high)}"


def _advised(result: AdviceResult) -> int | None:
    """Return the size advised where it is another one than today's."""
    value = next((one.value for one in result.settings if one.name == "shared_buffers"), None)
    if value is None:
        return None
    return next(
        (p.shared_buffers_bytes for p in result.points if as_setting(p.shared_buffers_bytes) == value), None
    )


def _remarks(result: AdviceResult, width: int) -> str:
    observed = result.observed
    source = SOURCES.get(result.source, result.source)
    lines = [f"It rests on {source}, {seconds(observed.seconds)} long ({result.evidence}):"]
    for remark in result.remarks:
        lines += textwrap.wrap(
            remark,
            width,
            initial_indent="  - ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def advice_page(result: AdviceResult) -> Page:
    """Return the decision as the headline; the settings, the rules of thumb and the sizes as tables."""
    title = sentence(result.summary)
    lead = f"From {SOURCES.get(result.source, result.source)}, {seconds(result.observed.seconds)} long."
    picture = _picture_section(result)
    sections = [picture] if picture is not None else []
    sections += [_settings_section(result), _rules_section(result)]
    if result.points:
        sections.append(_reads_section(result))
    sizes = [result.observed.shared_buffers_bytes, _advised(result)]
    gains = relations_section(result.relations, [size for size in sizes if size is not None])
    sections += [] if gains is None else [gains]
    sections.append(_observed_section(result))
    return Page(title, lead, sections, verdict=result.verdict, notes=result.remarks, explains_kinds=True)


def _picture_section(result: AdviceResult) -> Section | None:
    """Return what serves the page accesses at each size, and the throughput, as pictures."""
    observed = result.observed
    per_second = max(observed.accesses_per_second, 1e-9)
    known = result.disk_reads_from == "simulated"
    served = [
        Served(
            size_bytes=point.shared_buffers_bytes,
            misses=point.misses_per_second / per_second,
            disk=point.disk_reads_per_second / per_second if known else None,
            low=point.disk_reads_low / per_second,
            high=point.disk_reads_high / per_second,
        )
        for point in result.points
    ]
    loop = [
        Loop(p.shared_buffers_bytes, p.throughput_ratio, p.throughput_low, p.throughput_high)
        for p in result.points
        if p.throughput_ratio is not None and p.throughput_low is not None and p.throughput_high is not None
    ]
    marks = {observed.shared_buffers_bytes: "today"}
    advised = _advised(result)
    if advised is not None:
        marks[advised] = "advised"
    lead = f"Disk reads are {_BASIS[result.disk_reads_from]}."
    return served_section(served, loop, marks, lead, measured=observed.miss_ratio)


def _observed_section(result: AdviceResult) -> Section:
    """Return what the evidence is, and what was counted in it."""
    observed = result.observed
    per_second = observed.accesses_per_second
    facts = [
        Fact(seconds(observed.seconds), "observed", Measured),
        Fact(count(observed.accesses), "page accesses observed", Measured),
        Fact(f"{count(per_second)}/s", "page accesses", Measured),
        Fact(percent(observed.miss_ratio), "misses when observed", Measured),
    ]
    source = SOURCES.get(result.source, result.source)
    return Section("How it was observed", "observed", f"By {source}: {result.evidence}.", facts)


def _settings_section(result: AdviceResult) -> Section:
    facts = [
        Fact(format_bytes(result.observed.shared_buffers_bytes), "shared_buffers when observed", Measured),
        Fact(percent(result.observed.miss_ratio), "misses when observed", Measured),
    ]
    if result.memory_bytes is not None:
        facts.append(Fact(format_bytes(result.memory_bytes), "memory to share"))
    columns: list[Column[AdvisedSetting]] = [
        Column("setting", lambda one: one.name, left=True),
        Column("today", lambda one: one.today or "", left=True),
        Column("advice", _value, left=True),
        Column("reason", lambda one: Cell(one.reason, one.purpose), left=True),
        Column("kind", lambda one: "" if one.action == "unknown" else one.kind, left=True),
        Column("expected", _expected, left=True),
        Column("takes effect at", lambda one: one.takes_effect, left=True),
        Column("undo", lambda one: Cell(one.undo, code=bool(one.undo)), left=True),
    ]
    return Section("Settings", "settings", facts=facts, table=Table(columns, result.settings))


def _value(one: AdvisedSetting) -> Cell:
    return Cell(one.value or ACTIONS[one.action], code=one.value is not None)


def _expected(one: AdvisedSetting) -> str:
    if one.gain is not None:
        return gain_text(one.gain)
    return "no gain in throughput" if one.purpose else ""


def _rules_section(result: AdviceResult) -> Section:
    lead = "What rules of thumb say of shared_buffers, and what following them would change here."
    return Section("Rules of thumb", "rules", lead, table=_rules(result))


def _reads_section(result: AdviceResult) -> Section:
    lead = f"Disk reads are {_BASIS[result.disk_reads_from]}."
    return Section("Reads by shared_buffers", "reads", lead, table=_reads(result))


VIEW = View(AdviceResult, advice_text, advice_page, listed(ReadsPoint, "points"))
