"""The script for psql gathers what a recording by SQL does, and its file becomes the same evidence."""

from __future__ import annotations

import gzip
import re
import subprocess
import threading
from pathlib import Path

import numpy as np
import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

from pgsweep.cli.record import command
from pgsweep.errors import EvidenceError, UsageError
from pgsweep.evidence.gathered import import_gathered
from pgsweep.evidence.sampling import BlockSample, drawing_order
from pgsweep.evidence.script import record_script
from pgsweep.evidence.sql import record_sql
from pgsweep.evidence.store import Evidence
from pgsweep.pg.private.bindir import find_server
from pgsweep.pg.private.cluster import Cluster
from pgsweep.sizing.predict import judge
from tests.fix_cli import run
from tests.fix_page import load_running


def gather(server: Cluster, conninfo: str, script: str, folder: Path) -> tuple[Path, str]:
    """Run the script with psql, the server's own where it has one; return its output, and what it says."""
    psql = server.bindir / "psql"
    if not psql.exists():
        psql = find_server(None).bindir / "psql"
    source, output = folder / "gather.sql", folder / "shop.gathered"
    source.write_text(script, encoding="utf-8")
    done = subprocess.run(
        [psql, "-X", "-d", conninfo, "-f", source, "-o", output],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "", "nothing but data goes to the output"
    return output, done.stderr


def test_a_file_that_psql_gathered_is_the_evidence_of_a_recording(
    server: Cluster, database: str, tmp_path: Path
) -> None:
    conninfo = server.conninfo(database)
    ours, theirs = tmp_path / "ours.evidence", tmp_path / "theirs.evidence"
    with load_running(server, database, sessions=1, pause_seconds=0.01):
        recording = threading.Thread(target=lambda: record_sql(conninfo, ours, seconds=4, rng_seed=1))
        recording.start()
        file, said = gather(server, conninfo, record_script(4, rng_seed=1), tmp_path)
        recording.join()
    assert "expected cost: one snapshot of 2048 buffers takes" in said
    assert "ERROR" not in said, said
    result = import_gathered(file, theirs)
    assert (result.source, result.ended_by) == ("sql", "time")
    assert result.seconds == pytest.approx(4, abs=1.5)
    assert 0 < (result.expected_overhead_ratio or 0) < 0.2
    assert 0 < (result.measured_overhead_ratio or 0) < 0.2

    mine, other = Evidence.open(ours), Evidence.open(theirs)
    assert other.complete
    for name in ("settings", "database", "database_oid", "server_version", "server_version_num",
                 "block_size_bytes", "shared_buffers_blocks", "sampling",
                 "system_identifier"):  # fmt: skip
        assert getattr(mine.meta, name) == getattr(other.meta, name), name
    assert mine.meta.system_identifier.isdecimal()
    for name, column in mine.table("relations").items():
        if name not in {"fsm_blocks", "vm_blocks"}:
            assert column.tolist() == other.table("relations")[name].tolist(), name
    times = other.table("snapshot_times")
    assert len(times["snapshot"]) == result.snapshots >= 4
    assert np.all(np.diff(times["begin_seconds"]) > 0)
    assert np.std(np.diff(times["begin_seconds"])) > 0.05, "snapshots come at random times"
    snapshots = other.table("snapshots")
    for number, used in zip(times["snapshot"], times["used_frames"], strict=True):
        rows = snapshots["snapshot"] == number
        assert len(np.unique(snapshots["frame"][rows])) == np.count_nonzero(rows) == used
    names = [
        {
            (scope, object_ if scope in {"database", "relation"} else "", name)
            for scope, object_, name, value in zip(*(table[c] for c in ("scope", "object", "name", "value")),
                                                   strict=True)
            if value
        }
        for table in (mine.table("counters"), other.table("counters"))
    ]  # fmt: skip
    assert len(names[0] & names[1]) > 0.9 * len(names[0] | names[1]), names[0] ^ names[1]

    # So short a recording is refused; what it came to is compared all the same. A session sends its
    # counters once a second, which is a quarter of the time at either end.
    first, second = (judge(path, sizes_bytes=[8 << 20, 16 << 20, 24 << 20]) for path in (ours, theirs))
    assert first.observed.accesses / first.observed.seconds == pytest.approx(
        second.observed.accesses / second.observed.seconds, rel=0.6
    )
    assert first.observed.miss_ratio == pytest.approx(second.observed.miss_ratio, abs=0.03)
    assert len(first.estimate.miss_ratio) == 3
    # The two saw different snapshots of the same four seconds: each is as far off as its interval says.
    apart = np.abs(first.estimate.miss_ratio - second.estimate.miss_ratio)
    widths = [(each.high - each.low) / 2 for each in (first.estimate, second.estimate)]
    assert np.all(apart < 0.04 + widths[0] + widths[1]), (apart, widths)


def test_a_cut_file_gives_what_stands_before_the_cut(wheel18: Cluster, tmp_path: Path) -> None:
    printed = run("record", "--script", "--for", "1s")
    assert printed.returncode == 0
    assert "psql -X -d" in printed.stderr
    file, _ = gather(wheel18, wheel18.conninfo(), printed.stdout, tmp_path)
    done = run("import", file.name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "next: pgsweep predict shop.evidence" in done.stderr
    again = run("import", file.name, cwd=tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr

    whole = file.read_bytes()
    full = import_gathered(file, tmp_path / "whole.evidence")
    assert not any("ends before" in warning for warning in full.warnings)
    found = set()
    for number, position in enumerate(np.linspace(0, len(whole) - 2, 24).astype(int).tolist()):
        cut, out = tmp_path / "cut", tmp_path / f"{number}.evidence"
        cut.write_bytes(whole[:position])
        if number % 4 == 3:
            compressed = gzip.compress(whole)
            cut.write_bytes(compressed[: 20 + position * (len(compressed) - 40) // len(whole)])
        try:
            result = import_gathered(cut, out)
        except EvidenceError as error:
            assert error.hint
            assert not out.exists(), "of a file without a snapshot nothing is left"
            found.add(0)
            continue
        assert any("the file ends before the script did" in warning for warning in result.warnings)
        assert result.ended_by == "cut"
        evidence = Evidence.open(out)
        assert evidence.complete
        assert evidence.rows("snapshot_times") == result.snapshots <= full.snapshots
        assert evidence.has("relations")
        found.add(result.snapshots)
    assert {0, full.snapshots} <= found
    file.write_bytes(gzip.compress(whole))
    assert import_gathered(file, tmp_path / "gz.evidence").snapshots == full.snapshots
    file.write_bytes(whole.replace(b"\n", b"\r\n"))
    assert import_gathered(file, tmp_path / "windows.evidence").snapshots == full.snapshots

    def changed(old: str, new: str, count: int = 1) -> None:
        text = whole.decode()
        assert re.search(old, text), old
        file.write_text(re.sub(old, new, text, count=count), encoding="utf-8")
        with pytest.raises(EvidenceError) as caught:
            import_gathered(file, tmp_path / "broken.evidence")
        assert caught.value.hint
        assert not (tmp_path / "broken.evidence").exists()

    changed("pgsweep-gathered/1", "pgsweep-gathered/7")
    changed("pgsweep-gathered/1", "PGDMP")
    changed(r"\nserver\t", "\nserver\tmore\t")
    changed(r"\nmark\tend", "\nmark\tgone\n")
    changed(r"\nmark\tsampled\t(\d+)\t([\d.]+)\t\d+", r"\nmark\tsampled\t\1\t\2\t1")
    changed(r"\{\d+,", "{1,{", count=0)
    changed(r"\{\d+,", "{", count=0)
    changed(r"\{\d+,", "{99999999999999999999999,", count=0)
    changed(r"\n(buffers)\t\d+", r"\n\1\t-5", count=0)
    changed(r"\nrelation\t\d+", "\nrelation\tnone")
    changed(r"\\x[0-9a-f]{4}", r"\\xzz")
    changed(r"\ncount_database\t(\d+)\t\d+", r"\ncount_database\t\1\tnan", count=0)
    changed(r"\Z", "pgsweep-gathered/1\n")
    file.write_bytes(b"\x1f\x8b" + whole)
    with pytest.raises(EvidenceError, match="damaged"):
        import_gathered(file, tmp_path / "broken.evidence")
    file.write_bytes(gzip.compress(whole)[:15])
    with pytest.raises(EvidenceError, match="is not a file that") as caught:
        import_gathered(file, tmp_path / "broken.evidence")
    assert caught.value.cause == "it is compressed, and cut before its first line ends"
    file.write_bytes(b"\0\xff" * 5000)
    with pytest.raises(EvidenceError, match="is not a file that"):
        import_gathered(file, tmp_path / "broken.evidence")
    with pytest.raises(EvidenceError, match="is not a file that"):
        import_gathered(Path("/dev/zero"), tmp_path / "broken.evidence")


def test_of_a_large_pool_a_sample_is_gathered(wheel18: Cluster, tmp_path: Path) -> None:
    script = record_script(1, rng_seed=5)
    assert "524288" in script
    script = script.replace("524288", "1000").replace("262144", "500")
    file, said = gather(wheel18, wheel18.conninfo(), script, tmp_path)
    import_gathered(file, tmp_path / "a.evidence")
    evidence = Evidence.open(tmp_path / "a.evidence")
    sample = BlockSample.from_meta(evidence.meta.sampling)
    assert sample.rate == pytest.approx(500 / 2048, abs=0.001), said
    assert sorted(drawing_order(5)[: len(sample.offsets)]) == list(sample.offsets)
    snapshots, times = evidence.table("snapshots"), evidence.table("snapshot_times")
    assert len(snapshots["rel"]) > 0
    assert np.all(sample.contains(snapshots["rel"], snapshots["block"]))
    assert len(snapshots["rel"]) < 0.6 * times["used_frames"].sum()


def test_where_nothing_may_be_read_the_file_says_why(server: Cluster, tmp_path: Path) -> None:
    def refusal(conninfo: str) -> str:
        file, said = gather(server, conninfo, record_script(1), tmp_path)
        with pytest.raises(EvidenceError) as caught:
            import_gathered(file, tmp_path / "a.evidence")
        assert "pgsweep: " in said
        assert not (tmp_path / "a.evidence").exists()
        return str(caught.value.cause)

    with psycopg.connect(server.conninfo(), autocommit=True) as admin:
        admin.execute("CREATE ROLE mallory LOGIN")
        admin.execute("CREATE DATABASE bare OWNER mallory")
        try:
            conninfo = server.conninfo("bare")
            assert "does not exist" in refusal(conninfo)
            with psycopg.connect(conninfo, autocommit=True) as inside:
                inside.execute("CREATE SCHEMA safe; CREATE EXTENSION pg_buffercache SCHEMA safe")
                assert "may not read" in refusal(make_conninfo(conninfo, user="mallory"))
                inside.execute("ALTER SCHEMA safe OWNER TO mallory")
                assert "not trusted" in refusal(conninfo)
                inside.execute("ALTER SCHEMA safe OWNER TO CURRENT_USER")
            admin.execute("ALTER DATABASE bare SET role = mallory")
            assert "another role" in refusal(conninfo)
            # A function of the owner's own, in a schema of his path, is never called.
            admin.execute("ALTER DATABASE bare RESET role")
            with psycopg.connect(make_conninfo(conninfo, user="mallory"), autocommit=True) as inside:
                inside.execute("CREATE SCHEMA evil; CREATE TABLE evil.called ()")
                for name, types, returned in (
                    ("count", "", "int8"), ("round", "numeric", "numeric"), ("ceil", "float8", "float8"),
                    ("format", "text, text, text, text", "text"), ("set_config", "text, text, bool", "text"),
                ):  # fmt: skip
                    inside.execute(
                        f"CREATE FUNCTION evil.{name}({types}) RETURNS {returned} LANGUAGE plpgsql AS "
                        "$$BEGIN RAISE EXCEPTION 'called'; END$$".encode()
                    )
                inside.execute("ALTER DATABASE bare SET search_path = evil, pg_catalog")
                inside.execute("ALTER DATABASE bare SET bytea_output = 'escape'")
            file, said = gather(server, conninfo, record_script(1), tmp_path)
            assert "ERROR" not in said, said
            result = import_gathered(file, tmp_path / "b.evidence")
            assert result.snapshots >= 1
            assert result.accesses <= 10, "it leaves no accesses of its own"
        finally:
            admin.execute("DROP DATABASE bare WITH (FORCE)")
            admin.execute("DROP ROLE mallory")


AFTER_CONNECTING = "SELECT EXISTS (SELECT FROM pg_catalog.pg_roles"


def shown(server: Cluster, conninfo: str, names: list[str], folder: Path) -> list[str]:
    """Return settings of the script's session, as it was given them."""
    show = "".join(
        f"SELECT '<' || reset_val || '>' AS v FROM pg_settings WHERE name = '{name}' \\gset x_\n\\warn :x_v\n"
        for name in names
    )
    script = record_script(1).replace(AFTER_CONNECTING, f"{show}{AFTER_CONNECTING}", 1)
    file, said = gather(server, conninfo, script, folder)
    assert import_gathered(file, folder / "a.evidence", overwrite=True).snapshots >= 1
    return re.findall("^<(.*)>$", said, re.MULTILINE)


@pytest.mark.slow
def test_the_options_of_the_connection_are_kept_wherever_they_stand(
    server: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = "-c temp_tablespaces=\"a\\ \\\\b\",'c' -c geqo_threshold=7 -c lock_timeout=9s"
    wanted = ["\"a \\b\",'c'", "7", "2000"]
    names = ["temp_tablespaces", "geqo_threshold", "lock_timeout"]
    assert shown(server, make_conninfo(server.conninfo(), options=odd), names, tmp_path) == wanted
    place = f"host={server.socket_directory}&user=postgres"
    uri = f"postgresql:///postgres?{place}&port=5432&options=-c%20geqo_threshold%3D7"
    assert shown(server, uri, names[1:], tmp_path) == wanted[1:]
    services = tmp_path / "services"
    services.write_text(f"[there]\nhost={server.socket_directory}\nport=5432\nuser=postgres\noptions={odd}\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    assert shown(server, "service=there dbname=postgres", names, tmp_path) == wanted
    monkeypatch.setenv("PGOPTIONS", "-c geqo_threshold=7\\")
    assert shown(server, server.conninfo(), names[1:], tmp_path) == wanted[1:]


@pytest.mark.slow
def test_a_host_may_be_chosen_and_the_settings_are_the_servers(server: Cluster, tmp_path: Path) -> None:
    set_by_server = {"work_mem": "7MB", "max_parallel_workers_per_gather": "3", "synchronize_seqscans": "off"}
    with psycopg.connect(server.conninfo(), autocommit=True) as admin:
        admin.execute("CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher")
        try:
            for name, value in set_by_server.items():
                admin.execute(f"ALTER DATABASE postgres SET {name} = '{value}'".encode())
            if server.version_num >= 170000:
                admin.execute("ALTER ROLE watcher SET transaction_timeout = '300ms'")
            conninfo = make_conninfo(server.conninfo(), user="watcher", target_session_attrs="read-write")
            file, said = gather(server, conninfo, record_script(1), tmp_path)
            assert "ERROR" not in said, said
            import_gathered(file, tmp_path / "a.evidence")
            with psycopg.connect(make_conninfo(server.conninfo(), user="watcher")) as plain:
                seen: dict[str, str] = dict(plain.execute("SELECT name, setting FROM pg_settings").fetchall())
            record_sql(conninfo, tmp_path / "b.evidence", seconds=1)
            for name in ("a", "b"):
                kept = Evidence.open(tmp_path / f"{name}.evidence").meta.settings
                assert kept == {each: seen[each] for each in kept}
                assert kept["max_parallel_workers_per_gather"] == "3"
        finally:
            admin.execute("ALTER DATABASE postgres RESET ALL")
            admin.execute("DROP OWNED BY watcher; DROP ROLE watcher")


def test_a_login_trigger_finds_its_tables_and_may_write(wheel18: Cluster, tmp_path: Path) -> None:
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as owner:
        owner.execute("CREATE DATABASE gathered_at_login")
    conninfo = wheel18.conninfo("gathered_at_login")
    try:
        with psycopg.connect(conninfo, autocommit=True) as owner:
            owner.execute("CREATE EXTENSION pg_buffercache; CREATE TABLE public.logins AS SELECT 0 AS pid")
            owner.execute(
                "CREATE FUNCTION public.log_in() RETURNS event_trigger LANGUAGE plpgsql AS"
                " $$ BEGIN INSERT INTO logins VALUES (pg_backend_pid()); END $$"
            )
            owner.execute("CREATE EVENT TRIGGER log_in ON login EXECUTE FUNCTION public.log_in()")
            file, said = gather(wheel18, conninfo, record_script(1), tmp_path)
            assert "ERROR" not in said, said
            assert import_gathered(file, tmp_path / "a.evidence").snapshots >= 1
            owner.execute("ALTER EVENT TRIGGER log_in DISABLE")
            owner.execute(
                "CREATE OR REPLACE FUNCTION public.log_in() RETURNS event_trigger LANGUAGE plpgsql AS"
                " $$ BEGIN SET lock_timeout = 0; END $$"
            )
            owner.execute("ALTER EVENT TRIGGER log_in ENABLE")
            file, said = gather(wheel18, conninfo, record_script(1), tmp_path)
            assert "a login event trigger sets others" in said
            with pytest.raises(EvidenceError) as refusal:
                import_gathered(file, tmp_path / "b.evidence")
            assert "login event trigger" in str(refusal.value.cause)
    finally:
        with psycopg.connect(wheel18.conninfo(), autocommit=True) as owner:
            owner.execute("DROP DATABASE gathered_at_login WITH (FORCE)")


def test_the_script_names_every_function_with_its_schema_and_writes_nothing() -> None:
    script = record_script(60)
    text = re.sub(r"--.*", "", script)
    text = "\n".join(line for line in text.splitlines() if not line.startswith("\\"))
    statements = [one.strip() for one in text.split(";\n")]
    own = "pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) :pgsweep_pid"
    in_session = re.findall(
        rf"CASE WHEN {re.escape(own)} THEN pg_catalog.set_config\('(\w+)', '[^']*', false\)", text
    )
    assert in_session == ["search_path", "default_transaction_read_only"], "the others are the connection's"
    at_end = statements[-1]
    assert "s.reset_val" in at_end
    assert "pg_catalog.pg_backend_pid() = :pgsweep_pid" in at_end
    assert text.count("set_config") == len(in_session) + at_end.count("set_config")
    assert not re.search(r"\bSET\b", text)
    # Before the path is pg_catalog, operators have their schema too.
    before = text[: text.index("SELECT q IS NOT NULL AS own")]
    before = re.sub(r"\$s\$.*?\$s\$|'[^']*'|OPERATOR\(pg_catalog\.(=|<>|/)\)|--.*", "", before)
    assert not re.search(r"[=<>|~+*/]", before.replace("\\gset", "")), before
    text = re.sub(r"\$s\$.*?\$s\$", "''", text)
    words = {"coalesce", "greatest", "least", "extract", "nullif", "settings"}
    without_texts = re.sub(r"'[^']*'", "''", text)
    called = re.findall(r"(?<![\w.'}])([a-z_][a-z0-9_]*)\(", without_texts)
    assert {name for name in called if not name.startswith("pgsweep_")} <= words
    first = {
        statement.split()[0]
        for statement in re.split(r";\n|\\gset \w+\n|\\gexec\n", text)
        if statement.strip()
    }
    assert first <= {"SELECT", "PREPARE", "EXECUTE", "BEGIN", "COMMIT", "WITH"}
    assert "%s" not in re.sub(r"'[^']*'", "", text)
    assert "{" not in re.sub(r"'[^']*'", "", text)


def test_a_script_takes_no_connection_and_nothing_else_of_a_recording() -> None:
    for words in (("-d", "shop"), ("--source", "trace"), ("-n",), ("-o", "x.evidence"), ("--for", "enough")):
        done = CliRunner().invoke(command, ["--script", *words])
        assert isinstance(done.exception, UsageError), words
        assert done.exception.hint
    with pytest.raises(UsageError):
        record_script(1e6)
