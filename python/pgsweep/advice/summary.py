"""All advice in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from pgsweep.records.advice import Action, AdvisedSetting
from pgsweep.units import format_percent

THROUGHPUT: Final = "throughput"
"""What is gained where more transactions are expected."""

Decision = Literal["change", "leave", "unknown"]

_DECISIONS: Final[dict[Action, Decision]] = {"set": "change", "leave": "leave", "unknown": "unknown"}


def summarized(settings: Sequence[AdvisedSetting]) -> tuple[str, Decision]:
    """Return what the settings say together, in a sentence, and of shared_buffers in a word.

    Args:
        settings: that of shared_buffers first; what is only to be run is none of them.
    """
    size = settings[0]
    changed = [one for one in settings if one.action == "set" and one.where != "command" and not _idle(one)]
    restarts = any(one.takes_effect == "restart" for one in changed)
    return _sentence(size, changed, restarts=restarts), _DECISIONS[size.action]


def _idle(one: AdvisedSetting) -> bool:
    """Return whether a setting costs nothing and gains nothing: it is advised, but no headline."""
    return one.gain is None and one.takes_effect != "restart" and one.where == "server"


def _sentence(size: AdvisedSetting, changed: list[AdvisedSetting], *, restarts: bool) -> str:
    not_known = f"What shared_buffers should be is not known, because {size.reason}"
    if not changed:
        return (
            not_known if size.action == "unknown" else f"Leave shared_buffers at {size.today}: {size.reason}"
        )
    what = ", ".join(f"{one.name} = {one.value}" for one in changed)
    how = "a restart" if restarts else "a reload"
    if size.action == "unknown":
        return f"Set {what} ({how}). {not_known}"
    if size.action != "set":
        return f"Leave shared_buffers at {size.today}. Set {what} ({how})"
    if size.gain is None:
        return f"Set {what} ({how}): {size.purpose}"
    if size.gain.of == THROUGHPUT:
        return (
            f"Set {what} ({how}): the throughput is expected to rise by {format_percent(size.gain.value)} "
            f"({format_percent(size.gain.low)} to {format_percent(size.gain.high)})"
        )
    return (
        f"Set {what} ({how}): sessions are expected to wait {format_percent(size.gain.value)} less for reads "
        f"({format_percent(size.gain.low)} to {format_percent(size.gain.high)})"
    )
