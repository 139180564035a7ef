"""Lines of a screen: lists of spans (text, paints), so that what is wide is known before colours come in."""

from __future__ import annotations

from collections.abc import Sequence

from pgsweep.ui.kit.table import text_width
from pgsweep.ui.kit.terminal import Paint, Terminal

Span = tuple[str, tuple[Paint, ...]]
Line = list[Span]


def painted(line: Line, terminal: Terminal) -> str:
    """Return a line as text with the colours of a terminal."""
    return "".join(terminal.paint(text, *paints) for text, paints in line)


def shortened(text: str, width: int, terminal: Terminal) -> str:
    """Return a text that is too wide with its middle left out: names differ at both ends."""
    if text_width(text) <= width:
        return text
    mark = terminal.pick("…", "~")
    head, tail = "", ""
    room = width - 1
    front, back = 0, len(text) - 1
    while front <= back:
        character = text[front] if len(head) <= len(tail) else text[back]
        if text_width(head) + text_width(tail) + text_width(character) > room:
            break
        if len(head) <= len(tail):
            head, front = head + character, front + 1
        else:
            tail, back = character + tail, back - 1
    return head + mark + tail


def shortened_apart(texts: Sequence[str], width: int, terminal: Terminal) -> list[str]:
    """Return the texts, those too wide shortened so that no two that differ look the same."""
    short = [shortened(text, width, terminal) for text in texts]
    alike: dict[str, set[str]] = {}
    for text, found in zip(texts, short, strict=True):
        alike.setdefault(found, set()).add(text)
    doubles = {found: sorted(group) for found, group in alike.items() if len(group) > 1}
    for index, (text, found) in enumerate(zip(texts, short, strict=True)):
        if found in doubles:
            short[index] = _apart(text, doubles[found], width, terminal)
    return short


def _apart(text: str, group: Sequence[str], width: int, terminal: Terminal) -> str:
    """Return the part of a text that differs from the others of its group.

    Where that is not enough, its number in the group stands at the end.
    """
    mark = terminal.pick("…", "~")
    first, last = min(group), max(group)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    before = max(0, same - 3)
    window = shortened(text[before:], width - 1, terminal)
    others = {shortened(other[before:], width - 1, terminal) for other in group if other != text}
    if window not in others:
        return mark + window
    number = f"{mark}{1 + list(group).index(text)}"
    return shortened(text, width - text_width(number), terminal) + number


def cut(line: Line, terminal: Terminal) -> Line:
    """Return a line that fits; what is too much is left out at its end, with a mark."""
    if not terminal.interactive or sum(text_width(text) for text, _ in line) <= terminal.width:
        return line
    kept: Line = []
    room = terminal.width - 1
    for text, paints in line:
        part = ""
        for character in text:
            if text_width(part + character) > room:
                return [*kept, (part, paints), (terminal.pick("…", "~"), ("dim",))]
            part += character
        kept.append((part, paints))
        room -= text_width(part)
    return kept


def padded(text: str, width: int, *, left: bool) -> str:
    """Return a cell as wide as its column."""
    space = " " * max(0, width - text_width(text))
    return text + space if left else space + text


def spaced(line: Line) -> Line:
    """Return the cells of a line with a space between them."""
    out: Line = []
    for index, span in enumerate(line):
        out += [span] if index == 0 else [(" ", ()), span]
    return out
