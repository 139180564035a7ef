"""Connection strings: libpq parses them, pgsweep puts them together and describes them.

Every spelling that psql takes works, because libpq itself parses it: a database name, `key=value` pairs, a
`postgresql://` URI, PG* environment variables, service and password files, several hosts, SSL. No
description repeats a connection string, because it may hold a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgsweep.errors import UsageError
from pgsweep.pg.session.secrets import masked, without_secrets
from pgsweep.plain import decode_name


def build_conninfo(
    target: str = "",
    *,
    host: str | None = None,
    port: str | int | None = None,
    user: str | None = None,
    dbname: str | None = None,
    password: str | None = None,
) -> str:
    """Return one connection string from psql's positional argument and flags; a flag wins.

    Args:
        target: a database name, `key=value` pairs or a URI. libpq's own rule applies: a text is a
            connection string if it begins like a URI or holds `=`.
        host: `-h`.
        port: `-p`.
        user: `-U`.
        dbname: `-d`; may be a connection string too, as in psql.
        password: as asked for by `-W`; never from an argument of the command line.

    Raises:
        UsageError: a text is not a connection string.
    """
    given = {"host": host, "port": port, "user": user, "password": password}
    flags = {name: str(value) for name, value in given.items() if value is not None}
    parts: dict[str, str] = {}
    for text in (target, dbname or ""):
        if text.startswith(("postgresql://", "postgres://")) or "=" in text:
            parts.update(parse_conninfo(text))
        elif text:
            parts["dbname"] = text
    _check_place({**parts, **flags})
    return make_conninfo("", **{**parts, **flags})


def _check_place(parts: dict[str, str]) -> None:
    """Refuse what cannot be a host or a port, before libpq quotes it: it may be a piece of a password.

    Raises:
        UsageError: a host has a character that names of hosts do not have, or a port is not a number.
    """
    # A path is a folder of sockets, and `@` at the beginning an abstract socket (fe-connect.c).
    hosts = [host for host in parts.get("host", "").split(",") if not host.startswith(("/", "@"))]
    if any(re.search(r"[@=;?#/\s]", host) for host in hosts):
        what = "host"
    elif not all(port == "" or port.strip().isdecimal() for port in parts.get("port", "").split(",")):
        what = "port"
    else:
        return
    raise UsageError(
        f"the {what} of the connection is not valid",
        cause="a password in a URI has one of the characters @ : / ? # % as it is, or parts are not "
        "separated",
        hint="in a URI write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23, % as %25, or leave the "
        "password to ~/.pgpass; put blanks between `key=value` pairs, and quotes around them: "
        "'host=... dbname=...'",
    )


def parse_conninfo(conninfo: str) -> dict[str, str]:
    """Return the parameters that a connection string names.

    Raises:
        UsageError: it is not a connection string.
    """
    try:
        return {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    except psycopg.ProgrammingError as error:
        # libpq's message quotes pieces of the text, which may be pieces of a password.
        cause = str(error).strip() if without_secrets(conninfo) == conninfo and "@" not in conninfo else None
        raise UsageError(
            "the connection string cannot be understood",
            cause=cause,
            hint="as for psql: DBNAME, 'host=... dbname=...', or postgresql://USER@HOST:PORT/DBNAME",
        ) from None


def describe(conninfo: str) -> str:
    """Return in words where a connection string leads, without password: `postgres at localhost:5432`."""
    parts = _with_defaults(conninfo)
    if _is_service(parts):
        return place_of(conninfo)
    database = parts.get("dbname") or parts.get("user") or "?"
    return masked(f"database {database} at {place_of(conninfo)}")


def place_of(conninfo: str) -> str:
    """Return in words where the server of a connection string is, without password: `db1, port 5432`.

    Of several hosts it is the one that a session has reached, as soon as one has.
    """
    parts = _with_defaults(conninfo)
    if _is_service(parts):
        return masked(f"service {parts['service']}")
    parts = at_reached(parts)
    return masked(f"{parts.get('host', 'the local socket')}, port {parts.get('port', '5432')}")


def server_options(conninfo: str) -> dict[str, str]:
    """Return psql's options for server, role and database, as far as a connection string names them.

    What libpq takes from its environment is not among them: psql takes it from there too.
    """
    parts = parse_conninfo(conninfo)
    # A name with `=` in it, or a URI's beginning, would be read as a connection string.
    if "=" in (database := parts.get("dbname", "")) or "://" in database:
        del parts["dbname"]
    flags = {"-h": "host", "-p": "port", "-U": "user", "-d": "dbname"}
    return {flag: parts[name] for flag, name in flags.items() if parts.get(name)}


_REACHED: Final[dict[tuple[str | None, ...], dict[str, str]]] = {}
"""Where several hosts are named, the place that a session of this process has reached."""


def note_reached(parameters: Mapping[str, str], info: psycopg.ConnectionInfo) -> None:
    """Have `at_reached` name the server that a session with these parameters has reached."""
    if (hosts := _hosts(parameters)) is not None:
        address = {} if info.host.startswith(("/", "@")) or not info.hostaddr else {"hostaddr": info.hostaddr}
        _REACHED[hosts] = {"host": info.host, "port": str(info.port), **address}


def at_reached(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters, instead of several hosts with the one that a session has reached."""
    place = _REACHED.get(_hosts(parameters) or ())
    if place is None:
        return dict(parameters)
    return {**{name: value for name, value in parameters.items() if name != "hostaddr"}, **place}


