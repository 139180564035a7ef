"""Advice that is written in each form: by its own tests, by Patroni, and by tools/form_schemas.py."""

from __future__ import annotations

import msgspec

from pgsweep.advice.resources import resources_of
from pgsweep.records.advice import AdviceResult, AdvisedSetting
from pgsweep.records.place import Place
from tests.fix_advice import GB, advised, growing, pages, situation

WANTED = {"shared_buffers": "48MB", "effective_cache_size": "96MB", "max_connections": "37"}
SHOWN = {"shared_buffers": "6144", "effective_cache_size": "12288", "max_connections": "37"}
"""The same in the unit of pg_settings."""
PAGES = 2101


def wanted(place: Place | None = None) -> AdviceResult:
    """Return advice that sets each of `WANTED`, leaves one setting, and gives huge pages and memory."""
    result = advised(growing())
    settings = [_set(result, name, value) for name, value in WANTED.items()]
    settings.append(next(one for one in result.settings if one.name == "warm-up"))
    reserved = AdvisedSetting(
        name="vm.nr_hugepages",
        where="kernel",
        today="0",
        value=str(PAGES + 7),
        action="set",
        kind="predicted",
        reason='page tables take 1 GB; "quoted": {braces} # and\nmore',
        takes_effect="restart",
        undo="sudo sysctl -w vm.nr_hugepages=0",
    )
    found = msgspec.structs.replace(pages(saved=GB), huge_pages_needed=PAGES)
    known = msgspec.structs.replace(result, settings=[*settings, reserved])
    resources = resources_of(
        situation({GB: 0.2}, {GB: 9_000.0}, huge_pages=found), known.settings, place or Place(kind="pod")
    )
    return msgspec.structs.replace(known, resources=resources, place=place)


def _set(result: AdviceResult, name: str, value: str) -> AdvisedSetting:
    one = next(one for one in result.settings if one.name == name)
    effect = "reload" if name == "effective_cache_size" else "restart"
    return msgspec.structs.replace(one, action="set", value=value, takes_effect=effect)
