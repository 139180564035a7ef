"""The versions of PostgreSQL that pgsweep was tested with, and the sentence about a server beyond them.

A newer server is not refused: most of what is read keeps its meaning from one version to the next. But the
meaning of counters may change, so what is computed by them says so. The rules of the buffer pool may change
too: a prediction is refused where they are not known (sizing/rules.py).
Layouts of a server's memory are another matter: probe/src knows their versions itself and refuses others.
"""

from __future__ import annotations

from typing import Final

OLDEST_MAJOR: Final = 14
"""The first version whose rules are known here; `pg.connect` refuses older ones."""

NEWEST_TESTED_MAJOR: Final = 19
"""The last version that the tests were run on, as a release candidate."""

TESTED: Final = "PostgreSQL 14 to 18 and the release candidate of 19, not 19.0 itself"
"""By `make test-matrix`. 19.0 came out on 2026-11-19 and could not be had where the tests run. This is the
one statement: the pages repeat it."""


def beyond_tested(version_num: int) -> str | None:
    """Return the warning that a server is newer than the versions tested; None if it is not.

    Args:
        version_num: as `server_version_num` has it; 0 where no server was seen.
    """
    major = version_num // 10000
    if major <= NEWEST_TESTED_MAJOR:
        return None
    return (
        f"PostgreSQL {major} is newer than this pgsweep, which was tested with {TESTED}: rules and counters "
        "of the server may have changed"
    )
