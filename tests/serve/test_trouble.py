"""`pgsweep serve` when things go wrong: a port in use, a wrong DSN, 100,000 relations.

What else may: a role without rights, a relation that is dropped, an upgrade (test_serve_broken.py); a clock
that jumps, a full disk, kill -9 (test_serve_history.py); a restart (test_serve.py).
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from pgsweep.cache.top.directory import Directory
from pgsweep.cache.top.sample import CacheSample
from pgsweep.pg.catalog.counting import Reading
from pgsweep.pg.catalog.server import Relation
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.cache import PoolState
from pgsweep.records.top import TopBackends, TopSample, TopView
from pgsweep.residency.names import Named, Names
from pgsweep.serve.board import Board
from pgsweep.serve.config import ServeConfig, ServerConfig
from pgsweep.serve.metrics import exposed
from tests.fix_cli import run
from tests.fix_process import NOBODY, needs_root
from tests.fix_serve import serving

MANY = 100_000


def test_a_port_in_use_is_said_with_a_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("serve", "--listen", address, "--history", str(tmp_path), "host=127.0.0.1 port=1")
    assert done.returncode == 2
    assert f"cannot listen at {address}" in done.stderr
    assert "--listen 127.0.0.1:0" in done.stderr


@pytest.mark.parametrize(
    "dsn", ["host=db1 password=very-secret nonsense", "postgresql://u:very-secret@db1:x/shop", "nosuch=1"]
)
def test_a_dsn_that_is_none_is_refused_at_once(tmp_path: Path, dsn: str) -> None:
    """Before anything is started, and without its password."""
    done = run("serve", "--listen", "127.0.0.1:0", "--history", str(tmp_path / "h"), dsn)
    assert done.returncode == 2, done.stderr
    assert "very-secret" not in done.stderr
    assert not (tmp_path / "h").exists()


def test_a_dsn_that_names_no_database_or_role_of_the_server_is_said(wheel18: Cluster, tmp_path: Path) -> None:
    """It is shown as down with PostgreSQL's reason, and tried again; the one beside it is not delayed."""
    wrong = wheel18.conninfo("nosuchdb")
    with serving(tmp_path, wrong, wheel18.conninfo()) as served:
        found = served.wait_for(
            "/overview.json", lambda o: {s["state"] for s in o["servers"]} == {"down", "up"}
        )
        [down] = [server for server in found["servers"] if server["state"] == "down"]
        assert 'database "nosuchdb" does not exist' in down["failure"]["message"]
        assert served.ask(f"/servers/{down['key']}")[0] == 200


def test_100_000_relations_make_no_long_page_and_no_slow_one(tmp_path: Path) -> None:
    """As arrays; benchmarks/serve has a server with 20,000. Tables and metrics name the first ones alone."""
    sample = of_many()
    server = ServerConfig(key="one", name="one", conninfo="")
    config = ServeConfig(servers=[server], host="", port=1, history=tmp_path, evidence=tmp_path)
    board = Board(config, ["here"], lambda: None)
    board.changed("one", "sample", lambda watched: setattr(watched, "sample", sample))
    begin = time.process_time()
    found = board.sample("one", TopView(sort="pool", limit=50, fold=True))
    assert found is not None
    assert (found.relations_found, len(found.relations)) == (MANY, 50)
    assert found.relations[0].shared_buffers_bytes == 3 * 8192
    named = board.sample("one", TopView(sort="pool", limit=50, filter="t99999"))
    assert named is not None
    assert [relation.relation for relation in named.relations] == ["t99999"]
    lines = exposed(board, [], 20).decode().splitlines()
    assert sum(line.startswith("pgsweep_relation_pool_bytes{") for line in lines) == 21
    assert time.process_time() - begin < 5, "of processor time; half a second on an idle machine"


def of_many() -> CacheSample:
    """A sample in which each of many relations has one to three buffers."""
    relations = [
        Relation(
            oid=20_000 + n, schema="public", name=f"t{n}", kind="r", database_oid=5, tablespace_oid=1663,
            filenode=20_000 + n, table_oid=20_000 + n, main_blocks=3, fsm_blocks=0, vm_blocks=0,
            measured=True,
        )
        for n in range(MANY)
    ]  # fmt: skip
    table = ("public", "t")
    names = Names(
        {0: "", 5: "shop"}, {(1663, 5, r.filenode): Named("shop", r, table, table) for r in relations}, {0, 5}
    )
    rows = Directory(names).rows
    usage = np.zeros((MANY, 6), dtype=np.int64)
    usage[:, 5] = np.arange(MANY) % 3 + 1
    none = np.zeros(MANY, dtype=np.int64)
    head = TopSample(
        server_version="18.0", database="shop", block_size_bytes=8192, pool_source="peek", at="",
        look_seconds=0.1, backend_share=0.0, interval_seconds=10.0, held_back=False,
        pool=PoolState(
            size_bytes=1 << 31, used_bytes=int(usage.sum()) * 8192, unused_bytes=0, dirty_bytes=0,
            pinned_bytes=0, usage_counts=usage.sum(axis=0).tolist(),
        ),
        page_cache=None, rates=None, relations=[], relations_found=0, missing=[],
        backends=TopBackends(
            total=1, active=1, idle=0, idle_in_transaction=0, hidden=0, max_connections=100, waits=[]
        ),
    )  # fmt: skip
    reading = Reading(at=1.0, hits=1, reads=1, transactions=1, allocations=1, evictions=1, hand_buffers=None)
    return CacheSample(head, rows, usage, none, none, None, None, 1.0, reading)


@needs_root
def test_root_writes_no_history_through_links_in_the_home_of_another(tmp_path: Path) -> None:
    folder = tmp_path / "home" / ".local" / "state" / "pgsweep" / "serve"
    folder.mkdir(parents=True)
    target = tmp_path / "made by root"
    (folder / "history.sqlite").symlink_to(target)
    for path in (folder, *list(folder.parents)[:4]):
        os.chown(path, *NOBODY)
    env = {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": "", "STATE_DIRECTORY": ""}
    done = run("serve", "host=/nowhere", "--listen", "127.0.0.1:0", env=env)
    assert done.returncode == 1
    assert "cannot be trusted" in done.stderr
    assert not target.exists()
