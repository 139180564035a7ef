"""Hosted services: which one a server belongs to, and where its settings and extensions are changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from pgsweep.pg.queries import load


@dataclass(frozen=True, slots=True)
class Provider:
    """A hosted service.

    Attributes:
        name: as its provider writes it.
        settings: where a setting is changed; `{name}` and `{value}` stand for it.
        extensions: where an extension that cannot be created yet is allowed; `{name}` stands for it.
    """

    name: str
    settings: str
    extensions: str


_OFFERED: Final = "CREATE EXTENSION takes what the provider offers, and {name} is not among it"

PROVIDERS: Final = {
    "rds": Provider(
        "Amazon RDS",
        "in the instance's DB parameter group: aws rds modify-db-parameter-group "
        "--db-parameter-group-name GROUP --parameters "
        "ParameterName={name},ParameterValue={value},ApplyMethod=immediate",
        "{name} must stand in the parameter rds.allowed_extensions of the DB parameter group, if that is set",
    ),
    "aurora": Provider(
        "Amazon Aurora",
        "in the DB cluster parameter group: aws rds modify-db-cluster-parameter-group "
        "--db-cluster-parameter-group-name GROUP --parameters "
        "ParameterName={name},ParameterValue={value},ApplyMethod=immediate",
        "{name} must stand in the parameter rds.allowed_extensions of the DB cluster parameter group, if "
        "that is set",
    ),
    "cloudsql": Provider(
        "Google Cloud SQL",
        "as a database flag, together with those set already: gcloud sql instances patch INSTANCE "
        "--database-flags={name}={value}",
        _OFFERED,
    ),
    "alloydb": Provider(
        "Google AlloyDB",
        "as a database flag, together with those set already: gcloud alloydb instances update INSTANCE "
        "--cluster=CLUSTER --region=REGION --database-flags={name}={value}",
        _OFFERED,
    ),
    "azure": Provider(
        "Azure Database for PostgreSQL",
        "among the server parameters: az postgres flexible-server parameter set --resource-group GROUP "
        "--server-name SERVER --name {name} --value {value}",
        "add {name} to the server parameter azure.extensions, then CREATE EXTENSION {name}",
    ),
    "supabase": Provider(
        "Supabase",
        "by the command line of Supabase, if it allows the setting: supabase postgres-config update "
        "--config {name}={value}",
        "switch {name} on in the dashboard: Database, Extensions",
    ),
    "neon": Provider("Neon", "by the project's settings, if the provider allows {name} there", _OFFERED),
}


def read_provider(connection: psycopg.Connection[Any]) -> Provider | None:
    """Return which hosted service the server belongs to; None for one's own server, or an unknown one."""
    row = connection.execute(load("provider", connection.info.server_version)).fetchone()
    return None if row is None or row[0] is None else PROVIDERS.get(row[0])
