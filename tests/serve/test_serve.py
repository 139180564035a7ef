"""`pgsweep serve` against real servers: what it collects, shows, exposes, and survives."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from pgsweep.pg.private.cluster import Cluster
from pgsweep.serve.rules import expressions
from tests.fix_cli import run
from tests.fix_page import load_running
from tests.fix_process import Patience
from tests.fix_serve import PGSWEEP, Served, serving

HOSTILE = "<script>alert(1)</script>&\"'"
GONE = "host=127.0.0.1 port=1 dbname=gone"
TOML = """
[serve]
top-relations = 2
[[server]]
name = "shop <b>"
conninfo = {conninfo}
[[server]]
name = "gone"
conninfo = "host=127.0.0.1 port=1 dbname=gone password=very-secret-word"
[[metric]]
name = "tables"
query = "SELECT relkind AS kind, count(*) AS value FROM pg_catalog.pg_class GROUP BY 1"
labels = ["kind"]
servers = ["shop <b>"]
[[metric]]
name = "slow"
query = "SELECT pg_sleep(5)::text, 1 AS value"
timeout = 0.1
servers = ["shop <b>"]
[[metric]]
name = "writes"
query = "SELECT set_config('a.b', 'c', false), nextval('public.numbers') AS value"
servers = ["shop <b>"]
"""


@pytest.fixture(scope="module")
def shop(wheel18: Cluster) -> Iterator[str]:
    """A database with a table larger than the pool and a hostile name, under load."""
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE served")
        with psycopg.connect(wheel18.conninfo("served"), autocommit=True) as inside:
            inside.execute("CREATE EXTENSION pg_buffercache")
            inside.execute("CREATE SEQUENCE numbers")
            inside.execute("CREATE TABLE page (id int PRIMARY KEY, filler text, long text)")
            inside.execute("ALTER TABLE page ALTER filler SET STORAGE PLAIN")
            inside.execute(
                "INSERT INTO page SELECT g, repeat('x', 1800), '' FROM generate_series(1, 12000) g"
            )
            inside.execute(
                sql.SQL("CREATE TABLE {} AS SELECT generate_series(1, 50000) AS n").format(
                    sql.Identifier(HOSTILE)
                )
            )
            inside.execute("VACUUM ANALYZE")
        with load_running(wheel18, "served", sessions=1):
            yield wheel18.conninfo("served")
        connection.execute("DROP DATABASE served WITH (FORCE)")


@pytest.fixture(scope="module")
def served(shop: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve")
    config = folder / "serve.toml"
    config.write_text(TOML.format(conninfo=json.dumps(shop)))
    with serving(folder / "history", options=("--config", str(config))) as running:
        running.wait_for("/servers/shop-b/summary.json", lambda s: s["hit_ratio"] is not None)
        yield running


def metrics_of(served: Served) -> dict[str, float]:
    status, headers, text = served.ask("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_a_dead_server_stands_beside_one_that_lives(served: Served) -> None:
    found = served.json("/overview.json")["servers"]
    assert [s["state"] for s in found] == ["down", "up"], "down first"
    assert "Connection refused" in found[0]["failure"]["message"]
    assert found[1]["interval_seconds"] == 1.0, "it is not delayed"
    assert found[1]["shared_buffers_bytes"] == 16 << 20


def test_metrics_have_what_the_records_have(served: Served) -> None:
    served.wait_for("/servers/shop-b/series.json", lambda s: len(s["at"]) >= 3)
    # A run of a query that waits for a lock or a connection may be late.
    until = Patience(60)
    while True:
        found = metrics_of(served)
        if sum(name.startswith("pgsweep_user_metric_failed") for name in found) == 3:
            break
        assert until.left() > 0
        time.sleep(0.3)
    name = 'server="shop <b>"'
    assert found[f"pgsweep_up{{{name}}}"] == 1
    assert found['pgsweep_up{server="gone"}'] == 0
    assert found[f"pgsweep_shared_buffers_bytes{{{name}}}"] == 16 << 20
    reads = [key for key in found if key.startswith("pgsweep_reads_total") and 'served="pool"' in key]
    assert len(reads) == 1
    assert found[reads[0]] > 0
    buffers = sum(value for key, value in found.items() if key.startswith("pgsweep_buffers"))
    assert 0 < buffers <= 2048
    tables = [value for key, value in found.items() if key.startswith("pgsweep_user_tables")]
    assert len(tables) >= 3
    failed = {key: value for key, value in found.items() if key.startswith("pgsweep_user_metric_failed")}
    assert sorted(failed.values()) == [0, 1, 1], "what takes too long or would write fails"
    relations = [key for key in found if key.startswith("pgsweep_relation_pool_bytes")]
    assert len(relations) == 3, "two and all others"


def test_prometheus_takes_metrics_rules_and_expressions(served: Served, tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine: apt-get install prometheus")
    text = served.ask("/metrics")[2]
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    # Its advice on style is not wanted of the user's own metrics.
    assert done.returncode in (0, 3), done.stderr
    assert "error while linting" not in done.stderr
    rules = run("serve", "--alerts")
    assert rules.returncode == 0
    (tmp_path / "alerts.yml").write_text(rules.stdout)
    checks = "".join(
        f"  - record: check:{n}\n    expr: {json.dumps(e)}\n" for n, e in enumerate(expressions())
    )
    (tmp_path / "panels.yml").write_text(f"groups:\n- name: panels\n  rules:\n{checks}")
    for file in ("alerts.yml", "panels.yml"):
        done = subprocess.run(
            [promtool, "check", "rules", str(tmp_path / file)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads(run("serve", "--grafana").stdout)["panels"]) > 5


def test_the_alerts_say_that_pgsweep_itself_is_gone() -> None:
    """No other alert can: without it there is no metric."""
    text = run("serve", "--alerts").stdout
    [rule] = [part for part in text.split("  - alert: ") if part.startswith("PgsweepGone")]
    assert "absent(pgsweep_build_info)" in rule
    assert "up == 0" in rule


def test_servers_are_named_as_for_psql(wheel18: Cluster, tmp_path: Path) -> None:
    parts = conninfo_to_dict(wheel18.conninfo())
    place = ("-h", str(parts["host"]), "-p", str(parts["port"]), "-U", str(parts["user"]))
    for number, (names, found) in enumerate(
        ((("-d", "postgres"), ["postgres"]), (("postgres", "template1"), ["postgres", "template1"]))
    ):
        with serving(tmp_path / str(number), *place, *names) as running:
            servers = running.wait_for(
                "/overview.json", lambda o: {server["state"] for server in o["servers"]} == {"up"}
            )["servers"]
            assert sorted(server["database"] for server in servers) == found
    twice = run("serve", *place, "-d", "postgres", "template1")
    assert twice.returncode == 2
    assert "the database is given twice" in twice.stderr


def test_every_panels_data_comes_as_json_and_csv(served: Served) -> None:
    for what in ("series", "curves", "advice", "memory", "relations", "consumers"):
        status, headers, text = served.ask(f"/servers/shop-b/{what}.csv")
        assert (status, headers["content-type"].split(";")[0]) == (200, "text/csv"), text
        served.json(f"/servers/shop-b/{what}.json")
    rows = list(csv.DictReader(io.StringIO(served.ask("/servers/shop-b/relations.csv?limit=500")[2])))
    found = {row["relation"]: row for row in rows}
    assert int(found["page"]["shared_buffers_bytes"]) > 0
    first = served.json("/servers/shop-b/relations.json?sort=name&limit=2")
    assert len(first["relations"]) == 2
    assert served.json("/servers/shop-b/relations.json?filter=page_pk")["relations_found"] == 1


def test_hostile_names_are_text_and_passwords_nowhere(served: Served) -> None:
    everything = ""
    for path in ("/", "/servers/shop-b", "/servers/shop-b/relations?limit=500", "/overview.json", "/metrics",
                 "/servers/gone"):  # fmt: skip
        status, headers, text = served.ask(path)
        assert status == 200
        if path in ("/", "/servers/shop-b", "/servers/shop-b/relations?limit=500"):
            assert "<script>alert" not in text
            assert "shop <b>" not in text
        assert "very-secret-word" not in text
        assert "default-src 'none'" in headers["content-security-policy"]
        everything += text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in everything


def test_the_block_map_of_a_relation(served: Served) -> None:
    found = served.json("/servers/shop-b/map.json?database=served&schema=public&relation=page")
    sums = sum(sum(found[kind]) for kind in ("pool_only", "page_cache_only", "both", "neither"))
    assert sums == found["blocks"] > 2000
    status, _, text = served.ask("/servers/shop-b/map?database=served&schema=public&relation=page")
    assert status == 200
    assert text.count("<rect") >= 1000
    for query in ("database=served&schema=public&relation=nosuch", "schema=&relation=", "database=nosuch&"
                  "schema=public&relation=page"):  # fmt: skip
        assert served.ask(f"/servers/shop-b/map?{query}")[0] in (400, 503), query


def test_who_may_ask(served: Served) -> None:
    assert served.ask("/", method="POST")[0] == 405
    assert served.ask("/servers/shop-b", method="DELETE")[0] == 405
    assert served.ask("/", headers={"Host": "evil.example"})[0] == 421
    assert served.ask("/", headers={"Host": f"localhost:{served.port}"})[0] == 200
    cross = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
    assert served.ask("/overview.json", headers=cross)[0] == 403
    _, headers, _ = served.ask("/overview.json", headers={"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in headers
    assert served.ask("/servers/nosuch")[0] == 404
    assert served.ask("/static/../serve.css")[0] == 404
    assert served.ask("/static/%2e%2e/app.py")[0] == 404
    for query in ("range=x", "begin=a", "begin=5&end=1", "begin=nan", "begin=inf"):
        assert served.ask(f"/servers/shop-b/series.json?{query}")[0] == 400, query
    for query in ("sort=x", "limit=0", "limit=999999999999", "limit=a", f"filter={'x' * 300}"):
        assert served.ask(f"/servers/shop-b/relations?{query}")[0] == 400, query


def test_malformed_requests_end_in_no_500(served: Served) -> None:
    """10,000 of them: a line of the log for each would block it at 2100."""
    random.seed(1)
    whole = (
        b"GET /servers/shop-b/relations?sort=pool&filter=a HTTP/1.1\r\nHost: localhost\r\nCookie: a=b\r\n\r\n"
    )

    def memory() -> int:
        return int(Path(f"/proc/{served.process.pid}/statm").read_text().split()[1]) * 4096

    begin, seen = 0, set()
    for number in range(int(os.environ.get("PGSWEEP_MALFORMED", "10000"))):
        request = bytearray(whole)
        for _ in range(random.randrange(1, 6)):
            request[random.randrange(len(request))] = random.randrange(256)
        if number % 10 == 0:
            request = request[: random.randrange(len(request))]
        with socket.create_connection((served.host, int(served.port)), timeout=30) as peer:
            peer.sendall(bytes(request))
            peer.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := peer.recv(65536):
                answer += piece
        if answer:
            seen.add(answer.split(b" ", 2)[1])
        if number == 300:
            begin = memory()
    assert b"500" not in seen, seen
    assert b"400" in seen
    assert memory() - begin < 20 << 20
    assert served.ask("/healthz")[0] == 200


def test_its_threads_share_two_arenas_of_the_allocator(served: Served) -> None:
    """glibc aligns an arena's heap to 64 MB and reserves as much (HEAP_MAX_SIZE in malloc/arena.c)."""
    heap_bytes = 64 << 20
    if os.confstr("CS_GNU_LIBC_VERSION") is None:
        pytest.skip("the C library has no arenas")
    found, begin, end = 0, 0, -1
    for line in Path(f"/proc/{served.process.pid}/maps").read_text().splitlines():
        fields = line.split()
        low, high = (int(word, 16) for word in fields[0].split("-"))
        if fields[1] == "---p" and low == end and (high - begin) == heap_bytes:
            found += 1
        begin, end = (low, high) if fields[1] == "rw-p" and low % heap_bytes == 0 else (0, -1)
    # The first arena lies elsewhere; the second may need a second heap.
    assert found <= 2


