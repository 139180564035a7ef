"""The figures of large pools, from the committed samples: real servers, simulated pools, 256 GB.

What makes them, each a command of its own: `real.py` (gigabytes.json), `simulated.py` (simulated.jsonl.xz),
`looks.py` (samples.json) and `huge.py` (huge.json).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.large import real, simulated

HERE = Path(__file__).resolve().parent


def cost(recording: dict[str, Any], source: str, processors: int) -> float:
    """Return the measured share of all processors that a recording took."""
    found = recording["cost"]
    if source == "trace":
        return float(found["measured_share"])
    # Of snapshots the shares are of one processor: of the session, and of the recorder's own process.
    return float(found["measured_share"] + found.get("own_processor_share", 0.0)) / processors


def of_servers() -> dict[str, Any]:
    """Return errors, coverage and costs of pools of gigabytes on real servers."""
    kept = json.loads((HERE / "gigabytes.json").read_text())
    costs: dict[str, float] = {}
    recordings = [(source, said) for case in kept["samples"] for source, said in case["predicted"].items()]
    for source, said in recordings:
        share = cost(said, source, kept["machine"]["processors"])
        costs[f"cost_{source}"] = round(max(costs.get(f"cost_{source}", 0.0), share), 4)
    answered = sum(said["verdict"] != "refused" for _, said in recordings) / len(recordings)
    return {**real.summary(kept["samples"]), "answered": round(answered, 3), **costs}


def of_simulated() -> dict[str, Any]:
    """Return errors and coverage of simulated pools, of the held-out half."""
    odd = [one for one in simulated.kept() if int(one.case.partition("-")[0]) % 2]
    found: dict[str, Any] = {}
    for source, said in simulated.figures(odd).items():
        found |= {
            f"sim_{source}_cases": said["cases"],
            f"sim_{source}_answered": said["answered"],
            f"sim_{source}_near_mean": said["near"]["mean"],
            f"sim_{source}_inside": said["all"]["inside"],
            f"sim_{source}_near_width": said["near"]["width"],
            f"sim_{source}_silent": said["silent"],
        }
    return found


def main() -> None:
    """Print the figures."""
    huge = json.loads((HERE / "huge.json").read_text())["summary"]
    print(json.dumps({**of_servers(), **of_simulated(), **huge}))


if __name__ == "__main__":
    main()
