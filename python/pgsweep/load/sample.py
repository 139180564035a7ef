"""How many sessions copy a sample fastest: measured on a temporary copy of the table."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pgsweep.load.copying import chunks_of
from pgsweep.load.document import LoadDocument
from pgsweep.pg.connect import Connection
from pgsweep.pg.failures import DriverError, first_line
from pgsweep.pg.load_catalog import Column
from pgsweep.pg.load_copy import BadRow, copy, open_session
from pgsweep.pg.load_sample import drop_sample, empty_sample, make_sample

_SAMPLE_BYTES: Final = 24 << 20
_GAIN: Final = 1.1
"""More sessions are used only where they are faster by this factor: they cost the other sessions more."""


def measure_jobs(
    conninfo: str, control: Connection, document: LoadDocument, columns: Sequence[Column], schema: str
) -> tuple[int, float | None, str]:
    """Return how many sessions to use, the bytes that they copied in a second, and the measurement in words.

    Args:
        conninfo: for the sessions.
        control: makes the table for the sample and drops it.
        document: `jobs` is the largest number.
        columns: of the table.
        schema: for the table of the sample.
    """
    most = document.jobs
    parts: list[list[bytes | memoryview]] = [[] for _ in range(most)]
    size = 0
    small = msgspec_smaller(document, _SAMPLE_BYTES // (4 * most))
    for number, chunk in enumerate(chunks_of(document.inputs[0], small, columns)):
        parts[number % most] += chunk.parts
        size += chunk.source_bytes
        if size >= _SAMPLE_BYTES:
            break
    try:
        target = make_sample(
            control, document.table, document.target, schema, unlogged=document.options.unlogged
        )
    except DriverError:
        return 1, None, "no table for a sample could be made"
    try:
        one = _timed(conninfo, control, target, [[part for each in parts for part in each]])
        many = _timed(conninfo, control, target, parts)
    except (DriverError, BadRow) as error:
        return 1, None, f"the sample could not be copied ({first_line(error)})"
    finally:
        with suppress(DriverError):
            drop_sample(control, target)
    words = f"a sample of {size >> 20} MB took {one:.2f} s with 1 session, {many:.2f} s with {most}"
    jobs, seconds = (most, many) if one > many * _GAIN else (1, one)
    return jobs, size / max(1e-6, seconds), words


def msgspec_smaller(document: LoadDocument, piece_bytes: int) -> LoadDocument:
    """Return the document with smaller pieces."""
    import msgspec

    plan = msgspec.structs.replace(document.plan, piece_bytes=max(1, piece_bytes))
    return msgspec.structs.replace(document, plan=plan)


def _timed(
    conninfo: str, control: Connection, target: object, parts: list[list[bytes | memoryview]]
) -> float:
    from pgsweep.pg.load_copy import CopyTarget

    assert isinstance(target, CopyTarget)
    empty_sample(control, target)
    failed: list[Exception] = []
    sessions = [open_session(conninfo) for _ in parts]

    def work(connection: Connection, mine: list[bytes | memoryview]) -> None:
        try:
            copy(connection, target, mine)
        except Exception as error:
            failed.append(error)

    try:
        threads = [
            threading.Thread(target=work, args=pair, daemon=True)
            for pair in zip(sessions, parts, strict=True)
        ]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - begin
    finally:
        for session in sessions:
            session.close()
    if failed:
        raise failed[0]
    return seconds
