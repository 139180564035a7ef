"""Make docs/reference/json.md from the records: what each command writes with --json, field by field.

The meaning of a field stands in the docstring of its record, below `Attributes:`; so the page says what the
code says.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import msgspec

import pgsweep.records
from pgsweep.records.serve import Time

_ENTRY: Final = re.compile(r"^(?P<names>`?\w+`?(?:, `?\w+`?)*): (?P<text>.*)$")
_WORDS: Final[dict[object, str]] = {
    int: "integer",
    float: "number",
    Time: "string",
    str: "string",
    bool: "true or false",
    type(None): "null",
    object: "any",
    Any: "any",
}


def json_page() -> str:
    """Return the page docs/reference/json.md."""
    results = dict(sorted(_results().items()))
    parts = [
        "# JSON",
        "",
        "What the commands write with `--json`, and `serve` at the addresses that end in `.json`. This page "
        "is made from the records by `make docs`; change those.",
        "",
        "Each result names its `schema`; within one number fields are only added. Sizes are in bytes, lengths"
        " of time in seconds, times in ISO 8601, shares and ratios from 0 "
        "to 1. The version, the command, the time and the machine of a result stand in `provenance`.",
        "",
        "| schema | result |",
        "|---|---|",
    ]
    parts += [f"| `{name}` | [{one.__name__}](#{_anchor(one)}) |" for name, one in results.items()]
    parts.append("")
    for name, record in results.items():
        parts += [f"## {record.__name__}", "", f"`{name}`. {_lead(record)}", "", *_table(record), ""]
    inner = sorted(set(_within(results.values())) - set(results.values()), key=lambda one: one.__name__)
    for record in inner:
        parts += [f"## {record.__name__}", "", _lead(record), "", *_table(record), ""]
    lines = "\n".join(parts).rstrip().split("\n")
    return "".join(f"{line if line.startswith('|') else textwrap.fill(line, 120)}\n" for line in lines)


def records() -> Iterator[type[msgspec.Struct]]:
    """Yield every record of pgsweep.records."""
    for module in pkgutil.iter_modules(pgsweep.records.__path__):
        for value in vars(importlib.import_module(f"pgsweep.records.{module.name}")).values():
            if inspect.isclass(value) and issubclass(value, msgspec.Struct) and value is not msgspec.Struct:
                yield value


def _results() -> dict[str, type[msgspec.Struct]]:
    """Return the records that name a schema."""
    found = {}
    for record in records():
        for field in msgspec.structs.fields(record):
            if field.name == "schema" and isinstance(field.default, str):
                found[field.default] = record
    return found


def _within(found: Iterable[type[msgspec.Struct]]) -> Iterator[type[msgspec.Struct]]:
    """Yield the records and all that they hold."""
    seen: set[type[msgspec.Struct]] = set()
    left = list(found)
    while left:
        record = left.pop()
        if record in seen:
            continue
        seen.add(record)
        yield record
        for hint in typing.get_type_hints(record).values():
            left += _structs(hint)


def _structs(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if inspect.isclass(hint) and issubclass(hint, msgspec.Struct):
        yield hint
    for inner in typing.get_args(hint):
        yield from _structs(inner)


def _anchor(record: type[msgspec.Struct]) -> str:
    return record.__name__.lower()


def _lead(record: type[msgspec.Struct]) -> str:
    """Return the docstring up to its attributes, in one line."""
    text = inspect.getdoc(record) or ""
    return " ".join(text.split("Attributes:")[0].split())


def _table(record: type[msgspec.Struct]) -> list[str]:
    meanings, hints = attributes(record), typing.get_type_hints(record, include_extras=True)
    lines = ["| field | type | meaning |", "|---|---|---|"]
    for field in msgspec.structs.fields(record):
        held = next(_structs(hints[field.name]), None)
        meaning = meanings.get(field.name) or (
            "" if held is None else _lead(held).split(". ")[0].rstrip(".:") + "."
        )
        meaning = meaning.replace("|", "\\|")
        lines.append(f"| `{field.encode_name}` | {_type(hints[field.name])} | {meaning} |")
    return lines


def attributes(record: type[msgspec.Struct]) -> dict[str, str]:
    """Return the meaning of the fields, as the docstrings of the record and of those it extends have them."""
    found: dict[str, str] = {}
    for one in reversed(record.__mro__):
        doc = vars(one).get("__doc__")
        if not doc or "Attributes:" not in doc:
            continue
        names: list[str] = []
        for line in inspect.cleandoc(doc).split("Attributes:", 1)[1].splitlines():
            entry = _ENTRY.match(line.strip()) if line.startswith("    ") and line[4:5] != " " else None
            if entry:
                names = [name.strip("` ") for name in entry["names"].split(",")]
                found |= dict.fromkeys(names, entry["text"].strip())
            elif line.strip():
                found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def _type(hint: Any) -> str:
    """Return a type in words, with links to the records in it."""
    if hint in _WORDS:
        return _WORDS[hint]
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_type, inner))
    if origin in (list, tuple):
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return f"object of {_type(inner[1])}"
    if inspect.isclass(hint) and issubclass(hint, msgspec.Struct):
        return f"[{hint.__name__}](#{_anchor(hint)})"
    return str(getattr(hint, "__name__", hint))
