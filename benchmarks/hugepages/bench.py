"""Start servers with exactly the huge pages that `pgsweep hugepages` says they need, and with one fewer.

Run by `make bench NAME=hugepages` as root, with 5 GB of free memory; the servers are those that
`make test-matrix` fetches (14, 15 and 18), Debian's 15 and the wheel's 18. For 12 sizes of shared_buffers and
50 and 500 connections the number is asked for before such a server exists (the what-if of a server with other
settings). Then a server with huge_pages = on must start with that number available, and take them all; and
must not start with one fewer. Beside it stand the server's own number and the one from VmPeak.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.samples import keep
from pgsweep.errors import ClusterError
from pgsweep.memory.hugepages.inspect import examine
from pgsweep.pg.private.bindir import inspect_bindir
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.private.sharedmemory import ScratchServer
from tests.fix_hugepages import Pages, locked_pages

HERE = Path(__file__).parent
SERVERS = HERE.parents[1] / ".servers"
BINDIRS: dict[str, Path | None] = {
    **{f"pg{major}": SERVERS / str(major) / "bin" for major in (14, 15, 18)},
    "debian15": Path("/usr/lib/postgresql/15/bin"),
    "wheel18": None,
}
SIZES = ("128kB", "1MB", "8MB", "32MB", "64MB", "128MB", "256MB", "512MB", "1GB", "2GB", "3GB", "4GB")
CONNECTIONS = (50, 500)
REFUSED = "could not map anonymous shared memory"


def attempt(
    base: Cluster, tried: Cluster, scratch: ScratchServer, settings: dict[str, str], pages: Pages
) -> dict[str, Any]:
    """Ask for the number, then try it and one fewer.

    Raises:
        Disturbed: another program changed the kernel's number of huge pages meanwhile.
    """
    began = time.perf_counter()
    asked = examine(base.conninfo(), settings=settings, scratch=scratch)
    seconds = time.perf_counter() - began
    number = asked.methods.exact
    assert number is not None, asked.reasons
    tried.settings.update(settings)
    sample: dict[str, Any] = {**settings, "exact": number, "what_if_seconds": round(seconds, 3)}
    kept = give(pages, number)
    try:
        tried.start()
    except ClusterError as error:
        undisturbed(pages, kept)
        return {**sample, "starts": False, "said": error.cause}
    running = examine(tried.conninfo())
    sample |= {
        "starts": True,
        "left": pages.pool().available,
        "status": running.status,
        "exact_when_running": running.methods.exact,
        "server": running.methods.server,
        "vmpeak": running.methods.vmpeak,
    }
    undisturbed(pages, kept)
    tried.stop(immediately=True)
    kept = give(pages, number - 1)
    try:
        tried.start()
        sample["one_fewer_starts"] = True
        tried.stop(immediately=True)
    except ClusterError as error:
        sample["one_fewer_starts"] = False
        assert REFUSED in (error.cause or ""), error.cause
    undisturbed(pages, kept)
    return sample


class Disturbed(Exception):
    """Another program changed the kernel's number of huge pages."""


def give(pages: Pages, count: int) -> int:
    """Make this number of pages available and return what nr_hugepages is then."""
    if not pages.make_available(count):
        raise Disturbed
    return pages.pool().persistent


def undisturbed(pages: Pages, kept: int) -> None:
    """Check that nobody has changed the number."""
    if pages.pool().persistent != kept:
        raise Disturbed


def one(
    base: Cluster, tried: Cluster, scratch: ScratchServer, settings: dict[str, str], pages: Pages
) -> dict[str, Any]:
    """Return the first sample that nobody disturbed.

    A program that takes huge pages for a moment leaves no trace in their number; so a sample that is wrong is
    taken again, and counts as wrong if it is wrong six times. `attempts` counts them.
    """
    wrong: list[dict[str, Any]] = []
    for number in range(1, 21):
        try:
            sample = {**attempt(base, tried, scratch, settings, pages), "attempts": number}
        except Disturbed:
            tried.stop(immediately=True)
        else:
            if right(sample) or len(wrong) == 5:
                return sample
            wrong.append(sample)
        time.sleep(3)
    raise RuntimeError("other programs change the number of huge pages all the time")


def measure(name: str, bindir: Path | None) -> dict[str, Any]:
    """Return the samples of one server."""
    with (
        Cluster.create(bindir) as base,
        Cluster.create(bindir, {"huge_pages": "on"}, start=False) as tried,
        ScratchServer(base.binaries, wal_segment_bytes=16 << 20) as scratch,
        locked_pages() as pages,
    ):
        samples = []
        for size in SIZES:
            for connections in CONNECTIONS:
                settings = {"shared_buffers": size, "max_connections": str(connections)}
                samples.append(one(base, tried, scratch, settings, pages))
                print(name, samples[-1], flush=True)
        return {"version": base.binaries.version, "samples": samples}


def right(sample: dict[str, Any]) -> bool:
    """Return whether the number was exact."""
    return bool(
        sample["starts"]
        and sample["left"] == 0
        and sample["status"] == "on"
        and sample["exact_when_running"] == sample["exact"]
        and not sample["one_fewer_starts"]
    )


def main() -> None:
    """Measure, keep the samples, print the summary."""
    found = {}
    for name, bindir in BINDIRS.items():
        if bindir is not None:
            inspect_bindir(bindir)
        found[name] = measure(name, bindir)
    samples = [sample for server in found.values() for sample in server["samples"]]
    started = [sample for sample in samples if sample["starts"]]
    own = [sample["server"] - sample["exact"] for sample in started if sample["server"] is not None]
    summary = {
        "settings": len(samples),
        "exact": sum(right(sample) for sample in samples),
        "server_own_exact": sum(more == 0 for more in own),
        "server_own_of": len(own),
        "server_own_most_too_many": max(own),
        "vmpeak_most_too_many": max(sample["vmpeak"] - sample["exact"] for sample in started),
        "vmpeak_least_too_many": min(sample["vmpeak"] - sample["exact"] for sample in started),
        "what_if_seconds_median": sorted(s["what_if_seconds"] for s in samples)[len(samples) // 2],
    }
    keep(HERE, summary, found)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
