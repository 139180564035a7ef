"""`pgsweep record` against real servers."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import msgspec
import psycopg
import pytest
from click.testing import CliRunner

from pgsweep.cli.record import command
from pgsweep.errors import MissingAbility
from pgsweep.evidence.record import plan_record
from pgsweep.evidence.store import Evidence
from pgsweep.pg.private.cluster import Cluster
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.record import record_text
from tests.fix_cli import PGSWEEP, WRITES_SOON, launch, run
from tests.fix_disk import fill_disk
from tests.fix_process import wait_until
from tests.fix_results import record_result


def test_dry_run_prints_the_statements_and_leaves_nothing(server: Cluster, tmp_path: Path) -> None:
    done = run("record", server.conninfo(), "--source", "sql", "--dry-run", "-o", "x.evidence", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "FROM public.pg_buffercache" in done.stdout
    assert not re.search(r"[{]\w+[}]|%s", done.stdout), "every placeholder is filled"
    for statement in ("-c statement_timeout=50000ms", "current_setting('work_mem')"):
        assert statement in done.stdout
    assert ("set_config('stats_fetch_consistency'" in done.stdout) == (server.version_num >= 150000)
    assert ("pg_stat_force_next_flush" in done.stdout) == (server.version_num >= 150000)
    assert ("pg_stat_io" in done.stdout) == (server.version_num >= 160000)
    assert "nothing was done" in done.stderr
    assert list(tmp_path.iterdir()) == []
    plan = json.loads(run("record", server.conninfo(), "-n", "--json").stdout)
    assert plan["schema"] == "pgsweep.plan/1"
    assert {"what", "when", "text"} == set(plan["steps"][0])


def test_a_dry_run_warns_of_what_would_be_refused(wheel18: Cluster, tmp_path: Path) -> None:
    """A role without pg_monitor saw a plan that it could never carry out."""
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE ROLE plainly LOGIN")
        try:
            conninfo = psycopg.conninfo.make_conninfo(wheel18.conninfo(), user="plainly")
            plan = run("record", conninfo, "--source", "sql", "--dry-run", "--json", cwd=tmp_path)
            real = run("record", conninfo, "--source", "sql", "--for", "1s", cwd=tmp_path)
            connection.execute("GRANT pg_monitor TO plainly")
            granted = run("record", conninfo, "--source", "sql", "--dry-run", "--json", cwd=tmp_path)
        finally:
            connection.execute("DROP ROLE plainly")
    assert (plan.returncode, real.returncode) == (0, 4)
    assert "GRANT pg_monitor TO plainly" in json.loads(plan.stdout)["refused"][1]
    assert "GRANT pg_monitor TO plainly" in plan.stderr
    assert json.loads(granted.stdout)["refused"] == []
    assert "warning" not in granted.stderr


def test_record_with_psqls_options(wheel18: Cluster, tmp_path: Path) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(wheel18.conninfo())
    options = ["-h", str(parts["host"]), "-p", str(parts["port"]), "-U", str(parts["user"]), "-d", "postgres"]
    done = run("record", *options, "--for", "3s", "-o", "x.evidence", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["schema"] == "pgsweep.record/1"
    assert result["path"] == "x.evidence"
    assert result["provenance"]["command"].startswith("pgsweep record -h ")
    assert "expected cost" in done.stderr, "the cost is reported before it is spent"
    assert Evidence.open(tmp_path / "x.evidence").complete
    again = run("record", *options, "-o", "x.evidence", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_record_takes_libpqs_environment_and_is_quiet(wheel18: Cluster, tmp_path: Path) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(wheel18.conninfo())
    env = {"PGHOST": str(parts["host"]), "PGPORT": str(parts["port"]), "PGUSER": str(parts["user"])}
    done = run(
        "record", "-q", "--for", "2s", "-o", "x.evidence", cwd=tmp_path, env={**env, "PGDATABASE": "postgres"}
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_an_interrupt_does_not_wait_for_the_judge(wheel18: Cluster, tmp_path: Path) -> None:
    first = """
