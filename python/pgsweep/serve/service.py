"""All parts of `pgsweep serve` together: started, shown over HTTP, and stopped."""

from __future__ import annotations

import contextlib
import errno
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final

import msgspec
import uvicorn

from pgsweep._native import __version__
from pgsweep.cache import inspect
from pgsweep.commands import asked_by
from pgsweep.errors import PgsweepError, UsageError
from pgsweep.host.allocator import limit_arenas
from pgsweep.pg.session.conninfo import build_conninfo, place_of
from pgsweep.plain import sql_identifier
from pgsweep.records.cache import CacheMap
from pgsweep.records.serve import (
    ServeAdvice,
    ServeAdvised,
    ServeConsumers,
    ServeCurve,
    ServeDatabases,
    ServeSeries,
    ServeShares,
)
from pgsweep.residency.access import opened
from pgsweep.serve.alerts import EVERY_SECONDS, Alerts
from pgsweep.serve.board import Board, Watched, best_advice
from pgsweep.serve.collect import Collector
from pgsweep.serve.config import ServeConfig, is_loopback, make_folder
from pgsweep.serve.forecast import Answer, Forecasts
from pgsweep.serve.history import History, KeptCurve, KeptVerification, store_of
from pgsweep.serve.history_reads import (
    read_consumers,
    read_curves,
    read_databases,
    read_series,
    read_shares,
    read_verification,
)
from pgsweep.serve.holding import hold_folder
from pgsweep.serve.metrics import CONTENT_TYPE, Metrics, exposed
from pgsweep.serve.queries import UserMetrics
from pgsweep.serve.recording import Recorder
from pgsweep.serve.steady import steadied
from pgsweep.serve.web.app import WebConfig, make_app
from pgsweep.serve.web.connections import UVICORN, Room, bound_buffers
from pgsweep.serve.web.events import Hub
from pgsweep.serve.webhook import Webhook, advice_changed
from pgsweep.units import iso_time

_KEPT_WINDOW: Final = 3600
_MAP_SECONDS: Final = 10.0
"""A block map is read at most this often: each opens a session and reads the pool."""

_MAP_CELLS: Final = 2048
_OTHER_FILES: Final = 192
"""Files that this process opens besides the connections of clients; some 60 with ten servers."""

_BACKLOG: Final = 1024
_ARENAS: Final = 2
"""Arenas of the C library's allocator: one per thread would keep the memory of its largest sample."""

_EVERYWHERE: Final = {"0.0.0.0", "::"}  # noqa: S104 (compared with, not listened at)


