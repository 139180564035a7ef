"""The live curve against the truth: the demo's mix, observed for 15 minutes as `pgsweep serve` does it.

A private server runs the mix at 64 MB while a recorder writes pieces of evidence; each minute the curve of
the 15-minute window is predicted. Then the server is restarted at other sizes and counted. Miss ratios are
compared at 8, 16, 32, 64, 128 and 256 MB.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.samples import keep, refuse_debug_build
from pgsweep.pg.private.cluster import Cluster
from pgsweep.serve.forecast import predict_pieces
from pgsweep.serve.recording import Recorder, pieces_of
from pgsweep.testbed.pgbench import DATABASE, create_database, prepare
from pgsweep.testbed.truth import SettledWorkload, measure
from pgsweep.testbed.workloads import MIX

_MB = 1 << 20
_TODAY = 64 * _MB
_SIZES = [size * _MB for size in (8, 16, 32, 64, 128, 256)]


def main() -> None:
    """Run it."""
    refuse_debug_build()
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=15.0)
    minutes = parser.parse_args().minutes
    settings = {"shared_buffers": "64MB", "autovacuum": "off"}
    curves: list[dict[str, Any]] = []
    reasons: list[str | None] = []
    with tempfile.TemporaryDirectory() as folder, Cluster.create(None, settings) as cluster:
        create_database(cluster, 50)
        prepare(cluster, MIX)
        pieces = Path(folder, "evidence")
        stop = threading.Event()
        with SettledWorkload(cluster, MIX, _TODAY, seed=1) as running:
            running.settle()
            recorder = Recorder(cluster.conninfo(DATABASE), pieces, most_bytes=1 << 30, report=reasons.append)
            recorder.start()
            begin = time.monotonic()
            while time.monotonic() - begin < 60 * minutes:
                stop.wait(60.0)
                asked = time.monotonic()
                answer = predict_pieces(pieces_of(pieces), 900)
                taken = time.monotonic() - asked
                print(f"{asked - begin:.0f} s: {answer.why or answer.result} {taken:.2f} s",
                      file=sys.stderr)  # fmt: skip
                curves.append({
                    "after_seconds": asked - begin, "covered_seconds": answer.covered_seconds,
                    "predict_seconds": taken, "why": answer.why,
                    "verdict": answer.result and answer.result.verdict.level,
                    "points": {} if answer.result is None else {
                        p.shared_buffers_bytes: [p.miss_ratio, p.low, p.high] for p in answer.result.points
                    },
                })  # fmt: skip
            recorder.ask_to_stop()
            recorder.join(10)
            running.check()
        stored = sum(path.stat().st_size for path in pieces.rglob("*") if path.is_file())
        truths, carried = {}, None
        for size in _SIZES:
            truth, carried = measure(cluster, MIX, size, seed=2, carried=carried)
            truths[size] = [truth.miss_ratio, truth.standard_error]
            print(f"{size // _MB} MB: {truth.miss_ratio:.4f}", file=sys.stderr)
    last = curves[-1]["points"]
    errors = {size: last[size][0] - truths[size][0] for size in _SIZES if size in last}
    summary = {
        "mean_error": sum(map(abs, errors.values())) / max(1, len(errors)),
        "largest_error": max(map(abs, errors.values()), default=None),
        "sizes": len(errors),
        "predict_seconds_largest": max(curve["predict_seconds"] for curve in curves),
        "evidence_bytes": stored,
        "minutes": minutes,
    }
    keep(Path(__file__).parent, summary, {"curves": curves, "truth": truths, "told": reasons})
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
