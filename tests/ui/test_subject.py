"""Every result says which server it is about: name, database, version, time of the observation."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path

import psycopg
import pytest

from pgsweep.evidence.subject import subject_of
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import run

COMMANDS = (
    ["cache"],
    ["memory"],
    ["memory", "kernel"],
    ["memory", "budget"],
    ["hugepages"],
    ["doctor"],
    ["top", "--once", "--interval", "0.2s"],
    ["footprint", "SELECT 1"],
    ["warm", "save", "FILE"],
    ["warm", "plan", "--assume-rate", "1GB"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_text_json_and_page_begin_with_server_version_and_time(
    command: list[str], wheel18: Cluster, tmp_path: Path
) -> None:
    place = f"{wheel18.socket_directory}, port 5432"
    files = (
        []
        if "top" in command or "save" in command
        else ["-o", str(tmp_path / "r.html"), "-o", str(tmp_path / "r.txt")]
    )
    command = [str(tmp_path / "x.heat") if word == "FILE" else word for word in command]
    done = run(*command, *files, "--json", wheel18.conninfo())
    assert done.returncode == 0, done.stderr
    subject = json.loads(done.stdout)["provenance"]["subject"]
    assert subject["server"] == place
    assert subject["server_version"].startswith("18.")
    at = datetime.datetime.fromisoformat(subject["recorded_at"])
    assert abs((datetime.datetime.now(datetime.UTC) - at).total_seconds()) < 120
    assert subject["database"] == "postgres"
    if files:
        line = (tmp_path / "r.txt").read_text().splitlines()[0]
        assert line.startswith(f"PostgreSQL {subject['server_version']} at {place}; ")
        assert "; checked at 2" in line, "nothing was recorded"
        assert line in (tmp_path / "r.html").read_text()
    else:
        assert (
            f"PostgreSQL {subject['server_version']} at {place}" in run(*command, wheel18.conninfo()).stdout
        )


def test_a_prediction_names_the_server_of_its_evidence(wheel18: Cluster, tmp_path: Path) -> None:
    evidence = tmp_path / "e.evidence"
    done = run("record", wheel18.conninfo(), "--for", "1s", "-o", str(evidence))
    assert done.returncode == 0, done.stderr
    assert f"at {wheel18.socket_directory}, port 5432; database postgres; recorded 2" in done.stdout
    subject = subject_of(evidence)
    assert subject is not None
    assert (subject.database, subject.server) == ("postgres", f"{wheel18.socket_directory}, port 5432")
    assert subject_of(tmp_path) is None


def test_the_rows_of_a_plan_are_numbered_without_holes(wheel18: Cluster) -> None:
    """System catalogs lie between a user's relations in the order, and are one line of their own."""
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE planned")
        try:
            with psycopg.connect(wheel18.conninfo("planned"), autocommit=True) as inside:
                inside.execute("CREATE EXTENSION pg_prewarm")
                for name in "abc":
                    inside.execute(f"CREATE TABLE {name} AS SELECT generate_series(1, 100) AS n".encode())
            done = run("warm", "plan", "--assume-rate", "1GB", wheel18.conninfo("planned"))
        finally:
            connection.execute("DROP DATABASE planned WITH (FORCE)")
    assert done.returncode == 0, done.stderr
    rows = [re.match(r" *(\d+)  [abc] ", line) for line in done.stdout.splitlines()]
    assert [row[1] for row in rows if row] == ["1", "2", "3"], done.stdout
