"""Record evidence with probes: every page access of a running server, exactly.

docs/concepts/tracing.md describes how it works, what it costs and what it cannot see. Nothing is written
to the server, and nothing outlives this process: the probes hang on its file descriptors.
"""

from __future__ import annotations

import contextlib
import platform
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pgsweep._native import Tracer, trace_event_cost_seconds
from pgsweep.commands import sudo, this_command
from pgsweep.errors import MissingAbility, NeedsRoot, PgsweepError
from pgsweep.evidence.observe import session
from pgsweep.evidence.store import EvidenceWriter
from pgsweep.evidence.trace_recording import Limits, TraceRecording
from pgsweep.host.abilities import X86_64_ONLY
from pgsweep.pg.catalog.server import read_server
from pgsweep.pg.session.postmaster import local_postmaster
from pgsweep.progress import NullListener, Progress
from pgsweep.records.prediction import RecordResult
from pgsweep.versions import beyond_tested

RING_BYTES: Final = 128 << 20
"""The kernel's buffer: 3.3 million events, seconds of the busiest server."""

_ATTACHMENT: Final = "auto"
"""How the programs are attached: the fastest way at hand."""


def record_trace(
    conninfo: str,
    output: Path,
    *,
    seconds: float | None = None,
    max_events: int | None = None,
    max_bytes: int | None = None,
    budget: float | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    overwrite: bool = False,
) -> RecordResult:
    """Record every page access of a running server on this host into a folder of evidence.

    All databases are recorded, because they share the buffer pool; the evidence says which one it is about.

    The result says in `ended_by` why it ended: `time`, `limit` (max_events or max_bytes), `interrupt`,
    `server` (it was stopped, restarted, or crashed), or why else the session has gone
    (pg/session/session_end.py); in all cases the evidence is valid up to there.

    Args:
        conninfo, output, max_events, max_bytes, budget, stop: as for `record` (record.py).
        seconds: length of the recording; None records until something else ends it.
        progress: called with the expected cost before it is spent, and with the time passed.
        overwrite: replace evidence that is there already.

    Raises:
        ConnectionFailed: the server cannot be reached.
        MissingAbility: not root, not this host, not x86-64, no uprobes, or a server without symbols; or it is
            expected to take more than the budget.
        EvidenceError: the evidence cannot be written.
    """
    progress = progress or NullListener()
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise MissingAbility(
            f"tracing is not possible on {platform.system()} {platform.machine()}",
            cause=X86_64_ONLY if platform.system() == "Linux" else "it needs Linux on x86-64",
            hint="use --source peek on Linux, or --source sql",
        )
    with session(conninfo, progress) as connection:
        server = read_server(connection)
        newer = beyond_tested(server.version_num)
        if newer is not None:
            raise MissingAbility(
                f"tracing PostgreSQL {server.version_num // 10000} is not possible",
                cause=newer,
                hint="use --source sql",
            )
        postmaster_pid, start_time = local_postmaster(connection)
        with _abilities():
            cost_seconds = trace_event_cost_seconds(_ATTACHMENT)
        recording = TraceRecording(
            connection, server, postmaster_pid, start_time, progress, stop or threading.Event()
        )
        expected = recording.state_cost(cost_seconds, seconds, budget)
        meta = recording.meta()
        with EvidenceWriter(output, meta, overwrite=overwrite) as writer, _abilities():
            return recording.run(
                writer,
                Limits(seconds, max_events, max_bytes, budget),
                lambda: Tracer(
                    postmaster_pid,
                    server.version_num,
                    databases=[],
                    ring_bytes=RING_BYTES,
                    attachment=_ATTACHMENT,
                    start_time=start_time,
                    buffer_states=recording.pool_is_as_expected,
                ),
                cost_seconds,
                expected,
            )


@contextlib.contextmanager
def _abilities() -> Iterator[None]:
    """Turn what the probes raise into errors with cause and hint.

    Raises:
        MissingAbility: this kernel, this server or our privileges do not allow it.
        PgsweepError: a system call failed.
    """
    try:
        yield
    except PermissionError as error:
        raise NeedsRoot(
            str(error.args[-1]), cause="tracing needs root", hint=f"{sudo()}{this_command()}"
        ) from error
    except RuntimeError as error:
        what, *hint = error.args
        raise MissingAbility(str(what), hint=str(hint[0]) if hint else None) from error
    except OSError as error:
        raise PgsweepError(
            f"the probes failed: {error.args[-1]}", hint="use --source sql, and please report this"
        ) from error
