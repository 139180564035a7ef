"""huge_pages and vm.nr_hugepages for the size advised.

They pay by what page tables take without them: 8 bytes in each process for each 4 kB of shared memory that
it has touched. `huge_pages = try` is kept or set, never `on`: with `on` the server does not start where a
page is missing.
"""

from __future__ import annotations

from typing import Final

from pgsweep.advice.shared_buffers import undo_of
from pgsweep.advice.situation import Situation
from pgsweep.records.advice import AdvisedSetting, Gain
from pgsweep.records.hugepages import HugePagesResult, PageTables
from pgsweep.units import as_setting, format_bytes, format_count, format_percent

_LEAST_SHARE: Final = 0.01
"""Page tables below this share of the memory are left alone: assumed."""


def advise_huge_pages(situation: Situation, size_bytes: int) -> list[AdvisedSetting]:
    """Return the advice on the setting and on the kernel's number of pages."""
    found = situation.huge_pages
    setting = situation.settings.get("huge_pages")
    if found is None:
        command = "pgsweep hugepages"
        if size_bytes != situation.today_bytes:
            command += f" --shared-buffers {as_setting(size_bytes)}"
        why = f"name the server as well (-h, -d) to have the number of pages counted; or: {command}"
        return [_setting("huge_pages", setting, why, unknown=True)]
    if found.huge_limit_bytes is not None and found.huge_limit_bytes < (found.shared_memory_bytes or 0):
        why = (
            f"the server's hugetlb cgroup allows {format_bytes(found.huge_limit_bytes)} of them, and the "
            "kernel kills a server that touches more"
        )
        return [_setting("huge_pages", setting, why)]
    if not found.pools or found.target is None or found.huge_pages_needed is None:
        why = found.reasons[0] if found.reasons else "the kernel's huge pages are not seen from here"
        return [_setting("huge_pages", setting, why, unknown=True)]
    if found.status == "on":
        return _in_use(situation, found, setting, size_bytes)
    return _not_in_use(situation, found, setting)


def _in_use(
    situation: Situation, found: HugePagesResult, setting: str | None, size_bytes: int
) -> list[AdvisedSetting]:
    why = f"the shared memory lies in huge pages{_without(found)}"
    keep = _setting("huge_pages", setting, why, purpose="they are in use already")
    total = _total(found)
    assert found.target is not None
    assert found.huge_pages_needed is not None
    if size_bytes == situation.today_bytes or found.target == total:
        why = f"{total} are set aside, which suffices"
        return [keep, _pages(total, None, why, purpose="more of them would not be used")]
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
    return [keep, _pages(total, found.target, why, purpose=purpose)]


def _saved(tables: PageTables) -> tuple[int, int]:
    """Return what huge pages save of the page tables: of today's processes, and of max_connections."""
    now = max(0, tables.without_huge_pages_bytes - tables.with_huge_pages_bytes)
    return now, max(now, tables.connections_ordinary_bytes - tables.connections_huge_bytes)


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
    memory = situation.memory_bytes or 0
    if now < memory * _LEAST_SHARE:
        why = (
            f"page tables take {format_bytes(tables.now_bytes)}, less than {format_percent(_LEAST_SHARE)} of "
            f"the memory; huge pages would save {format_bytes(now)} of that, with max_connections "
            f"connections at most {format_bytes(most)}"
        )
        return [_setting("huge_pages", setting, why)]
    gain = Gain(of="memory", unit="bytes", value=float(now), low=float(now), high=float(most))
    why = f"page tables take {format_bytes(tables.now_bytes)}, measured"
    advice = []
    if setting == "off":
        advice.append(
            AdvisedSetting(
                name="huge_pages",
                where="server",
                today=setting,
                value="try",
                action="set",
                kind="predicted",
                reason=why,
                gain=gain,
                takes_effect="restart",
                undo=undo_of("huge_pages", setting),
            )
        )
    else:
        advice.append(_setting("huge_pages", setting, "it takes huge pages where the kernel has them"))
    advice.append(_pages(_total(found), found.target, why, gain))
    return advice


def _total(found: HugePagesResult) -> int:
    pool = next((p for p in found.pools if p.page_size_bytes == found.huge_page_size_bytes), None)
    return 0 if pool is None else pool.total


def _pages(
    today: int, target: int | None, why: str, gain: Gain | None = None, *, purpose: str = ""
) -> AdvisedSetting:
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
        undo=f"sudo sysctl -w vm.nr_hugepages={today}",
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
