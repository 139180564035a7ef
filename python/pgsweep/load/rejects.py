"""The file of records that the server refused: CSV with the columns file, line, reason, record."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pgsweep.errors import PgsweepError
from pgsweep.files import write_whole
from pgsweep.load.document import LoadDocument
from pgsweep.load.input.split import codec_of, without_end
from pgsweep.load.refusing import Refused
from pgsweep.pg.load.journal import Reject
from pgsweep.plain import shell_word


def write_rejects(document: LoadDocument, rejects: Sequence[Reject]) -> None:
    """Write the file, whole or not at all; it is for its owner only, because it holds data of the table.

    Records are the bytes of the inputs, so the file has their encoding.

    Raises:
        PgsweepError: the disk is full.
    """
    if document.rejects_file is None:
        return
    path, encoding = Path(document.rejects_file), document.options.encoding
    codec = codec_of(encoding)
    lines = [b"file,line,reason,record\n"]
    for reject in rejects:
        reason = reject.reason.encode(codec, "backslashreplace")
        record = without_end(reject.record)
        fields = [os.fsencode(document.inputs[reject.file].path), b"%d" % reject.line, reason, record]
        lines.append(b",".join(map(_field, fields)) + b"\n")
    try:
        write_whole(path, b"".join(lines), mode=0o600)
    except OSError as error:
        raise PgsweepError(
            f"cannot write `{path}`: {error.strerror}",
            cause="all rows are loaded; the refused records are kept in the journal",
            hint=f"make room, then: {document.table.ways.resume}",
        ) from error


def leave_rejects(document: LoadDocument, before: Sequence[Reject], error: PgsweepError) -> None:
    """Write what was refused until a load failed, whose rows go; the error says where it is.

    Args:
        before: of the pieces that were copied.
        error: may have those of its own piece.
    """
    rejects = [*before, *(error.rejects if isinstance(error, Refused) else ())]
    if document.rejects_file is None or not rejects:
        return
    with suppress(PgsweepError):
        write_rejects(document, rejects)
        error.hint = f"see what was refused until then in {shell_word(document.rejects_file)}; {error.hint}"


def _field(value: bytes) -> bytes:
    if any(sign in value for sign in (b'"', b",", b"\n", b"\r")):
        return b'"' + value.replace(b'"', b'""') + b'"'
    return value
