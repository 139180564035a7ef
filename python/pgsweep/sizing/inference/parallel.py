"""Work shared by as many threads as the system allows.

numpy and the native module let go of the interpreter while they work, so threads help. An executor of
concurrent.futures fails where the system refuses a thread (RLIMIT_NPROC, pids.max of a cgroup), in the middle
of the work; here the threads that there are do it all, in the end the caller's alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def map_in_threads(function: Callable[..., T], *arguments: Iterable[Any]) -> list[T]:
    """Return the results of a function for each set of arguments, in their order, as `map` does.

    Args:
        function: called in several threads at the same time.
        arguments: one iterable for each parameter; as many calls as the shortest has items.

    Raises:
        Exception: the first that a call ended in; no further call is begun.
    """
    calls = list(zip(*arguments, strict=False))
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    waiting = iter(range(len(calls)))
    lock = threading.Lock()

    def work() -> None:
        while not errors:
            with lock:
                number = next(waiting, None)
            if number is None:
                return
            try:
                results[number] = function(*calls[number])
            except BaseException as error:
                errors.append(error)

    others: list[threading.Thread] = []
    for _ in range(min(os.cpu_count() or 1, len(calls)) - 1):
        thread = threading.Thread(target=work, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            break
        others.append(thread)
    work()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(calls))]
