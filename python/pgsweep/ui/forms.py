"""Advice in the form in which it is applied where the server runs: one table, one writer.

A form is a frame of lines. `{settings}` stands for the settings, on a line of its own for one below the
other, each under its reasons. A line that ends in `<memory>`, `<huge>`, `<shm>` or `<settings>` (or several,
as in `<memory|huge>`) is there only where one of these is known and to be set, and says what it is for.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from textwrap import indent
from typing import Final

import msgspec

from pgsweep.plain import sentence
from pgsweep.records.advice import AdviceResult, AdvisedSetting, Resources
from pgsweep.ui.kit.numbers import format_bytes
from pgsweep.ui.views.advised import ACTIONS, about, comment
from pgsweep.units import (
    SETTING_UNITS,
    as_setting,
    format_percent,
    huge_page_word,
    in_unit,
    parse_bytes,
)

_GUARD: Final = re.compile(r" *<([a-z|]+)>$")
_MB: Final = 1 << 20


class Form(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How advice is written for one kind of place.

    Attributes:
        frame: the lines; see above.
        setting: one setting, in one or several lines; `{name}`, `{value}` and `{apply}` stand for it.
        how: how it is applied.
        mark: what begins a comment.
        between: what stands between two settings.
        number: values are numbers in the unit of pg_settings, as the form takes no unit.
        apart: comments stand before the frame, as none can stand in it.
        own: the form of a server whose settings nobody else keeps: for others it is comments only.
        hosted: nobody but the provider sets anything on the host.
        page_cache: behind the pool there is a page cache of Linux.
        shares: the least and the largest share of the instance's memory that the provider takes, by setting.
        kernel: one setting of the kernel.
        reload: what makes settings take effect that take a reload.
        instead: of `memory`, `huge` and `shm`: what is done where the frame cannot hold them.
    """

    frame: str
    setting: str
    how: str = ""
    mark: str = "#"
    between: str = "\n"
    number: bool = False
    apart: bool = False
    own: bool = False
    hosted: bool = False
    page_cache: bool = True
    shares: dict[str, tuple[float, float]] = {}
    kernel: str = "# on the nodes, before the pods start: sudo sysctl -w {name}={value}"
    reload: str = ""
    instead: dict[str, str] = {}


def _read() -> dict[str, Form]:
    """Return the forms, with what several of them share written out."""
    file = tomllib.loads(resources.files("pgsweep.ui").joinpath("forms.toml").read_text(encoding="utf-8"))
    for form in file["form"].values():
        lines = [
            indent(file["resources"], line.partition("{")[0]) if line.strip() == "{resources}" else line
            for line in form["frame"].split("\n")
        ]
        form["frame"] = "\n".join(lines)
        if isinstance(form.get("instead"), str):
            form["instead"] = file["instead"][form["instead"]]
    return msgspec.convert(file["form"], dict[str, Form])


FORMS: Final[Mapping[str, Form]] = _read()
"""The forms, as `pgsweep advise --format` names them; they stand in forms.toml."""

_PATTERN: Final = re.compile(r"\d+")


def patch(result: AdviceResult, name: str, *, comments: bool = True) -> str:
    """Return the advice in a form, with the reasons as comments; empty where nothing is to be said.

    Args:
        result: the advice, cleaned for being shown (ui/results.py, `plain`).
        name: of the form.
        comments: whether the reasons are there, and what is left as it is.
    """
    form = FORMS[name]
    if form.own and result.set_elsewhere is not None:
        return _elsewhere(result, form)
    lines = [*comment(form.mark, _summary(result, form)), *_notes(result, form)] if comments else []
    blocks, wanted = _blocks(result, form, comments=comments)
    if form.apart or not wanted:
        lines += [line for said, _ in blocks for line in said]
        blocks = [([], text) for _, text in blocks]
    body = _framed(form, blocks, _words(result, form)) if _is_changed(result, form) else []
    if body and comments and not form.own:
        lines += ["", *(comment(form.mark, form.how) if form.how else [])]
    if not wanted and form.own:
        body = []
    lines += body
    if form.reload and any(one.action == "set" and one.takes_effect == "reload" for one in result.settings):
        lines.append(form.reload)
    return "\n".join(lines) + "\n" if lines else ""


def _summary(result: AdviceResult, form: Form) -> str:
    """Return the advice in a sentence, as far as the form holds it."""
    if _is_aurora(result, form) and any(one.name == "shared_buffers" for one in _for(result, form)):
        return f"shared_buffers is {_NO_PAGE_CACHE}."
    return sentence(result.summary)


