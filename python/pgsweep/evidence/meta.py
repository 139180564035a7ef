"""The record of evidence, `meta.json`, and the names beside an exported trace: what is read without numpy.

What is asked again is answered by what is kept (evidence/kept.py), in less time than numpy takes to load.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

import msgspec

from pgsweep.errors import EvidenceError, NotEvidence
from pgsweep.evidence.schema import (
    DISK_TROUBLE,
    MOST_META_BYTES,
    SCHEMA_NAME,
    SCHEMA_NUMBER,
    EvidenceMeta,
    is_identifier,
)
from pgsweep.plain import shell_word
from pgsweep.regular import NotRegular, TooLong, read_regular
from pgsweep.units import format_exact

MOST_BUFFERS: Final = 2**30 - 1
"""shared_buffers is at most INT_MAX / 2 blocks (guc_tables.c)."""

MOST_SECONDS: Final = 1e9
MOST_COUNT: Final = 2.0**53

_BLOCK_SIZES: Final = tuple(1024 << shift for shift in range(6))


def mapping_file(trace: Path) -> Path:
    """Return the file beside an exported trace, compressed or not, that names its relations."""
    return trace.with_name(trace.name.removesuffix(".zst") + ".relations.csv")


def start_folder(trace: Path) -> Path:
    """Return the folder beside an exported trace, compressed or not."""
    return trace.with_name(trace.name.removesuffix(".zst") + ".start")


def unreadable(path: Path, error: OSError) -> EvidenceError:
    """Return the error for a file that may be whole, but cannot be read now."""
    if isinstance(error, NotRegular | TooLong):
        return EvidenceError(
            f"`{path}` is not what record writes",
            cause=error.strerror,
            hint=f"look at it: ls -l {shell_word(str(path))}",
        )
    number = error.errno or 0
    cause = DISK_TROUBLE.get(number, os.strerror(number) if number else str(error))
    return EvidenceError(
        f"cannot read `{path}`", cause=cause, hint=f"check its owner and mode: ls -ld {shell_word(str(path))}"
    )


def read_meta(path: Path) -> EvidenceMeta:
    """Return the record of a folder of evidence.

    Raises:
        EvidenceError: it is missing, no evidence, broken beyond use, or from a newer pgsweep.
    """
    again = "record again: `pgsweep record -o NAME.evidence`"
    try:
        text = read_regular(path / "meta.json", MOST_META_BYTES)
    except FileNotFoundError as error:
        if path.is_dir():
            raise NotEvidence(
                f"`{path}` is not evidence",
                cause="it has no meta.json",
                hint="name a folder that record wrote",
            ) from error
        raise EvidenceError(f"`{path}` does not exist", hint=again) from error
    except NotADirectoryError as error:
        raise NotEvidence(
            f"`{path}` is a file, evidence is a folder", hint="name a folder that record wrote"
        ) from error
    except (NotRegular, TooLong) as error:
        raise unreadable(path / "meta.json", error) from error
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        found = msgspec.json.decode(text)
        schema = str(found["schema"])
        name, _, number = schema.rpartition("/")
        newer = name == SCHEMA_NAME and int(number) > SCHEMA_NUMBER
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise EvidenceError(
            f"`{path / 'meta.json'}` is broken", cause="it is not the JSON that record writes", hint=again
        ) from error
    if newer:
        raise EvidenceError(
            f"`{path}` was written by a newer pgsweep ({found.get('pgsweep_version', 'unknown')})",
            cause=f"its schema is {schema}, this pgsweep reads up to {SCHEMA_NAME}/{SCHEMA_NUMBER}",
            hint="upgrade: `pip install --upgrade pgsweep`",
        )
    if name != SCHEMA_NAME:
        raise EvidenceError(
            f"`{path}` is not evidence",
            cause=f"its schema is {schema}",
            hint="name a folder that record wrote",
        )
    try:
        meta = msgspec.convert(found, EvidenceMeta)
    except (msgspec.ValidationError, RecursionError) as error:
        raise EvidenceError(f"`{path / 'meta.json'}` is broken", cause=str(error), hint=again) from error
    trouble = trouble_in_meta(meta)
    if trouble is not None:
        raise EvidenceError(f"`{path / 'meta.json'}` is broken", cause=trouble, hint=again)
    return meta


def trouble_in_meta(meta: EvidenceMeta) -> str | None:
    """Return which fact of the record is impossible, or nothing."""
    ranges: dict[str, tuple[float, float, float]] = {
        "seconds": (meta.seconds, 0, MOST_SECONDS),
        "shared_buffers_blocks": (meta.shared_buffers_blocks, 0, MOST_BUFFERS),
        "block_size_bytes": (meta.block_size_bytes, 1024, 32768),
        "server_version_num": (meta.server_version_num, 0, 10**7),
        "database_oid": (meta.database_oid, 0, 2**32 - 1),
        "lost_events": (meta.lost_events, 0, MOST_COUNT),
        **{f"sampling.{name}": (value, 0, MOST_COUNT) for name, value in meta.sampling.items()},
        **{f"overhead.{name}": (value, -MOST_COUNT, MOST_COUNT) for name, value in meta.overhead.items()},
        **{f"losses.{name}": (value, 0, MOST_COUNT) for name, value in meta.losses.items()},
    }
    for name, (value, low, high) in ranges.items():
        if not (math.isfinite(value) and low <= value <= high):
            possible = f"{format_exact(low)} to {format_exact(high)}"
            return f"{name} is {format_exact(value)}; the possible range is {possible}"
    if meta.block_size_bytes not in _BLOCK_SIZES:
        return f"block_size_bytes is {meta.block_size_bytes}, which no server is built with"
    cluster = meta.system_identifier
    if cluster and not is_identifier(cluster):
        return f"system_identifier is {cluster[:30]!a}, which no cluster has"
    rate = meta.sampling.get("snapshots", 1.0)
    if not 1e-9 <= rate <= 1:
        return f"sampling.snapshots is {format_exact(rate)}, a share"
    if "snapshots" in meta.sampling and "block_seed" not in meta.sampling:
        return "sampling lacks block_seed"
    pid = meta.host.get("recovery_pid", "0")
    if not (pid.isascii() and pid.isdecimal() and len(pid) < 12):
        return f"host.recovery_pid is `{pid[:20]}`, which is not a process"
    return None
