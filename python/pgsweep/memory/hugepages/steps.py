"""What to do so that a server uses huge pages, as commands and lines to paste; nothing is run here."""

from __future__ import annotations

from pgsweep.commands import sudo
from pgsweep.memory.hugepages.reasons import Circumstances
from pgsweep.pg.catalog.manager import manager_named
from pgsweep.records.hugepages import HugePagesResult
from pgsweep.records.place import Place
from pgsweep.records.prediction import PlanStep
from pgsweep.units import as_setting, huge_page_word

_FILE = "/etc/sysctl.d/90-pgsweep-hugepages.conf"


def steps_for(result: HugePagesResult, around: Circumstances) -> list[PlanStep]:
    """Return the steps, none where it is not known how many pages are needed.

    Where something makes huge pages impossible, that alone is to be changed: with the other steps the server
    would not start, or be killed.

    Args:
        result: all but the steps.
        around: what else is known.
    """
    needed, page_bytes = result.huge_pages_needed, result.huge_page_size_bytes
    if needed is None or (result.status == "on" and not result.settings and not result.too_few):
        return []
    place = result.place
    if place is not None and place.provider is not None:
        return []  # its host is the provider's, who sets the pages aside and huge_pages too
    if around.impossible:
        changed = _setting(place, "shared_memory_type", "mmap")
        return _first(changed.what, changed.text, "then restart the server")
    contained = place is not None and place.contained
    root = sudo(here=not contained)
    if result.limit_binds:
        unit = f"hugepages-{huge_page_word(page_bytes)}i"
        size = needed * page_bytes
        return [
            *_first("cgroup", f"echo {size} | {root}tee {result.binding_limit}", "on the host"),
            *_first("kubernetes", f"{unit}: {size >> 20}Mi", "in a pod: resources.limits and requests"),
        ]
    # Where the host is not seen, what other programs need of the pages is not known, so add it.
    target = result.target if result.target is not None else needed
    short = huge_page_word(page_bytes)
    pool = next((p for p in result.pools if p.page_size_bytes == page_bytes), None)
    steps = []
    if pool is None or pool.is_default:
        sysctl = f"vm.nr_hugepages = {target}"
        steps += [
            _step("sysctl", "now, on the host", f"{root}sysctl -w vm.nr_hugepages={target}"),
            _step("sysctl.d", "kept over a restart", f"echo '{sysctl}' | {root}tee {_FILE}"),
        ]
        systemd = f"ExecStartPre=+/sbin/sysctl -w vm.nr_hugepages={target}"
    else:
        file = f"/sys/kernel/mm/hugepages/hugepages-{page_bytes // 1024}kB/nr_hugepages"
        steps.append(_step("sysfs", "now, on the host", f"echo {target} | {root}tee {file}"))
        systemd = f"ExecStartPre=+/bin/sh -c 'echo {target} > {file}'"
    if not contained:
        steps.append(_step("systemd", "or in [Service] of the server's unit", systemd))
    boot = f"hugepagesz={short} hugepages={target}"
    steps.append(_step("boot", "or on the kernel's command line, surest", boot))
    if place is not None and place.kind == "pod":
        # It counts what the node has when it starts, and lets no pod request more.
        text = f"{root}systemctl restart kubelet"
        steps.append(_step("kubelet", "then, on the node, which counts its pages", text))
    if pool is not None and not pool.is_default:
        steps.append(_setting(place, "huge_page_size", f"'{as_setting(page_bytes)}'"))
    # A limit that cannot be seen may be too low, and what is not counted may take more: with `on` the server
    # would not start.
    hidden = around.limits.unseen is not None and result.allowed_pages is None
    wanted = "try" if (contained and hidden) or around.uncounted else "on"
    if result.huge_pages not in ("on", wanted):
        steps.append(_setting(place, "huge_pages", wanted))
    if contained:
        unit = f"{short}i"
        text = f"hugepages-{unit}: {needed * (page_bytes >> 20)}Mi"
        steps.append(_step("kubernetes", "resources.limits and requests", text))
    steps.append(_step("restart", "last", "restart the server: it takes huge pages only when it starts"))
    return steps


def _step(what: str, when: str, text: str) -> PlanStep:
    return PlanStep(what=what, when=when, text=text)


def _setting(place: Place | None, name: str, value: str) -> PlanStep:
    """Return the step that changes a setting, where it is changed on this server."""
    manager = manager_named(None if place is None else place.manager)
    if manager is None:
        return _step("setting", "then, in the server", f"ALTER SYSTEM SET {name} = {value}")
    return PlanStep(what="setting", when=f"then, by {manager.name}", text=manager.settings({name: value}))


def _first(what: str, text: str, when: str) -> list[PlanStep]:
    return [PlanStep(what=what, when=f"first, {when}; then ask again", text=text)]
