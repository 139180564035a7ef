"""Metrics of the user's own: named queries of serve.toml, each with a time limit and a limit of its cost.

Each server has one session and one thread for all of them. A query runs at its interval, or more rarely,
so that it takes no more than 1% of that backend's time: `pgsweep_user_metric_interval_seconds` says how far
apart its runs are. A query that fails has no value until it works again, and `pgsweep_user_metric_failed`
says so.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from pgsweep.errors import ConnectionFailed, PgsweepError
from pgsweep.pg.session.connect import Connection, cancel, connect, end_without_client
from pgsweep.pg.session.failures import DriverError, first_line
from pgsweep.pg.session.user_query import run_user_query
from pgsweep.plain import shown
from pgsweep.serve.board import Board, Watched
from pgsweep.serve.config import MetricConfig, ServerConfig

COST_SHARE: Final = 0.01
"""Largest share of one backend's time for each query."""

_AWAY_SECONDS: Final = 10.0
_LONGEST_LABEL: Final = 200

Rows = list[tuple[tuple[str, ...], float]]


class UserMetrics:
    """Runs the user's queries on one server, in a thread until it is stopped.

    Args:
        server: which.
        metrics: those for it.
        board: gets the values.
    """

    def __init__(self, server: ServerConfig, metrics: Sequence[MetricConfig], board: Board) -> None:
        self._server = server
        self._metrics = metrics
        self._board = board
        self._ended = threading.Event()
        self._session: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="user metrics", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """End; the query that runs now is cancelled."""
        self._ended.set()
        if (session := self._session) is not None and not session.closed:
            cancel(session)

    def join(self, seconds: float) -> None:
        """Wait for the end, at most this long."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        due = {metric.name: 0.0 for metric in self._metrics}
        while not self._ended.is_set():
            for metric in self._metrics:
                if time.monotonic() >= due[metric.name] and not self._ended.is_set():
                    due[metric.name] = self._once(metric)
            left = min(due.values()) - time.monotonic()
            self._ended.wait(max(0.05, left))
        if self._session is not None:
            self._session.close()

    def _once(self, metric: MetricConfig) -> float:
        """Run a query, and return when it is due again."""
        begin = time.monotonic()
        rows: Rows | None = None
        why = ""
        pause = metric.every
        try:
            if self._session is None or self._session.closed:
                self._session = connect(self._server.conninfo)
                end_without_client(self._session)
            begin = time.monotonic()
            names, found = run_user_query(
                self._session, metric.query, timeout_seconds=metric.timeout, most_rows=metric.rows
            )
            rows = _values(metric, names, found)
        except ConnectionFailed as error:
            why = error.message
            pause = min(pause, _AWAY_SECONDS)
            if self._session is not None:
                self._session.close()
        except PgsweepError as error:
            why = error.message
        except (DriverError, OSError) as error:
            why = first_line(error)
        taken = time.monotonic() - begin
        apart = max(pause, taken / COST_SHARE)

        def change(watched: Watched) -> None:
            watched.user_metrics[metric.name] = rows
            watched.user_intervals[metric.name] = apart
            if why:
                watched.user_failures[metric.name] = why
            else:
                watched.user_failures.pop(metric.name, None)

        self._board.changed(self._server.key, "metric", change)
        return begin + apart


def _values(metric: MetricConfig, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Rows:
    """Return the rows as labels and a number.

    Raises:
        PgsweepError: a column is missing, a value is not a number, or two rows have the same labels.
    """
    for wanted in (metric.value, *metric.labels):
        if wanted not in names:
            raise PgsweepError(f"the query has no column `{wanted}`")
    found: dict[tuple[str, ...], float] = {}
    for row in rows:
        value = row[names.index(metric.value)]
        if value is None:
            continue
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise PgsweepError(f"the column `{metric.value}` is not a number") from None
        if math.isnan(number) or (metric.type == "counter" and number < 0):
            raise PgsweepError(f"the column `{metric.value}` has {number}")
        labels = tuple(
            shown("" if row[names.index(label)] is None else str(row[names.index(label)]))[:_LONGEST_LABEL]
            for label in metric.labels
        )
        if labels in found:
            raise PgsweepError("two rows have the same labels")
        found[labels] = number
    return list(found.items())
