"""The file of records that the server refused: CSV with the columns file, line, reason, record."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from pgsweep.errors import PgsweepError
from pgsweep.files import write_whole
from pgsweep.pg.load_journal import Reject


def write_rejects(path: Path, files: Sequence[str], rejects: Sequence[Reject]) -> None:
    """Write the file, whole or not at all; it is for its owner only, because it holds data of the table.

    Args:
        path: where.
        files: the names of the inputs, by number.
        rejects: what was refused.

    Raises:
        PgsweepError: the disk is full.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["file", "line", "reason", "record"])
    for reject in rejects:
        record = reject.record.rstrip(b"\r\n").decode("utf-8", "backslashreplace")
        writer.writerow([files[reject.file], reject.line, reject.reason, record])
    try:
        write_whole(path, out.getvalue().encode(), mode=0o600)
    except OSError as error:
        raise PgsweepError(
            f"cannot write `{path}`: {error.strerror}",
            cause="all rows are loaded; the refused records are kept in the journal",
            hint="make room, then: pgsweep load --resume TABLE",
        ) from error
