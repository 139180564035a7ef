"""huge_pages and vm.nr_hugepages for the size advised.

They pay by what page tables take without them: 8 bytes in each process for each 4 kB of shared memory that
it has touched. `huge_pages = try` is kept or set, never `on`: with `on` the server does not start where a
page is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pgsweep.advice.shared_buffers import undo_of
from pgsweep.advice.situation import Situation
from pgsweep.commands import on_server, sudo
from pgsweep.pg.catalog.manager import PATRONI
from pgsweep.records.advice import AdvisedSetting, Gain
from pgsweep.records.hugepages import HugePagesResult, PageTables
from pgsweep.units import as_setting, format_bytes, format_count, format_percent, huge_page_word

LEAST_SHARE: Final = 0.01
"""Page tables below this share of the memory are left alone: assumed."""


def advise_huge_pages(situation: Situation, size_bytes: int) -> list[AdvisedSetting]:
    """Return the advice on the setting and on the kernel's number of pages."""
    found = situation.huge_pages
    setting = situation.settings.get("huge_pages")
    if found is None:
        size = "" if size_bytes == situation.today_bytes else f"--shared-buffers {as_setting(size_bytes)}"
        command = on_server("pgsweep hugepages", size)
        why = f"name the server as well (-h, -d) to have the number of pages counted; or: {command}"
        return [_setting("huge_pages", setting, why, unknown=True)]
    if found.shared_memory_type != "mmap":
        why = f"shared_memory_type is {found.shared_memory_type}, and huge pages are taken for mmap only"
        return [_setting("huge_pages", setting, why)]
    if found.limit_binds:
        if setting == "off" and requests_pages(situation, found):
            why = "its operator's default without a request of huge pages; set it with that request"
            return [_tried(setting, f"{why}: {_measured(found)}", _gain(found))]
        return _limited(found, setting)
    if not found.pools or found.target is None or found.huge_pages_needed is None:
        why = found.reasons[0] if found.reasons else "the kernel's huge pages are not seen from here"
        return [_setting("huge_pages", setting, why, unknown=True)]
    if found.status == "on":
        return _in_use(found, setting, size_bytes)
    return _not_in_use(situation, found, setting)


def _limited(found: HugePagesResult, setting: str | None) -> list[AdvisedSetting]:
    """Return the advice where hugetlb cgroups allow fewer pages than are needed: raise the limit first."""
    assert found.binding_limit is not None
    allowed, needed = found.allowed_pages or 0, found.huge_pages_needed
    name = Path(found.binding_limit).name
    why = f"the server's hugetlb cgroup allows {format_count(allowed)} of them"
    # With try a server takes ordinary pages where mapping is refused, or the kernel has too few.
    granted = ".rsvd." not in name and (found.after_stop or 0) >= (needed or 0)
    if needed is None or not (setting == "on" or (setting != "off" and granted)):
        return [_setting("huge_pages", setting, f"{why} ({found.binding_limit})")]
    ends = "does not start" if ".rsvd." in name else "is killed when it touches more"
    why = f"{why}, {format_count(needed)} are needed: at its next start the server {ends}"
    return [
        _setting("huge_pages", setting, why),
        AdvisedSetting(
            name=name,
            where="cgroup",
            today=str(found.binding_limit_bytes),
            value=str((found.binding_limit_bytes or 0) + (needed - allowed) * found.huge_page_size_bytes),
            action="set",
            kind="measured",
            reason=f"{found.binding_limit}; in a pod: resources.limits.hugepages-"
            f"{huge_page_word(found.huge_page_size_bytes)}i. Set it before the restart",
            takes_effect="restart",
        ),
    ]


def _in_use(found: HugePagesResult, setting: str | None, size_bytes: int) -> list[AdvisedSetting]:
    why = f"the shared memory lies in huge pages{_without(found)}"
    keep = _setting("huge_pages", setting, why, purpose="they are in use already")
    total = _total(found)
    assert found.target is not None
    assert found.huge_pages_needed is not None
    if found.target == total:
        why = f"{total} are set aside, which suffices"
        return [keep, _pages(found, None, why, purpose="more of them would not be used")]
    why = (
        f"shared_buffers of {as_setting(size_bytes)} take {format_count(found.huge_pages_needed)} pages of "
        f"{format_bytes(found.huge_page_size_bytes)}; with fewer the server falls back to ordinary pages, or "
        "does not start where huge_pages is on"
    )
    purpose = (
        "it keeps the larger shared memory in huge pages"
        if found.target > total
        else ("it gives back those that the smaller shared memory does not take")
    )
    return [keep, _pages(found, found.target, why, purpose=purpose)]


