"""Servers and passwords on the command line: what libpq parses is taken, and no password is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgsweep.cli.connection import Target
from pgsweep.errors import UsageError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.secrets import without_secrets
from tests.fix_cli import run


def _names(**given: str | None) -> dict[str, str | None]:
    return {**dict.fromkeys(("database", "dbname", "host", "port", "username")), **given}


def _conninfo(**given: str | None) -> dict[str, str]:
    text = Target(no_password=True, ask_password=False, **_names(**given)).conninfo
    return {name: str(value) for name, value in conninfo_to_dict(text).items()}


def test_libpq_parses_what_is_given() -> None:
    assert _conninfo() == {}
    assert _conninfo(database="shop") == {"dbname": "shop"}
    assert _conninfo(dbname="my shop") == {"dbname": "my shop"}
    assert _conninfo(database="host=a dbname=b", host="c") == {"host": "c", "dbname": "b"}
    uri = {"host": "h", "port": "6432", "user": "u", "dbname": "d"}
    assert _conninfo(database="postgresql://u@h:6432/d") == uri
    assert _conninfo(database="service=shop") == {"service": "shop"}
    with pytest.raises(UsageError, match="twice"):
        _conninfo(database="a", dbname="b")
    with pytest.raises(UsageError, match="connection string"):
        _conninfo(database="nonsense=1")


def test_a_password_that_nobody_can_enter_is_not_an_interrupt() -> None:
    done = run("cache", "-W", "-h", "/nowhere", "shop")
    assert done.returncode == 2, done.stderr
    assert "error: no password was given" in done.stderr
    assert "interrupted" not in done.stderr


def test_password_options_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="contradict"):
        Target(no_password=True, ask_password=True, **_names())


@pytest.mark.parametrize(
    ("word", "left"),
    [
        ("postgresql://u:TopSecret@h/d", {"host": "h", "user": "u", "dbname": "d"}),
        ("postgresql://u:Top%53ecret%2F@h/d?sslmode=prefer", {"host": "h", "sslmode": "prefer"}),
        ("postgresql://h/d?password=TopSecret&user=u", {"host": "h", "dbname": "d", "user": "u"}),
        ("postgresql://h/d?p%61ssword=TopSecret", {"host": "h", "dbname": "d"}),
        ("postgresql://u:half@TopSecret@h/d", {"user": "u", "dbname": "d"}),
        ("host=h password=TopSecret user=u", {"host": "h", "user": "u"}),
        ("password=Zx9&TopSecret host=h", {"host": "h"}),
        (r"password=Zx9\ TopSecret host=h", {"host": "h"}),
        (r"password='it\'s TopSecret' host=h", {"host": "h"}),
        ("service=shop sslpassword=TopSecret", {"service": "shop"}),
        ("dbname='host=h password=TopSecret'", {"dbname": "host=h"}),
        ("host=h dbname=d", {"host": "h", "dbname": "d"}),
    ],
)
def test_secrets_do_not_get_into_results(word: str, left: dict[str, str]) -> None:
    for option in ("", "-d", "-wd", "--dbname="):
        cleaned = without_secrets(option + word)
        assert cleaned.startswith(option)
        assert "Secret" not in cleaned
        assert left.items() <= conninfo_to_dict(cleaned.removeprefix(option)).items()
        assert "password" not in conninfo_to_dict(cleaned.removeprefix(option))


@pytest.mark.parametrize(
    "word",
    [
        "password='TopSecret",
        "PASSWORD=TopSecret",
        "host=h password=Zx9 TopSecret",
        "postgresql://u:%zzTopSecret@h",
        "ALTER ROLE a PASSWORD 'TopSecret'",
        "SELECT 1 FROM t WHERE pass = 'TopSecret'",
    ],
)
def test_what_libpq_cannot_parse_is_cut_off_before_a_password(word: str) -> None:
    assert "TopSecret" not in without_secrets(word)
    assert without_secrets(word).endswith("****")
    with pytest.raises(UsageError) as refused:
        _conninfo(database=f"host='{word}")
    assert "TopSecret" not in f"{refused.value} {refused.value.cause} {refused.value.hint}"


@pytest.mark.parametrize(
    "word", ["shop", "-Upostgres", "work_mem=64MB", "a=b@c", "--out=a.json", "-P", "postgresql://u@h/d"]
)
def test_words_without_a_secret_stay_as_they_are(word: str) -> None:
    assert without_secrets(word) == word


def test_a_result_names_no_password(wheel18: Cluster, tmp_path: Path) -> None:
    conninfo = rf"{wheel18.conninfo()} password=Zx9&Top\ Secret sslpassword='Top Secret'"
    done = run("cache", "-d", conninfo, "--json", "--html", str(tmp_path / "cache.html"))
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, done.stderr, (tmp_path / "cache.html").read_text()):
        assert "Secret" not in text
        assert "Zx9" not in text
    assert "pgsweep cache -d" in json.loads(done.stdout)["provenance"]["command"]


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "shop", "postgresql://me:TopSecret@there/db"),
        ("--debug", "doctor", "shop", "postgresql://me:TopSecret@there/db"),
        ("postgresql://me:TopSecret@there/db",),
        ("doctor", "host=there", "port=1", "password=TopSecret"),
        ("predict", "postgresql://me:TopSecret@there/db"),
        ("cache", "-p", "postgresql://me:TopSecret@there"),
    ],
)
def test_a_connection_string_in_the_wrong_place_is_quoted_without_its_password(
    words: tuple[str, ...],
) -> None:
    done = run(*words)
    assert done.returncode != 0
    assert done.stderr.startswith(("error:", "Traceback"))
    assert "TopSecret" not in done.stdout + done.stderr
