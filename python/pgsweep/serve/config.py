"""What `pgsweep serve` watches and how, from the command line and from serve.toml.

    [serve]
    listen = "127.0.0.1:8432"     # also: token-file, history, source, allowed-hosts
    interval = "10s"              # of times, numbers are seconds
    history = "service=watching"  # a folder, or a database of PostgreSQL as libpq understands it
    evidence = "/var/lib/pgsweep" # folder of the evidence; by default in that of the history
    history-size = "1GB"          # of the history of all servers
    evidence-size = "256MB"       # of the evidence of each server
    top-relations = 20            # that /metrics names, for each server
    show-queries = false          # the normalised texts of statements, on the page of consumers
    base-path = "/pgsweep"        # below which a proxy shows the pages
    tls-cert = "/etc/pgsweep/cert.pem"  # with tls-key: the pages are served by https
    webhook = "https://hooks.example/pgsweep"  # is told when the advice changes
    max-connections = 256         # of browsers, proxies and Prometheus
    max-connections-per-address = 128

    [[server]]
    name = "shop"                 # as pages and metrics call it
    conninfo = "service=shop"     # as libpq understands it

    [[metric]]                    # a query of your own, see serve/queries.py
    name = "orders_open"
    query = "SELECT count(*) AS value FROM shop.orders WHERE state = 'open'"

What the command line says goes before the file.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.files import make_private
from pgsweep.pg.session.conninfo import build_conninfo, describe, is_conninfo
from pgsweep.plain import shell_word
from pgsweep.regular import open_regular, read_bounded
from pgsweep.serve.webhook import check_webhook
from pgsweep.toml_file import TomlFile, require_unshared
from pgsweep.units import parse_bytes, parse_seconds

SHORTEST_SECONDS: Final = 1.0
LEAST_CONNECTIONS: Final = 16
MOST_CONNECTIONS: Final = 65_536
_TIMES: Final = ("interval", "every", "timeout")
"""What is a time in the tables of the file."""

_HOME: Final = ".local/state/pgsweep/serve"
_METRIC_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,99}")
_BASE_PATH: Final = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
_LABEL: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")

Source = Literal["auto", "peek", "sql"]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One server.

    Attributes:
        key: its part of addresses and folders.
    """

    key: str
    name: str
    conninfo: str


