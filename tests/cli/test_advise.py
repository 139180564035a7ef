"""`pgsweep advise` on a real server, and on evidence of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import run
from tests.fix_recording import forget_cluster
from tests.fix_shop import shop_under_load


@pytest.fixture(scope="module")
def folder(wheel18: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with evidence of pgbench, and what was advised while its server ran."""
    path = tmp_path_factory.mktemp("advise")
    with shop_under_load(wheel18) as conninfo:
        done = run("record", conninfo, "--source", "sql", "--for", "12s", "-o", "shop.evidence", cwd=path)
        assert done.returncode == 0, done.stderr
        done = run("advise", "shop.evidence", "-d", conninfo, "--ram", "64GB", "--json", cwd=path)
        assert done.returncode == 0, done.stderr
        (path / "live.json").write_text(done.stdout)
        done = run("advise", conninfo, "--source", "sql", "--for", "3s", "--json", cwd=path)
        assert done.returncode == 0, done.stderr
        (path / "recorded.json").write_text(done.stdout)
    return path


def test_evidence_alone(folder: Path) -> None:
    done = run("advise", "shop.evidence", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "shared_buffers: " in done.stdout
    assert "What rules of thumb say" in done.stdout
    assert "pgsweep hugepages" in done.stdout


def test_with_the_server_huge_pages_and_connections_are_counted(folder: Path) -> None:
    result = json.loads((folder / "live.json").read_text())
    assert result["schema"] == "pgsweep.advise/1"
    # More than other tests and programs take of this machine.
    assert result["memory_bytes"] == 64 << 30
    settings = {one["name"]: one for one in result["settings"]}
    assert next(iter(settings)) == "shared_buffers"
    assert settings["effective_cache_size"]["action"] in ("set", "leave")
    known = result["verdict"]["level"] != "refused"
    assert result["disk_reads_from"] == ("simulated" if known else "bounded")
    if os.geteuid() == 0:
        assert "connections like today's fit" in settings["max_connections"]["reason"]
        unseen = [one for one in result["missing"] if "huge pages" in one["what"]]
        assert settings["huge_pages"]["action"] != "unknown" or unseen


def test_a_database_is_recorded_first_and_the_evidence_kept(folder: Path) -> None:
    result = json.loads((folder / "recorded.json").read_text())
    assert (folder / result["evidence"] / "meta.json").exists()
    assert result["database"] == "shop"


def test_statements_can_be_run(folder: Path, wheel18: Cluster) -> None:
    done = run("advise", "shop.evidence", "--ram", "64GB", "--format", "alter-system", cwd=folder)
    assert done.returncode == 0, done.stderr
    changed = [line for line in done.stdout.splitlines() if line.startswith("ALTER SYSTEM")]
    assert any("effective_cache_size" in line for line in changed), "64 GB are more than the default says"
    names = [line.split()[3] for line in changed]
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        try:
            for line in done.stdout.splitlines():
                if line and not line.startswith("--"):
                    connection.execute(line.encode())
        finally:
            for name in names:
                connection.execute(f"ALTER SYSTEM RESET {name}".encode())
            connection.execute("SELECT pg_reload_conf()")
    conf = run("advise", "shop.evidence", "--ram", "64GB", "--format", "postgresql.conf", cwd=folder)
    assert any(line.startswith("effective_cache_size = '") for line in conf.stdout.splitlines())


def test_report_is_read_back(folder: Path) -> None:
    done = run("advise", "shop.evidence", "-q", "-o", "advice.html", cwd=folder)
    assert done.returncode == 0, done.stderr
    again = run("report", "advice.html", "--json", cwd=folder)
    assert json.loads(again.stdout)["schema"] == "pgsweep.advise/1"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["absent.evidence"], 2, "there is no evidence `absent.evidence`"),
        (["shop.evidence", "--json", "--format", "text"], 2, "both want stdout"),
        (["shop.evidence", "-h", "/nowhere/at/all", "-d", "x"], 3, "error: "),
    ],
)
def test_mistakes(folder: Path, arguments: list[str], code: int, words: str) -> None:
    done = run("advise", *arguments, cwd=folder)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_another_server_is_refused(folder: Path, wheel18: Cluster, tmp_path: Path) -> None:
    """It has the same version, and the same size of the pool as the recorded one at first."""
    with psycopg.connect(wheel18.conninfo()) as connection:
        row = connection.execute("SHOW shared_buffers").fetchone()
    assert row is not None
    shutil.copytree(folder / "shop.evidence", tmp_path / "older.evidence")
    forget_cluster(tmp_path / "older.evidence")
    with Cluster.create(None, {"shared_buffers": str(row[0])}) as other:
        for more in ([], ["--apply", "--yes"]):
            done = run("advise", "shop.evidence", "-d", other.conninfo(), *more, cwd=folder)
            assert done.returncode == 2
            assert "`shop.evidence` was recorded on another server" in done.stderr
            assert "the system identifier of that cluster is" in done.stderr
        done = run("advise", "older.evidence", "-d", other.conninfo(), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "whether the server is the one that was recorded was not checked" in done.stdout
        # Where the identifier is not known, other facts may still say that it cannot be the same.
        other.restart({"shared_buffers": "24MB"})
        done = run("advise", "older.evidence", "-d", other.conninfo(), cwd=tmp_path)
    assert done.returncode == 2
    assert "shared_buffers is 24MB" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="tracing and memory cgroups need root")
