"""Conditions on a result's numbers, as they are written after `--fail-if`: `resident<0.9`.

Each is one comparison: a name, one of < <= > >= = !=, and a number: `0.9`, `90%` or `64MB`. Nothing is
evaluated.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pgsweep.errors import UsageError
from pgsweep.units import parse_bytes

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
_CONDITION = re.compile(r"\s*([a-z_][a-z0-9_.]*)\s*(<=|>=|==|!=|<|>|=)\s*(\S.*?)\s*", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a named number with a fixed one.

    Attributes:
        text: as it was written.
    """

    text: str
    name: str
    comparison: str
    limit: float

    def holds(self, values: Mapping[str, float | None]) -> bool:
        """Return whether it holds for these numbers.

        Raises:
            UsageError: there is no number of that name, or it could not be measured here.
        """
        if self.name not in values:
            raise UsageError(
                f"there is no `{self.name}` to compare, as `{self.text}` asks",
                hint=f"known are: {', '.join(values)}",
            )
        value = values[self.name]
        if value is None:
            raise UsageError(
                f"`{self.name}` is not known here, so `{self.text}` cannot be answered",
                cause="what could not be looked at is listed with the result",
                hint=f"ask for another: {', '.join(name for name, v in values.items() if v is not None)}",
            )
        return _COMPARISONS[self.comparison](value, self.limit)


def parse_condition(text: str, names: tuple[str, ...]) -> Condition:
    """Return the condition that the text means.

    Args:
        text: `resident<0.9`, `resident < 90%`.
        names: the numbers that there will be.

    Raises:
        UsageError: it is none, or it names a number that will not be there.
    """
    match = _CONDITION.fullmatch(text)
    limit = None if match is None else _limit(match.group(3))
    if match is None or limit is None:
        raise UsageError(
            f"`{text}` is no condition",
            cause="a condition is a name, a comparison and a number",
            hint=f"for example --fail-if '{names[0]}<0.9', in quotes, lest the shell reads < as a file",
        )
    if match.group(1) not in names:
        raise UsageError(
            f"there is no `{match.group(1)}` to compare, as `{text}` asks",
            hint=f"known are: {', '.join(names)}",
        )
    return Condition(text.strip(), match.group(1), match.group(2), limit)


def _limit(text: str) -> float | None:
    if _NUMBER.fullmatch(text):
        return float(text)
    if text.endswith("%") and _NUMBER.fullmatch(text[:-1].strip()):
        return float(text[:-1]) / 100
    try:
        return float(parse_bytes(text))
    except UsageError:
        return None
