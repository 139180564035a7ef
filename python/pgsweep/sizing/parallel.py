"""Work shared by as many threads as the system allows.

numpy and the native module release the GIL while they work, so threads help. An executor of
concurrent.futures fails where the system refuses a thread (RLIMIT_NPROC, pids.max of a cgroup), in the middle
of the work; here the threads that could be started do all of it, if need be the caller's alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pgsweep.errors import PgsweepError

T = TypeVar("T")


def map_in_threads(
    function: Callable[..., T],
    *arguments: Iterable[Any],
    most_threads: int | None = None,
    done: Callable[[float], None] | None = None,
) -> list[T]:
    """Return the results of a function for each set of arguments, in their order, as `map` does.

    Args:
        function: called in several threads at the same time.
        arguments: one iterable for each parameter; as many calls as the shortest has items.
        most_threads: this many at most, where each call takes much memory; one per processor by default.
        done: called after each with the share of all that have been made, from 0 to 1.

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
                if done is not None:
                    done(len(results) / len(calls))
            except BaseException as error:
                errors.append(error)

    others: list[threading.Thread] = []
    wanted = min(os.cpu_count() or 1, len(calls), most_threads or len(calls))
    for _ in range(wanted - 1):
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


def check_threads() -> None:
    """Refuse to begin where the threads that the work is shared among cannot be started.

    Otherwise a library would fail later, in the middle of the work and with a message of its own.
    """
    done = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range((os.cpu_count() or 1) + 1):
            thread = threading.Thread(target=done.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise PgsweepError(
            "no further thread could be started",
            cause="the number of tasks is limited: for the user, the service or the container",
            hint="raise the limit: ulimit -u, TasksMax= of the service, --pids-limit of the container",
        ) from error
    finally:
        done.set()
        # A thread that still runs when the process ends can end it with SIGABRT.
        for thread in started:
            thread.join()
