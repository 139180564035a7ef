"""Hosted services: which one a server belongs to, and where its settings and extensions are changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from pgsweep.errors import PgsweepError
from pgsweep.pg.queries import load

_OFFERED: Final = "CREATE EXTENSION takes what the provider offers, and {name} is not among it"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A value for a setting.

    Attributes:
        value: as the server shows it, with a unit: `4GB`.
        number: the same in the unit of pg_settings; as `value` where the setting has none.
        restart: the setting takes effect at a restart only.
    """

    value: str
    number: str
    restart: bool = False

    @classmethod
    def plain(cls, value: str) -> Wanted:
        """Return a value of a setting without a unit that takes a reload."""
        return cls(value, value)


@dataclass(frozen=True, slots=True)
class Provider:
    """A hosted service.

    Attributes:
        name: as its provider writes it.
        place: where settings are changed, in words and as a command; `{set}` stands for all of them.
        one: one setting of them; `{name}`, `{value}`, `{number}` and `{apply}` stand for it.
        extensions: where an extension that cannot be created yet is allowed; `{name}` stands for it.
        between: what stands between two settings.
        page_cache: behind the buffer pool there is the page cache of Linux; where there is none, or it is not
            known what there is, nothing is predicted of what misses cost.
    """

    name: str
    place: str
    one: str
    extensions: str
    between: str = " "
    page_cache: bool = True

    def settings(self, wanted: Mapping[str, Wanted]) -> str:
        """Return where settings are changed, as one text for all of them."""
        each = [
            self.one.format(
                name=name,
                value=one.value,
                number=one.number,
                apply="pending-reboot" if one.restart else "immediate",
            )
            for name, one in wanted.items()
        ]
        return self.place.format(set=self.between.join(each))

    def before_creating(self, name: str) -> str | None:
        """Return what may have to be done before CREATE EXTENSION takes an extension that the server lists.

        Returns:
            None where the provider has no list of its own.
        """
        return None if self.extensions == _OFFERED else self.extensions.format(name=name)


# A parameter that takes a restart is refused with ApplyMethod=immediate (ModifyDBParameterGroup).
_PARAMETER: Final = "ParameterName={name},ParameterValue={number},ApplyMethod={apply}"

# `--database-flags` replaces all flags, so all stand in one command.
_FLAGS: Final = "as database flags, together with those set already, which it replaces: "

PROVIDERS: Final = {
    "rds": Provider(
        "Amazon RDS",
        "in the instance's DB parameter group: aws rds modify-db-parameter-group "
        "--db-parameter-group-name GROUP --parameters {set}",
        _PARAMETER,
        "{name} must stand in the parameter rds.allowed_extensions of the DB parameter group, if that is set",
    ),
    "aurora": Provider(
        "Amazon Aurora",
        "in the DB cluster parameter group: aws rds modify-db-cluster-parameter-group "
        "--db-cluster-parameter-group-name GROUP --parameters {set}",
        _PARAMETER,
        "{name} must stand in the parameter rds.allowed_extensions of the DB cluster parameter group, if "
        "that is set",
        page_cache=False,
    ),
    "cloudsql": Provider(
        "Google Cloud SQL",
        _FLAGS + "gcloud sql instances patch INSTANCE --database-flags={set}",
        "{name}={number}",
        _OFFERED,
        between=",",
    ),
    "alloydb": Provider(
        "Google AlloyDB",
        _FLAGS + "gcloud alloydb instances update INSTANCE --cluster=CLUSTER --region=REGION "
        "--database-flags={set}",
        "{name}={number}",
        _OFFERED,
        between=",",
        page_cache=False,
    ),
    "azure": Provider(
        "Azure Database for PostgreSQL",
        "among the server parameters: {set}",
        "az postgres flexible-server parameter set --resource-group GROUP --server-name SERVER "
        "--name {name} --value {number}",
        "add {name} to the server parameter azure.extensions, then run CREATE EXTENSION",
        between=" && ",
    ),
    "supabase": Provider(
        "Supabase",
        "by the command line of Supabase, if it allows the setting: supabase postgres-config update {set}",
        "--config {name}={value}",
        "switch {name} on in the dashboard: Database, Extensions",
    ),
    "neon": Provider(
        "Neon",
        "by the project's settings, if the provider allows it there: {set}",
        "{name} = {value}",
        _OFFERED,
        between=", ",
        page_cache=False,
    ),
}


def provider_named(name: str | None) -> Provider | None:
    """Return a hosted service by its name."""
    return next((one for one in PROVIDERS.values() if one.name == name), None)


def read_provider(connection: psycopg.Connection[Any]) -> Provider | None:
    """Return which hosted service the server belongs to; None for one's own server, or an unknown one."""
    row = connection.execute(load("provider", connection.info.server_version)).fetchone()
    return None if row is None or row[0] is None else PROVIDERS.get(row[0])


def provider_if_known(connection: psycopg.Connection[Any]) -> Provider | None:
    """Return the same for an error that is about something else: None where the server does not answer."""
    try:
        return read_provider(connection)
    except (psycopg.Error, PgsweepError):
        return None
