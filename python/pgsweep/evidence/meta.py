"""The record of evidence, `meta.json`, and the names beside an exported trace: what is read without numpy.

What is asked again is answered by what is kept (evidence/kept.py), in less time than numpy takes to load.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

import msgspec

from pgsweep.commands import recording
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
from pgsweep.regular import NotRegular, TooLong, open_regular, read_regular
from pgsweep.units import format_exact

MOST_BUFFERS: Final = 2**30 - 1
"""shared_buffers is at most INT_MAX / 2 blocks (guc_tables.c)."""

MOST_SECONDS: Final = 1e9
MOST_COUNT: Final = 2.0**53

_HEAD_BYTES: Final = 8192
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_BLOCK_SIZES: Final = tuple(1024 << shift for shift in range(6))


def mapping_file(trace: Path) -> Path:
    """Return the file beside an exported trace, compressed or not, that names its relations."""
    return trace.with_name(trace.name.removesuffix(".zst") + ".relations.csv")


def start_folder(trace: Path) -> Path:
    """Return the folder beside an exported trace, compressed or not."""
    return trace.with_name(trace.name.removesuffix(".zst") + ".start")


def exported_trace(folder: Path) -> Path | None:
    """Return the trace that a folder lies beside; None for a folder of evidence."""
    trace = folder.with_name(folder.name.removesuffix(".start"))
    return trace if folder == start_folder(trace) and mapping_file(trace).exists() else None


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


def check_trace(path: Path) -> None:
    """Refuse a file that cannot be a trace: its records have bytes of 0, unless it is compressed.

    Raises:
        NotEvidence: it is text; says of which kind.
    """
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return  # Whoever reads it says why.
    if head and (b"\0" not in head or head.startswith(_GZIP)) and not head.startswith(_ZSTD):
        raise _not_evidence(path, head)


def _not_evidence(path: Path, head: bytes) -> NotEvidence:
    """Return the error for a file; `head` is how it begins."""
    # It loads the driver.
    from pgsweep.pg.gather_script import MAGIC

    name = shell_word(str(path))
    first, begin = MAGIC.encode(), head.lstrip()
    if begin.startswith((first, _GZIP)):
        what = "is compressed" if begin.startswith(_GZIP) else "is what psql wrote, and not evidence yet"
        hint = (
            f"to make evidence of what the script of `pgsweep record --script` wrote: pgsweep import {name}"
        )
    elif first in head:
        what = "is the script for psql, and not evidence"
        hint = f"psql -X -d DBNAME -f {name} -o FILE; pgsweep import FILE"
    elif begin.startswith((b"{", b"<!")):
        what, hint = "is a file of JSON or HTML, and not evidence", f"to show a result: pgsweep report {name}"
    else:
        what = "is neither evidence nor a trace"
        hint = f"record: `{recording()}`"
    return NotEvidence(
        f"`{path}` {what}",
        cause="evidence is a folder that record wrote; a trace is a file in the format oracleGeneral",
        hint=hint,
    )


def read_meta(path: Path) -> EvidenceMeta:
    """Return the record of a folder of evidence.

    Raises:
        EvidenceError: it is missing, no evidence, broken beyond use, or from a newer pgsweep.
    """
    again = f"record again: `{recording()}`"
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
