"""What can be done with a server: for each ability its state, the reason, and the command that enables it."""

from __future__ import annotations

import textwrap
from collections import Counter

from msgspec.structs import replace

from pgsweep.plain import shown
from pgsweep.records.doctor import Ability, DoctorResult, Runnable
from pgsweep.ui.kit.numbers import counted, format_bytes
from pgsweep.ui.kit.section import Page, Section
from pgsweep.ui.kit.table import Cell, Column, Table
from pgsweep.ui.kit.terminal import Paint, Terminal
from pgsweep.ui.kit.view import Rows, View

_AREAS = (("server", "On the server"), ("host", "On this host"))
_LABELS = {
    "pg_monitor": "role pg_monitor",
    "databases": "all databases",
    "tables": "all tables",
    "same_host": "same host",
    "same_user": "same user, or root",
    "page_cache": "page cache",
    "huge_pages": "huge pages",
    "cgroup": "memory limit",
}
_WORDS: dict[bool | None, tuple[str, str, Paint]] = {
    True: ("✓ ", "yes", "green"),
    False: ("✗ ", "no", "red"),
    None: ("? ", "unknown", "yellow"),
}
_WORD_WIDTH = max(len(word) for _, word, _ in _WORDS.values())
_MOST_COLUMNS = 110


def _label(ability: Ability) -> str:
    """Return what an ability is called."""
    return _LABELS.get(ability.name, ability.name)


def _server_line(result: DoctorResult) -> str:
    """Return which server was asked, in one sentence."""
    server = result.server
    if server is None:
        return f"No session: {result.target}"
    facts = [
        f"role {server.role}" + (" (superuser)" if server.superuser else ""),
        *([] if server.provider is None else [f"hosted by {server.provider}"]),
        f"shared_buffers {format_bytes(server.shared_buffers_bytes)}",
        f"{counted(server.relations, 'relation')} in this database, {counted(server.databases, 'database')}",
        "a standby in recovery" if server.in_recovery else "not in recovery",
    ]
    text = ", ".join(facts)
    return text[:1].upper() + text[1:]


def _host_line(result: DoctorResult) -> str:
    """Return which machine this is, in one sentence."""
    return f"pgsweep runs as {result.host.user} on {result.host.machine}"


_KINDS = {
    "systemd": "under systemd",
    "container": "in a container",
    "pod": "in a pod of Kubernetes",
    "lxc": "in a container of LXC",
    "wsl": "under WSL",
}


def _place_line(result: DoctorResult) -> str:
    """Return in what kind of place the server runs, and who keeps its settings; empty on a bare host."""
    place = result.place
    if place is None:
        return ""
    parts = []
    if (kind := _KINDS.get(place.kind)) is not None:
        parts.append(f"the server runs {kind}: {place.because}")
    if place.manager is not None:
        parts.append(f"{place.manager} keeps its settings: {place.manager_because}")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:]


