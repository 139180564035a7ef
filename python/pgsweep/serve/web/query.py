"""The parameters of a request, read in one way: what is not as it should be is refused in a sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl

from pgsweep.errors import UsageError
from pgsweep.plain import shown
from pgsweep.units import seconds_of

_MOST_QUERY: Final = 4096
_MOST_PARAMETERS: Final = 20
_MOST_TEXT: Final = 200
_WHOLE: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_SECONDS: Final = re.compile(r"[0-9]{1,13}(\.[0-9]{1,9})?", re.ASCII)
_MOST_SECONDS: Final = 2.0**37
"""In the year 6325."""


class Query:
    """The parameters behind the `?` of an address, each at most once, of text in UTF-8 without NUL.

    Args:
        text: as it was sent.

    Raises:
        UsageError: it is not so, or long.
    """

    def __init__(self, text: bytes) -> None:
        if len(text) > _MOST_QUERY:
            raise UsageError(f"the parameters are longer than {_MOST_QUERY} bytes")
        try:
            pairs = parse_qsl(
                text.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=_MOST_PARAMETERS,
            )
        except UnicodeDecodeError:
            raise UsageError("the parameters are not UTF-8") from None
        except ValueError:
            raise UsageError(f"there are more than {_MOST_PARAMETERS} parameters") from None
        self._values: dict[str, str] = {}
        for name, value in pairs:
            said = shown(name[:_MOST_TEXT])
            if "\0" in name + value:
                raise UsageError(f"{said} has a NUL in it")
            if len(value) > _MOST_TEXT:
                raise UsageError(f"{said} is longer than {_MOST_TEXT} characters")
            if name in self._values:
                raise UsageError(f"{said} is given twice")
            self._values[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        """Return a short text."""
        return self._values.get(name, default)

    def choice(self, name: str, words: Sequence[str]) -> str:
        """Return one of some words, by default the first.

        Raises:
            UsageError: it is another one.
        """
        word = self.text(name, words[0])
        if word not in words:
            raise UsageError(f"{name} is one of {', '.join(words)}")
        return word

    def whole(self, name: str, default: int, *, least: int, most: int) -> int:
        """Return a whole number.

        Raises:
            UsageError: it is none, or out of bounds.
        """
        text = self.text(name, str(default))
        if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
            raise UsageError(f"{name} is a number from {least} to {most}")
        return int(text)

    def seconds(self, name: str, default: float) -> float:
        """Return a time in seconds since 1970; it may be given as such, or in ISO 8601.

        Raises:
            UsageError: it is none.
        """
        if name not in self:
            return default
        text = self._values[name]
        try:
            # The `+` of a zone is a blank where it was not escaped.
            found = float(text) if _SECONDS.fullmatch(text) else seconds_of(text.replace(" ", "+"))
        except (ValueError, OverflowError):
            found = -1.0
        if not 0 <= found <= _MOST_SECONDS:
            raise UsageError(f"{name} is a time: 2026-05-01T09:00:00Z, or seconds since 1970")
        return found
