"""The load of the benchmark of `advise`: its sessions, their processors, and its end."""

from __future__ import annotations

import os

import psycopg
import pytest

from benchmarks.advise.workloads import CLIENTS, DRIFT, LOOP, PROGRAMS, SCAN, Load
from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.pgbench import DATABASE, create_database, prepare
from pgsweep.testbed.workloads import Workload
from tests.fix_process import wait_until

SESSIONS = "SELECT pid, application_name FROM pg_stat_activity WHERE application_name LIKE 'pgbench %'"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to bind the server's processes")
def test_a_program_and_its_backends_share_a_processor() -> None:
    with Cluster.create(None, {"shared_buffers": "32MB", "autovacuum": "off"}) as cluster:
        create_database(cluster, 2)
        prepare(cluster, SCAN)
        for workload in (LOOP, DRIFT, SCAN):
            runs_bound(cluster, workload)


def runs_bound(cluster: Cluster, workload: Workload) -> None:
    with psycopg.connect(cluster.conninfo(DATABASE), autocommit=True) as connection:
        with Load(cluster, workload, 2, seed=1) as load:
            sessions = connection.execute(SESSIONS).fetchall()
            assert (len(load.processes), len(sessions)) == (PROGRAMS, CLIENTS)
            for number, process in enumerate(load.processes):
                own = [pid for pid, name in sessions if name == f"pgbench {number}"]
                assert len(own) == CLIENTS // PROGRAMS
                places = {tuple(os.sched_getaffinity(pid)) for pid in (process.pid, *own)}
                assert len(places) == 1 and len(places.pop()) == 1
            wait_until(lambda: len(load.transactions_by_second()) >= 2)
            assert min(load.transactions_by_second()) > 0
        assert all(process.poll() is not None for process in load.processes)
        # A backend ends some time after its client left.
        wait_until(lambda: not connection.execute(SESSIONS).fetchall())