def doctor_text(result: DoctorResult, terminal: Terminal) -> str:
    """Return the page; commands are never broken, so that they can be pasted."""
    width = min(terminal.width, _MOST_COLUMNS)
    if result.server is None:
        result = _without_session(result)
    name_width = max((len(_label(ability)) for ability in result.abilities), default=0)
    lines = textwrap.wrap(_server_line(result), width) + textwrap.wrap(_host_line(result), width)
    lines += textwrap.wrap(shown(_place_line(result)), width)
    for area, title in _AREAS:
        abilities = [ability for ability in result.abilities if ability.area == area]
        if abilities:
            lines += ["", terminal.paint(title, "bold")]
        for ability in abilities:
            lines += _ability_lines(ability, _needed_for(result, ability), name_width, width, terminal)
    if result.commands:
        lines += ["", terminal.paint("What you can run", "bold")]
        names = (len(line.command) for line in result.commands)
        room = max((length for length in names if length < _MOST_COLUMNS // 4), default=0)
        for line in result.commands:
            lines += _command_lines(line, room, width, terminal)
    return "\n".join(lines) + "\n"


def _without_session(result: DoctorResult) -> DoctorResult:
    """Return a result with one line for all abilities, and one for all commands, that lack only a session."""
    alike = Counter((ability.area, ability.why) for ability in result.abilities if ability.available is None)
    abilities = [one for one in result.abilities if alike[one.area, one.why] < 2]
    for (area, why), times in alike.items():
        if times > 1:
            names = ", ".join(_label(one) for one in result.abilities if (one.area, one.why) == (area, why))
            text = f"{why}: {names}"
            abilities.append(
                Ability(name="others", area=area, available=None, why=text, enable=None, needed_for=[])
            )
    commands = [line for line in result.commands if line.state != "not"]
    reasons = dict.fromkeys(line.why for line in result.commands if line.state == "not")
    commands += [Runnable(command="all others", state="not", why=why) for why in reasons]
    return replace(result, abilities=abilities, commands=commands)


_STATES: dict[str, tuple[str, Paint]] = {
    "works": ("✓ ", "green"),
    "in part": ("~ ", "yellow"),
    "not": ("✗ ", "red"),
}
_STATE_WIDTH = max(map(len, _STATES))


def _command_lines(line: Runnable, room: int, width: int, terminal: Terminal) -> list[str]:
    mark, paint = _STATES.get(line.state, ("? ", "yellow"))
    head = f"  {terminal.pick(mark, '')}{line.state:<{_STATE_WIDTH}}  "
    text = f"{line.command:<{room}}  {line.why}".rstrip()
    indent = " " * (len(head) + room + 2)
    first, *more = textwrap.wrap(text, max(30, width - len(head)), break_long_words=False) or [""]
    rest = textwrap.wrap(" ".join(more), max(20, width - len(indent)), break_long_words=False)
    return [terminal.paint(head, paint) + first, *(indent + part for part in rest)]


_INSTEAD = {"peek": ("pg_buffercache", "pg_monitor"), "pg_buffercache": ("peek",)}
"""What reads the buffer pool, and in whose place."""


def _needed_for(result: DoctorResult, ability: Ability) -> list[str]:
    """Return what an ability is needed for, without the commands that work in another way all the same.

    Nothing is, where there is no session: then that is what all commands lack.
    """
    if result.server is None:
        return []
    works = {name for line in result.commands if line.state == "works" for name in line.command.split(", ")}
    for other in result.abilities:
        if other.available and ability.name in _INSTEAD.get(other.name, ()):
            works.update(other.needed_for)
    return [name for name in ability.needed_for if name not in works]


def _ability_lines(
    ability: Ability, needed_for: list[str], name_width: int, width: int, terminal: Terminal
) -> list[str]:
    mark, text, paint = _WORDS[ability.available]
    head = f"  {terminal.pick(mark, '')}{text:<{_WORD_WIDTH}}  "
    indent = " " * (len(head) + name_width + 2)
    why, *more = textwrap.wrap(ability.why, max(20, width - len(indent)), break_long_words=False) or [""]
    painted = terminal.paint(head, paint)
    lines = [f"{painted}{_label(ability):<{name_width}}  {why}", *(indent + line for line in more)]
    if needed_for and not ability.available:
        lines += textwrap.wrap(
            "needed for: " + ", ".join(needed_for),
            width,
            initial_indent=indent,
            subsequent_indent=indent,
        )
    if ability.enable is not None:
        # Not wrapped, and not so far to the right: it is to be copied.
        lines.append("      " + terminal.paint(ability.enable, "cyan"))
    return lines


def doctor_page(result: DoctorResult) -> Page:
    """Return one part for the server and one for this host."""
    able = sum(ability.available is True for ability in result.abilities)
    title = f"{able} of {len(result.abilities)} abilities are there"
    return Page(title, _server_line(result), _sections(result))


def _sections(result: DoctorResult) -> list[Section]:
    columns: list[Column[Ability]] = [
        Column("ability", _label, left=True),
        Column("available", lambda one: _WORDS[one.available][1], left=True),
        Column("why", lambda one: one.why, left=True),
        Column(
            "command that enables it",
            lambda one: Cell(one.enable or "", code=one.enable is not None),
            left=True,
        ),
        Column("needed for", lambda one: ", ".join(_needed_for(result, one)), left=True),
    ]
    sections = []
    host = ". ".join(filter(None, (_host_line(result), shown(_place_line(result)))))
    for area, title in _AREAS:
        table = Table(columns, [ability for ability in result.abilities if ability.area == area])
        sections.append(Section(title, area, host if area == "host" else "", table=table))
    if result.commands:
        runnable: list[Column[Runnable]] = [
            Column("command", lambda line: line.command, left=True),
            Column("works", lambda line: line.state, left=True),
            Column("what works, or what is missing", lambda line: line.why, left=True),
        ]
        sections.append(Section("What you can run", "commands", table=Table(runnable, result.commands)))
    return sections


def _rows(result: DoctorResult) -> Rows:
    return Rows(
        ("ability", "area", "available", "why", "enable", "needed_for"),
        [
            (
                ability.name,
                ability.area,
                None if ability.available is None else str(ability.available).lower(),
                ability.why,
                ability.enable,
                ", ".join(ability.needed_for),
            )
            for ability in result.abilities
        ]
        + [(line.command, "command", line.state, line.why, None, "") for line in result.commands],
    )


VIEW = View(DoctorResult, text=doctor_text, page=doctor_page, rows=_rows)
