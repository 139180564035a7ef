"""Hold the simulated page cache against the kernel at 12 settings.

Run by `make bench NAME=page_cache` as root, where memory cgroups can be made. A file of 100 MB is read block
by block in a memory cgroup of 32, 48 and 72 MB: Zipf reads, and Zipf reads with scans of a sixth of the file;
with readahead and without. Before each read the kernel is asked whether the block is cached. The hit ratio of
the second half is compared with the simulation of the same reads.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.page_cache.kernel import Setting, compare, obstacle
from benchmarks.samples import keep, refuse_debug_build

HERE = Path(__file__).parent
BLOCKS = 12_800
READS = 60_000


def main() -> None:
    """Compare all settings and keep the samples."""
    refuse_debug_build()
    samples = []
    with tempfile.TemporaryDirectory(prefix="pgsweep-page-cache-", dir="/var/tmp") as made:
        why_not = obstacle(Path(made))
        if why_not is not None:
            sys.exit(f"error: nothing can be compared here\n\ncause: {why_not}")
        for megabytes, scan_every, advice in itertools.product(
            (32, 48, 72), (0, 12_000), ("normal", "random")
        ):
            setting = Setting(
                blocks=BLOCKS,
                limit_bytes=megabytes << 20,
                exponent=0.8 if scan_every else 0.95,
                reads=READS,
                scan_every=scan_every,
                advice=advice,
            )
            found = compare(setting, Path(made))
            samples.append({**dataclasses.asdict(setting), **dataclasses.asdict(found)})
            print(
                f"{megabytes} MB, scans {bool(scan_every)}, {advice}: kernel {found.kernel:.4f}, simulated "
                f"{found.simulated:.4f} (FIFO {found.fifo:.4f}, CLOCK {found.clock:.4f})",
                flush=True,
            )
    errors = [abs(sample["simulated"] - sample["kernel"]) for sample in samples]
    summary = {"settings": len(samples), "error_mean": sum(errors) / len(errors), "error_max": max(errors)}
    keep(HERE, summary, samples)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
