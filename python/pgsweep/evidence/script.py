"""The script for psql that observes a server from a host without pgsweep."""

from __future__ import annotations

from typing import Final

from pgsweep.errors import UsageError
from pgsweep.evidence.observe import RELATION_SECONDS, RELATION_SHARE, seed_of
from pgsweep.evidence.sampling import drawing_order
from pgsweep.evidence.snapshot_schedule import DUTY, MOST_DUTY, wanted_interval_seconds
from pgsweep.evidence.snapshots import COUNTER_SECONDS, SAMPLE_BLOCKS, WHOLE_POOL_BLOCKS
from pgsweep.pg.gather_script import gather_script

SCRIPT_SECONDS: Final = 300.0
"""Length of the observation where none was asked for: a script does not know when there is enough data."""

MOST_SCRIPT_SECONDS: Final = 86400.0


def record_script(seconds: float | None = None, *, rng_seed: int | None = None) -> str:
    """Return a script for psql that gathers what a recording of snapshots by SQL does.

    `import_gathered` makes evidence of what the script prints.

    Args:
        seconds: length of the observation; five minutes by default.
        rng_seed: for the sample of blocks that is taken of a large pool; None draws one.

    Raises:
        UsageError: the time is longer than a day.
    """
    length_seconds = SCRIPT_SECONDS if seconds is None else float(seconds)
    if length_seconds > MOST_SCRIPT_SECONDS:
        raise UsageError("a script observes for a day at most", hint="name a shorter time: --for 1h")
    # A seed that float64 holds exactly, which is what evidence keeps of it.
    seed = seed_of(rng_seed)
    return gather_script(
        seconds=length_seconds,
        seed=seed,
        offsets=drawing_order(seed),
        numbers={
            "counter_seconds": COUNTER_SECONDS,
            "duty": DUTY,
            "most_duty": MOST_DUTY,
            "relation_seconds": RELATION_SECONDS,
            "relation_share": RELATION_SHARE,
            "sample_blocks": SAMPLE_BLOCKS,
            "wanted_interval_seconds": wanted_interval_seconds(length_seconds),
            "whole_pool_blocks": WHOLE_POOL_BLOCKS,
        },
    )
