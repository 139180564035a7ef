"""`pgsweep warm keep` beside the steps of an experiment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from pgsweep.errors import ClusterError
from pgsweep.records.warm_keep import WarmKeepResult
from pgsweep.warm.keep.keep import Keeper, KeepOptions

_PATIENCE_SECONDS: Final = 20.0
_REPORT_SECONDS: Final = 0.1


@contextmanager
def keeping(conninfo: str, options: KeepOptions) -> Iterator[list[WarmKeepResult]]:
    """Keep relations resident until the context ends; afterwards the list has the result of that.

    Raises:
        PgsweepError: it did not begin in time, or it failed.
    """
    stop, began = threading.Event(), threading.Event()
    wanted = msgspec.structs.replace(options, report_seconds=_REPORT_SECONDS)
    keeper = Keeper(conninfo, wanted, report=lambda _: began.set())
    results: list[WarmKeepResult] = []
    failed: list[BaseException] = []

    def keep() -> None:
        try:
            results.append(keeper.run(stop=stop))
        except BaseException as error:
            failed.append(error)
            began.set()

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        if not began.wait(_PATIENCE_SECONDS):
            raise ClusterError("the relations could not be kept: no report came in time")
        yield results
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]
