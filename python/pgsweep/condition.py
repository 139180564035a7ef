"""Conditions on a result, as they are written after `--fail-if`: `resident<0.9`, `verdict!=reliable`.

Each is one comparison: a name, one of < <= > >= = !=, and a share: `0.9` or `90%`. A value that is a word
instead of a number is compared by = and != with one of its words. Nothing is evaluated.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pgsweep.errors import UsageError

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
_OF_WORDS: Final = ("=", "==", "!=")
_CONDITION = re.compile(r"\s*([a-z_][a-z0-9_.]*)\s*(<=|>=|==|!=|<|>|=)\s*(\S.*?)\s*", re.IGNORECASE)
_NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(%?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a named number or word with a fixed one.

    Attributes:
        text: as it was written.
    """

    text: str
    name: str
    comparison: str
    limit: float | str

    def holds(self, values: Mapping[str, float | str | None]) -> bool:
        """Return whether it holds for these values.

        Raises:
            UsageError: there is no value of that name, or it could not be measured here.
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
        names: the shares that there will be.

    Raises:
        UsageError: the text is not a condition, names a share that the result does not have, or compares it
            with a number that no share can be.
    """
    match = _CONDITION.fullmatch(text)
    number = None if match is None else _NUMBER.fullmatch(match.group(3))
    if match is None or number is None:
        raise UsageError(
            f"`{text}` is not a condition",
            cause="a condition is a name, a comparison and a number",
            hint=f"for example --fail-if '{names[0]}<0.9', in quotes, because < redirects input in the shell",
        )
    if match.group(1) not in names:
        raise UsageError(
            f"there is no `{match.group(1)}` to compare, as `{text}` asks",
            hint=f"known are: {', '.join(names)}",
        )
    limit = float(number[1]) / (100 if number[2] else 1)
    if not 0 <= limit <= 1:
        raise UsageError(
            f"`{match.group(1)}` is never {match.group(3)}, as `{text}` asks",
            cause="it is a share, from 0 to 1 or from 0% to 100%",
            hint=f"for example --fail-if '{match.group(1)}<90%'",
        )
    return Condition(text.strip(), match.group(1), match.group(2), limit)


def parse_word_condition(text: str, words: Mapping[str, tuple[str, ...]]) -> Condition:
    """Return the condition on a word that the text means.

    Args:
        text: `verdict!=reliable`.
        words: by name, the words that the value can be.

    Raises:
        UsageError: the text is not a condition, or its value or word does not exist.
    """
    match = _CONDITION.fullmatch(text)
    name, choices = next(iter(words.items()))
    if match is None or match.group(2) not in _OF_WORDS:
        raise UsageError(
            f"`{text}` is not a condition",
            cause="a condition is a name, = or !=, and a word",
            hint=f"for example --fail-if '{name}!={choices[0]}'",
        )
    if match.group(1) not in words:
        raise UsageError(
            f"there is no `{match.group(1)}` to compare, as `{text}` asks",
            hint=f"known are: {', '.join(words)}",
        )
    if match.group(3) not in words[match.group(1)]:
        raise UsageError(
            f"`{match.group(1)}` is never `{match.group(3)}`, as `{text}` asks",
            hint=f"it is one of: {', '.join(words[match.group(1)])}",
        )
    return Condition(text.strip(), match.group(1), match.group(2), match.group(3))
