"""The history in a PostgreSQL: a database that goes away, one of somebody else, and what pages show."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.errors import MissingAbility, PgsweepError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.serve import history as module
from pgsweep.serve.history import History, Sample, postgres_store
from pgsweep.serve.history_reads import read_series
from tests.fix_cli import run
from tests.fix_process import busyness, wait_until
from tests.fix_serve import emptied, rows_of, serving

VALUES = {"covered_seconds": 10.0, "hits": 1.0}


@contextmanager
def away(cluster: Cluster) -> Iterator[None]:
    """Have the database of the history refuse all sessions until the block ends."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute("ALTER DATABASE watching ALLOW_CONNECTIONS false")
        try:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = 'watching'"
            )
            yield
        finally:
            connection.execute("ALTER DATABASE watching ALLOW_CONNECTIONS true")


def until_it_holds(there: Callable[[], bool], again: Callable[[], None]) -> None:
    """Do something again and again until the condition holds."""

    def holds() -> bool:
        if not there():
            again()
            return False
        return True

    wait_until(holds)


def test_a_database_that_is_away_delays_nothing_and_leaves_a_gap(
    wheel18: Cluster, watching: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WAITING", 50)
    store = emptied(watching)
    now = int(time.time()) - 1000
    kept = History(store, most_bytes=1 << 30)
    kept.start()
    kept.add(Sample("s", now, VALUES))
    wait_until(lambda: rows_of(store, "SELECT at FROM main.samples WHERE level = 10") == [(now,)])
    with away(wheel18):
        for n in range(100):
            kept.add(Sample("s", now + 10 + n, VALUES))
        # Until then the database may be back before more waits than is held, and all is written.
        until_it_holds(
            lambda: any(begin < end for begin, end in tuple(kept._state.lost.values())),
            lambda: kept.add(Sample("s", now + 200, VALUES)),
        )
        assert kept.trouble is not None
        assert "not written" in kept.trouble
        with pytest.raises(PgsweepError):
            rows_of(store, "SELECT 1")
        begin = time.monotonic()
        with pytest.raises(PgsweepError):
            rows_of(store, "SELECT 1")
        assert time.monotonic() - begin < 1 * busyness(), "readers do not wait for it again"
    until_it_holds(lambda: kept.trouble is None, lambda: kept.add(Sample("s", now + 300, VALUES)))
    kept.stop()
    monkeypatch.setattr(store, "_away", None)
    found = read_series(store, "s", now - 10, now + 1000)
    assert {now, now + 300} <= set(found.at)
    [gap] = found.gaps
    assert "not written" in gap.why
    assert now + 10 <= gap.begin < gap.end <= now + 200
    store.close()


def test_it_begins_while_its_database_is_away(wheel18: Cluster, watching: str) -> None:
    store = emptied(watching)
    with away(wheel18):
        kept = History(store, most_bytes=1 << 30)
        assert kept.trouble is not None
        kept.start()
    until_it_holds(lambda: kept.trouble is None, lambda: kept.add(Sample("s", time.time(), VALUES)))
    kept.stop()


def test_of_two_that_write_one_rolls_up(watching: str) -> None:
    first, second = emptied(watching), postgres_store(watching)
    first.open()
    assert first.is_keeper()
    assert not second.is_keeper()
    with second.writing() as session:
        module.id_of(session, "shop")
    with first.writing() as session:
        assert module.id_of(session, "shop") == module.id_of(session, "shop")
    first.close()
    wait_until(second.is_keeper)
    second.close()


def test_names_of_any_kind_are_kept(watching: str) -> None:
    store = emptied(watching)
    name = "a\0b\udcff <'%s?> main.x"
    with store.writing() as session:
        number = module.id_of(session, name)
    assert rows_of(store, "SELECT id, name FROM main.servers") == [(number, "ab\\udcff <'%s?> main.x")]
    store.close()


@pytest.mark.parametrize("case", ["strange", "powerless", "encoding", "newer"])
def test_what_cannot_be_used_is_refused(wheel18: Cluster, watching: str, case: str) -> None:
    """A schema of somebody else's would run their triggers with our rights."""
    emptied(watching)
    conninfo, words = watching, ""
    with psycopg.connect(watching, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {case}_role LOGIN".encode())
        if case == "strange":
            connection.execute("CREATE SCHEMA pgsweep_history AUTHORIZATION strange_role")
            words = "belongs to another role"
        elif case == "powerless":
            conninfo = make_conninfo(watching, user="powerless_role")
            words = "permission denied"
        elif case == "encoding":
            connection.execute(
                "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
            )
            conninfo = wheel18.conninfo("latin")
            words = "cannot be kept"
        else:
            with closing(postgres_store(watching)) as made:
                made.open()
            connection.execute("INSERT INTO pgsweep_history.format VALUES (99)")
            words = "newer pgsweep"
        with pytest.raises(PgsweepError, match=words) as caught:
            History(postgres_store(conninfo), most_bytes=1 << 30)
        assert caught.value.hint
        if case in ("powerless", "encoding"):
            assert f"psql -h {wheel18.socket_directory} -p 5432 -U postgres -d " in caught.value.hint
            assert " -c 'CREATE " in caught.value.hint or ' -c "CREATE ' in caught.value.hint
        assert case == "newer" or isinstance(caught.value, MissingAbility)


def test_pages_live_while_the_history_is_away(wheel18: Cluster, watching: str, tmp_path: Path) -> None:
    emptied(watching)
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
        connection.execute("CREATE ROLE keeping LOGIN PASSWORD 'very-secret-word'")
        connection.execute("GRANT CREATE ON DATABASE watching TO keeping")
    config = tmp_path / "serve.toml"
    config.write_text(f"[[server]]\nname = 'one'\nconninfo = \"{wheel18.conninfo()}\"\n")
    place = make_conninfo(watching, user="keeping", password="very-secret-word")
    options = ("--config", str(config))
    pages = ("/", "/servers/one", "/servers/one/consumers", "/metrics")
    series = "/servers/one/series.json"
    with serving(tmp_path, options=options, history=place) as served:
        served.wait_for(series, lambda s: len(s["at"]) >= 2)
        assert (tmp_path / "pgsweep/serve/evidence/one").is_dir()
        shown = ""
        with away(wheel18):
            found = served.wait_for("/overview.json", lambda o: o["history_trouble"] is not None)
            assert found["servers"][0]["state"] == "up"
            for path in pages:
                status, _, text = served.ask(path)
                assert status == 200, text
                shown += text
            assert "Nothing is shown:" in shown
            assert "What other sizes would have saved is not known:" in shown
            assert "no hour of the chosen time" not in shown, "what cannot be read is not missing"
            assert "pgsweep_history_failed 1.0" in shown
            status, _, text = served.ask(series)
            assert status == 503
            shown += text
            curves = served.json("/servers/one/curves.json")
            assert curves["trouble"]
            shown += str(served.json("/servers/one/advice.json"))
        served.wait_for("/overview.json", lambda o: o["history_trouble"] is None)
        assert served.wait_for("/servers/one/curves.json", lambda c: c["trouble"] is None)
        assert "very-secret-word" not in shown
        assert served.stop() == 0
    done = run("serve", "--history", place, "--export", str(tmp_path / "all.parquet"))
    assert done.returncode == 0, done.stderr
    assert "rows in" in done.stderr
    assert (tmp_path / "all-consumers.parquet").exists()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_two_do_not_write_the_history_of_one_server(
    wheel18: Cluster, watching: str, tmp_path: Path, killed: bool
) -> None:
    emptied(watching).close()
    conninfo = wheel18.conninfo()
    with serving(tmp_path / "a", conninfo, history=watching) as first:
        environment = {"XDG_STATE_HOME": str(tmp_path / "b"), "STATE_DIRECTORY": "", "PGSWEEP_CONFIG": ""}
        words = ("serve", conninfo, "--listen", "127.0.0.1:0", "--history", watching)
        done = run(*words, env=environment, timeout_seconds=40)
        assert done.returncode == 1
        assert "another `pgsweep serve` writes the history of `" in done.stderr
        said = " ".join(done.stderr.split())
        [ends] = re.findall(r"psql (-h [^;]*) -c .SELECT pg_terminate_backend", said)
        assert ends.endswith("-d watching"), "on the server of the history, not on the one that is watched"
        # One of another name shares the database.
        (tmp_path / "serve.toml").write_text(f'[[server]]\nname = "other"\nconninfo = "{conninfo}"\n')
        named = ("--config", str(tmp_path / "serve.toml"))
        with serving(tmp_path / "c", options=named, history=watching) as other:
            other.wait_for("/servers/other/series.json", lambda found: found["at"])
        first.process.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
        first.process.wait(20)
        with serving(tmp_path / "a", conninfo, history=watching) as again:
            assert again.ask("/healthz")[0] == 200


def test_a_claim_is_taken_again_after_a_session_was_lost(wheel18: Cluster, watching: str) -> None:
    emptied(watching).close()
    first, second = postgres_store(watching, ["shop"]), postgres_store(watching, ["shop"])
    first.open()
    with pytest.raises(PgsweepError, match="writes the history of `shop`"):
        second.open()
    with away(wheel18), pytest.raises(PgsweepError), first.writing():
        pass  # its session has gone, and the claim with it
    first.open()
    with pytest.raises(PgsweepError, match="writes the history of `shop`"):
        second.open()
    first.close()
    second.open()
    second.close()
