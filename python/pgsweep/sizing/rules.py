"""The rules of the server that evidence was taken from: its replacement policy and the sizes of its rings.

The table of versions is in core/src/rules.rs. A server that no row of it covers is refused: its pool may
choose victims in another way, and a curve made by the rules of another version would be silently wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from pgsweep.commands import recording
from pgsweep.errors import EvidenceError
from pgsweep.units import BLOCK_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pgsweep import _native

OLDEST_MAJOR: Final = 12
NEWEST_MAJOR: Final = 20
"""The first and the last row of the table (core/src/rules.rs, VERSIONS)."""

UNSETTLED_MAJOR: Final = 20
"""A development version: its rules are taken as those of 19, if the usage counts seen agree."""


class ServerFacts(Protocol):
    """What the rules of a server depend on."""

    @property
    def server_version_num(self) -> int:
        """The version as the server reports it; 0 where none was seen."""

    @property
    def block_size_bytes(self) -> int:
        """The size of a block, as it was built."""

    @property
    def settings(self) -> dict[str, str]:
        """The settings that decide what a buffer pool does, as `SHOW` gives them."""


_LEAST_POOL_PARTS: Final = 4


def check_server(server: ServerFacts) -> None:
    """Refuse evidence of a server whose rules are not known.

    Raises:
        EvidenceError: no row of the table covers its version, or its blocks have another size than 8 kB.
    """
    major = server.server_version_num // 10000
    if not major:
        raise EvidenceError(
            "the evidence does not name the version of its server",
            cause="the rules of the buffer pool depend on the version",
            hint=f"record again: {recording()}",
        )
    if not OLDEST_MAJOR <= major <= NEWEST_MAJOR:
        raise EvidenceError(
            f"the rules of the buffer pool of PostgreSQL {major} are not known",
            cause=f"this pgsweep knows those of {OLDEST_MAJOR} to {NEWEST_MAJOR}; another version may choose "
            "victims in another way",
            hint="upgrade pgsweep to a version that knows this server: pip install --upgrade pgsweep",
        )
    if server.block_size_bytes != BLOCK_BYTES:
        raise EvidenceError(
            f"the server has blocks of {server.block_size_bytes} bytes, and only sizes in blocks of "
            f"{BLOCK_BYTES} bytes can be predicted",
            cause="the server was built with another --with-blocksize; sizes in bytes, rings and reads from "
            "disk would be wrong by the ratio of the two",
            hint="record on a server built with the usual block size (SHOW block_size)",
        )


def check_usage_counts(server: ServerFacts, usage_counts: NDArray[Any]) -> None:
    """Refuse usage counts that the server's policy cannot produce.

    Args:
        server: that the evidence is of.
        usage_counts: all that its snapshots hold.

    Raises:
        EvidenceError: one is above the cap, or the rules are not settled and the counts do not show them.
    """
    major, cap = server.server_version_num // 10000, rules_of(server).usage_cap
    highest = int(usage_counts.max()) if len(usage_counts) else None
    if highest is not None and highest > cap:
        raise EvidenceError(
            f"the snapshots hold a usage_count of {highest}, and PostgreSQL {major} counts to {cap} at most",
            cause="the server was built with another replacement policy, or the evidence was changed",
            hint="no prediction is possible for such a server: compare its BM_MAX_USAGE_COUNT "
            "(buf_internals.h) with that of the release",
        )
    if major == UNSETTLED_MAJOR and highest != cap:
        seen = "no usage_count was seen" if highest is None else f"the highest usage_count seen is {highest}"
        raise EvidenceError(
            f"the rules of the buffer pool of PostgreSQL {major} are not settled, and the evidence does not "
            f"show that they are those of {UNSETTLED_MAJOR - 1}",
            cause=f"{seen}, and that version counts to {cap}: this server may use another replacement policy",
            hint="record while the load runs, until pages that are in constant use are seen: "
            + recording("--for 10min"),
        )


def unsettled(server: ServerFacts) -> str | None:
    """Return a warning if the rules are those of the version before; None if they are the server's own."""
    major = server.server_version_num // 10000
    if major != UNSETTLED_MAJOR:
        return None
    return (
        f"PostgreSQL {major} is a development version whose rules are not settled: the buffer pool is taken "
        f"to follow those of {UNSETTLED_MAJOR - 1}"
    )


def rules_of(server: ServerFacts) -> _native.Rules:
    """Return the rules of the server that the evidence was taken from: version and settings of its rings.

    Raises:
        EvidenceError: they are not known, or the settings are not those of a server.
    """
    from pgsweep import _native

    def number(name: str, otherwise: int) -> int:
        text = server.settings.get(name, "")
        return int(text) if text.lstrip("-").isdigit() else otherwise

    check_server(server)
    workers = number("autovacuum_worker_slots", number("autovacuum_max_workers", 3))
    backends = (
        number("max_connections", 100)
        + workers
        + number("max_worker_processes", 8)
        + number("max_wal_senders", 10)
        + 2
    )
    version = server.server_version_num // 10000
    vacuum_kb = number("vacuum_buffer_usage_limit", -1)
    # Since 18 no more is used than another setting allows (variable.c, assign_io_combine_limit).
    combined = number("io_combine_limit", 16)
    combined = min(combined, number("io_max_combine_limit", combined))
    try:
        return _native.Rules(
            version,
            max_backends=backends,
            io_combine_limit_blocks=max(combined, 1),
            effective_io_concurrency=max(number("effective_io_concurrency", 16), 0),
            vacuum_buffer_usage_limit_kb=vacuum_kb if vacuum_kb >= 0 and version >= 16 else None,
        )
    except (ValueError, OverflowError) as error:
        raise EvidenceError(
            "the settings in this evidence are not those of a server",
            cause=str(error),
            hint=f"record again: {recording()}",
        ) from error


def most_blocks_without_ring(pool_blocks: float) -> float:
    """Return the largest table whose sequential scans use no ring, in a pool of that size.

    A larger one is read through a ring of 256 kB or more; a smaller one passes through the whole pool and
    displaces other pages (heapam.c, initscan: `rs_nblocks > NBuffers / 4`, in whole numbers).
    """
    return pool_blocks / _LEAST_POOL_PARTS


def least_pool_without_ring(table_blocks: int) -> int:
    """Return the smallest pool in which scans of a table use no ring: a curve can jump there."""
    return _LEAST_POOL_PARTS * table_blocks
