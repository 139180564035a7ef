"""What the reader's terminal can show: its width, its characters, its colours.

Colour never carries a meaning alone, so every text here reads the same without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TextIO

Paint = Literal["bold", "dim", "red", "green", "yellow", "blue", "cyan"]
_CODES: dict[Paint, str] = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "cyan": "36",
}
_PROBE = "─█░●⣿≥×"


@dataclass(frozen=True)
class Terminal:
    """How to write a text: at most `width` columns, with or without Unicode's characters and colours.

    Without `tables` a text leaves out what most readers do not ask for, and says how it is had.
    Of a table it has at most `rows`, where there is such a number.
    """

    width: int = 80
    unicode: bool = True
    colour: bool = False
    interactive: bool = False
    tables: bool = True
    rows: int | None = None

    @classmethod
    def of(
        cls, stream: TextIO, color: str = "auto", environment: Mapping[str, str] | None = None
    ) -> Terminal:
        """Return what the stream can show.

        Args:
            stream: where the text will go.
            color: `auto`, `always` or `never`, as the user wishes.
            environment: the environment variables; NO_COLOR, FORCE_COLOR, PG_COLOR, TERM and COLUMNS are
            heeded.
        """
        env = environment or {}
        interactive, columns = stream.isatty(), 80
        if interactive:
            import shutil

            columns = shutil.get_terminal_size((80, 24)).columns
        try:
            _PROBE.encode(getattr(stream, "encoding", None) or "ascii")
            encodes = True
        except (UnicodeEncodeError, LookupError):
            encodes = False
        return cls(
            width=max(40, columns),
            unicode=encodes and env.get("TERM") != "dumb",
            colour=_wants_colour(interactive, color, env),
            interactive=interactive,
        )

    def paint(self, text: str, *paints: Paint) -> str:
        """Return the text in colours, or as it is where there are none."""
        if not self.colour or not paints or not text:
            return text
        return f"\x1b[{';'.join(_CODES[paint] for paint in paints)}m{text}\x1b[0m"

    def wrap(self, text: str) -> str:
        """Return a line broken at words where a terminal is narrower; what goes elsewhere stays one line."""
        if not self.interactive or len(text) <= self.width:
            return text
        import textwrap

        return "\n".join(textwrap.wrap(text, self.width))

    def bullets(self, texts: Iterable[str]) -> list[str]:
        """Return texts as a list, one below the other, in lines of at most 100 columns."""
        import textwrap

        width = min(self.width, 100)
        broken = (
            textwrap.wrap(text, width, initial_indent="  - ", subsequent_indent="    ") for text in texts
        )
        return [line for lines in broken for line in lines]

    def pick(self, unicode_text: str, ascii_text: str) -> str:
        """Return the first where Unicode can be shown, else the second."""
        return unicode_text if self.unicode else ascii_text


def _wants_colour(interactive: bool, color: str, env: Mapping[str, str]) -> bool:
    """Return whether to colour: the option, then NO_COLOR, FORCE_COLOR, PG_COLOR, then what the stream is."""
    if color != "auto":
        return color == "always"
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR") not in (None, "", "0"):
        return True
    if env.get("PG_COLOR") in ("always", "never"):
        return env["PG_COLOR"] == "always"
    return interactive and env.get("TERM") != "dumb"
