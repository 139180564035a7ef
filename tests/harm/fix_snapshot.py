"""Snapshots of a server, of an application's session and of a host, and what differs between two of them."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.kill.kills import changed_code
from pgsweep.pg.private.cluster import Cluster

_NOT_HASHED = re.compile(
    r"base/|pg_wal/|pg_stat|pg_xact/|pg_subtrans/|pg_multixact/|pgsql_tmp|pg_dynshmem/|global/\d"
)
"""Of the data directory: relations, WAL and what the server itself writes all the time."""

_ANY_TIME = re.compile(
    r"postmaster\.pid|global/(pg_control|pg_internal\.init)|pg_notify/|pg_logical/|pg_replslot/"
)
"""Files that the server writes when it likes: they must be there, with the same owner and mode."""

_SYSCTLS = (
    "vm/*",
    "kernel/perf_event_*",
    "kernel/yama/*",
    "kernel/kptr_restrict",
    "kernel/shm*",
    "kernel/sem",
)
_HUGE = re.compile(r"nr_hugepages")
"""Tests beside this one change the number of huge pages; `hugepages --apply` is tested under their lock."""

_OTHER_PLACES = ("/var/lib/pgsweep", "/etc/sysctl.d", "/sys/kernel/mm/transparent_hugepage/*")

SESSION = """
SELECT 'setting', format('%s = %s (%s)', name, setting, source) FROM pg_settings
UNION ALL SELECT 'tenant', coalesce(current_setting('app.tenant', true), '')
UNION ALL SELECT 'role', format('%s as %s', session_user, current_user)
UNION ALL SELECT 'prepared statement', format('%s: %s', name, statement) FROM pg_prepared_statements
UNION ALL SELECT 'temporary relation', relname FROM pg_class
  WHERE relnamespace = pg_my_temp_schema() AND relkind IN ('r', 'v', 'S')
UNION ALL SELECT 'channel', channel FROM pg_listening_channels() AS channel
UNION ALL SELECT 'advisory lock', format('%s, %s: %s', classid, objid, mode) FROM pg_locks
  WHERE locktype = 'advisory' AND pid = pg_backend_pid()
UNION ALL SELECT 'cursor', name FROM pg_cursors WHERE name <> ''
UNION ALL SELECT 'process', pg_backend_pid()::text
"""
"""What a session of the server is to the application that uses it."""

_SERVER = {
    "role": "SELECT format('%s %s', rolname, to_jsonb(r) - 'rolname') FROM pg_roles r",
    "membership": "SELECT m::text FROM pg_auth_members m",
    "setting for roles": "SELECT s::text FROM pg_db_role_setting s",
    "setting": "SELECT format('%s = %s, after a restart %s', name, reset_val, pending_restart)"
    " FROM pg_settings WHERE context <> 'internal' AND name <> 'application_name'",
    "file setting": "SELECT format('%s:%s %s = %s %s', sourcefile, sourceline, name, setting, error)"
    " FROM pg_file_settings",
    "replication slot": "SELECT format('%s %s active %s', slot_name, slot_type, active)"
    " FROM pg_replication_slots",
    "walsender": "SELECT format('%s %s', application_name, state) FROM pg_stat_replication",
    "receiver": "SELECT status FROM pg_stat_wal_receiver",
    "recovery": "SELECT format('in recovery %s', pg_is_in_recovery())",
    "conflict": "SELECT format('%s: %s', datname, sum(confl_tablespace + confl_lock + confl_snapshot"
    " + confl_bufferpin + confl_deadlock)) FROM pg_stat_database_conflicts GROUP BY datname",
    "prepared transaction": "SELECT gid FROM pg_prepared_xacts",
    "advisory lock": "SELECT format('%s, %s: %s of %s', classid, objid, mode, application_name)"
    " FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory'",
    "session": "SELECT format('%s in %s, %s: %s', application_name, datname, state, query)"
    " FROM pg_stat_activity WHERE application_name LIKE 'pgsweep%' OR state LIKE 'idle in transaction%'",
    "statistics of": "SELECT format('%s since %s', datname, stats_reset) FROM pg_stat_database"
    " UNION ALL SELECT format('bgwriter since %s', stats_reset) FROM pg_stat_bgwriter"
    " UNION ALL SELECT format('archiver since %s', stats_reset) FROM pg_stat_archiver"
    " UNION ALL SELECT format('WAL since %s', stats_reset) FROM pg_stat_wal"
    " UNION ALL SELECT format('%s sessions killed, %s deadlocks', sessions_killed, deadlocks)"
    " FROM pg_stat_database WHERE datname = current_database()",
    "database": "SELECT format('%s %s', datname, datacl) FROM pg_database",
}

Parts = dict[str, Sequence[str]]


@dataclass(frozen=True)
class Snapshot:
    """What was seen, line by line, by what it is about."""

    parts: Mapping[str, Sequence[str]]

    def differences(self, later: Snapshot, allowed: Iterable[str] = ()) -> list[str]:
        """Return what is gone, as `- about: line`, and what is new, as `+ about: line`.

        Args:
            allowed: patterns; a line that one of them matches as a whole does not count.
        """
        found = []
        for about in sorted({*self.parts, *later.parts}):
            before, after = (set(one.parts.get(about, ())) for one in (self, later))
            found += [f"- {about}: {line}" for line in sorted(before - after)]
            found += [f"+ {about}: {line}" for line in sorted(after - before)]
        return [each for each in found if not any(re.fullmatch(one, each[2:], re.DOTALL) for one in allowed)]


def of_session(connection: psycopg.Connection[Any]) -> Parts:
    """Return what an application's session is, seen by itself."""
    parts: dict[str, list[str]] = {}
    for about, line in connection.execute(SESSION).fetchall():
        parts.setdefault(f"application's {about}", []).append(line)
    return dict(parts)


