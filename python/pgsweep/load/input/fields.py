"""Records of text cut into fields as COPY does, to leave some out, or to show them with their names."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

from pgsweep.load.document import LoadDocument
from pgsweep.load.input.source import Input, InputError
from pgsweep.load.input.split import Chunk, codec_of, pairs_of, records_of, without_end
from pgsweep.load.options import Format, LoadOptions
from pgsweep.pg.load.copy import CopyTarget
from pgsweep.pg.load.journal import Reject
from pgsweep.units import format_many

_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class FieldCutter:
    """Cuts records into fields."""

    def __init__(self, kind: Format, options: LoadOptions) -> None:
        lead = pairs_of(options)
        self._pair = None if lead is None else re.compile(lead + rb"(?s:.)")
        self._delimiter = (options.delimiter or ("\t" if kind == "tsv" else ",")).encode()
        end = re.escape(self._delimiter)
        if kind == "tsv":
            pattern = rb"(?:[^\\%s]|\\.)*" % end
        else:
            quote = re.escape((options.quote or '"').encode())
            escape = re.escape((options.escape or options.quote or '"').encode())
            within = rb"[^%s]" % quote if escape == quote else rb"(?:[^%s%s]|%s.)" % (quote, escape, escape)
            pattern = rb"(?:[^%s%s]|%s%s*%s)*" % (quote, end, quote, within, quote)
        self._field = re.compile(pattern, re.DOTALL)

    def fields(self, record: bytes) -> list[bytes]:
        """Return the fields of a record as they stand, without its line end."""
        record = without_end(record)
        # The second byte of a character may look like a delimiter; then the place is what counts.
        masked = record if self._pair is None else self._pair.sub(b"aa", record)
        found, at = [], 0
        while True:
            match = self._field.match(masked, at)
            end = match.end() if match else at
            found.append(record[at:end])
            if masked[end : end + 1] != self._delimiter:
                return found if end == len(record) else [*found, record[end:]]
            at = end + 1

    def joined(self, fields: Sequence[bytes]) -> bytes:
        """Return a record of fields."""
        return self._delimiter.join(fields)


def without_fields(entry: Input, chunks: Iterator[Chunk], document: LoadDocument) -> Iterator[Chunk]:
    """Yield the pieces of a file without those fields of each record that are left out.

    Raises:
        InputError: a record has another number of fields, and none may be refused.
    """
    options, left_out = document.options, document.plan.files[entry.number].left_out
    count = len(document.plan.columns) + len(left_out)
    cutter = FieldCutter(entry.format, options)
    kept = [place for place in range(count) if place not in left_out]
    for chunk in chunks:
        records = records_of(entry, options, chunk)
        end = bytes([chunk.terminator]) if not records[0].endswith(b"\r\n") else b"\r\n"
        rows, lines, sources, refused = [], [], [], []
        line, passed = chunk.first_line, 0
        for number in range(len(records)):
            record = records[number]
            fields = cutter.fields(record)
            line += passed
            passed = record.count(chunk.terminator)
            if len(fields) != count:
                reason = f"it has {format_many(len(fields), 'field')}, and should have {count}"
                if options.max_rejects is None:
                    raise InputError(
                        f"{entry.name}, line {line}: {reason}",
                        cause="the delimiter or the quoting is another, or fields are missing",
                        hint="correct it, or have such records written to a file: --rejects FILE",
                    )
                refused.append(Reject(file=entry.number, line=line, reason=reason, record=record))
                continue
            rows.append(cutter.joined([fields[place] for place in kept]) + end)
            lines.append(line)
            if options.max_rejects is not None:
                sources.append(record)
        yield chunk.of([b"".join(rows)], lines, sources, refused)


_OURS: Final = FieldCutter("csv", LoadOptions())


def with_names(record: bytes, names: Sequence[str]) -> bytes:
    """Return a record of CSV that was made here as a JSON object of its texts."""
    texts: dict[str, str | None] = {}
    for name, field in zip(names, _OURS.fields(record), strict=False):
        text = field[1:-1].replace(b'""', b'"') if field[:1] == b'"' else field or None
        texts[name] = None if text is None else text.decode("utf-8", "backslashreplace")
    return json.dumps(texts, ensure_ascii=False).encode()


def values_of(record: bytes, target: CopyTarget) -> list[str | None]:
    """Return what the fields of a record stand for; in CSV a quoted text for NULL is taken for NULL too."""
    codec = codec_of(target.encoding)
    if target.format == "text":
        cutter, null = _cutter(target.delimiter, target.encoding), (target.null or "\\N").encode()
        fields = cutter.fields(record)
        return [None if field == null else unescaped(field.decode(codec, "replace")) for field in fields]
    read = csv.reader(
        io.StringIO(record.decode(codec, "replace"), newline=""),
        delimiter=target.delimiter or ",",
        quotechar=target.quote or '"',
    )
    return [None if field == (target.null or "") else field for field in next(read, [])]


@cache
def _cutter(delimiter: str | None, encoding: str | None) -> FieldCutter:
    return FieldCutter("tsv", LoadOptions(delimiter=delimiter, encoding=encoding))


def unescaped(field: str) -> str:
    """Return what a field of COPY's text format stands for (CopyReadAttributesText)."""

    def meant(found: re.Match[str]) -> str:
        digits, octal, sign = found.groups()
        if digits or octal:
            return chr(int(digits, 16) if digits else int(octal, 8) & 0xFF)
        return _ESCAPES.get(str(sign), str(sign))

    return re.sub(r"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|(.))", meant, field, flags=re.DOTALL)
