"""A pool of 256 GB: what a look at it takes, and a prediction from it (`python -m benchmarks.large.huge`).

No machine here has that much memory, but the descriptors of its 33.5 million buffers are 2 GB: a program of a
few lines has such an array at the names that PostgreSQL's executable has (`BufferDescriptors`, `NBuffers`,
`PgStartTime`), filled with usage counts by the law of a Zipf load. The look is the one of `record --source
peek`, with the sample of blocks that it draws of such a pool; the prediction is that of one look.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.samples import provenance, refuse_debug_build
from pgsweep._native import PoolReader
from pgsweep.evidence.sampling import BlockSample
from pgsweep.evidence.snapshots import SAMPLE_BLOCKS
from pgsweep.sizing.clock import USUAL
from pgsweep.sizing.look import Look, LookBounds
from pgsweep.sizing.snapshots.rates import SINGLE

HERE = Path(__file__).resolve().parent
BUFFERS: Final = 1 << 25
FACTORS = (0.5, 0.75, 1.0, 1.5, 2.0)
RELATION: Final = 16_500

PROGRAM: Final = r"""
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int NBuffers;
int64_t PgStartTime = 1;
char *BufferDescriptors;

int main(void)
{
    uint32_t buffers, i;
    if (fread(&buffers, 4, 1, stdin) != 1)
        return 1;
    BufferDescriptors = mmap(0, (size_t) buffers * 64, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (BufferDescriptors == MAP_FAILED)
        return 1;
    for (i = 0; i < buffers; i++)
    {
        uint32_t *d = (uint32_t *) (BufferDescriptors + (size_t) i * 64), block;
        unsigned char count;
        if (fread(&block, 4, 1, stdin) != 1 || fread(&count, 1, 1, stdin) != 1)
            return 1;
        d[0] = 1663, d[1] = 16384, d[2] = 16500, d[3] = 0, d[4] = block, d[5] = i;
        d[6] = (uint32_t) count << 18 | 3u << 24;
    }
    NBuffers = buffers;
    puts("filled");
    fflush(stdout);
    while (read(0, &i, 1) > 0)
        ;
    return 0;
}
"""


def drawn_pool(random: np.random.Generator, pages: int) -> tuple[np.ndarray, np.ndarray]:
    """Return blocks and usage counts of a full pool, each page by the law of its rate."""
    rates = np.arange(1, pages + 1, dtype=np.float64) ** -0.8
    low, high = 1e-6, 1e6
    while high / low > 1.0001:
        middle = float(np.sqrt(low * high))
        # Rates of a thousandth of the pages stand for all.
        resident = 1 - USUAL.law(middle * rates[:: pages // 20_000], SINGLE)[:, 0]
        low, high = (middle, high) if resident.mean() * pages < BUFFERS else (low, middle)
    edges = np.unique(np.geomspace(1, pages, 4_000).astype(np.int64))
    blocks, counts = [], []
    for begin, end in pairwise(edges.tolist()):
        law = USUAL.law(np.array([low * rates[(begin + end) // 2 - 1]]), SINGLE)[0]
        state = np.searchsorted(np.cumsum(law), random.random(end - begin)).clip(0, 6)
        blocks.append(np.flatnonzero(state) + begin)
        counts.append(state[state > 0] - 1)
    block, count = np.concatenate(blocks)[:BUFFERS], np.concatenate(counts)[:BUFFERS]
    order = random.permutation(len(block))
    return block[order].astype(np.uint32), count[order].astype(np.uint8)


def looked(pid: int, pages: int) -> dict[str, Any]:
    """Return what a look and the prediction from it take, in a process of its own."""
    sample = BlockSample.draw(SAMPLE_BLOCKS / BUFFERS, 1)
    reader = PoolReader(pid, 180_000)
    begin = time.process_time()
    pool = reader.read(modulus=sample.modulus, offsets=sample.offsets)
    look_seconds = time.process_time() - begin
    counts = np.bincount(pool["usage_count"], minlength=6).astype(np.float64)
    absent = sample.count(RELATION, pages) - counts.sum()
    begin = time.process_time()
    look = Look(pages=np.array([[absent, *counts]]), batches=[SINGLE], clock=USUAL)
    kept = round(BUFFERS * sample.rate)
    curve = LookBounds(look, kept).interval([round(kept * factor) for factor in FACTORS])
    return {
        "look_seconds": round(look_seconds, 2),
        "predict_seconds": round(time.process_time() - begin, 2),
        "bytes": _peak_bytes(),
        "used": pool["used"],
        "kept": len(pool["frame"]),
        "curve": [[round(float(value), 4) for value in row] for row in curve],
    }


def _peak_bytes() -> int:
    # Not by getrusage: a process begins with the peak of the one that made it.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def main() -> None:
    """Fill the descriptors, look, predict, print the summary."""
    refuse_debug_build()
    pages = 4 * BUFFERS
    if len(sys.argv) > 1:
        print(json.dumps(looked(int(sys.argv[1]), pages)))
        return
    block, count = drawn_pool(np.random.default_rng(1), pages)
    rows = np.zeros(len(block), dtype=[("block", "<u4"), ("count", "u1")])
    rows["block"], rows["count"] = block, count
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "pool.c", Path(folder) / "pool"
        source.write_text(PROGRAM)
        subprocess.run(["gcc", "-O2", "-rdynamic", "-o", program, source], check=True)
        with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as pool:
            assert pool.stdin is not None
            assert pool.stdout is not None
            pool.stdin.write(np.uint32(len(rows)).tobytes())
            for begin in range(0, len(rows), 1 << 20):
                pool.stdin.write(rows[begin : begin + (1 << 20)].tobytes())
            pool.stdin.flush()
            assert pool.stdout.readline() == b"filled\n"
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.large.huge", str(pool.pid)],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            pool.stdin.close()
    found = json.loads(done.stdout)
    summary = {
        "huge_seconds": round(found["look_seconds"] + found["predict_seconds"], 2),
        "huge_bytes": found["bytes"],
    }
    (HERE / "huge.json").write_text(
        json.dumps({**provenance(("scipy",)), "summary": summary, "samples": found}, indent=1) + "\n"
    )
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
