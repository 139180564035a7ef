"""What doctor says of servers of hosting services, and of their administrators."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.doctor import examine
from pgsweep.errors import MissingAbility
from pgsweep.host.postmaster import Search
from pgsweep.pg.administrator import as_superuser
from pgsweep.pg.catalog.provider import PROVIDERS, Wanted, read_provider
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.connect import connect
from pgsweep.pg.session.trust import missing_extension, require_extension
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.doctor import doctor_text
from tests.fix_doctor import abilities, tcp


def test_a_hosted_server(own: Cluster) -> None:
    """Its administrator is not a superuser, and its settings are elsewhere."""
    with psycopg.connect(tcp(own), autocommit=True) as connection:
        connection.execute("CREATE ROLE rds_superuser")
        connection.execute("CREATE ROLE master LOGIN IN ROLE rds_superuser")
        connection.execute("CREATE ROLE app LOGIN")
        connection.execute("ALTER SYSTEM RESET ALL")
        connection.execute("SELECT pg_reload_conf()")
    own.restart()
    found = abilities(examine(tcp(own, user="app")))
    assert " -U master " in (found["pg_monitor"].enable or "")
    assert found["track_io_timing"].enable is None
    assert "provider" in found["track_io_timing"].why


HOSTED = {
    "rds": "rds.extensions",
    "cloudsql": "cloudsql.iam_authentication",
    "alloydb": "alloydb.iam_authentication",
    "azure": "azure.extensions",
    "supabase": "supautils.reserved_roles",
    "neon": "neon.tenant_id",
}
"""A setting that makes a server of ours look like one of that provider's."""


