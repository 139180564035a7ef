"""The results that can be shown, by the schema that each names: as text, CSV and JSON, and read back.

The JSON is the record itself: base units, a `schema` field, and fields are only ever added within one number.
"""

from __future__ import annotations

import csv
import importlib
import io
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.plain import cleaned, inert, shell_word, shown
from pgsweep.records.prediction import ExportResult, RecordPlan
from pgsweep.regular import open_at_once, read_bounded
from pgsweep.ui.kit.sound import trouble_in
from pgsweep.ui.kit.subject import subject_line
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import Result, View
from pgsweep.units import format_count

MODULES = {
    "pgsweep.predict/1": "prediction",
    "pgsweep.advise/1": "advice",
    "pgsweep.verify/1": "verification",
    "pgsweep.demo/1": "demo",
    "pgsweep.record/1": "record",
    "pgsweep.prove/1": "proof",
    "pgsweep.doctor/1": "doctor",
    "pgsweep.cache/1": "cache",
    "pgsweep.footprint/1": "footprint",
    "pgsweep.memory/1": "memory",
    "pgsweep.budget/1": "budget",
    "pgsweep.kernel/1": "kernel",
    "pgsweep.hugepages/1": "hugepages",
    "pgsweep.warm/1": "warm",
    "pgsweep.warm-save/1": "warm_save",
    "pgsweep.warm-check/1": "warm_check",
    "pgsweep.warm-restore/1": "warm_restore",
    "pgsweep.warm-keep/1": "warm_keep",
    "pgsweep.load/1": "load",
    "pgsweep.load-compare/1": "load_compare",
    "pgsweep.lab/1": "lab",
    "pgsweep.lab-all/1": "lab_all",
    "pgsweep.lab-compare/1": "lab_compare",
    "pgsweep.lab-list/1": "lab_list",
}
"""The module in pgsweep.ui.views whose VIEW shows the results of a schema; imported when it is needed."""

_EMBEDDED: Final = (b'<script type="application/json" id="pgsweep-result">', b"</script>")