def of_sessions(connection: psycopg.Connection[Any]) -> Parts:
    """Return what a superuser sees of the sessions of a server."""
    return {about: _lines(connection, _SERVER[about]) for about in ("session", "advisory lock")}


def of_server(connection: psycopg.Connection[Any]) -> Parts:
    """Return what a superuser sees of a server, with the rows of each table and catalog of his database."""
    parts: Parts = {about: _lines(connection, query) for about, query in _SERVER.items()}
    tables = connection.execute(
        "SELECT oid::regclass::text, relnamespace = 'pg_catalog'::regnamespace FROM pg_class"
        " WHERE relkind IN ('r', 'm') AND relpersistence <> 't' AND relnamespace::regnamespace::text NOT IN"
        " ('information_schema', 'pg_toast')"
    ).fetchall()
    # Every row with the transaction that wrote it and its place: a row written anew is another one.
    form = (
        "SELECT {name}, format('%s: %s rows, %s', {name}::text, count(*),"
        " sum(hashtextextended(t.xmin::text || t.ctid, 0))) FROM {table} t"
    )
    for kind, is_catalog in (("rows", False), ("catalog", True)):
        queries = [
            sql.SQL(form).format(name=sql.Literal(name), table=sql.SQL(name))
            for name, catalog in tables
            if catalog is is_catalog
        ]
        parts[kind] = [
            line for _, line in connection.execute(sql.SQL(" UNION ALL ").join(queries)).fetchall()
        ]
    return parts


def _lines(connection: psycopg.Connection[Any], query: str) -> list[str]:
    return [str(line) for (line,) in connection.execute(query.encode()).fetchall()]


def schema_of(cluster: Cluster, database: str) -> list[str]:
    """Return the lines of a dump of all definitions of a database, each with what it belongs to."""
    program = str(cluster.binaries.program("pg_dump"))
    dump = subprocess.run(
        [program, "--schema-only", "-d", cluster.conninfo(database)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines, of = [], ""
    for line in dump.stdout.splitlines():
        if line.startswith("-- Name: "):
            of = line.removeprefix("-- Name: ").partition(";")[0]
        elif line and not line.startswith(("--", "\\restrict", "\\unrestrict")):
            lines.append(f"{of}: {line}")
    return lines


def of_files(*folders: Path, server: bool = False) -> list[str]:
    """Return the files below some folders: mode, owner, path, and a digest of their content.

    Args:
        server: leave out what a running server writes by itself.
    """
    found = []
    for folder in folders:
        for path in [folder, *folder.rglob("*")]:
            name = str(path.relative_to(folder))
            if server and _NOT_HASHED.match(name):
                continue
            try:
                status = path.lstat()
                is_read = stat.S_ISREG(status.st_mode) and not (server and _ANY_TIME.match(name))
                digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12] if is_read else ""
            except FileNotFoundError:
                continue
            found.append(
                f"{folder.name}/{name} {stat.filemode(status.st_mode)} {status.st_uid} {digest}".rstrip()
            )
    return found


def of_host(cluster: Cluster) -> Parts:
    """Return settings of the kernel, places that pgsweep writes to, and the server's program in memory."""
    sysctls = [path for pattern in _SYSCTLS for path in Path("/proc/sys").glob(pattern)]
    others = [path for place in _OTHER_PLACES for path in Path("/").glob(place.lstrip("/"))]
    lines = []
    for path in sysctls + others:
        if path.is_file() and os.access(path, os.R_OK) and not _HUGE.search(path.name):
            try:
                lines.append(f"{path} {path.read_text().strip()}")
            except OSError:
                continue  # one that can be written only
    held = [f"{path}" for path in others if path.is_dir()]
    return {
        "kernel": lines,
        "place": [*held, *(str(path) for path in Path("/etc/sysctl.d").glob("*pgsweep*"))],
        "changed code": changed_code(cluster),
    }