def _elsewhere(result: AdviceResult, form: Form) -> str:
    """Return the advice as comments, and where it is set: not in the form that was asked for."""
    mark = form.mark
    place = result.place
    owner = "" if place is None else place.provider or place.manager or ""
    # On one line, as a command in it is for pasting.
    where = " ".join((result.set_elsewhere or "").split())
    lines = [*comment(mark, f"{owner} keeps the settings of this server. Set it:"), f"{mark} {where}"]
    if result.form in FORMS and not FORMS[result.form].own:
        lines += comment(mark, f"As a patch: --format {result.form}")
    lines += ["", *comment(mark, sentence(result.summary))]
    for one in result.settings:
        lines += _said(one, form)
        if one.where == "server" and one.action == "set":
            lines.append(f"{mark} {one.name} = {one.value}")
    return "\n".join(lines) + "\n"


def _notes(result: AdviceResult, form: Form) -> list[str]:
    """Return what the form cannot hold, with what to do for it, where it matters."""
    found, words = result.resources, _words(result, form)
    place = result.place
    if found is None or (form.own and (place is None or not place.contained)):
        return []
    reasons = {"memory": found.memory_why, "huge": found.huge_pages_why, "shm": found.dev_shm_why}
    lines: list[str] = []
    for what, why in reasons.items():
        value = words.get(what)
        if what in form.instead:
            if value is not None:
                lines += comment(form.mark, f"{form.instead[what].format(**words)}: {why}")
        elif not form.hosted:
            lines += comment(form.mark, f"{_RESOURCE_NAMES[what]}: {value or 'not set'}: {why}")
    return lines


_RESOURCE_NAMES: Final = {"memory": "memory", "huge": "huge pages", "shm": "/dev/shm"}  # noqa: S108 (a name)


def _is_changed(result: AdviceResult, form: Form) -> bool:
    """Return whether anything is to be changed at all."""
    return any(one.action == "set" and one.where != "command" for one in _for(result, form))


def _for(result: AdviceResult, form: Form) -> list[AdvisedSetting]:
    """Return the settings that the form has a place for."""
    return [one for one in result.settings if not (form.hosted and one.where in ("kernel", "cgroup"))]


def _blocks(result: AdviceResult, form: Form, *, comments: bool) -> tuple[list[tuple[list[str], str]], bool]:
    """Return the reasons and the text of each setting, and whether any is set in the frame."""
    blocks: list[tuple[list[str], str]] = []
    wanted = False
    for setting in _for(result, form):
        one, limited = _within(setting, form, result.resources)
        said = (_said(setting, form) if comments else []) + limited
        text = ""
        if one.action == "set" and one.value is not None:
            if one.where == "server" and one.name in _OF_BOTH_CACHES and _is_aurora(result, form):
                said += comment(form.mark, _NO_PAGE_CACHE)
            elif one.where == "server":
                text = _written(one, form)
            elif one.where == "kernel":
                text = form.kernel.format(name=one.name, value=one.value)
            elif one.where == "cgroup":
                text = f"# for the server's cgroup, before the restart: {one.name} = {one.value}"
            else:
                said += comment(form.mark, one.value) if comments else []
            if text.startswith("# "):
                said, text = said + comment(form.mark, text[2:]), ""
        wanted = wanted or bool(text)
        blocks.append((said, text))
    return blocks, wanted


_OF_BOTH_CACHES: Final = ("shared_buffers", "effective_cache_size")
_NO_PAGE_CACHE: Final = (
    "left out: the advice counts on a page cache of Linux behind the pool, and Aurora has none"
)


def _is_aurora(result: AdviceResult, form: Form) -> bool:
    """Return whether it is for Amazon Aurora, by the form or by the place of the server."""
    return not form.page_cache or (result.place is not None and result.place.provider == "Amazon Aurora")


