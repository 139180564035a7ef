"""The results that can be shown, by the schema that each names, and their JSON.

The JSON is the record itself: base units, a `schema` field, and fields are only ever added within one number.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.records.budget import BudgetResult
from pgsweep.records.cache import CacheResult
from pgsweep.records.doctor import DoctorResult
from pgsweep.records.footprint import FootprintResult
from pgsweep.records.hugepages import HugePagesResult
from pgsweep.records.kernel import KernelResult
from pgsweep.records.memory import MemoryResult
from pgsweep.records.prediction import ExportResult, PredictResult, RecordPlan, RecordResult
from pgsweep.records.proof import DemoResult, ProveResult
from pgsweep.records.top import TopSample

Result = (
    PredictResult
    | DemoResult
    | RecordResult
    | ProveResult
    | DoctorResult
    | CacheResult
    | FootprintResult
    | MemoryResult
    | BudgetResult
    | KernelResult
    | HugePagesResult
)

type_of_schema: dict[str, type[Result]] = {
    "pgsweep.predict/1": PredictResult,
    "pgsweep.demo/1": DemoResult,
    "pgsweep.record/1": RecordResult,
    "pgsweep.prove/1": ProveResult,
    "pgsweep.doctor/1": DoctorResult,
    "pgsweep.cache/1": CacheResult,
    "pgsweep.footprint/1": FootprintResult,
    "pgsweep.memory/1": MemoryResult,
    "pgsweep.budget/1": BudgetResult,
    "pgsweep.kernel/1": KernelResult,
    "pgsweep.hugepages/1": HugePagesResult,
}
"""The record of each schema that can be read back."""

_EMBEDDED = re.compile(rb'<script type="application/json" id="pgsweep-result">(.*?)</script>', re.DOTALL)


class _Head(msgspec.Struct):
    schema: str = ""


def to_json(result: Result | RecordPlan | ExportResult | TopSample, *, indent: int = 2) -> str:
    """Return the result as JSON with a line end."""
    return msgspec.json.format(msgspec.json.encode(result), indent=indent).decode() + "\n"


def from_json(text: bytes, name: str) -> Result:
    """Return the result that the JSON holds.

    Args:
        text: what was read.
        name: what it was read from, for the message.

    Raises:
        UsageError: it is no result of pgsweep, or one of a version that this one does not know.
    """
    try:
        schema = msgspec.json.decode(text, type=_Head).schema
    except msgspec.DecodeError as error:
        raise UsageError(
            f"`{name}` is no result of pgsweep",
            cause=f"it is not readable as JSON: {error}",
            hint="give a file that `pgsweep predict --json` or `pgsweep demo --json` wrote",
        ) from error
    kind = type_of_schema.get(schema)
    if kind is None:
        raise UsageError(
            f"`{name}` holds a result that this pgsweep does not know",
            cause=f'its schema is "{schema}"' if schema else "it names no schema",
            hint=f"known are {', '.join(sorted(type_of_schema))}; a newer pgsweep may know more",
        )
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise UsageError(
            f"`{name}` is damaged", cause=str(error), hint="make the result again from its evidence"
        ) from error


def read_result(path: Path) -> Result:
    """Return the result in a JSON file, or the one embedded in an HTML report.

    Raises:
        PgsweepError: the file cannot be read.
        UsageError: it holds no result.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise PgsweepError(f"cannot read `{path}`: {error.strerror}") from error
    if text.lstrip()[:1] == b"<":
        found = _EMBEDDED.search(text)
        if found is None:
            raise UsageError(
                f"`{path}` is a web page without a result in it",
                hint="give an HTML report or a JSON file that pgsweep wrote",
            )
        text = found.group(1)
    return from_json(text, str(path))
