"""Write the figures of docs/measured.md and the guides that are those of committed samples.

    python -m tools.figures

Run it after `make bench NAME=demo`, `peek`, `unseen`, `advise`, `agreement`, `page_cache`, `replay`,
`sampled`, `jobs`, `tracing`, `warm` or `restore`. tests/test_benchmarks.py fails where a page differs, and
where a sentence beside the figures no longer holds: sentences are written by hand.
"""

from __future__ import annotations

import json
import lzma
import re
import statistics
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.advise.bench import HERE
from benchmarks.advise.cases import Samples
from benchmarks.advise.judge import summary as advise_summary
from benchmarks.calibration.bench import parse_lines
from benchmarks.jobs.bench import LINES as JOBS
from benchmarks.jobs.bench import summary as jobs_summary
from benchmarks.restore.bench import Run, early_hits, first_transactions
from benchmarks.warm.bench import ratio

ROOT: Final = Path(__file__).parents[1]
MEASURED: Final = ROOT / "docs" / "measured.md"
GUIDE: Final = ROOT / "docs" / "guides" / "move-the-heat.md"
REFUSED: Final = "refused"
"""What stands in place of a prediction that has no numbers."""

NOT_PREDICTED: Final = "not predicted"
"""What stands at a size that a prediction leaves out."""

ARMS: Final = ("restore", "waiting", "autoprewarm")
EARLY: Final = ("ranges", "updates", "joins")
UNSEEN: Final = (*EARLY, "documents", "graph", "partitions")

_CLUSTER: Final = "; two workers of a cluster gave the same numbers, also when one was killed half way"
_ERRORS: Final = ("mean_abs_error", "max_abs_error")
_NUMBER: Final = r"[0-9][0-9.]*"


def samples_of(name: str) -> dict[str, Any]:
    """Return what benchmarks/NAME/samples.json holds."""
    content: dict[str, Any] = json.loads((ROOT / "benchmarks" / name / "samples.json").read_text("utf-8"))
    return content


def pages() -> dict[Path, str]:
    """Return each page with the figures of the samples.

    Raises:
        ValueError: a page has no such lines, or more than one place for them.
    """
    measured, guide = MEASURED.read_text("utf-8"), GUIDE.read_text("utf-8")
    demo, runs = samples_of("demo"), restore_runs()
    for workload in demo["samples"]["workloads"]:
        name = workload["name"]
        row = _error_row(f"demo: {name}", demo["summary"][name], workload["rows"])
        measured = _placed(measured, rf"^\| demo: {name} \|.*$", row)
    for name in UNSEEN:
        found = samples_of(f"unseen/{name}")["summary"]
        flat = {f"{kind}_{error}": found[kind][error] for kind in found for error in _ERRORS}
        kind = "unseen" if name in EARLY else "blind"
        row = _error_row(f"{kind}: {name}", flat)
        measured = _placed(measured, rf"^\| {kind}: {name} \|.*$", row)
    measured = _placed(
        measured,
        r"(?<=^\| shared_buffers \| predicted from snapshots \| predicted from a trace \| measured \| "
        r"half of the snapshots' 90% interval \|\n\|---:\|---:\|---:\|---:\|---:\|\n)(\|.*\n)+",
        "".join(f"{row}\n" for row in _mix_rows(demo)),
    )
    measured = _placed(
        measured,
        rf"PostgreSQL {_NUMBER}, \d+ MB(?=; miss ratio of the database)",
        f"PostgreSQL {demo['samples']['server_version']}, {demo['samples']['database_bytes'] / 2**20:.0f} MB",
    )
    for bullet in (
        _peek_line(),
        _advise_bullet(),
        _agreement_line(),
        _page_cache_bullet(),
        _replay_line(),
        _sampled_bullet(),
        _jobs_bullet(),
        _warm_bullet(),
        _tracing_line(),
        _restore_bullet(runs),
    ):
        text = " ".join(bullet.split())
        [begin] = re.findall(r"^.*?(?: (?=\d)|[(:])", text)
        lines = textwrap.fill(text, 120, subsequent_indent="  ", break_on_hyphens=False)
        measured = _placed(measured, rf"^{re.escape(begin)}.*\n(  .*\n)*", f"{lines}\n")
    for label, cells in _restore_rows(runs).items():
        guide = _placed(guide, rf"^\| {label} \|.*$", f"| {label} | {' | '.join(cells)} |")
    cold = [_thousands(value) for value in (cold_transactions(runs, 5.0), cold_transactions(runs, 10.0))]
    guide = _placed(guide, r"(?<=workload does )[0-9 ]+(?= transactions in the first five seconds)", cold[0])
    guide = _placed(guide, r"(?<= seconds and )[0-9 ]+(?= in the first ten:)", cold[1])
    return {MEASURED: measured, GUIDE: guide}


def _placed(page: str, pattern: str, text: str) -> str:
    """Return the page with the text in the one place that the pattern finds."""
    page, times = re.subn(pattern, lambda _: text, page, flags=re.MULTILINE)
    if times != 1:
        raise ValueError(f"{times} places for {pattern}")
    return page