class MetricConfig(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """A query of the user's own whose rows become metrics.

    Attributes:
        name: the metric is called `pgsweep_user_NAME`, with `_total` after it where it is a counter.
        value: the column that has the number.
        labels: columns that become labels.
        every: seconds from one run to the next; longer where that would cost more than 1% of a backend.
        timeout: seconds after which the server gives the statement up.
        rows: the most rows that are taken.
        servers: names of the servers it is for; empty for all.
    """

    name: str
    query: str
    help: str = ""
    type: Literal["gauge", "counter"] = "gauge"
    value: str = "value"
    labels: list[str] = []
    every: float = 60.0
    timeout: float = 1.0
    rows: int = 100
    servers: list[str] = []


class _ServerTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    conninfo: str
    name: str = ""


class _ServeTable(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    listen: str | None = None
    base_path: str = ""
    tls_cert: str | None = None
    tls_key: str | None = None
    webhook: str | None = None
    token_file: str | None = None
    interval: float | None = None
    history: str | None = None
    evidence: str | None = None
    source: Source | None = None
    allowed_hosts: list[str] = []
    history_size: str = "1GB"
    evidence_size: str = "256MB"
    top_relations: int = 20
    show_queries: bool = False
    max_connections: int = 256
    max_connections_per_address: int = 128


class _Sections(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    serve: dict[str, Any] = {}
    server: list[Any] = []
    metric: list[Any] = []


class _File:
    """What serve.toml says; of no file, nothing."""

    def __init__(self, path: Path | None) -> None:
        self.toml = None if path is None else TomlFile(path)
        self.serve, self.servers, self.metrics = _ServeTable(), list[_ServerTable](), list[MetricConfig]()
        if self.toml is not None:
            read = self.toml.table
            sections = read(_Sections, self.toml.values)
            self.serve = read(_ServeTable, self._timed(sections.serve, "serve"), "serve")
            self.servers = [read(_ServerTable, one, "server", n) for n, one in enumerate(sections.server)]
            for number, server in enumerate(self.servers):
                with self.toml.blamed("server", number, "conninfo"):
                    build_conninfo(server.conninfo)
            for number, metric in enumerate(sections.metric):
                timed = self._timed(metric, "metric", number)
                self.metrics.append(read(MetricConfig, timed, "metric", number))

    def _timed(self, table: Any, *place: str | int) -> Any:
        """Return a table with the texts of times as seconds, as the options take them."""
        found = dict(table) if isinstance(table, dict) else table
        for name in _TIMES if isinstance(table, dict) else ():
            if isinstance(text := table.get(name), str) and self.toml is not None:
                with self.toml.blamed(*place, name):
                    found[name] = parse_seconds(text)
        return found

    def blamed(self, key: str, instead: object = None, *inside: str | int) -> AbstractContextManager[None]:
        """Let a fault of a value name the file, unless the command line has another `instead`."""
        if self.toml is None or instead is not None:
            return nullcontext()
        keys = (key, *inside) if inside else ("serve", key)
        return self.toml.blamed(*keys)


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All that the command line and the file say.

    Attributes:
        history: folder of the history where that is a file.
        history_conninfo: the database of the history; None where it is a file.
        evidence: folder of the evidence of all servers.
        base_path: below which a proxy shows the pages: `/pgsweep`; empty for the root.
        webhook: address that is told when the advice changes.
        tls: files of the certificate chain and of its key, PEM; None for http.
    """

    servers: list[ServerConfig]
    host: str
    port: int
    history: Path
    history_conninfo: str | None = None
    evidence: Path
    token: str | None = None
    base_path: str = ""
    tls: tuple[Path, Path] | None = None
    webhook: str | None = None
    interval_seconds: float = 10.0
    source: Source = "auto"
    allowed_hosts: list[str] = []
    history_bytes: int = 1 << 30
    evidence_bytes: int = 1 << 28
    top_relations: int = 20
    show_queries: bool = False
    max_connections: int = 256
    max_connections_per_address: int = 128
    metrics: list[MetricConfig] = []


class WebOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the pages are reached, as the command line says; what it does not say is None."""

    base_path: str | None = None
    tls_cert: Path | str | None = None
    tls_key: Path | str | None = None


def load_config(
    targets: Sequence[str],
    *,
    file: Path | None = None,
    listen: str | None = None,
    history: str | None = None,
    token_file: Path | None = None,
    web: WebOptions | None = None,
    interval_seconds: float | None = None,
    source: Source | None = None,
    home: Path,
) -> ServeConfig:
    """Return what is to be served.

    Args:
        targets: connection strings, names of databases or URIs; the file's servers come after them. Without
            any there is one, which libpq's environment names.
        file: serve.toml.
        listen: `HOST:PORT`; port 0 takes one that is free.
        history: folder of the history, or a connection string of the database for it.
        token_file: holds what a browser or Prometheus must show.
        web: how pages are reached.
        interval_seconds: from one look to the next.
        source: how pools are read.
        home: where history and evidence lie by default.

    Raises:
        UsageError: something in it cannot be.
    """
    found = _File(file)
    given = found.serve
    tables = [_ServerTable(target) for target in targets] + found.servers
    with found.blamed("listen", listen):
        host, port = parse_listen(listen or given.listen or "127.0.0.1:8432")
    seconds = given.interval if interval_seconds is None else interval_seconds
    interval = 10.0 if seconds is None else seconds
    with found.blamed("interval", interval_seconds):
        if interval < SHORTEST_SECONDS:
            raise UsageError("the interval is too short", cause="1s is the least", hint="--interval 10s")
    with found.blamed("base-path", web and web.base_path):
        base_path = parse_base_path((web and web.base_path) or given.base_path)
    with found.blamed("webhook"):
        webhook = None if given.webhook is None else check_webhook(given.webhook)
    with found.blamed("history-size"):
        history_bytes = max(1 << 20, parse_bytes(given.history_size))
    with found.blamed("evidence-size"):
        evidence_bytes = max(1 << 20, parse_bytes(given.evidence_size))
    place = history or given.history
    with found.blamed("history", history):
        in_database = build_conninfo(place) if place is not None and is_conninfo(place) else None
    folder = home if place is None or in_database else Path(place).expanduser()
    config = ServeConfig(
        servers=_servers(tables or [_ServerTable("")]),
        host=host,
        port=port,
        history=folder,
        history_conninfo=in_database,
        evidence=Path(given.evidence).expanduser() if given.evidence else folder / "evidence",
        token=_token(found, token_file, host),
        base_path=base_path,
        webhook=webhook,
        tls=_tls_files(web or WebOptions(), given),
        interval_seconds=interval,
        source=source or given.source or "auto",
        allowed_hosts=given.allowed_hosts,
        history_bytes=history_bytes,
        evidence_bytes=evidence_bytes,
        top_relations=max(0, given.top_relations),
        show_queries=given.show_queries,
        max_connections=given.max_connections,
        max_connections_per_address=min(given.max_connections, given.max_connections_per_address),
        metrics=found.metrics,
    )
    _check_metrics(config, found)
    with found.blamed("max-connections"):
        _check_connections(config)
    return config


def _token(found: _File, token_file: Path | None, host: str) -> str | None:
    """Return what a browser must show; None where none is required.

    Raises:
        UsageError: it cannot be read, or the address needs one.
    """
    given = found.serve.token_file
    path = token_file or (Path(given).expanduser() if given else None)
    if path is not None:
        with found.blamed("token-file", token_file):
            return read_token(path)
    if not is_loopback(host):
        raise UsageError(
            f"`{host}` can be reached from other machines, and no token is required",
            cause="whoever can open the page would see names of relations and what the servers do",
            hint="--token-file FILE, made by: umask 077; openssl rand -hex 32 > FILE; "
            "or --listen 127.0.0.1:8432",
        )
    return None


def parse_base_path(text: str) -> str:
    """Return a path without a slash at its end; empty for the root.

    Raises:
        UsageError: it is no path of an address.
    """
    path = text.rstrip("/")
    if path and not _BASE_PATH.fullmatch(path):
        raise UsageError(f"`{text}` is not the path of an address", hint="--base-path /pgsweep")
    return path


def _tls_files(web: WebOptions, given: _ServeTable) -> tuple[Path, Path] | None:
    """Return the files of the certificate and of its key.

    Raises:
        UsageError: one is missing, or they cannot be used.
    """
    cert, key = web.tls_cert or given.tls_cert, web.tls_key or given.tls_key
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise UsageError(
            "a certificate and its key go together", hint="--tls-cert CERT.pem --tls-key KEY.pem"
        )
    files = Path(cert).expanduser(), Path(key).expanduser()
    try:
        # Of a key with a passphrase OpenSSL would ask at the terminal, if there is one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*files, password=lambda: b"")
        mode = files[1].stat().st_mode
        for each in files:
            require_unshared(each)
    except OSError as error:
        raise UsageError(
            f"`{files[0]}` with the key `{files[1]}` cannot be used for TLS",
            cause=error.strerror or str(error),
            hint="both are PEM, the certificate first in its chain; the key has no passphrase",
        ) from error
    if mode & 0o007:
        raise UsageError(
            f"the key `{files[1]}` may be read by all users: its mode is {mode & 0o7777:04o}",
            hint=f"chmod o= {shell_word(str(files[1]))}",
        )
    return files


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; of an IPv6 address in brackets without them.

    Raises:
        UsageError: it is neither.
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise UsageError(f"`{text}` is not an address to listen on", hint="--listen 127.0.0.1:8432")
    return match[1] or match[2], int(match[3])


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    return host in {"localhost", "::1"} or re.fullmatch(r"127\.\d+\.\d+\.\d+", host) is not None


def read_token(path: Path) -> str:
    """Return the secret in a file.

    Raises:
        UsageError: the file cannot be read, others may read it, or it holds less than 16 characters.
    """
    try:
        with open_regular(path) as file:
            text = read_bounded(file, 4096, path).decode().strip()
            mode = os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise UsageError(f"the token file `{path}` cannot be read", cause=error.strerror) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the token file `{path}` cannot be read", cause="it is not UTF-8") from error
    make = f"umask 077; openssl rand -hex 32 > {shell_word(str(path))}"
    if mode & 0o077:
        raise UsageError(
            f"the token file `{path}` may be used by others: its mode is {mode & 0o7777:04o}",
            hint=f"chmod 600 {shell_word(str(path))}",
        )
    if len(text) < 16 or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(f"the token file `{path}` holds no secret of 16 characters or more", hint=make)
    return text


def _servers(tables: Sequence[_ServerTable]) -> list[ServerConfig]:
    servers: list[ServerConfig] = []
    names: set[str] = set()
    keys: set[str] = set()
    for table in tables:
        conninfo = build_conninfo(table.conninfo)
        name = table.name or describe(conninfo).removeprefix("database ")
        if name in names:
            raise UsageError(
                f"two servers have the name `{name}`", hint="give each a name of its own in serve.toml"
            )
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "server"
        key, number = slug, 2
        while key in keys:
            key, number = f"{slug}-{number}", number + 1
        names.add(name)
        keys.add(key)
        servers.append(ServerConfig(key=key, name=name, conninfo=conninfo))
    return servers


def _check_metrics(config: ServeConfig, file: _File) -> None:
    known = {server.name for server in config.servers}
    seen: set[str] = set()
    for number, metric in enumerate(config.metrics):
        problem = None
        if not _METRIC_NAME.fullmatch(metric.name):
            problem = "its name may have small letters, digits and _, and begins with a letter"
        elif metric.name in seen:
            problem = "there are two of that name"
        elif not all(_LABEL.fullmatch(label) and label != "server" for label in metric.labels):
            problem = "a label may have small letters, digits and _, and is not `server`"
        elif len(set(metric.labels)) < len(metric.labels) or metric.value in metric.labels:
            problem = "a column is named twice"
        elif not (0.01 <= metric.timeout <= 60 and 1 <= metric.every <= 86400 and 1 <= metric.rows <= 10000):
            problem = "timeout is 0.01 to 60, every 1 to 86400 (seconds), rows 1 to 10000"
        elif missing := set(metric.servers) - known:
            problem = f"there is no server `{sorted(missing)[0]}`"
        elif not metric.query.strip():
            problem = "its query is empty"
        if problem is not None:
            with file.blamed("metric", None, number, "name"):
                raise UsageError(f"the metric `{metric.name}` cannot be", cause=problem)
        seen.add(metric.name)


def _check_connections(config: ServeConfig) -> None:
    least, most = LEAST_CONNECTIONS, MOST_CONNECTIONS
    if not (least <= config.max_connections_per_address <= config.max_connections <= most):
        raise UsageError(
            f"max-connections and max-connections-per-address are {least} to {most}",
            cause="a page takes up to seven connections: six of the browser, and its stream of events",
        )


def make_folder(folder: Path) -> None:
    """Make the folder of the history or of the evidence, for its owner only.

    Raises:
        UsageError: it cannot be made: there is a file, or no right to it.
        PgsweepError: we are root, and the default folder is in another user's home.
    """
    try:
        if os.geteuid() == 0 and _is_default(folder):
            make_private(folder, mode=0o700)
        else:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(
            f"the folder `{folder}` cannot be made",
            cause=error.strerror,
            hint="name another: --history DIR, and for the evidence `evidence` in serve.toml",
        ) from error


def _is_default(folder: Path) -> bool:
    with suppress(PgsweepError):
        home = default_history(os.environ)
        return home in (folder, *folder.parents)
    return False


def default_history(environment: Mapping[str, str]) -> Path:
    """Return the default folder of the history: below the user's folder of state.

    Raises:
        PgsweepError: there is no such folder.
    """
    # systemd's goes first (systemd.exec(5), StateDirectory=).
    for name, below in (("STATE_DIRECTORY", ""), ("XDG_STATE_HOME", "pgsweep/serve"), ("HOME", _HOME)):
        folder = Path(environment.get(name, ""))
        if folder.is_absolute():
            return folder / below
    raise PgsweepError("there is no folder for the history", hint="name one: --history DIR")