def _saved(tables: PageTables) -> tuple[int, int]:
    """Return what huge pages save of the page tables: of today's processes, and of max_connections."""
    now = max(0, tables.without_huge_pages_bytes - tables.with_huge_pages_bytes)
    return now, max(now, tables.connections_ordinary_bytes - tables.connections_huge_bytes)


def pays(situation: Situation, found: HugePagesResult) -> bool:
    """Return whether huge pages save enough of the page tables of today's processes."""
    if found.page_tables is None:
        return False
    return _saved(found.page_tables)[0] >= (situation.memory_bytes or 0) * LEAST_SHARE


def requests_pages(situation: Situation, found: HugePagesResult) -> bool:
    """Return whether a pod that may have no huge pages is to request them.

    The kubelet allows a pod as many as it requests. Where it requests none, operators set huge_pages to off:
    then only a patch of theirs sets both at once; with try alone the server would be killed at its start.
    """
    if not (found.limit_binds and pays(situation, found)):
        return False
    place = found.place
    both = place is not None and place.kind == "pod" and place.manager not in (None, PATRONI.name)
    return found.huge_pages != "off" or both


def _measured(found: HugePagesResult) -> str:
    assert found.page_tables is not None
    return f"page tables take {format_bytes(found.page_tables.now_bytes)}, measured"


def _gain(found: HugePagesResult) -> Gain:
    assert found.page_tables is not None
    now, most = _saved(found.page_tables)
    return Gain(of="memory", unit="bytes", value=float(now), low=float(now), high=float(most))


def _tried(today: str, why: str, gain: Gain) -> AdvisedSetting:
    """Return the advice to let the server try."""
    return AdvisedSetting(
        name="huge_pages",
        where="server",
        today=today,
        value="try",
        action="set",
        kind="predicted",
        reason=why,
        gain=gain,
        takes_effect="restart",
        undo=undo_of("huge_pages", today),
    )


def _without(found: HugePagesResult) -> str:
    """Return in words what page tables would take without huge pages; nothing where they are not seen."""
    if found.page_tables is None:
        return ""
    now, most = _saved(found.page_tables)
    many = f"{format_bytes(now)} to {format_bytes(most)}" if most > now else format_bytes(now)
    return f"; page tables would take {many} more without them, as predicted" if most else ""


def _not_in_use(situation: Situation, found: HugePagesResult, setting: str | None) -> list[AdvisedSetting]:
    tables = found.page_tables
    if tables is None:
        return [_setting("huge_pages", setting, "the page tables of the server are not seen", unknown=True)]
    now, most = _saved(tables)
    if not pays(situation, found):
        why = (
            f"page tables take {format_bytes(tables.now_bytes)}, less than {format_percent(LEAST_SHARE)} of "
            f"the memory; huge pages would save {format_bytes(now)} of that, with max_connections "
            f"connections at most {format_bytes(most)}"
        )
        return [_setting("huge_pages", setting, why)]
    gain, why = _gain(found), _measured(found)
    advice = []
    if setting == "off":
        advice.append(_tried(setting, why, gain))
    else:
        advice.append(_setting("huge_pages", setting, "it takes huge pages where the kernel has them"))
    advice.append(_pages(found, found.target, why, gain))
    return advice


def _total(found: HugePagesResult) -> int:
    pool = next((p for p in found.pools if p.page_size_bytes == found.huge_page_size_bytes), None)
    # Surplus pages go by themselves, and are nothing that could be put back.
    return 0 if pool is None else pool.total - pool.surplus


def _pages(
    found: HugePagesResult, target: int | None, why: str, gain: Gain | None = None, *, purpose: str = ""
) -> AdvisedSetting:
    today, contained = _total(found), found.place is not None and found.place.contained
    if target is None or target == today:
        return AdvisedSetting(
            name="vm.nr_hugepages",
            where="kernel",
            today=str(today),
            value=None,
            action="leave",
            kind="measured",
            reason=why,
            purpose=purpose,
        )
    return AdvisedSetting(
        name="vm.nr_hugepages",
        where="kernel",
        today=str(today),
        value=str(target),
        action="set",
        kind="predicted",
        reason=f"{why}; set it before the restart",
        gain=gain,
        purpose=purpose,
        takes_effect="restart",
        undo=f"{sudo(here=not contained)}sysctl -w vm.nr_hugepages={today}",
    )


def _setting(
    name: str, today: str | None, why: str, *, unknown: bool = False, purpose: str = ""
) -> AdvisedSetting:
    return AdvisedSetting(
        name=name,
        where="server",
        today=today,
        value=None,
        action="unknown" if unknown else "leave",
        kind="measured",
        reason=why,
        purpose=purpose,
    )