class Service:
    """Collects from all servers from `start` to `stop`, and answers the pages' questions.

    Args:
        config: what is served.
        warn: called with what the webhook was not told.

    Raises:
        PgsweepError: the history cannot be opened, or another process writes it.
    """

    def __init__(self, config: ServeConfig, warn: Callable[[str], None] = lambda _: None) -> None:
        folders = {server.key: config.evidence / server.key for server in config.servers}
        in_folder = config.history_conninfo is None
        self._held = []
        for folder in ([config.history] if in_folder else []) + list(folders.values()):
            make_folder(folder)
            self._held.append(hold_folder(folder))
        self._config = config
        names = [server.name for server in config.servers]
        self._store = store_of(config.history, config.history_conninfo, names)
        self.history = History(self._store, most_bytes=config.history_bytes)
        places = [place_of(server.conninfo) for server in config.servers]
        self.board = Board(config, places, lambda: self.history.trouble)
        self._conninfos = {server.key: server.conninfo for server in config.servers}
        self._recorders = [
            Recorder(
                server.conninfo,
                folders[server.key],
                most_bytes=config.evidence_bytes,
                source=config.source,
                report=self._recording_reporter(server.key),
            )
            for server in config.servers
        ]
        self._collectors = [
            Collector(
                server,
                self.board,
                self.history,
                interval_seconds=config.interval_seconds,
                source=config.source,
                show_queries=config.show_queries,
                readable=recorder.try_again,
            )
            for server, recorder in zip(config.servers, self._recorders, strict=True)
        ]
        self._user_metrics = [
            UserMetrics(server, wanted, self.board)
            for server in config.servers
            if (wanted := [m for m in config.metrics if not m.servers or server.name in m.servers])
        ]
        self._alerts = threading.Thread(target=self._watch_alerts, name="alerts", daemon=True)
        self._ends = threading.Event()
        self._forecasts = Forecasts(folders, self._show_curve, self._show_verification)
        self._webhook = None if config.webhook is None else Webhook(config.webhook, warn)
        self._kept_hour: dict[str, int] = {}
        self._maps: dict[tuple[str, str, str, str], tuple[float, CacheMap]] = {}
        self._map_lock = threading.Lock()

    def start(self) -> None:
        """Begin to collect."""
        self.history.start()
        for collector in self._collectors:
            collector.start()
        for recorder in self._recorders:
            recorder.start()
        for user in self._user_metrics:
            user.start()
        self._forecasts.start()
        self._alerts.start()
        if self._webhook is not None:
            self._webhook.start()

    def stop(self) -> bool:
        """End all parts; what was collected is written. Return whether that was done in time."""
        self._ends.set()
        if self._webhook is not None:
            self._webhook.stop()
        for recorder in self._recorders:
            recorder.ask_to_stop()
        for user in self._user_metrics:
            user.ask_to_stop()
        self._forecasts.stop()
        threads = [threading.Thread(target=collector.stop) for collector in self._collectors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5.0)
        end = time.monotonic() + 5.0
        for recorder in self._recorders:
            recorder.join(max(0.0, end - time.monotonic()))
        for user in self._user_metrics:
            user.join(max(0.0, end - time.monotonic()))
        return self.history.stop()

    def _recall(self) -> None:
        """Take the last hour of each server from the history."""
        now = time.time()
        for key, watched in self.board.servers.items():
            with contextlib.suppress(PgsweepError):
                found = read_series(self._store, watched.config.name, now - 3600, now)
                columns = [found.columns[name] for name in ("covered_seconds", "hits", "reads")]
                self.board.changed(key, "curve", partial(_note, zip(found.at, *columns, strict=True)))

    def _watch_alerts(self) -> None:
        self._recall()
        alerts, metrics = Alerts(), Metrics(self.board, self._config.metrics, 0)
        while True:
            self.board.alerts = alerts.of(metrics.states(), time.time())
            if self._ends.wait(EVERY_SECONDS):
                return

    def _recording_reporter(self, key: str) -> Callable[[str | None], None]:
        def report(why: str | None) -> None:
            self.board.changed(key, "recording", lambda watched: setattr(watched, "recording", why))

        return report

    def _show_curve(self, key: str, curve: ServeCurve, advised: ServeAdvised | None) -> None:
        watched, window = self.board.servers[key], curve.window_seconds
        if curve.failed is not None and (shown := watched.curves.get(window)) is not None:
            # What was predicted before is shown with its age, and that no newer one could be made.
            curve = msgspec.structs.replace(
                shown, failed=curve.failed, failed_at=curve.failed_at, next_at=curve.next_at
            )
        before = best_advice(self.board.advised(key))
        if advised is not None:
            advised = steadied(advised, before)
        last = advised or watched.advised.get(window)
        if (
            last is not None
            and curve.result is not None
            and last.result.observed.shared_buffers_bytes == curve.result.observed.shared_buffers_bytes
        ):
            curve = msgspec.structs.replace(curve, advised_bytes=last.size_bytes, advice=last.result.summary)

        def change(found: Watched) -> None:
            found.curves[window] = curve
            if advised is not None:
                found.advised[window] = advised

        self.board.changed(key, "curve", change)
        self._tell(key, before)
        if curve.failed is not None:
            return
        hour = int(curve.at // 3600)
        # The last curve of an hour, over that hour, is kept: it stands a little after the hour's end.
        if window == _KEPT_WINDOW and curve.result is not None and curve.result.points:
            if self._kept_hour.get(key, hour) != hour:
                self.history.add(KeptCurve(watched.config.name, curve))
            self._kept_hour[key] = hour

    def _tell(self, key: str, before: ServeAdvised | None) -> None:
        """Tell the webhook where the advice is another one now."""
        now = best_advice(self.board.advised(key))
        if self._webhook is None or now is None:
            return
        name = self.board.servers[key].config.name
        event = advice_changed(name, now, before, iso_time(now.at) or "")
        if event is not None:
            self._webhook.send(event)

    def _show_verification(self, key: str, answer: Answer) -> None:
        watched, found = self.board.servers[key], answer.verification
        is_new = found is not None and (
            watched.verification is None or watched.verification.result != found.result
        )
        seen = answer.change if watched.change is None else None
        if not is_new and seen is None and answer.why == watched.verification_failed:
            return

        def change(changed: Watched) -> None:
            changed.verification = found or changed.verification
            changed.verification_failed = answer.why
            changed.change = seen or changed.change

        self.board.changed(key, "curve", change)
        if found is not None and is_new:
            self.history.add(KeptVerification(watched.config.name, found))

    # What the pages ask for.

    def advice(self, key: str) -> ServeAdvice:
        """Return the advice, and whether the last prediction held."""
        watched = self.board.servers[key]
        windows = self.board.advised(key)
        verification, trouble = watched.verification, watched.verification_failed
        if verification is None:
            try:
                verification = read_verification(self._store, watched.config.name)
            except PgsweepError as error:
                trouble = error.message
        why = None
        if not windows:
            curves = self.board.curves(key)
            why = next((curve.why for curve in curves if curve.why is not None), None)
        return ServeAdvice(
            server=watched.config.name,
            best=best_advice(windows),
            windows=windows,
            why=why,
            verification=verification,
            change=watched.change,
            trouble=trouble,
        )

    def recording(self, key: str) -> str | None:
        """Return why no evidence is recorded now; None where it is."""
        return self.board.servers[key].recording

    def hours(self, key: str, begin: float, end: float) -> list[ServeCurve]:
        """Return the curves kept of earlier hours."""
        return read_curves(self._store, self.board.servers[key].config.name, begin, end)

    def series(self, key: str, begin: float, end: float) -> ServeSeries:
        """Return a part of the history."""
        return read_series(self._store, self.board.servers[key].config.name, begin, end)

    def databases(self, key: str, begin: float, end: float) -> ServeDatabases:
        """Return hits and reads of each database."""
        name = self.board.servers[key].config.name
        try:
            return read_databases(self._store, name, begin, end)
        except PgsweepError as error:
            return ServeDatabases(
                server=name, begin=begin, end=end, at=[], seconds=[], databases=[], trouble=error.message
            )

    def shares(self, key: str, begin: float, end: float) -> ServeShares:
        """Return what relations have in the pool."""
        name = self.board.servers[key].config.name
        try:
            return read_shares(self._store, name, begin, end)
        except PgsweepError as error:
            return ServeShares(server=name, begin=begin, end=end, at=[], relations=[], trouble=error.message)

    def consumers(self, key: str, begin: float, end: float) -> ServeConsumers:
        """Return who used the server over a range."""
        watched = self.board.servers[key]
        texts = {str(number): text for number, text in watched.query_texts.items()}
        name = watched.config.name
        try:
            found = read_consumers(self._store, name, begin, end)
        except PgsweepError as error:
            return ServeConsumers(
                server=name,
                begin=begin,
                end=end,
                covered_seconds=0.0,
                totals=None,
                consumers=[],
                missing=watched.consumers_missing,
                trouble=error.message,
            )
        return msgspec.structs.replace(
            found,
            consumers=[
                msgspec.structs.replace(each, query=texts[each.id])
                if each.kind == "statement" and each.id in texts
                else each
                for each in found.consumers
            ],
            missing=watched.consumers_missing,
        )

    def block_map(self, key: str, database: str, schema: str, relation: str) -> CacheMap:
        """Return where the blocks of a relation lie, read now or some seconds ago.

        Raises:
            UsageError: there is no such relation.
            PgsweepError: the server cannot be asked.
        """
        if not schema or not relation:
            raise UsageError("no relation is named")
        if "\0" in database + schema + relation:
            raise UsageError("a name has no NUL in it")
        name = f"{sql_identifier(schema)}.{sql_identifier(relation)}"
        if "U&" in name:
            raise UsageError("the block map of a relation whose name has controls in it is not drawn")
        conninfo = self._conninfos[key]
        if database:
            escaped = database.replace("\\", "\\\\").replace("'", "\\'")
            conninfo = build_conninfo(conninfo, dbname=f"dbname='{escaped}'")
        # One at a time, so that many requests are no load on a server.
        with self._map_lock:
            wanted = (key, database, schema, relation)
            known = self._maps.get(wanted)
            if known is not None and time.monotonic() - known[0] < _MAP_SECONDS:
                return known[1]
            with opened(conninfo, self._config.source) as access:
                found = inspect.look(
                    access, every_database=False, top=1, map_of=name, map_cells=_MAP_CELLS
                ).map
            assert found is not None
            if len(self._maps) >= 16:
                self._maps.clear()
            self._maps[wanted] = (time.monotonic(), found)
            return found

    def metrics(self) -> tuple[bytes, str]:
        """Return the metrics and their content type."""
        return exposed(self.board, self._config.metrics, self._config.top_relations), CONTENT_TYPE


def _note(rows: Iterable[tuple[Any, ...]], watched: Watched) -> None:
    for at, seconds, hits, reads in rows:
        if None not in (seconds, hits, reads):
            watched.note_minute(at, seconds, hits, reads)


class _Server(uvicorn.Server):
    """Ends what clients do not end: late connections, and with the first signal the streams of open pages."""

    def __init__(self, config: uvicorn.Config, hub: Hub, room: Room) -> None:
        super().__init__(config)
        self._hub = hub
        self._room = room

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen; more may wait for us than are accepted at once."""
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(_BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        """Do what is to be done ten times a second; return whether it is time to end."""
        if counter % 10 == 0:
            self._room.end_overdue()
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals as `serve` has them from before the first session on.

        uvicorn takes them when it begins to listen, so one that comes before is lost, and raises them once
        more at its end, which is a second signal (`ended_for_sure`) while sessions are being ended.
        """
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end."""
        self._hub.close()
        super().handle_exit(sig, frame)


def serve(config: ServeConfig, *, say: Callable[[str], None], warn: Callable[[str], None]) -> None:
    """Collect and serve until a signal ends it (SIGINT, SIGTERM, SIGHUP).

    Args:
        config: what is served.
        say: called with the address, once the server listens.
        warn: called with the reason why the history cannot be written yet, or not to its end.

    Raises:
        UsageError: the server cannot listen at the address.
        PgsweepError: the history cannot be opened.
    """
    limit_arenas(_ARENAS)
    _allow_files(config.max_connections)
    with _listening(config.host, config.port) as listening:
        port = listening.getsockname()[1]
        service = Service(config, warn)
        hub = Hub()
        service.board.listen(hub.report)
        room = Room(config.max_connections, config.max_connections_per_address)
        web = WebConfig(
            hosts=_hosts(config),
            token=config.token,
            version=__version__,
            base=config.base_path,
            connections=config.max_connections,
            connections_of_one=config.max_connections_per_address,
        )
        app = make_app(service, hub, web)
        server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                # A line for each malformed request would fill the log, or a pipe that nobody reads.
                log_level="error",
                access_log=False,
                server_header=False,
                http=room.protocol(),
                timeout_graceful_shutdown=3,
                ssl_certfile=None if config.tls is None else str(config.tls[0]),
                ssl_keyfile=None if config.tls is None else str(config.tls[1]),
                **UVICORN,
            ),
            hub,
            room,
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under nohup the last one is ignored, and stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, server.handle_exit)
        with asked_by():  # no one server's: each page is of another
            service.start()
            try:
                shown = f"[{config.host}]" if ":" in config.host else config.host
                scheme = "http" if config.tls is None else "https"
                say(f"{scheme}://{shown}:{port}{config.base_path}/")
                if service.history.trouble is not None:
                    warn(service.history.trouble)
                server.run(sockets=[listening])
            finally:
                if not service.stop():
                    warn("the history is still being written: its last seconds may be lost")


def _hosts(config: ServeConfig) -> list[str]:
    """Return the names that the Host header may have; none where any will do, behind a token."""
    named = [host.lower() for host in config.allowed_hosts]
    if is_loopback(config.host):
        return ["localhost", "127.0.0.1", "::1", config.host, *named]
    if config.host in _EVERYWHERE:
        return [*named, "localhost", "127.0.0.1", "::1", socket.gethostname().lower()] if named else []
    return [config.host.lower(), *named]


def _allow_files(connections: int) -> None:
    """Raise this process's limit of open files to what the connections take, if it is lower."""
    needed = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"max-connections is {connections}, and this process may open {hard} files",
            hint=f"ulimit -n {needed}, or LimitNOFILE={needed} in the unit of systemd; or fewer connections",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _listening(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound_buffers(listening)
        try:
            listening.bind(address)
            listening.listen(128)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        hint = None
        if error.errno == errno.EADDRINUSE:
            hint = f"another port: --listen {host}:0 takes one that is free"
        raise UsageError(f"cannot listen at {host}:{port}", cause=error.strerror, hint=hint) from error
    return listening