def errors(summary: dict[str, Any], source: str) -> str:
    """Return mean and worst error in percentage points."""
    values = [summary[f"{source}_{error}"] for error in _ERRORS]
    return REFUSED if None in values else ", ".join(f"{100 * value:.2f}" for value in values)


def _error_row(label: str, summary: dict[str, Any], rows: Sequence[dict[str, Any]] = ()) -> str:
    """Return the errors, and of how many sizes they are where some are not predicted."""
    cells = []
    for source in ("snapshots", "trace"):
        predicted = sum(row[source] is not None for row in rows)
        part = f" ({predicted} of {len(rows)} sizes)" if 0 < predicted < len(rows) else ""
        cells.append(errors(summary, source) + part)
    return f"| {label} | {' | '.join(cells)} |"


def _peek_line() -> str:
    summary = samples_of("peek")["summary"]
    flat = {
        name: {f"peek_{error}": found["peek"][error] for error in _ERRORS} for name, found in summary.items()
    }
    parts = ", ".join(f"{name} {errors(found, 'peek')}" for name, found in flat.items())
    return f"- Snapshots of the server's memory (`--source peek`): demo's {parts}."


def _tracing_line() -> str:
    summary = samples_of("tracing")["summary"]
    lost = summary["lost_events"]
    return (
        f"- Tracing every access leaves {summary['debian15_tps_ratio']:.0%} (Debian's 15) and "
        f"{summary['wheel18_tps_ratio']:.0%} (the wheel's 18) of the throughput of `pgbench -S`; "
        f"{f'{lost} events were' if lost else 'no event was'} lost."
    )


def _advise_bullet() -> str:
    samples = Samples(HERE / "samples.jsonl")
    predictions = [json.loads(line) for line in (HERE / "predictions.jsonl").read_text("utf-8").splitlines()]
    found = advise_summary(samples, predictions)
    points = [
        f"{100 * found[f'{source}_miss_{error}']:.{digits}f}"
        for error, digits in (("mean", 2), ("max", 1))
        for source in ("trace", "snapshots")
    ]
    return (
        "- From one recording at 16 MB of a server with 192 MB of memory, other sizes up to 153 MB; "
        f"{found['cases']} cases of six loads, their database as large as the memory,\n"
        f"  twice or four times as large: {found['coverage']:.0%} of the measured values lie in their 90% "
        f"intervals. For steady loads the mean error of the miss ratio is {points[0]}\n"
        f"  points (trace) and {points[1]} (snapshots), the largest {points[2]} and {points[3]}. "
        f"The error of disk reads is {found['disk_reads_median']:.0%} (median) and "
        f"{found['disk_reads_max']:.0%} (largest); that of throughput {found['throughput_median']:.0%} "
        "(median).\n"
    )


def _agreement_line() -> str:
    summary = samples_of("agreement")["summary"]
    wheel, debian = (summary[f"{server}_statements_agreement"] for server in ("wheel18", "debian15"))
    return (
        f"- The simulated pool agrees with a real server on {wheel:.3%} (18) and {debian:.3%} (15) of a "
        "million accesses of ordinary statements, one by one."
    )


def _page_cache_bullet() -> str:
    summary = samples_of("page_cache")["summary"]
    return (
        f"- The simulated page cache, hit ratio against the kernel's own at {summary['settings']} settings "
        "of cache, scans and readahead:\n"
        f"  {100 * summary['error_mean']:.1f} points off on average, {100 * summary['error_max']:.1f} at "
        "worst.\n"
    )


def _replay_line() -> str:
    summary = samples_of("replay")["summary"]
    tuned, default = (summary[f"ratio_to_libcachesim_{name}"] for name in ("tuned", "default"))
    return (
        f"- Replay: {tuned:.1f} times the throughput of libCacheSim's tuned Clock on one core, "
        f"{default:.0f} times its default, with identical misses."
    )


def _sampled_bullet() -> str:
    summary = samples_of("sampled")["summary"]
    return (
        "- Replay of 200 million accesses at 64 sizes by samples of the pages: "
        f"{100 * summary['sampled_error_max']:.2f} points off the whole replay at worst, "
        f"{summary['times_faster_by_clock']:.0f} times\n"
        f"  faster ({summary['times_faster']:.0f} by processor time)"
        f"{_CLUSTER if summary['cluster_same'] and summary['killed_worker_same'] else ''}.\n"
    )


def _jobs_bullet() -> str:
    found = jobs_summary(parse_lines(lzma.decompress(JOBS.read_bytes()).decode().splitlines()))

    def of(source: str) -> str:
        mean, worst, inside = (
            found[key] for key in (f"{source}_mean", f"{source}_worst", f"inside_{source}")
        )
        return (
            f"`{source}` {round(found[f'answered_{source}'] * found['cases'])} answered, "
            f"{100 * mean:.2f} and {100 * worst:.2f} points off (mean and worst), {100 * inside:.0f}% inside "
            "the interval"
        )

    return (
        "- Fourteen loads of real jobs (queues, ranges, full text, tenants, maintenance, a standby and "
        f"others) on 18 and 15, from half to four times the size: of {found['cases']} cases, {of('sql')}; "
        f"{of('peek')}; {of('trace')}. Silent failures: {found['silent_failures'] or 'none'}."
    )