import pathlib, time
import pgsweep.evidence.outlook as evidence
import pgsweep.sizing.outlook as sizing
evidence.LEAST_SECONDS = 1.0
def refusal_of(*_):
    pathlib.Path("asked").touch()
    time.sleep(600)
sizing.refusal_of = refusal_of
"""
    words = ("record", wheel18.conninfo(), "-o", "x.evidence", "--source", "sql")
    with launch(*words, cwd=tmp_path, first=first) as process:
        wait_until((tmp_path / "asked").exists)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "ended by interrupt" in out
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_keeps_what_was_seen(wheel18: Cluster, tmp_path: Path, number: signal.Signals) -> None:
    words = ("record", wheel18.conninfo(), "--for", "60s", "-o", "x.evidence")
    process = launch(*words, cwd=tmp_path, first=WRITES_SOON)
    wait_until((tmp_path / "x.evidence" / "snapshots").exists)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "ended by interrupt" in out
    assert "kept: x.evidence" in err
    assert "Traceback" not in err
    evidence = Evidence.open(tmp_path / "x.evidence")
    assert len(evidence.table("snapshot_times")["snapshot"]) >= 1


def test_a_server_that_stops_is_no_success(tmp_path: Path) -> None:
    with Cluster.create(None, {"shared_buffers": "4MB", "max_connections": "10"}) as cluster:
        words = ("record", cluster.conninfo(), "--for", "60s", "-o", "x.evidence")
        process = launch(*words, cwd=tmp_path, first=WRITES_SOON)
        wait_until((tmp_path / "x.evidence" / "snapshots").exists)
        cluster.stop(immediately=True)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "of 60 s; kept: x.evidence" in err
    assert "the server was stopped, restarted or crashed" in out
    assert Evidence.open(tmp_path / "x.evidence").meta.ended_by == "server"


def recording_begins(folder: Path) -> bool:
    return any(folder.glob("*.evidence/snapshots"))


def test_what_rests_on_a_recording_that_was_cut_short_is_no_success(tmp_path: Path) -> None:
    """`advise` and `verify` record first."""
    with Cluster.create(None, {"shared_buffers": "4MB", "max_connections": "10"}) as cluster:
        words = ["record", cluster.conninfo(), "--for", "1s", "-o", "first.evidence"]
        with psycopg.connect(cluster.conninfo(), autocommit=True) as reading:
            reading.execute("CREATE TABLE t AS SELECT g FROM generate_series(1, 100000) AS g")
            process = launch(*words, cwd=tmp_path)
            # Of a database in which nothing happens nothing could be verified.
            while process.poll() is None:
                reading.execute("SELECT count(*), pg_stat_force_next_flush() FROM t")
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        commands = {"advise": ["advise", cluster.conninfo()]}
        commands["verify"] = ["verify", "../first.evidence", cluster.conninfo()]
        started = {}
        for name, command_line in commands.items():
            (tmp_path / name).mkdir()
            started[name] = launch(*command_line, "--for", "60s", cwd=tmp_path / name, first=WRITES_SOON)
        for name in commands:
            wait_until(functools.partial(recording_begins, tmp_path / name))
        cluster.stop(immediately=True)
        ends = {name: process.communicate(timeout=60) for name, process in started.items()}
    for name, (out, err) in ends.items():
        assert started[name].returncode == 3, err
        assert out == ""
        said = " ".join(err.split())
        assert "of 60 s" in said
        assert "the server was stopped, restarted or crashed" in said
        kept = next((tmp_path / name).glob("*.evidence")).name
        again = f"verify ../first.evidence --after {kept}" if name == "verify" else f"advise {kept}"
        assert f"pgsweep {again}" in said


def test_for_enough_is_said_in_these_words(wheel18: Cluster, tmp_path: Path) -> None:
    done = run("record", "--source", "trace", "--for", "enough", wheel18.conninfo(), cwd=tmp_path)
    assert done.returncode == 2
    assert "--for 40s" in done.stderr
    assert "40s, 2min, 1h, or `enough`" in " ".join(run("record", "--help").stdout.split())
    assert record_text(msgspec.structs.replace(record_result(), ended_by="enough"), Terminal()).count(
        "until there was enough data"
    )


def test_nohup_is_heeded(wheel18: Cluster, tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["nohup", PGSWEEP, "record", wheel18.conninfo(), "--for", "3s", "-o", "x.evidence"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((tmp_path / "x.evidence" / "relations").exists)
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert Evidence.open(tmp_path / "x.evidence").meta.ended_by == "time"


def test_evidence_killed_before_its_first_part_is_reported_as_that(wheel18: Cluster, tmp_path: Path) -> None:
    words = ("record", wheel18.conninfo(), "--for", "60s", "-o", "x.evidence")
    process = launch(*words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until((tmp_path / "x.evidence" / "relations").exists)
    process.kill()
    process.wait()
    assert not (tmp_path / "x.evidence" / "snapshots").exists()
    reported = run("predict", "x.evidence", cwd=tmp_path)
    assert reported.returncode == 1
    assert "holds no observation" in reported.stderr
    assert "no snapshots had been written when the recording ended: it was killed" in reported.stderr
    assert "another database" not in reported.stderr


@pytest.mark.parametrize("room_kb", [20, 28, 40, 60])
def test_a_full_disk_names_as_readable_only_what_is(wheel18: Cluster, small_disk: Path, room_kb: int) -> None:
    fill_disk(small_disk, but_bytes=room_kb << 10)
    out = small_disk / "x.evidence"
    done = run("record", wheel18.conninfo(), "--source", "sql", "--for", "2s", "-o", str(out))
    if done.returncode == 0:
        assert room_kb > 20, "the smallest room holds no recording"
        return
    assert "the file system is full" in done.stderr
    assert ("what was recorded until then is readable" in done.stderr) == out.exists(), done.stderr
    if out.exists():
        assert "holds no observation" not in run("predict", str(out)).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="the server's memory is read by root, or by its own user")
def test_auto_looks_into_the_servers_memory_where_it_may(server: Cluster, tmp_path: Path) -> None:
    plan = run("record", server.conninfo(), "-n", "-o", "x.evidence", cwd=tmp_path)
    assert plan.returncode == 0, plan.stderr
    same = run("record", server.conninfo(), "-n", "-o", "x.evidence", "--source", "peek", cwd=tmp_path)
    assert same.stdout == plan.stdout
    assert "pread the buffer descriptors" in plan.stdout
    assert ("pg_buffercache_summary" in plan.stdout) == (server.version_num >= 160000)
    assert not re.search(r"[{]\w+[}]|%s", plan.stdout), "every placeholder is filled"
    assert list(tmp_path.iterdir()) == []
    done = run("record", server.conninfo(), "--for", "2s", "-o", "x.evidence", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["source"] == "peek"
    assert "takes this process" in done.stderr, "the cost is reported before it is spent"
    assert Evidence.open(tmp_path / "x.evidence").complete


def test_auto_asks_by_sql_where_the_server_is_elsewhere(
    wheel18: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsweep.host.postmaster.postmaster_start_time", lambda _pid: -1)
    out = tmp_path / "x.evidence"
    refused = CliRunner().invoke(
        command, [wheel18.conninfo(), "--source", "peek", "--for", "1s", "-o", str(out)]
    )
    assert isinstance(refused.exception, MissingAbility)
    assert "--source sql" in str(refused.exception.hint)
    done = CliRunner().invoke(command, [wheel18.conninfo(), "--for", "1s", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert Evidence.open(out).meta.source == "sql"
    # Why it is not the better source stands on stderr and in the result, in each of its forms.
    why = "not possible by peek: the server does not run on this host"
    assert why in done.stderr
    assert re.search("^not possible +peek: the server does not run on this host", done.stdout, re.MULTILINE)
    as_json = CliRunner().invoke(command, [wheel18.conninfo(), "--for", "1s", "-o", f"{out}2", "--json"])
    (passed_over,) = json.loads(as_json.stdout)["passed_over"]
    assert why.endswith(passed_over[: len(why) - len("not possible by ")])
    plan = CliRunner().invoke(command, [wheel18.conninfo(), "-n", "--json", "-o", f"{out}3"])
    assert json.loads(plan.stdout)["passed_over"] == [passed_over]
    assert why in plan.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="tracing needs root")
def test_auto_plans_a_trace_where_only_that_times_reads(
    wheel18: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MissingAbility("the server's memory may not be read", hint="run as root")

    monkeypatch.setattr("pgsweep.evidence.record.plan_peek", refuse)
    plan = plan_record(wheel18.conninfo(), tmp_path / "x.evidence", time_reads=True)
    assert [why.partition(":")[0] for why in plan.passed_over] == ["peek"]
    assert any("perf_event_open" in step.text for step in plan.steps)


@pytest.mark.one_server
@pytest.mark.skipif(os.geteuid() != 0, reason="tracing needs root")
def test_trace_ends_at_its_limit(server: Cluster, tmp_path: Path) -> None:
    plan = run("record", server.conninfo(), "--source", "trace", "-n", cwd=tmp_path)
    assert plan.returncode == 0, plan.stderr
    assert "perf_event_open" in plan.stdout
    assert "BufTableLookup" in plan.stdout
    assert list(tmp_path.iterdir()) == []
    options = ["--source", "trace", "--for", "2s", "-o", "x.evidence", "--json"]
    done = run("record", server.conninfo(), *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "expected cost" in done.stderr
    result = json.loads(done.stdout)
    assert (result["source"], result["lost_events"], result["ended_by"]) == ("trace", 0, "time")
    assert Evidence.open(tmp_path / "x.evidence").complete


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_trace_by_somebody_else_says_what_to_do(wheel18: Cluster) -> None:
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", PGSWEEP]
    if subprocess.run([*nobody, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("this checkout can be read by its owner only")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        done = subprocess.run(
            [*nobody, "record", wheel18.conninfo(), "--source", "trace", "-o", f"{folder}/x.evidence"],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        )
        # Not even the socket's folder may be entered, which is reported as a failed connection.
        assert done.returncode in (3, 4), done.stderr
        assert "hint: " in done.stderr
        assert "Traceback" not in done.stderr
        assert list(Path(folder).iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-h", "/nonexistent"], 3, "no server listens there"),
        (["nonsense=1"], 2, "connection string"),
        (["a", "-d", "b"], 2, "given twice"),
        (["-w", "-W"], 2, "contradict"),
        (["--for", "soon"], 2, "`soon` is not a time"),
        (["--source", "sql", "--max-events", "5"], 2, "end a trace"),
        (["--source", "trace", "--until", "1%"], 2, "is for snapshots"),
        (["-o", "absent/x.evidence"], 2, "no folder `absent`"),
    ],
)
def test_mistakes(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    done = run("record", *arguments, cwd=tmp_path)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_missing_database_and_extension(wheel18: Cluster, tmp_path: Path) -> None:
    done = run("record", wheel18.conninfo("absent"), cwd=tmp_path)
    assert done.returncode == 3
    assert 'database "absent" does not exist' in done.stderr
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE plain")
    try:
        done = run("record", wheel18.conninfo("plain"), "--source", "sql", cwd=tmp_path)
        assert done.returncode == 4
        assert "CREATE EXTENSION pg_buffercache" in done.stderr
        assert list(tmp_path.iterdir()) == []
    finally:
        with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
            connection.execute("DROP DATABASE plain")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert run("record", "-o", str(tmp_path / "x.evidence")).returncode == 2
