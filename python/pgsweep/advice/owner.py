"""Who keeps the settings that are advised, and where they are changed: not everywhere by ALTER SYSTEM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from pgsweep.memory.budget import BUFFER_OVERHEAD
from pgsweep.pg.catalog.manager import Source, manager_named
from pgsweep.pg.catalog.provider import PROVIDERS, Wanted, provider_named
from pgsweep.records.advice import AdviceResult, AdvisedSetting
from pgsweep.records.place import Place
from pgsweep.units import SETTING_UNITS, format_bytes, in_unit, parse_bytes

_FORMS = ("rds", "aurora", "cloudsql", "azure")
"""The providers whose settings are written as a patch."""


def lacks_page_cache(place: Place | None) -> str | None:
    """Return the provider, or what else, behind whose pool there may be no page cache of Linux; else None."""
    if place is not None and place.file_system == "zfs":
        return "a server on ZFS"
    provider = provider_named(None if place is None else place.provider)
    return None if provider is None or provider.page_cache else provider.name


def where_set(place: Place | None, wanted: list[AdvisedSetting]) -> str | None:
    """Return where settings are changed on this server; None for ALTER SYSTEM, as on any.

    Args:
        place: of the server; None where that is not known.
        wanted: what is to be set.
    """
    if place is None or not wanted:
        return None
    provider = provider_named(place.provider)
    if provider is not None:
        return provider.settings(
            {
                one.name: Wanted(
                    one.value or "",
                    in_unit(one.value or "", SETTING_UNITS.get(one.name)),
                    restart=one.takes_effect == "restart",
                )
                for one in wanted
            }
        )
    manager = manager_named(place.manager)
    return None if manager is None else manager.settings({one.name: one.value or "" for one in wanted})


def form_at(place: Place | None) -> str:
    """Return the form in which settings are applied at a place, as `pgsweep advise --format` names it."""
    if place is None:
        return "alter-system"
    if place.provider is not None:
        found = next((name for name, one in PROVIDERS.items() if one.name == place.provider), "")
        return found if found in _FORMS else "alter-system"
    manager = manager_named(place.manager)
    if manager is not None:
        return manager.form
    return "compose" if place.kind == "container" else "alter-system"


def adapted(result: AdviceResult, place: Place | None, sources: Mapping[str, Source]) -> AdviceResult:
    """Return the advice as it is for a server of that place.

    Args:
        result: as it is for a server that ALTER SYSTEM changes.
        place: of the server; None where that is not known.
        sources: where its settings have their values from; empty without a session on it.
    """
    settings = [_overruled(_within(one, place), sources.get(one.name)) for one in result.settings]
    remarks = list(result.remarks)
    wanted = [one for one in settings if one.where == "server" and one.action == "set"]
    where = where_set(place, wanted)
    if where is not None:
        owner = (place.provider or place.manager) if place is not None else ""
        remarks.insert(0, f"{owner} keeps the settings of this server, not ALTER SYSTEM: set it {where}")
        settings = [
            msgspec.structs.replace(one, undo="") if one.undo.startswith("ALTER SYSTEM") else one
            for one in settings
        ]
    if place is not None and place.provider is not None:
        # The host is the provider's: nobody else sets anything there.
        settings = [one for one in settings if one.where not in ("kernel", "cgroup")]
    for one in wanted:
        if where is None and (remark := _remark(one, sources.get(one.name))) is not None:
            remarks.insert(0, remark)
    return msgspec.structs.replace(
        result,
        settings=settings,
        remarks=remarks,
        place=place,
        set_elsewhere=where,
        form=form_at(place),
    )


def _within(one: AdvisedSetting, place: Place | None) -> AdvisedSetting:
    """Return a setting, left as it is where the server would not start with it."""
    limit = None if place is None else place.shared_memory_limit_bytes
    if limit is None or one.name != "shared_buffers" or one.action != "set" or one.value is None:
        return one
    if parse_bytes(one.value) * BUFFER_OVERHEAD <= limit:
        return one
    name = "" if place is None else place.shared_memory_limit_name
    why = (
        f"with more than {format_bytes(limit)} of shared memory it does not start ({name}): raise that "
        f"first. {one.reason}"
    )
    return _left(one, why)


def _overruled(one: AdvisedSetting, source: Source | None) -> AdvisedSetting:
    """Return a setting, left as it is where ALTER SYSTEM does not change what the sessions have."""
    by = None if source is None else source.of_this_session
    if by is None or one.action != "set" or one.where != "server":
        return one
    why = f"{one.today} comes from {by}, which goes before ALTER SYSTEM: change it there. {one.reason}"
    return _left(one, why)


def _left(one: AdvisedSetting, reason: str) -> AdvisedSetting:
    return msgspec.structs.replace(one, action="leave", value=None, reason=reason, undo="", takes_effect="")


def _remark(one: AdvisedSetting, source: Source | None) -> str | None:
    """Return what must be known of where a setting has its value from."""
    if source is None:
        return None
    if source.source == "command line":
        return (
            f"{one.name} is given on the server's command line, which goes before postgresql.conf and "
            f"ALTER SYSTEM: change it there, -c {one.name}={one.value}"
        )
    if source.file is not None and Path(source.file).name == "postgresql.auto.conf":
        return (
            f"{one.name} is set in postgresql.auto.conf, which goes before postgresql.conf: change it "
            "by ALTER "
            "SYSTEM"
        )
    if source.pending:
        return f"another value of {one.name} waits for a restart already"
    return None
