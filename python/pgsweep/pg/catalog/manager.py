"""Who keeps a server's settings: Patroni, an operator of Kubernetes, an image; where they are changed then.

ALTER SYSTEM writes postgresql.auto.conf, which goes before postgresql.conf and not before the command line
(guc-file.l; postmaster.c, `PostmasterMain`). What keeps the settings of all members of a cluster does not
know of it: the members differ, or the file is written again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psycopg

from pgsweep.host.patroni import is_overwritten_by_patroni, member_of, patroni_above
from pgsweep.host.procfile import PROC
from pgsweep.pg.session.rows import all_rows
from pgsweep.plain import decode_nullable, shell_word, shown

_BY_PATRONI: Final = frozenset(
    {
        "max_connections",
        "max_locks_per_transaction",
        "max_worker_processes",
        "wal_level",
        "track_commit_timestamp",
    }
)
"""Patroni gives these on the command line, so that they are the same on all members
(its postgresql/config.py, `CMDLINE_OPTIONS`)."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a setting has its value from.

    Attributes:
        value: in force, in the unit of pg_settings.
        source: as pg_settings has it.
        file: of that; None where the role may not know.
        pending: another value waits for a restart.
    """

    value: str
    source: str
    file: str | None
    pending: bool

    @property
    def of_this_session(self) -> str | None:
        """What gives this session a value of its own, before that of the server; None where nothing does."""
        return _OF_A_SESSION.get(self.source)


_OF_A_SESSION: Final = {
    "database": "ALTER DATABASE",
    "user": "ALTER ROLE",
    "database user": "ALTER ROLE ... IN DATABASE",
    "client": "the options of this connection",
}
"""guc.h, `GucSource`: those that go before the command line."""


@dataclass(frozen=True, slots=True)
class Manager:
    """What keeps a server's settings.

    Attributes:
        name: as its makers write it.
        place: where settings are changed; `{set}` stands for all of them.
        form: as `pgsweep advise --format` names the form of its patches.
        one: one setting of them.
        between: what stands between two.
        because: what shows that it does.
    """

    name: str
    place: str
    form: str
    one: str = "{name}: {value}"
    between: str = ", "
    because: str = ""

    def settings(self, wanted: Mapping[str, str]) -> str:
        """Return where settings are changed, as one text for all of them."""
        each = [self.one.format(name=name, value=value) for name, value in wanted.items()]
        return self.place.format(set=self.between.join(each))


_QUOTED: Final = '{name}: "{value}"'
PATRONI: Final = Manager(
    "Patroni", "in its configuration: patronictl edit-config {set}", "patroni", "--pg {name}={value}", " "
)
CLOUDNATIVEPG: Final = Manager(
    "CloudNativePG", "in spec.postgresql.parameters of the Cluster: {set}", "cnpg", _QUOTED
)
PGO: Final = Manager(
    "PGO of Crunchy Data",
    "in spec.patroni.dynamicConfiguration.postgresql.parameters of the PostgresCluster: {set}",
    "pgo",
    _QUOTED,
)
ZALANDO: Final = Manager(
    "the Postgres operator of Zalando",
    "in spec.postgresql.parameters of the postgresql: {set}",
    "zalando",
    _QUOTED,
)
STACKGRES: Final = Manager(
    "StackGres", "in spec.postgresql.conf of the SGPostgresConfig: {set}", "stackgres", "{name} = '{value}'"
)
BITNAMI: Final = Manager(
    "the image of Bitnami",
    "in a file of /opt/bitnami/postgresql/conf/conf.d, or in primary.extendedConfiguration of the "
    "chart: {set}",
    "bitnami",
    "{name} = '{value}'",
)

MANAGERS: Final = (CLOUDNATIVEPG, PGO, ZALANDO, STACKGRES, BITNAMI, PATRONI)


def manager_named(name: str | None) -> Manager | None:
    """Return what keeps settings by its name."""
    return next((one for one in MANAGERS if one.name == name), None)


def read_sources(connection: psycopg.Connection[Any], names: Sequence[str] = ()) -> dict[str, Source]:
    """Return where settings have their values from: the named ones, and all of files and the command line."""
    rows = all_rows(connection, "setting_sources", [list(names)])
    return {
        name: Source(decode_nullable(value) or "", source, decode_nullable(file), pending)
        for name, value, source, file, pending in rows
    }


def find_manager(sources: Mapping[str, Source], pid: int | None, proc: Path = PROC) -> Manager | None:
    """Return what keeps the settings; None where nothing shows that anything does.

    Args:
        sources: of `read_sources`.
        pid: the postmaster where it is seen here, as it and its files are looked at then.
    """
    archive = _value(sources, "archive_command")
    if "cnpg.config_sha256" in sources or "/controller/manager wal-archive" in archive:
        return _known(CLOUDNATIVEPG, "its settings, or its archive_command, are of its making")
    if (config := _value(sources, "config_file")).startswith("/opt/bitnami/"):
        return _known(BITNAMI, f"config_file is {config}")
    patroni = _why_patroni(sources, pid, proc)
    if patroni is None:
        return None
    if "bg_mon" in _value(sources, "shared_preload_libraries"):
        return _known(ZALANDO, f"{patroni}, and the library bg_mon is loaded")
    if re.match(r"/pgdata/pg\d", _value(sources, "data_directory")):
        return _known(PGO, f"{patroni}, and data_directory is as PGO has it")
    if "exec-with-env" in archive:
        return _known(STACKGRES, f"{patroni}, and archive_command is as StackGres has it")
    return _member(_known(PATRONI, patroni), _value(sources, "cluster_name"), pid, proc)


def _member(manager: Manager, cluster_name: str, pid: int | None, proc: Path) -> Manager:
    """Return Patroni with the name of its cluster, where its REST API on this host says it."""
    found = None if pid is None or not cluster_name else member_of(pid, cluster_name, proc)
    if found is None:
        return manager
    scope = shell_word(shown(found.patroni.scope)).replace("{", "{{").replace("}", "}}")
    return replace(
        manager,
        place=manager.place.replace("edit-config ", f"edit-config {scope} "),
        because=f"{manager.because}; its REST API says that this is {shown(found.patroni.name)}, "
        f"{shown(found.role)} of the cluster {shown(found.patroni.scope)}",
    )


def _known(manager: Manager, because: str) -> Manager:
    return replace(manager, because=because)


def _value(sources: Mapping[str, Source], name: str) -> str:
    return sources[name].value if name in sources else ""


def _why_patroni(sources: Mapping[str, Source], pid: int | None, proc: Path) -> str | None:
    files = {one.file for one in sources.values() if one.file is not None}
    if base := next((file for file in files if Path(file).name == "postgresql.base.conf"), None):
        return f"settings are read from {base}"
    given = {name for name, one in sources.items() if one.source == "command line"}
    if given >= _BY_PATRONI:
        return f"{', '.join(sorted(_BY_PATRONI))} are given on the command line, as Patroni does"
    if pid is None:
        return None
    if (parent := patroni_above(pid, proc)) is not None:
        return f"the server's parent is process {parent}, patroni"
    config = _value(sources, "config_file")
    if is_overwritten_by_patroni(pid, config, proc):
        return f"{config or 'postgresql.conf'} says that it is overwritten by Patroni"
    return None