def test_the_curve_comes_by_itself(served: Served) -> None:
    """From evidence that is still being recorded."""
    found = served.wait_for(
        "/servers/shop-b/curves.json",
        lambda c: (
            len(c["now"]) > 0
            and (
                c["now"][0]["result"] or not (c["now"][0]["early"] or "not" in (c["now"][0]["why"] or "not"))
            )
        ),
        patience=240,
    )
    assert found["recording"] is None
    curve = found["now"][0]
    assert curve["window_seconds"] == 900
    result = curve["result"]
    assert result is not None, curve["why"]
    assert result["observed"]["shared_buffers_bytes"] == 16 << 20
    if result["verdict"]["level"] != "refused":
        names = metrics_of(served)
        assert any(name.startswith("pgsweep_predicted_pool_miss_ratio") for name in names)
    advice = served.json("/servers/shop-b/advice.json")
    assert advice["best"]["result"]["settings"][0]["name"] == "shared_buffers"
    assert advice["verification"] is None
    assert "shared_buffers" in served.ask("/servers/shop-b/advice")[2]
    if advice["best"]["size_bytes"] is not None:
        advised = metrics_of(served)['pgsweep_advised_shared_buffers_bytes{server="shop <b>"}']
        assert advised == advice["best"]["size_bytes"]