def _hosts(parameters: Mapping[str, str]) -> tuple[str | None, ...] | None:
    """Return what names the server; None where it is one."""
    parts = _defaults() | dict(parameters)
    if "service" in parts or "," not in parts.get("host", "") + parts.get("hostaddr", ""):
        return None
    return tuple(parts.get(name) for name in ("host", "hostaddr", "port", "target_session_attrs"))


def _defaults() -> dict[str, str]:
    """Return what libpq's environment has."""
    options = pq.Conninfo.get_defaults()
    return {option.keyword.decode(): option.val.decode() for option in options if option.val}


def _with_defaults(conninfo: str) -> dict[str, str]:
    """Return the parameters, those not given as libpq's environment has them."""
    given = parse_conninfo(conninfo)
    defaults = _defaults()
    # A service goes before the defaults, but not before what was given.
    if "service" in {**defaults, **given} and "host" not in given:
        return {"service": defaults.get("service", ""), **given}
    return {**defaults, **given}


def _is_service(parts: dict[str, str]) -> bool:
    # libpq looks the service up when it connects, and not before.
    return "service" in parts and "host" not in parts


APPLICATION: Final = "pgsweep"
"""The application_name of our sessions, where the user gives none; others have a word more (`with_name`)."""

LAB: Final = f"{APPLICATION} lab"
"""The application_name of the sessions by which `lab` loads a server: they play applications."""


def with_name(conninfo: str, name: str) -> str:
    """Return a connection string whose sessions have an application_name, unless the environment has one."""
    return make_conninfo(conninfo, fallback_application_name=name)


def is_conninfo(text: str) -> bool:
    """Return whether libpq would read a text as a connection string; it would not for `a=b.heat`."""
    if text.startswith(("postgresql://", "postgres://")):
        return True
    if "=" not in text:
        return False
    try:
        return bool(conninfo_to_dict(text))
    except psycopg.ProgrammingError:
        return False


def parameter_of(parameters: Mapping[str, str], name: str) -> str:
    """Return a parameter as libpq takes it: as given, of the service or the environment, or its default.

    libpq looks it up when it begins to connect, here to a socket that cannot be there.
    """
    if name in parameters:
        return parameters[name]
    nowhere = {"host": "/", "port": "1", "hostaddr": None, "service": parameters.get("service")}
    started = pq.PGconn.connect_start(make_conninfo("", **nowhere).encode())
    try:
        return next((decode_name(o.val or b"") for o in started.info if o.keyword == name.encode()), "")
    finally:
        started.finish()
