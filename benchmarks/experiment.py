"""Benchmarks that are experiments of the lab: run one, and return its result with every run."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.steps import Steps
from pgsweep.lab.chosen import prepare
from pgsweep.lab.store import read_samples
from pgsweep.records.lab import LabCell, LabResult

ROUNDS = 3


def run_experiment(name: str, scale: float, rounds: int = ROUNDS) -> tuple[LabResult, list[dict[str, Any]]]:
    """Run an experiment at a scale, or at that of --scale; return its result and its runs.

    Args:
        name: of the experiment.
        scale: by what the article's sizes are divided.
        rounds: runs of each job, unless --rounds asks for others.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {sys.argv[0]}")
    parser.add_argument("--scale", type=float, default=scale, help="divide the article's sizes by it")
    parser.add_argument("--rounds", type=int, default=rounds, help="runs of each")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder) / "samples.jsonl"
        experiment = prepare(name, scale=chosen.scale)
        result = experiment.run(samples=samples, repetitions=chosen.rounds, seed=1, progress=Steps())
        runs = read_samples(samples)[1]
    failed = [failure for cell in result.cells for failure in cell.failures]
    if failed:
        sys.exit(f"error: {failed[0]}")
    return result, [msgspec.to_builtins(run) for run in runs]


def median_of(cell: LabCell) -> float:
    """Return the median of a cell, which has runs."""
    return statistics.median(cell.runs)
