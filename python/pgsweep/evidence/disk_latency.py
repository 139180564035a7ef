"""The latency of the disk by depth, as a fact of a trace: `1:0.000118:0.000002:1270 2:0.000121:...`.

Each entry is a depth, the mean seconds of a read, the standard error of that, and the number of reads. Only
a trace has them: a recording of snapshots reads nothing from disk for it. What was not measured, and why, is
a fact too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from pgsweep.host.disk_depth import DEPTHS, MOST_READS, SLOWER, disk_latencies
from pgsweep.host.limits import reads_are_limited
from pgsweep.records.prediction import DiskLatency
from pgsweep.units import format_plain

_LATENCIES: Final = "disk_latency_by_depth"
_NOT_MEASURED: Final = "disk_latency_not_measured"
_ENTRY: Final = re.compile(r"([1-9][0-9]{0,3}):([0-9.e-]{1,20}):([0-9.e-]{1,20}):([1-9][0-9]{0,8})", re.ASCII)
_MOST_ENTRIES: Final = 16
_SECONDS: Final = (1e-7, 100.0)

DEPTH_READS: Final = (
    f"up to {MOST_READS} blocks of relations that are not in the page cache, at each of the depths "
    f"{', '.join(map(str, DEPTHS[:-1]))} and {DEPTHS[-1]}, past it (O_DIRECT); no greater depth where reads "
    f"have come to take {format_plain(SLOWER)} times as long as one alone"
)


def latency_facts(postmaster_pid: int, paths: Sequence[str]) -> dict[str, str]:
    """Return the latencies as facts, and what was not measured.

    Args:
        postmaster_pid: of the server.
        paths: of the files of its relations; none where they are not known.
    """
    if not paths:
        return {_NOT_MEASURED: "all: the files of the relations may not be read"}
    if reads_are_limited(postmaster_pid):
        return {_NOT_MEASURED: "all: a cgroup limits the server's reads but not those of pgsweep"}
    found, lacking = disk_latencies(paths)
    facts = {_NOT_MEASURED: lacking} if lacking else {}
    if found:
        facts[_LATENCIES] = " ".join(
            f"{one.depth}:{one.seconds:.9f}:{one.error_seconds:.9f}:{one.reads}" for one in found
        )
    return facts


def latencies_of(host: Mapping[str, str]) -> tuple[list[DiskLatency], str]:
    """Return the latencies of a recording, ascending by depth, or none and why.

    Args:
        host: facts of the evidence.
    """
    text, why = host.get(_LATENCIES, ""), host.get(_NOT_MEASURED, "").removeprefix("all: ")[:300]
    if not text:
        return [], why or "only traces of this version and later measure it"
    found = [_latency(entry) for entry in text.split(" ", _MOST_ENTRIES)]
    known = [one for one in found if one is not None]
    depths = [one.depth for one in known]
    if len(known) < len(found) or depths != sorted(set(depths)):
        return [], "the values in the evidence are impossible"
    # Nothing follows from a single depth.
    return (known, "") if len(known) > 1 else ([], why or "it has one depth only")


def _latency(entry: str) -> DiskLatency | None:
    """Return what an entry says; None where it cannot be."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        return None
    try:
        seconds, error = float(match[2]), float(match[3])
    except ValueError:
        return None
    least, most = _SECONDS
    if not (least <= seconds <= most and 0 <= error <= most and math.isfinite(error)):
        return None
    return DiskLatency(depth=int(match[1]), seconds=seconds, error_seconds=error, reads=int(match[4]))