def _within(one: AdvisedSetting, form: Form, resources: Resources | None) -> tuple[AdvisedSetting, list[str]]:
    """Return a setting as the provider takes it, and what is said where that is another value."""
    memory, shares = None if resources is None else resources.memory_bytes, form.shares.get(one.name)
    if memory is None or shares is None or one.action != "set" or one.value is None:
        return one, []
    wanted = parse_bytes(one.value)
    # In whole MB, so that it is within.
    least, most = -(-memory * shares[0] // _MB) * _MB, memory * shares[1] // _MB * _MB
    taken = round(min(max(wanted, least), most))
    if taken == wanted:
        return one, []
    shown = f"{format_percent(shares[0])} to {format_percent(shares[1])} of {format_bytes(memory)}"
    value = as_setting(taken)
    return msgspec.structs.replace(one, value=value), comment(
        form.mark, f"{value} instead of {one.value}: the provider takes {shown}"
    )


def _said(one: AdvisedSetting, form: Form) -> list[str]:
    # What stands in a file is undone in the file: ALTER SYSTEM would go before it.
    undo = form.own and not (form is FORMS["postgresql.conf"] and one.undo.startswith("ALTER SYSTEM"))
    texts = about(one, undo=undo)
    texts[0] = f"{one.name}: {texts[0]}"
    lines = ["", *(line for text in texts for line in comment(form.mark, text))]
    if one.action != "set" or one.value is None:
        lines += comment(form.mark, ACTIONS[one.action] + (f": {one.today}" if one.today else ""))
    return lines


def _written(one: AdvisedSetting, form: Form) -> str:
    value = one.value or ""
    return form.setting.format(
        name=one.name,
        value=in_unit(value, SETTING_UNITS.get(one.name)) if form.number else value,
        apply="pending-reboot" if one.takes_effect == "restart" else "immediate",
    )


def _words(result: AdviceResult, form: Form) -> dict[str, str]:
    """Return what the placeholders of a frame stand for; one that is not known is missing."""
    aurora = _is_aurora(result, form)
    major = (_PATTERN.findall(result.server_version) or ["NN"])[0]
    words = {
        "major": major,
        "aws_resource": "aws_rds_cluster_parameter_group" if aurora else "aws_db_parameter_group",
        "aws_family": f"{'aurora-postgresql' if aurora else 'postgres'}{major}",
    }
    found = result.resources
    if found is None:
        return words
    amounts = form.hosted or form.own or "memory" in form.instead
    if found.memory_bytes is not None:
        words["memory"] = format_bytes(found.memory_bytes) if amounts else _quantity(found.memory_bytes)
        words |= {"memory_bytes": str(found.memory_bytes), "memory_compose": f"{found.memory_bytes // _MB}M"}
    if found.dev_shm_bytes is not None:
        words["shm"] = format_bytes(found.dev_shm_bytes) if amounts else _quantity(found.dev_shm_bytes)
        words["shm_compose"] = f"{found.dev_shm_bytes // _MB}m"
    return words | _huge_words(found)


def _huge_words(found: Resources) -> dict[str, str]:
    if found.huge_bytes is None or found.huge_page_size_bytes is None:
        return {}
    return {
        "huge": _quantity(found.huge_bytes),
        "huge_pages": str(found.huge_pages),
        "huge_size": format_bytes(found.huge_page_size_bytes),
        "huge_word": f"{huge_page_word(found.huge_page_size_bytes)}i",
    }


def _quantity(size_bytes: int) -> str:
    """Return a size as Kubernetes writes it, in whole Gi or Mi, rounded down to these."""
    gigabytes, rest = divmod(size_bytes, 1 << 30)
    return f"{gigabytes}Gi" if gigabytes and not rest else f"{size_bytes // _MB}Mi"


def _framed(form: Form, blocks: list[tuple[list[str], str]], words: Mapping[str, str]) -> list[str]:
    """Return the frame with all that is known; nothing where it would hold nothing."""
    known = {what for what in ("memory", "huge", "shm") if what in words and what not in form.instead}
    if any(text for _, text in blocks):
        known.add("settings")
    lines: list[str] = []
    for line in form.frame.split("\n"):
        guard = _GUARD.search(line)
        if guard is not None:
            if not known & set(guard[1].split("|")):
                continue
            line = line[: guard.start()]
        if line.strip() == "{settings}":
            lines += _indented(blocks, form, line[: line.index("{")])
        elif "settings" in known or "{settings}" not in line:
            joined = form.between.join(text for _, text in blocks if text)
            lines.append(line.format(**words, settings=joined))
    return lines if known else []


def _indented(blocks: list[tuple[list[str], str]], form: Form, at: str) -> list[str]:
    lines: list[str] = []
    last = max((index for index, (_, text) in enumerate(blocks) if text), default=-1)
    for index, (said, text) in enumerate(blocks):
        if text:
            end = form.between.rstrip("\n") if index < last else ""
            said = [*said, *(text + end).split("\n")]
        lines += [f"{at}{line}" if line else "" for line in said]
    return lines[1:] if lines and not lines[0] else lines
