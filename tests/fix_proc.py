"""A captured tree of /proc, and what earlier kernels would have reported of the same.

By Documentation/filesystems/proc.rst: lines of smaps_rollup such as `Pss_Anon` came with 5.4, smaps_rollup
with 4.14 (and with 4.15 the end of `VmPMD`), `RssAnon` with 4.5, `HugetlbPages` with 4.4, `NSpid` with 4.1,
`MemAvailable` with 3.14.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CAPTURED = Path(__file__).parent / "proc/linux-6.18"
BACKEND = 4103
POSTMASTER = 4100
_SINCE_5_4 = "Pss_|FilePmdMapped|KSM"
_SINCE_3_10 = (
    f"{_SINCE_5_4}|LazyFree|ShmemPmd|Shared_Hugetlb|Private_Hugetlb|SwapPss|THPeligible|ProtectionKey"
)


def _without(text: str, names: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not re.match(names, line))


def _older(folder: Path, *, status: str, smaps: str, rollup: bool, meminfo: str) -> Path:
    """Write the backend's files without the lines whose beginning matches a pattern."""
    source, target = CAPTURED / str(BACKEND), folder / str(BACKEND)
    target.mkdir(parents=True)
    for name in ("stat", "cmdline"):
        (target / name).write_text((source / name).read_text())
    (target / "status").write_text(_without((source / "status").read_text(), status))
    for name in ("smaps", "smaps_rollup") if rollup else ("smaps",):
        (target / name).write_text(_without((source / name).read_text(), smaps))
    (folder / "meminfo").write_text(_without((CAPTURED / "meminfo").read_text(), meminfo))
    return folder


@pytest.fixture(scope="session")
def linux_4_18(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As on RHEL 8: smaps_rollup without `Pss_Anon`."""
    folder = tmp_path_factory.mktemp("linux-4.18")
    return _older(folder, status="CoreDumping|THP_enabled", smaps=_SINCE_5_4, rollup=True, meminfo="Percpu")


@pytest.fixture(scope="session")
def linux_3_10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As on RHEL 7, with fewer fields than there."""
    folder = _older(
        tmp_path_factory.mktemp("linux-3.10"),
        status="Rss(Anon|File|Shmem)|HugetlbPages|NS|Umask|CoreDumping|THP_enabled",
        smaps=_SINCE_3_10,
        rollup=False,
        meminfo="MemAvailable|Shmem(Huge|Pmd)|File|Percpu|KReclaimable|Hugetlb:",
    )
    path = folder / str(BACKEND) / "status"
    page_tables = re.search(r"VmPTE:\s+(\d+) kB", path.read_text())
    assert page_tables is not None
    split = f"VmPTE:\t{int(page_tables[1]) - 12:8} kB\nVmPMD:\t      12 kB"
    path.write_text(path.read_text().replace(page_tables[0], split))
    return folder