def _warm_bullet() -> str:
    kinds = samples_of("warm")["samples"]

    def ratios(pages: str, beside: str) -> list[str]:
        return [f"{ratio(kinds[pages][version], beside):.1f}" for version in ("15", "18")]

    small, small_disk = ratios("pages_of_4_kb", "prewarm"), ratios("pages_of_4_kb", "disk")
    huge, huge_disk = ratios("huge_pages", "prewarm"), ratios("huge_pages", "disk")
    return (
        f"- `warm run` of 3 GB on a cold server: {small[0]} times the throughput of one `pg_prewarm` after "
        f"the other on Debian's 15, {small[1]} times on the wheel's 18, {small_disk[0]} and {small_disk[1]}\n"
        f"  times that of plain read(2) of the same files; with huge pages {huge[0]} and {huge[1]} times, "
        f"{huge_disk[0]} and {huge_disk[1]} times read(2).\n"
    )


def _mix_rows(demo: dict[str, Any]) -> list[str]:
    """Return the sizes of the demo's `mix`, predicted beside measured."""
    [workload] = [one for one in demo["samples"]["workloads"] if one["name"] == "mix"]
    rows = []
    for row in workload["rows"]:
        snapshots, trace = row["snapshots"], row["trace"]
        cells = [
            f"{row['shared_buffers_bytes'] >> 20} MB",
            NOT_PREDICTED if snapshots is None else f"{snapshots['miss_ratio']:.2%}",
            NOT_PREDICTED if trace is None else f"{trace['miss_ratio']:.2%}",
            f"{row['measured_miss_ratio']:.2%}",
            "–" if snapshots is None else f"{(snapshots['high'] - snapshots['low']) / 2:.2%}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def restore_runs() -> dict[str, list[Run]]:
    """Return the runs of benchmarks/restore by what warmed the server; `cold` is nothing."""
    found: dict[str, list[Run]] = {}
    for fields in samples_of("restore")["samples"]["runs"]:
        found.setdefault(fields["arm"], []).append(Run(**fields))
    return found


def transactions(runs: Sequence[Run], until_seconds: float) -> list[float]:
    """Return the transactions of each run in the first seconds after connections are accepted."""
    return [first_transactions(run, until_seconds) for run in runs]


def cold_transactions(runs: dict[str, list[Run]], until_seconds: float) -> float:
    """Return the transactions of the first seconds of a server that nothing warmed, the median."""
    return statistics.median(transactions(runs["cold"], until_seconds))


def _thousands(value: float) -> str:
    return f"{round(value, -3):,.0f}".replace(",", " ")


def _spread(values: Sequence[float], shown: Callable[[float], str]) -> str:
    return f"{shown(statistics.median(values))} ({shown(min(values))} to {shown(max(values))})"


def _restore_rows(runs: dict[str, list[Run]]) -> dict[str, list[str]]:
    """Return the cells of the table of the guide, by label: median, least and most."""
    rows = {
        "hit ratio of the workload in the first five seconds": [
            _spread([early_hits(run) for run in runs[arm]], lambda value: f"{value:.3f}") for arm in ARMS
        ]
    }
    spans = {"transactions in the first five seconds": 5.0, "in the first ten seconds": 10.0}
    for label, seconds in {**spans, "in the first thirty seconds": 30.0}.items():
        rows[label] = [_spread(transactions(runs[arm], seconds), _thousands) for arm in ARMS]
    rows["the warming ends after"] = [f"{statistics.median(_ends(runs[arm])):.1f} s" for arm in ARMS]
    return rows


def _ends(runs: Sequence[Run]) -> list[float]:
    return [run.warm_seconds for run in runs if run.warm_seconds is not None]


def _restore_bullet(runs: dict[str, list[Run]]) -> str:
    hits = [f"{statistics.median([early_hits(run) for run in runs[arm]]):.3f}" for arm in ARMS]
    done = [_thousands(statistics.median(transactions(runs[arm], 5.0))) for arm in ARMS]
    return (
        "- `warm restore` of a pool of 1 GB after a cold start, queries from the start on: hit ratio of the "
        f"first five seconds {hits[0]}, with `--next-start` {hits[1]}, with\n"
        f"  autoprewarm {hits[2]}; transactions meanwhile {done[0]}, {done[1]} and {done[2]}, and "
        f"{_thousands(cold_transactions(runs, 5.0))} with no warming.\n"
    )


def main() -> None:
    """Write the pages whose figures are others, and name them."""
    for path, text in pages().items():
        if path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            name = path.relative_to(ROOT)
            sys.stdout.write(f"written: {name}; do the sentences beside the figures still hold?\n")


if __name__ == "__main__":
    main()
