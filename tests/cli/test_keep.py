"""`pgsweep warm keep` from the command line: how it ends, what it prints, what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import launch, run
from tests.fix_flood import floodable

QUICK = ("--interval", "100ms", "--report", "100ms")


@pytest.fixture(scope="module")
def shop(wheel18: Cluster) -> Iterator[str]:
    with floodable(wheel18) as conninfo:
        yield conninfo


def keep(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("warm", "keep", *arguments)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_its_record(shop: str, number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "kept.html"
    with launch("warm", "keep", "hot", "-d", shop, "--json", "-o", str(out), *QUICK) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "resident: hot 100.00%" in line)
        assert "; cost " in line
        process.send_signal(number)
        said, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    result = json.loads(said)
    assert result["schema"] == "pgsweep.warm-keep/1"
    assert result["ended_by"] == "stop"
    assert result["resident_share_after"] == 1.0
    assert result["provenance"]["command"].startswith("pgsweep warm keep hot")
    assert "Kept relations" in out.read_text()


def test_the_text_shows_residence_and_cost_and_what_flatters(shop: str, tmp_path: Path) -> None:
    saved = tmp_path / "kept.json"
    done = keep("hot", "-d", shop, "--indexes", "--for", "1s", "-o", str(saved))
    assert done.returncode == 0, done.stderr
    for words in ("Measured: kept for", "Resident: ", "rounds: ", "Cost: ", "hit ratio there looks better"):
        assert words in done.stdout
    assert "hot_pkey" in done.stdout
    again = run("report", str(saved))
    assert again.returncode == 0, again.stderr
    csv = keep("hot", "-d", shop, "--for", "100ms", "--csv")
    assert csv.stdout.splitlines()[0].startswith("schema,relation,kind,size_bytes,kept_bytes")


def test_a_dry_run_prints_the_statements(shop: str) -> None:
    done = keep("hot", "-d", shop, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "Would keep 2.34 MB, budget 4 MB" in done.stdout
    assert "pg_try_advisory_lock(" in done.stdout
    assert "nothing was touched or read" in done.stderr
    plan = json.loads(keep("hot", "-d", shop, "--dry-run", "--json").stdout)
    assert plan["schema"] == "pgsweep.warm-keep-plan/1"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "RELATION"),
        (("no_such",), 2, "there is no relation `no_such`"),
        (("flood",), 2, "a quarter of shared_buffers is 4 MB"),
        (("hot", "--budget", "1GB"), 2, "too much of a pool"),
        (("hot", "--interval", "soon"), 2, "is not a time"),
        (("hot", "--dry-run", "--csv"), 2, "--dry-run prints its plan"),
        (("hot", "-p", "1"), 3, "hint:"),
    ],
)
def test_what_cannot_be_is_reported_in_words(
    shop: str, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = keep(*arguments, "-d", shop)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_dropped_relation_ends_it_with_a_record_and_an_error(shop: str) -> None:
    import psycopg

    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("CREATE TABLE brief AS SELECT generate_series(1, 2000)")
        with launch("warm", "keep", "brief", "-d", shop, "--json", *QUICK) as process:
            assert process.stderr is not None
            process.stderr.readline()
            connection.execute("DROP TABLE brief")
            said, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "no relation is left to keep" in errors
    assert json.loads(said)["relations"][0]["trouble"] == "it was dropped meanwhile"