@pytest.fixture(scope="module")
def hosted(wheel18: Cluster) -> Iterator[dict[str, str]]:
    """A database without extensions, seen as each provider's; Aurora is known by a function of its own."""
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        for name in ("hosted", "aurora"):
            connection.execute(f"CREATE DATABASE {name}".encode())
        with psycopg.connect(wheel18.conninfo("aurora"), autocommit=True) as aurora:
            aurora.execute(
                "CREATE FUNCTION pg_catalog.aurora_version() RETURNS text LANGUAGE sql RETURN 'x'::text"
            )
        seen = {
            key: make_conninfo(wheel18.conninfo("hosted"), options=f"-c {name}=x")
            for key, name in HOSTED.items()
        }
        try:
            yield {**seen, "aurora": wheel18.conninfo("aurora")}
        finally:
            for name in ("hosted", "aurora"):
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("key", sorted(PROVIDERS))
def test_nothing_is_proposed_for_the_host_of_a_provider(
    key: str, hosted: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # No process here is the server's, and its address is another host's.
    monkeypatch.setattr("pgsweep.doctor.search", lambda *_: Search(None, ()))
    monkeypatch.setattr("pgsweep.host.abilities._LOOPBACK", ())
    result = examine(hosted[key])
    assert result.server is not None
    assert result.server.provider == PROVIDERS[key].name
    found = abilities(result)
    for ability in result.abilities:
        assert not re.search(r"\b(ssh|sysctl|apt-get|ALTER SYSTEM)\b", ability.enable or ""), ability
        assert "apt-get" not in ability.why
    assert "provider's" in found["same_host"].why
    assert found["same_host"].enable is None
    if result.host.huge_page_bytes:
        assert found["huge_pages"].enable is None


@pytest.mark.parametrize("key", sorted(PROVIDERS))
def test_an_extension_of_a_hosted_service_is_allowed_first(key: str, hosted: dict[str, str]) -> None:
    """The server lists what the provider's list does not allow yet (Azure, Supabase, RDS)."""
    first = PROVIDERS[key].before_creating("pg_prewarm")
    assert (first is None) == (key in {"cloudsql", "alloydb", "neon"})
    found = abilities(examine(hosted[key]))["pg_prewarm"]
    assert "CREATE EXTENSION pg_prewarm" in (found.enable or "")
    with connect(hosted[key]) as session, pytest.raises(MissingAbility) as refused:
        require_extension(session, "pg_prewarm", instead="something else")
    hint = str(refused.value.hint)
    assert "CREATE EXTENSION pg_prewarm" in hint
    if first is not None:
        assert found.why.endswith(f"{PROVIDERS[key].name}: {first}")
        assert hint.startswith(f"{first}; as ")
    # One that the server does not have at all.
    with connect(hosted[key]) as session:
        absent = missing_extension(session, "pg_absent", installed=False, instead="something else")
    assert PROVIDERS[key].name in absent.message
    assert absent.hint == PROVIDERS[key].extensions.format(name="pg_absent") + "; or something else"


def test_the_package_of_an_own_server_has_its_version(server: Cluster) -> None:
    with connect(server.conninfo()) as session:
        absent = missing_extension(session, "pg_absent", installed=False)
    assert f"`postgresql-{server.version_num // 10000}`" in (absent.hint or "")


def test_the_administrator_of_neon_and_of_supabase(own: Cluster) -> None:
    """Neither is a superuser, and the superuser that there is, is the provider's."""
    with psycopg.connect(tcp(own), autocommit=True) as connection:
        # What the test of another hosted server may have made.
        connection.execute("DROP ROLE IF EXISTS master")
        connection.execute("CREATE ROLE neon_superuser; CREATE ROLE owner_of_it LOGIN IN ROLE neon_superuser")
        connection.execute("CREATE ROLE plain LOGIN; CREATE ROLE supabase_admin LOGIN SUPERUSER")
        try:
            neon = make_conninfo(tcp(own, user="plain"), options="-c neon.tenant_id=x")
            found = abilities(examine(neon))
            assert " -U owner_of_it " in (found["pg_monitor"].enable or "")
        finally:
            connection.execute("DROP ROLE owner_of_it; DROP ROLE neon_superuser")
    with psycopg.connect(tcp(own, user="supabase_admin"), autocommit=True) as provider:
        provider.execute("ALTER ROLE postgres RENAME TO first; CREATE ROLE postgres LOGIN CREATEROLE")
        try:
            supabase = make_conninfo(tcp(own, user="plain"), options="-c supautils.reserved_roles=x")
            found = abilities(examine(supabase))
            assert " -U postgres " in (found["pg_monitor"].enable or "")
            with connect(supabase) as session:
                said = as_superuser(session, ["SELECT 1"])
            assert said.startswith("as the administrator: psql ")
            assert " -U postgres " in said
        finally:
            provider.execute("DROP ROLE postgres; ALTER ROLE first RENAME TO postgres; DROP ROLE plain")
    with psycopg.connect(tcp(own), autocommit=True) as connection:
        connection.execute("DROP ROLE supabase_admin")


@pytest.mark.parametrize(
    ("setting", "name", "where"),
    [
        ("rds.extensions", "Amazon RDS", "ParameterName=track_io_timing,ParameterValue=on"),
        ("cloudsql.iam_authentication", "Google Cloud SQL", "--database-flags=track_io_timing=on"),
        ("alloydb.iam_authentication", "Google AlloyDB", "gcloud alloydb instances update"),
        ("azure.extensions", "Azure Database for PostgreSQL", "--name track_io_timing --value on"),
        ("supautils.reserved_roles", "Supabase", "--config track_io_timing=on"),
        ("neon.tenant_id", "Neon", "by the project's settings"),
    ],
)
def test_a_hosted_service_is_known_by_its_settings(
    setting: str, name: str, where: str, wheel18: Cluster
) -> None:
    conninfo = make_conninfo(wheel18.conninfo(), options=f"-c {setting}=x")
    result = examine(conninfo)
    assert result.server is not None
    assert result.server.provider == name
    timing = abilities(result)["track_io_timing"]
    assert where in timing.why
    assert timing.enable is None
    assert f"hosted by {name}" in doctor_text(result, Terminal(width=200))


def test_every_provider_says_where(wheel18: Cluster) -> None:
    with psycopg.connect(wheel18.conninfo()) as connection:
        assert read_provider(connection) is None
    for provider in PROVIDERS.values():
        said = provider.settings({"work_mem": Wanted("4MB", "4096")})
        said += provider.extensions.format(name="pg_prewarm")
        assert "{" not in said
        assert "pg_prewarm" in said