_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for text that is not JSON: wrong, not UTF-8, or nested too deep."""

MOST_BYTES = 64 << 20
"""Largest file with a result. Usual are some kB, and some MB with hundreds of thousands of relations."""

_MOST_VALUES: Final = 3_000_000
"""In a result; a relation has 18. A value takes some fifty bytes, and a number in JSON two."""

_STATEMENTS: Final = {
    "WarmStatement": "text",
    "WarmRestoreResult": "statements",
    "WarmKeepPlan": "statements",
}
"""By the name of a record, its field with statements of ours. Names in them are quoted as `sql_identifier`
quotes them, in one line, so their line feeds are our own and stay."""

_CONTROL: Final = re.compile(r'\\[^"\\]')
"""What JSON writes for a control character, and at times for a backslash of a text."""

_MANY: Final = 32
"""From so many cells on, a list is looked at as a whole before each of its cells is."""

_AT_ONCE: Final = 1000
"""Cells that are written as JSON at a time."""

R = TypeVar("R")


class _Head(msgspec.Struct):
    schema: str = ""


def view_of(schema: str) -> View[Any]:
    """Return how results of the schema are shown.

    Raises:
        KeyError: no module shows them.
    """
    view = importlib.import_module(f"pgsweep.ui.views.{MODULES[schema]}").VIEW
    assert isinstance(view, View)
    return view


def to_text(result: Result, terminal: Terminal) -> str:
    """Return the result as text with a line end after the last line."""
    subject = subject_line(result)
    text = view_of(result.schema).text(plain(result), terminal)
    # A text that begins with a comment is SQL, to be pasted as it is.
    mark = "-- " if subject and text.startswith("-- ") else ""
    lines = [mark + subject]
    if terminal.interactive:
        lines = textwrap.wrap(subject, terminal.width, initial_indent=mark, subsequent_indent=mark)
    head = "\n".join(lines)
    return f"{terminal.paint(head, 'dim')}\n{text}" if head else text


def plain(record: R) -> R:
    """Return the record with every text in it as `shown`: names from a server may hold escape sequences.

    Statements keep their line feeds: pasted in one line, all would be part of their first comment. It comes
    before the layout, so that columns are as wide as what is seen in them.
    """
    found = _plain(record)
    assert isinstance(found, type(record))
    return found


def _plain(value: Any, clean: Callable[[str], str] = shown) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, msgspec.Struct):
        statements = _STATEMENTS.get(type(value).__name__)
        before = {name: getattr(value, name) for name in value.__struct_fields__}
        after = {
            name: _plain(field, cleaned if name == statements else shown) for name, field in before.items()
        }
        changed = {name: field for name, field in after.items() if field is not before[name]}
        return msgspec.structs.replace(value, **changed) if changed else value
    if isinstance(value, list | tuple):
        if len(value) >= _MANY and _is_plain(value):
            return value
        cells = [_plain(cell, clean) for cell in value]
        if all(new is old for new, old in zip(cells, value, strict=True)):
            return value
        return type(value)(cells)
    if isinstance(value, dict):
        return {_plain(key): _plain(cell) for key, cell in value.items()}
    return value


def _is_plain(value: list[Any] | tuple[Any, ...]) -> bool:
    """Return whether nothing in it need be written otherwise: of 100,000 records in a tenth of a second."""
    for begin in range(0, len(value), _AT_ONCE):
        try:
            text = msgspec.json.encode(value[begin : begin + _AT_ONCE]).decode()
        except (UnicodeError, TypeError, ValueError):
            return False
        if not text.isprintable() or _CONTROL.search(text):
            return False
    return True


def to_csv(result: Result) -> str:
    """Return the rows of the result as CSV: base units, line feeds at the ends of the lines.

    A text, not a number, that a spreadsheet would take for a formula has an apostrophe in front; so has one
    that begins with an apostrophe, so that taking one away gives back every text.
    """
    rows = view_of(result.schema).rows(result)
    out = io.StringIO()
    line_out = _Line()
    # The writer quotes what is in its own end of a line, and COPY refuses a carriage return without quotes.
    writer = csv.writer(line_out, lineterminator="\r\n")
    for line in [rows.head, *rows.lines]:
        writer.writerow([inert(cell) for cell in line])
        out.write(line_out.text.removesuffix("\r\n") + "\n")
    return out.getvalue()


class _Line:
    """A file that holds the last line written."""

    text = ""

    def write(self, text: str) -> None:
        self.text = text


def to_json(result: Result | RecordPlan | ExportResult, *, indent: int = 2) -> str:
    """Return the result as JSON with a line end."""
    text = msgspec.json.format(msgspec.json.encode(result), indent=indent).decode() + "\n"
    return text if text.replace("\n", "").isprintable() else _json_plain(text)


def _json_plain(text: str) -> str:
    """Return JSON of the same meaning that cannot disturb a terminal; C0 is escaped by every encoder."""

    def escape(found: re.Match[str]) -> str:
        if found[0].isprintable():
            return found[0]
        units = found[0].encode("utf-16-be")
        return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))

    return re.sub(r"[^\x20-\x7e\n]", escape, text)


def from_json(text: bytes, name: str) -> Result:
    """Return the result that the JSON holds.

    Args:
        text: what was read.
        name: what it was read from, for the message.

    Raises:
        UsageError: it is not a result of pgsweep, or one of a version that this one does not know.
    """
    if text.count(b",") > _MOST_VALUES:
        raise UsageError(
            f"`{name}` is not a result of pgsweep",
            cause=f"it has more than {format_count(_MOST_VALUES)} values",
            hint=f"give a file that one of these wrote with --json or -o FILE: {makers()}",
        )
    try:
        schema = msgspec.json.decode(text, type=_Head).schema
    except _BROKEN as error:
        raise UsageError(
            f"`{name}` is not a result of pgsweep",
            cause=f"it cannot be read as JSON ({error})",
            hint=f"give a file that one of these wrote with --json or -o FILE: {makers()}",
        ) from error
    if schema not in MODULES:
        raise UsageError(
            f"`{name}` holds a result that this pgsweep does not know",
            cause=f'its schema is "{schema}"' if schema else "it names no schema",
            hint=f"the known ones are {', '.join(sorted(MODULES))}; a newer pgsweep may know more"
            if schema
            else f"give a file that one of these wrote with --json or -o FILE: {makers()}",
        )
    try:
        result: Result = msgspec.json.decode(text, type=view_of(schema).record)
    except _BROKEN as error:
        raise _damaged(name, str(error)) from error
    assert isinstance(result, msgspec.Struct)
    trouble = trouble_in(result)
    if trouble is not None:
        raise _damaged(name, trouble)
    return result


def makers() -> str:
    """Return the commands whose results can be shown."""
    groups = {
        "": ("predict", "advise", "verify", "demo", "record", "prove", "doctor", "cache", "footprint"),
        "memory": ("", "budget", "kernel"),
        "hugepages": ("",),
        "warm": ("plan", "run", "save", "check", "restore", "keep"),
        "load": ("",),
        "lab": ("list", "run", "compare"),
    }
    return ", ".join(f"{group} {name}".strip() for group, names in groups.items() for name in names)


def _damaged(name: str, cause: str) -> UsageError:
    return UsageError(f"`{name}` is damaged", cause=cause, hint="make the result again from its evidence")


def read_result(path: Path) -> Result:
    """Return the result in a JSON file, or the one embedded in an HTML report.

    Raises:
        PgsweepError: the file cannot be read.
        UsageError: it holds no result.
    """
    try:
        # A pipe is welcome here: pgsweep report <(ssh there pgsweep cache --json).
        with open_at_once(path) as file:
            text = read_bounded(file, MOST_BYTES, path)
    except IsADirectoryError as error:
        raise UsageError(
            f"`{path}` is a folder, a result is a file",
            hint=f"of evidence: pgsweep predict {shell_word(str(path))} -o result.html",
        ) from error
    except OSError as error:
        raise PgsweepError(f"cannot read `{path}`: {error.strerror}") from error
    if text.lstrip()[:1] == b"<":
        begin, end = _EMBEDDED
        found, embedded, _ = text.partition(begin)[2].partition(end)
        if not embedded:
            raise UsageError(
                f"`{path}` is a web page without a result in it",
                cause="nothing in it is marked as one",
                hint="give an HTML report or a JSON file that pgsweep wrote",
            )
        text = found
    return from_json(text, str(path))
