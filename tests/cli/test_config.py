"""Defaults of options from the configuration file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import run
from tests.fix_process import needs_root


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "home" / ".config" / "pgsweep" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def said(config: Path, *arguments: str, **env: str) -> tuple[int, str, str]:
    done = run(*arguments, env={"HOME": str(config.parents[2]), **env})
    return done.returncode, done.stdout, done.stderr


def test_the_file_names_the_server_and_the_command_line_goes_first(config: Path, wheel18: Cluster) -> None:
    host = wheel18.socket_directory
    config.write_text(
        f'host = "{host}"\nport = 5432\nusername = "postgres"\ndbname = "template1"\n[cache]\ntop = 1\n'
    )
    code, out, err = said(config, "cache", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["database"], found["top"]) == ("template1", 1)
    found = json.loads(said(config, "cache", "--json", "--top", "2", "postgres")[1])
    assert (found["database"], found["top"]) == ("postgres", 2), "DBNAME overrules dbname"
    other = wheel18.conninfo("postgres")
    assert json.loads(said(config, "cache", "--json", other)[1])["database"] == "postgres"
    code, _, err = said(config, "cache", PGHOST="/nowhere")
    assert code == 3, "libpq's environment goes before the file"
    assert "/nowhere" in err
    assert said(config, "cache", "-h", "/nowhere")[0] == 3
    assert json.loads(said(config, "memory", "kernel", "--json")[1])["server_version"].startswith("18")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("host = ", "is not TOML"),
        ('hots = "db1"\n', "no option `hots`"),
        ("[cache]\nmost = 3\n", "no option `most` of `pgsweep cache`"),
        ("[cahce]\ntop = 3\n", "there is no command `cahce`"),
        ("[hugepages]\nyes = true\n[cache]\ntop = 0\n", "line 4: top: 0 is not in the range"),
        ('host = "db1"\nport = "abc"\n', "line 2: port: `abc`"),
        ('[record]\nfor = "x"\n[cache]\nsource = "peak"\n', "line 4: source: "),
        ('[cache]\ntop = 1\n\nfor = "5s"\n', "line 4: there is no option `for`"),
    ],
)
def test_what_is_wrong_in_it_is_said_and_help_comes_all_the_same(text: str, words: str, config: Path) -> None:
    config.write_text(text)
    code, _, err = said(config, "cache")
    assert code == 2
    assert words in err
    assert said(config, "cache", "--help")[0] == 0
    assert said(config, "--help")[0] == 0
    assert said(config, "cache", "-h", "/nowhere", PGSWEEP_CONFIG="")[0] == 3


def test_a_file_that_is_named_must_be_there(config: Path) -> None:
    """Without it options would have other defaults, and nobody would notice."""
    code, _, err = said(config, "cache", "-h", "/nowhere", PGSWEEP_CONFIG=str(config))
    assert code == 2
    assert f"there is no `{config}`, which PGSWEEP_CONFIG names" in err
    assert said(config, "cache", "--help", PGSWEEP_CONFIG=str(config))[0] == 0
    assert said(config, "cache", "-h", "/nowhere")[0] == 3, "the usual file may be missing"


def test_a_decision_of_the_moment_has_no_default(config: Path) -> None:
    config.write_text("[hugepages]\nyes = true\n")
    code, _, err = said(config, "hugepages", "-h", "/nowhere")
    assert code == 2
    assert "no option `yes`" in err


def test_a_file_that_others_may_write_is_not_believed(config: Path) -> None:
    config.write_text('host = "/nowhere"\n')
    for mode, code in ((0o644, 3), (0o600, 3), (0o666, 2), (0o622, 2)):
        config.chmod(mode)
        found, _, err = said(config, "cache")
        assert found == code, err
        assert (f"its mode is {mode:04o}" in err) == (code == 2)
        assert (f"chmod go-w {config}" in err) == (code == 2)


@needs_root
def test_a_group_may_write_the_file_if_it_is_the_users_own(config: Path) -> None:
    """Where umask is 002 editors write files so. All users may be in the group nogroup."""
    config.write_text('host = "/nowhere"\n')
    config.chmod(0o664)
    assert said(config, "cache")[0] == 3
    os.chown(config, 0, 65534)
    assert said(config, "cache")[0] == 2


@needs_root
def test_the_file_of_another_user_is_not_believed(config: Path) -> None:
    """With sudo HOME may be that of the user: what root writes must not be his choice."""
    config.write_text('host = "/nowhere"\n')
    os.chown(config, 65533, 65533)
    code, _, err = said(config, "cache")
    assert code == 2
    assert "another user's" in err


def test_a_list_is_taken_as_the_command_line_has_it(config: Path) -> None:
    """Separated by commas, or repeated; an option that may be repeated takes a single text too."""
    config.write_text('[predict]\nsizes = ["64MB", "256kB"]\nfail-if = "verdict=wonderful"\n')
    code, _, err = said(config, "predict", ".")
    assert code == 2, err
    assert "wonderful" in err
    config.write_text('[predict]\nsizes = ["64MB", "64"]\nfail-if = ["verdict!=reliable"]\n')
    code, _, err = said(config, "predict", ".")
    assert (code, "`64` is too small for shared_buffers" in err) == (2, True), err
