"""Workers for tasks that are independent of each other: processes here, or any `concurrent.futures` executor.

An executor is named as `processes:N`, or by the address of a dask scheduler, `tcp://HOST:PORT`. A task whose
worker dies is done again, so tasks return the same whenever and wherever they run.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from multiprocessing.synchronize import Event
from typing import Any, Final, TypeVar

from pgsweep.errors import LacksPackage, MissingAbility, UsageError

T = TypeVar("T")

_MOST_LOSSES: Final = 3
_CONNECT_SECONDS: Final = 10
_LOOK_SECONDS: Final = 1.0
_WATCH_SECONDS: Final = 0.3
_PROCESSES: Final = "processes:"
_CLUSTER: Final = ("tcp://", "tls://")


def check_executor(text: str) -> None:
    """Refuse what is not an executor: `processes:N`, or the address of a dask scheduler.

    Raises:
        UsageError: it is none.
        MissingAbility: dask is not installed.
    """
    number = text.removeprefix(_PROCESSES)
    if text.startswith(_PROCESSES) and number.isdecimal() and 1 <= int(number[:6]) <= 1024:
        return
    if not text.startswith(_CLUSTER):
        raise UsageError(
            f"`{text}` is not an executor",
            cause="it is `processes:N`, or where a dask scheduler listens: `tcp://HOST:PORT`",
            hint="--executor processes:2",
        )
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise LacksPackage(
            "the cluster's client is not installed", cause=str(error), hint="pip install 'pgsweep[cluster]'"
        ) from error


def run_tasks(
    executor: Executor | str, function: Callable[..., T], tasks: Sequence[tuple[Any, ...]]
) -> list[T]:
    """Return what a function returns for each task, in their order.

    Args:
        executor: one of `concurrent.futures`, or as `check_executor` takes it.
        function: of a module, so that workers find it; returns the same for the same task.
        tasks: arguments of each call.

    Raises:
        MissingAbility: there is no such executor here, it was lost, or its workers died repeatedly.
    """
    pool = WorkerPool(executor)
    results: dict[int, T] = {}
    ended = False
    try:
        for _ in range(_MOST_LOSSES + 1):
            with warnings.catch_warnings():
                # Tasks carry what they work on, once: dask would have it loaded by each worker.
                warnings.filterwarnings("ignore", message="Sending large graph", category=UserWarning)
                futures: dict[int, Future[T]] = {
                    number: pool.submit(function, *task)
                    for number, task in enumerate(tasks)
                    if number not in results
                }
            for number, future in futures.items():
                error = pool.error_of(future)
                if error is None:
                    results[number] = future.result()
                elif not is_loss(error):
                    raise error
            if len(results) == len(tasks):
                break
            pool.renew()
        else:
            raise MissingAbility(
                f"{len(tasks) - len(results)} of {len(tasks)} tasks were lost: workers died repeatedly",
                cause="too little memory for the tasks that run at once, or another user ended the workers",
                hint="--executor processes:1",
            )
        ended = True
    finally:
        pool.close(at_once=not ended)
    return [results[number] for number in range(len(tasks))]


class WorkerPool:
    """An executor that can be replaced when its workers have died.

    Attributes:
        executor: the present one.
        workers: how many there are; 0 where that is not known.
    """

    def __init__(self, wanted: Executor | str) -> None:
        self._wanted = wanted
        self._stop: Event | None = None
        self._client: Any = None
        self.workers = 0
        if isinstance(wanted, str):
            check_executor(wanted)
        self.executor = self._made()

    def submit(self, function: Callable[..., T], /, *task: Any) -> Future[T]:
        """Return the future of a task; where the executor is broken already, one that says so."""
        try:
            return self.executor.submit(function, *task)
        except RuntimeError as error:  # BrokenExecutor is one; others say that it was shut down
            lost: Future[T] = Future()
            lost.set_exception(error if is_loss(error) else BrokenExecutor(str(error)))
            return lost

    def error_of(self, future: Future[Any]) -> BaseException | None:
        """Wait for a task and return what it failed with: it was cancelled, where its cluster is lost."""
        while not future.done():
            if self._is_cut():
                return CancelledError()
            wait([future], timeout=_LOOK_SECONDS)
        try:
            return future.exception()
        except CancelledError as error:
            return error

    def first_done(self, futures: Iterable[Future[T]]) -> set[Future[T]]:
        """Wait until a task has ended and return those that have; all, where the cluster is lost."""
        waiting = set(futures)
        while True:
            done, _ = wait(waiting, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED)
            if done or self._is_cut():
                return done or waiting

    def _is_cut(self) -> bool:
        """Return whether the scheduler is lost: for some futures dask never reports this."""
        return self._client is not None and self._client.status != "running"

    def _made(self) -> Executor:
        if isinstance(self._wanted, Executor):
            return self._wanted
        if self._wanted.startswith(_PROCESSES):
            self.workers = int(self._wanted.removeprefix(_PROCESSES))
            # Not forked: a server's keeper and its locks are not to be shared with a worker.
            context = multiprocessing.get_context("spawn")
            self._stop = context.Event()
            return ProcessPoolExecutor(self.workers, context, _watch, (os.getpid(), self._stop))
        import distributed

        connect: Any = distributed.Client
        try:
            client = connect(self._wanted, timeout=f"{_CONNECT_SECONDS}s", set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise MissingAbility(
                f"the scheduler at {self._wanted} is not reached",
                cause=f"nothing answers there within {_CONNECT_SECONDS} s: it was not started, has ended, or "
                f"listens elsewhere ({error})",
                hint="start it: dask scheduler; or work here: --executor processes:2",
            ) from error
        self._client = client
        executor: Executor = client.get_executor(pure=False)
        return executor

    def renew(self) -> None:
        """Replace worker processes of ours, and a connection that is lost; a cluster replaces its workers.

        Raises:
            MissingAbility: the cluster is not reached any more.
        """
        if self._is_cut():
            self._leave_cluster()
            self.executor = self._made()
        if isinstance(self._wanted, str) and self._wanted.startswith(_PROCESSES):
            self.executor.shutdown(wait=True, cancel_futures=True)
            self.executor = self._made()

    def close(self, *, at_once: bool) -> None:
        """End it, unless it is the caller's; `at_once` ends also what is being run."""
        if isinstance(self._wanted, Executor):
            return
        if at_once and self._stop is not None:
            self._stop.set()
        if not self._wanted.startswith(_PROCESSES):
            if self._client is not None and not self._is_cut():
                self.executor.shutdown(wait=not at_once)
            self._leave_cluster()
            return
        self.executor.shutdown(wait=True, cancel_futures=True)

    def _leave_cluster(self) -> None:
        """Close the connection to the scheduler, which may be lost."""
        client, self._client = self._client, None
        if client is None:
            return
        # We report a lost connection in one sentence; dask would write a traceback.
        log = logging.getLogger("distributed.client")
        level = log.level
        log.setLevel(logging.CRITICAL)
        try:
            with contextlib.suppress(OSError, TimeoutError, RuntimeError):
                client.close()
        finally:
            log.setLevel(level)


def _watch(parent: int, stop: Event) -> None:
    """End this worker when the process that made it is gone or says so; its server ends with it."""

    def watch() -> None:
        while os.getppid() == parent and not stop.is_set():
            time.sleep(_WATCH_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def is_loss(error: BaseException) -> bool:
    """Return whether a worker or the way to it was lost, so that the task is to be done again."""
    from asyncio import CancelledError as TaskCancelled

    lost = (BrokenExecutor, CancelledError, TaskCancelled)
    return isinstance(error, lost) or type(error).__name__ == "KilledWorker"