def test_a_trace_in_a_small_memory_says_what_comes_from_disk(tmp_path: Path) -> None:
    """160 MB hold 120 MB of data hardly twice: a larger pool takes them from the page cache."""
    try:
        cluster = Cluster.create(None, {"shared_buffers": "16MB"}, memory_limit_bytes=160 << 20)
    except Exception as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    with cluster, shop_under_load(cluster) as conninfo:
        subprocess.run(["sync"], check=True)
        done = run("record", conninfo, "--source", "trace", "--for", "4s", "-o", "t.evidence", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    done = run("advise", "t.evidence", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["disk_reads_from"] == "simulated"
    assert result["memory_bytes"] == 160 << 20
    rules = {rule["name"]: rule for rule in result["rules"]}
    assert rules["25% of the memory"]["shared_buffers_bytes"] == 40 << 20
    if result["verdict"]["level"] != "refused":
        assert rules["25% of the memory"]["gain"] is not None
        often = rules["usage counts of 4 and 5"]
        assert often["shared_buffers_bytes"] is None or often["gain"] is not None
    named = {one["name"]: one["points"] for one in result["relations"]}
    assert any(name.startswith("public.") for name in named)
    for number, point in enumerate(result["points"]):
        own = [points[number] for points in named.values()]
        assert {one["shared_buffers_bytes"] for one in own} == {point["shared_buffers_bytes"]}
        for name in ("misses_per_second", "disk_reads_per_second"):
            whole = sum(one[name] for one in own)
            # A relation that reads nothing from disk at any size is not named, though it may miss.
            assert whole <= point[name] * (1 + 1e-9) + 1e-6
            if name == "disk_reads_per_second":
                assert whole == pytest.approx(point[name])
        assert all(one["disk_reads_low"] <= one["disk_reads_per_second"] for one in own)
        assert all(one["disk_reads_per_second"] <= one["disk_reads_high"] for one in own)
    done = run("predict", "t.evidence", "--sizes", "4MB,16MB,48MB", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    predicted = json.loads(done.stdout)
    if predicted["verdict"]["level"] == "refused":
        return
    memory = predicted["memory"]
    use = memory["use"]
    parts = [
        use[f"{name}_bytes"] for name in ("shared_memory", "page_tables", "private", "rest", "page_cache")
    ]
    assert all(part > 0 for part in parts)
    assert sum(parts) == use["memory_bytes"] == 160 << 20
    [today] = [one for one in memory["points"] if one["shared_buffers_bytes"] == 16 << 20]
    hardly_any = 1 - today["page_cache_hit_ratio"] < 0.02
    assert memory["costs"]["copy_kind"] == ("mean" if hardly_any else "measured")
    *others, largest = memory["points"]
    assert largest["saved_seconds_per_gb"] is None
    for small, large in pairwise(memory["points"]):
        value, low, high = (small[f"saved_seconds_per_gb{end}"] for end in ("", "_low", "_high"))
        assert low <= value <= high
        added = (large["shared_buffers_bytes"] - small["shared_buffers_bytes"]) / (1 << 30)
        assert value * added == pytest.approx(small["wait_ratio"] - large["wait_ratio"])
    assert len(others) == 2
