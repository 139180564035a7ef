"""The page of results, made of the samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.advise.cases import MB, Samples, stand_in
from benchmarks.advise.judge import Compared, Truth, compare, flagged, of_best, truths
from benchmarks.advise.workloads import WORKLOADS
from pgsweep.units import format_bytes

_BARS = {
    "trace_miss_mean": ".003",
    "trace_miss_max": ".012",
    "snapshots_miss_mean": ".005",
    "snapshots_miss_max": ".015",
    "disk_reads_median": ".10",
    "disk_reads_max": ".30",
    "throughput_median": ".10",
    "coverage": ".85 at least",
    "width": "stated",
    "regret": ".05",
    "flagged": "both",
}


def page(samples: Samples, predictions: Sequence[dict[str, Any]], figures: dict[str, Any]) -> str:
    """Return all tables as a page of Markdown."""
    lines = [
        "# Results",
        "",
        "Made of samples.jsonl and predictions.jsonl.",
        "",
    ]
    lines += ["| figure | at most | measured |", "|---|---|---:|"]
    lines += [f"| `{name}` | {bar} | {_figure(figures[name])} |" for name, bar in _BARS.items()]
    compared = compare(samples, predictions)
    for case in samples.cases():
        own = [one for one in compared if one.case == case]
        found = truths(samples, case)
        if found:
            lines += ["", f"## {_title(case)}", "", *_sizes(found, own)]
            lines += ["", *_rules(samples, case), ""]
            lines += _said(case, predictions)
    checked = [line for case in samples.cases() for line in samples.of(case, "verify")]
    if checked:
        lines += ["", "## verify after a restart", "", "| case | MB | load | verdict | outside | changed |"]
        lines.append("|---|---:|---|---|---|---|")
    for line in checked:
        outside = ", ".join(one["name"] for one in line["values"] if not one["within"])
        cells = [line["case"], f"{line['size_bytes'] // MB}", line["load"], line["verdict"], outside]
        lines.append(f"| {' | '.join(cells)} | {', '.join(line['changed'])} |")
    return "\n".join(lines) + "\n"


def _figure(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value}"


def _title(case: str) -> str:
    workload, ratio, version = case.split()
    return f"{WORKLOADS[workload].title} (`{workload}`), memory : database {ratio}, PostgreSQL {version}"


def _sizes(found: dict[int, Truth], compared: Sequence[Compared]) -> list[str]:
    lines = [
        "| MB | misses | by trace | by snapshots | disk blocks an access | predicted | throughput | "
        "of today | predicted | others | settled |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for size, truth in found.items():
        at = {(one.source, one.what): one for one in compared if one.size_bytes == size}
        ratio = at.get(("trace", "throughput"))
        cells = [
            f"{size // MB}",
            f"{truth.miss_ratio:.4f}",
            _against(at.get(("trace", "miss")), 4),
            _against(at.get(("sql", "miss")), 4),
            f"{truth.disk_blocks:.4f}",
            _against(at.get(("trace", "disk")), 4),
            f"{truth.rate:.0f}/s",
            "" if ratio is None else f"{ratio.measured:.2f}",
            _against(ratio, 2),
            f"{truth.others:.0%}",
            "yes" if truth.settled else "no",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _against(one: Compared | None, digits: int) -> str:
    """Return a predicted value with its interval; bold where the measured one lies outside."""
    if one is None:
        return ""
    mark = "" if one.inside else "**"
    return f"{mark}{one.predicted:.{digits}f}{mark} ({one.low:.{digits}f} to {one.high:.{digits}f})"


def _rules(samples: Samples, case: str) -> list[str]:
    """Return what each rule says, what the advice says, and what was measured there."""
    found, rates = of_best(samples, case), truths(samples, case)
    asked: list[tuple[str, int | None]] = []
    for source, words in (("trace", "a trace"), ("sql", "snapshots")):
        advice = samples.of(case, "advice", source=source)
        if advice:
            asked.append((f"advise, from {words}", advice[-1]["advised_bytes"]))
    advice = samples.of(case, "advice", source="trace")
    if advice:
        asked += list(advice[-1]["rules"].items())
    if found:
        asked.append(("the best size measured", max(found, key=lambda size: found[size])))
    lines = ["| rule | size | throughput measured | of the best |", "|---|---:|---:|---:|"]
    for name, size in asked:
        if size is None:
            lines.append(f"| {name} | none | | |")
            continue
        at = stand_in(size, found)
        cells = ["not measured", ""] if at is None else [f"{rates[at].rate:.0f}/s", f"{found[at]:.1%}"]
        lines.append(f"| {name} | {format_bytes(size)} | {' | '.join(cells)} |")
    return lines


def _said(case: str, predictions: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for one in predictions:
        if one["case"] == case:
            source = "Trace" if one["source"] == "trace" else "Snapshots"
            level = one["verdict"]["level"]
            mark = ", named as unsteady" if flagged(one) else ""
            reasons = "; ".join(one["verdict"]["reasons"]).rstrip(".")
            lines.append(f"- {source}: *{level}*{mark}." + (f" {reasons}." if reasons else ""))
            through = one["throughput"] or {}
            if one["source"] == "trace" and not through.get("points"):
                lines.append(f"- {'; '.join(through.get('reasons', [])) or 'no throughput is predicted'}.")
    return lines