def test_a_token_is_needed_beyond_this_machine(tmp_path: Path) -> None:
    done = run("serve", "--listen", "0.0.0.0:0", "--history", str(tmp_path / "h"), GONE)
    assert done.returncode == 2
    assert "no token" in done.stderr
    token = tmp_path / "token"
    token.write_text("0123456789abcdef-secret\n")
    token.chmod(0o644)
    done = run("serve", "--token-file", str(token), "--history", str(tmp_path / "h"), GONE)
    assert (done.returncode, "its mode is 0644" in done.stderr) == (2, True)
    token.chmod(0o600)
    with serving(tmp_path / "h", GONE, options=("--token-file", str(token))) as served:
        assert served.ask("/metrics")[0] == 401
        assert served.ask("/metrics", headers={"Authorization": "Bearer wrong"})[0] == 401
        bearer = {"Authorization": "Bearer 0123456789abcdef-secret"}
        assert served.ask("/metrics", headers=bearer)[0] == 200
        status, headers, _ = served.ask("/", headers={"Accept": "text/html"})
        assert (status, headers["location"]) == (303, "/login")
        assert served.ask("/login", method="POST", body="token=wrong")[0] == 403
        status, headers, _ = served.ask("/login", method="POST", body="token=0123456789abcdef-secret")
        assert status == 303
        cookie = headers["set-cookie"]
        assert "httponly" in cookie.lower()
        assert "samesite=strict" in cookie.lower()
        assert "0123456789abcdef" not in cookie
        assert served.ask("/", headers={"Cookie": cookie.split(";")[0]})[0] == 200
        evil = {"Origin": "http://evil.example"}
        assert served.ask("/login", method="POST", body="token=x", headers=evil)[0] == 403
        taken = run("serve", "--listen", f"127.0.0.1:{served.port}", "--history", str(tmp_path / "i"), GONE)
        assert (taken.returncode, "cannot listen" in taken.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense = 1", "no option `nonsense`"),
        ("[[server]]\nconninfo = 'a'\nname = 'x'\n[[server]]\nconninfo = ''\nname = 'x'", "name `x`"),
        ("[serve]\nlisten = 'nowhere'", "not an address"),
        ("[serve]\ninterval = 0.1", "too short"),
        ("[serve]\ninterval = 0", "too short"),
        ("[serve]\ninterval = '500ms'", "too short"),
        ("[serve]\ninterval = 'soon'", "line 2: `soon` is not a time"),
        ("[[metric]]\nname = 'a'\nquery = 'x'\nevery = '1 week'", "line 4: `1 week` is not a time"),
        ("[[metric]]\nname = 'Bad Name'\nquery = 'SELECT 1'", "small letters"),
        ("[[metric]]\nname = 'a'\nquery = ' '", "empty"),
        ("[[metric]]\nname = 'a'\nquery = 'x'\nservers = ['nosuch']", "nosuch"),
        ("= =", "not TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_said(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    done = run("serve", "--config", str(file), "--history", str(tmp_path / "h"))
    assert done.returncode == 2, done.stderr
    assert said in done.stderr


def test_a_server_that_is_restarted_comes_back_with_a_gap(tmp_path: Path) -> None:
    settings = {"shared_buffers": "16MB"}
    with Cluster.create(None, settings) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_buffercache")
        conninfo = cluster.conninfo()
        config = tmp_path / "serve.toml"
        config.write_text(f"[[server]]\nname = 'one'\nconninfo = {json.dumps(conninfo)}\n")
        with serving(tmp_path / "h", options=("--config", str(config))) as served:
            served.wait_for("/servers/one/series.json", lambda s: len(s["at"]) >= 2)
            cluster.stop(immediately=True)
            served.wait_for("/servers/one/summary.json", lambda s: s["state"] == "down")
            cluster.start()
            served.wait_for("/servers/one/summary.json", lambda s: s["hit_ratio"] is not None)
            gaps = served.wait_for("/servers/one/series.json", lambda s: s["gaps"])["gaps"]
            assert gaps[0]["end"] > gaps[0]["begin"]
            # Killed, and started again: what was written is there, and it goes on.
            before = served.json("/servers/one/series.json")["at"]
            served.process.send_signal(signal.SIGKILL)
            served.process.wait()
        with serving(tmp_path / "h", options=("--config", str(config))) as served:
            found = served.wait_for(
                "/servers/one/series.json", lambda s: s["at"] and s["at"][-1] > before[-1]
            )
            assert set(before) <= set(found["at"])
            assert served.stop() == 0


def test_without_its_packages_it_says_how_to_get_them(tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ImportError('no', name='uvicorn')")
    done = subprocess.run(
        [PGSWEEP, "serve", GONE, "--history", str(tmp_path / "h")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 4
    assert "pip install 'pgsweep[serve]'" in done.stderr
