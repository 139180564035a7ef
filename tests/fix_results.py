"""Results built by hand, with round numbers, to check how they are shown."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pgsweep.lab.store import Header
from pgsweep.records.cache import CacheRelation, CacheResult, PoolState
from pgsweep.records.common import Provenance
from pgsweep.records.doctor import Ability, DoctorHost, DoctorResult, DoctorServer
from pgsweep.records.lab import (
    LabAllResult,
    LabCell,
    LabClaim,
    LabCompareResult,
    LabControl,
    LabDifference,
    LabExperiment,
    LabListed,
    LabListResult,
    LabPlot,
    LabResult,
    LabSkipped,
)
from pgsweep.records.load import (
    LoadChoice,
    LoadCompareResult,
    LoadEstimate,
    LoadFile,
    LoadObject,
    LoadOutcome,
    LoadPlan,
    LoadPractice,
    LoadResult,
    LoadStep,
)
from pgsweep.records.prediction import CurvePoint, Level, Observed, PredictResult, RecordResult, Verdict
from pgsweep.records.proof import DemoResult, DemoRow, DemoWorkload, Interval, ProveResult, ProveRow
from pgsweep.records.reasons import evidence
from pgsweep.records.rollup import merged
from pgsweep.ui.kit.section import Section
from pgsweep.ui.kit.table import Cell

MB = 1024 * 1024


def provenance() -> Provenance:
    return Provenance(
        pgsweep_version="0.1.0",
        native_build="release",
        created_at="2024-05-06T07:08:09Z",
        command="pgsweep predict shop.evidence",
        kernel="Linux 6.1.0",
        architecture="x86_64",
        cpus=2,
        memory_bytes=8 * 1024 * MB,
        python_version="3.11.7",
    )


def predict_result(*, level: Level = "reliable", source: str = "sql") -> PredictResult:
    ratios = {16: 0.25, 32: 0.20, 64: 0.15, 128: 0.10, 256: 0.05, 512: 0.0125}
    return PredictResult(
        source=source,
        observed=Observed(shared_buffers_bytes=64 * MB, miss_ratio=0.15, accesses=3_000_000, seconds=30.0),
        points=[
            CurvePoint(shared_buffers_bytes=size * MB, miss_ratio=r, low=r * 0.96, high=r * 1.04)
            for size, r in ratios.items()
            if level != "refused"
        ],
        verdict=Verdict(
            level=level, reasons=[evidence("the first half of the time had 3% more misses than the second")]
        ),
        provenance=provenance(),
    )


def demo_result() -> DemoResult:
    rows = [
        DemoRow(
            shared_buffers_bytes=size * MB,
            measured_miss_ratio=truth,
            trace=Interval(miss_ratio=truth + 0.001, low=truth - 0.002, high=truth + 0.004),
            snapshots=Interval(miss_ratio=truth - 0.004, low=truth - 0.008, high=truth + miss),
            measured_standard_error=0.0005,
            measured_settled=size < 256,
        )
        for size, truth, miss in ((16, 0.25, 0.001), (64, 0.15, 0.001), (256, 0.05, -0.001))
    ]
    workload = DemoWorkload(
        name="mix <&> more",
        title="reads of two kinds",
        trace_verdict=Verdict(level="rough", reasons=[evidence("the trace is short")]),
        observed_shared_buffers_bytes=64 * MB,
        rows=rows,
        trace_mean_abs_error=0.001,
        trace_max_abs_error=0.001,
        snapshots_mean_abs_error=0.004,
        snapshots_max_abs_error=0.004,
    )
    without_trace = DemoWorkload(
        name="zipf",
        observed_shared_buffers_bytes=64 * MB,
        rows=[
            DemoRow(
                shared_buffers_bytes=row.shared_buffers_bytes,
                measured_miss_ratio=row.measured_miss_ratio,
                trace=None,
                snapshots=row.snapshots,
            )
            for row in rows
        ],
        trace_mean_abs_error=None,
        trace_max_abs_error=None,
        snapshots_mean_abs_error=0.004,
        snapshots_max_abs_error=0.004,
    )
    return DemoResult(
        server_version="18.1",
        database_bytes=750 * MB,
        machine="2 CPUs, 8 GB",
        seconds=200.0,
        notes=["no trace of zipf: not root"],
        workloads=[workload, without_trace],
        provenance=provenance(),
    )


def prove_result() -> ProveResult:
    rows = [
        ProveRow(
            shared_buffers_bytes=size * MB,
            measured_miss_ratio=truth,
            simulated_miss_ratio=truth + 2**-13,
            predicted=Interval(miss_ratio=truth - 0.004, low=truth - 0.008, high=truth + miss),
            accesses=800_000,
        )
        for size, truth, miss in ((16, 0.25, 0.001), (64, 0.15, 0.001), (256, 0.05, -0.001))
    ]
    return ProveResult(
        evidence="shop <&>.evidence",
        server_version="18.1",
        machine="2 CPUs, 8 GB",
        seconds=30.0,
        notes=["the first 1,000,000 of 2,000,000 accesses were replayed"],
        rows=rows,
        mean_abs_error=0.004,
        max_abs_error=0.004,
        simulator_max_abs_error=0.0001,
        within_interval_ratio=2 / 3,
        observed_shared_buffers_bytes=64 * MB,
        verdict=Verdict(level="reliable", reasons=[evidence("the trace is short")]),
        provenance=provenance(),
    )


def record_result() -> RecordResult:
    return RecordResult(
        path="shop.evidence",
        source="trace",
        seconds=40.0,
        shared_buffers_bytes=64 * MB,
        snapshots=0,
        accesses=1_234_567,
        lost_events=0,
        bytes_written=5 * MB,
        ended_by="time",
        expected_overhead_ratio=0.25,
        measured_overhead_ratio=0.21,
        warnings=["the server was restarted"],
    )


def doctor_result() -> DoctorResult:
    def ability(
        name: str,
        area: str,
        available: bool | None,
        why: str,
        enable: str | None = None,
        needed_for: str = "",
    ) -> Ability:
        return Ability(
            name=name,
            area=area,
            available=available,
            why=why,
            enable=enable,
            needed_for=needed_for.split(", ") if needed_for else [],
        )

    psql = "psql -h db1 -p 5432 -U postgres -d shop -c"
    return DoctorResult(
        target="database shop at db1, port 5432",
        server=DoctorServer(
            version="17.4",
            version_num=170004,
            database="shop",
            role="me",
            superuser=False,
            in_recovery=False,
            shared_buffers_bytes=4096 * MB,
            relations=1234,
            databases=3,
        ),
        host=DoctorHost(
            user="me",
            machine="2 CPUs, 8 GB",
            memory_bytes=8192 * MB,
            huge_pages_total=0,
            huge_pages_free=0,
            huge_page_bytes=2 * MB,
            postmaster_pid=None,
            memory_limit_bytes=None,
            memory_limit_used_bytes=None,
        ),
        abilities=[
            ability("connection", "server", True, "as role me, by TCP", None, "record, cache"),
            ability(
                "pg_buffercache",
                "server",
                False,
                "the extension pg_buffercache does not exist in database `shop`",
                f"{psql} 'CREATE EXTENSION pg_buffercache'",
                "record --source sql, cache",
            ),
            ability(
                "track_io_timing",
                "server",
                False,
                "track_io_timing is off",
                "in the DB cluster parameter group: aws rds modify-db-cluster-parameter-group "
                "--db-cluster-parameter-group-name GROUP --parameters "
                "ParameterName=track_io_timing,ParameterValue=1,ApplyMethod=immediate",
            ),
            ability("databases", "server", True, "the role may connect to all 3"),
            ability(
                "same_host",
                "host",
                None,
                "it may be one of the servers here (process 99), whose memory user me may not read",
                "sudo pgsweep doctor -h db1 -p 5432 -U me -d shop",
                "record --source trace",
            ),
            ability("peek", "host", False, "user me may not look into <the server's> process"),
        ],
        provenance=provenance(),
    )


def cache_relation(name: str, *, schema: str = "public", kind: str = "table") -> CacheRelation:
    return CacheRelation(
        database="shop",
        schema=schema,
        relation=name,
        kind=kind,
        size_bytes=123 * MB,
        shared_buffers_bytes=12 * MB,
        page_cache_bytes=111 * MB,
        both_bytes=11 * MB,
        neither_bytes=12 * MB,
        dirty_bytes=3 * MB,
        pinned_bytes=8192,
        usage_counts=[100, 200, 300, 400, 500, 36],
        table_schema=schema,
        table=name,
    )


def cache_result(relations: list[CacheRelation] | None = None) -> CacheResult:
    rows = relations or [
        cache_relation("customer_orders_2024_partition_by_region_europe"),
        cache_relation("customer_orders_2024_partition_by_region_europe_pkey", kind="index"),
        cache_relation("some_other_relation_name", schema="reporting_and_analysis"),
    ]
    return CacheResult(
        server_version="18.1",
        database="shop",
        block_size_bytes=8192,
        by="relation",
        pool_source="peek",
        page_cache_method="cachestat",
        at="2024-05-06T07:08:09+00:00",
        seconds=0.1,
        pool=PoolState(
            size_bytes=64 * MB,
            used_bytes=36 * MB,
            unused_bytes=28 * MB,
            dirty_bytes=9 * MB,
            pinned_bytes=8192,
            usage_counts=[300, 600, 900, 1200, 1500, 108],
        ),
        total=merged(rows, relation="total", kind="total"),
        relations=rows,
        provenance=provenance(),
    )


def load_result() -> LoadResult:
    plan = LoadPlan(
        table="public.orders",
        kind="table",
        persistence="logged",
        rows=1_000_000,
        table_bytes=100 << 20,
        index_bytes=40 << 20,
        partitions=0,
        published=True,
        replication_slots=1,
        wal_level="logical",
        columns=["id", "code"],
        format="csv",
        files=[LoadFile(path="/data/orders.csv", size_bytes=1 << 30)],
        objects=[
            LoadObject(
                kind="index",
                name="orders_code",
                definition="CREATE INDEX orders_code ON public.orders USING btree (code)",
                action="drop and make again",
                reason="a build sorts once",
                size_bytes=40 << 20,
            )
        ],
        referenced_by=["public.lines.lines_order"],
        strategy="pieces",
        jobs=2,
        freeze=False,
        maintenance_work_mem_bytes=1 << 30,
        piece_bytes=8 << 20,
        choices=[LoadChoice(what="sessions", choice="2", reason="as asked")],
        given_up=["other sessions see the rows piece by piece"],
        estimate=LoadEstimate(
            records=10, bytes=1 << 30, seconds=20.0, wal_bytes=1 << 30, certainty="assumed"
        ),
        notes=["quotes within unquoted fields"],
    )
    outcome = LoadOutcome(
        ended="loaded",
        load_id="7f0c",
        rows=10_000_000,
        copied_rows=4_000_000,
        rejected=3,
        copied_bytes=1 << 30,
        seconds=30.5,
        wal_bytes=3 << 30,
        jobs=2,
        resumed=True,
        unchanged=True,
        steps=[LoadStep(what="copying", seconds=12.0)],
        rejects_file="/data/bad.csv",
    )
    return LoadResult(server_version="18.6", database="shop", plan=plan, outcome=outcome)


def load_compare_result() -> LoadCompareResult:
    return LoadCompareResult(
        server_version="18.6",
        database="shop",
        table="public.orders",
        sample_rows=1000,
        sample_bytes=100_000,
        rounds=3,
        practices=[
            LoadPractice(
                practice="COPY", rows=1000, seconds=[0.1, 0.2, 0.3], rows_per_second=5000.0, ratio_to_copy=1.0
            )
        ],
        left_out=["triggers disabled: there are none on INSERT"],
    )


def lab_cell(key: str, runs: list[float]) -> LabCell:
    median = sorted(runs)[len(runs) // 2] if runs else None
    return LabCell(
        key=key, factors={"workload": key}, unit="transactions/s", better="higher", runs=runs, median=median
    )


def lab_result(cells: Mapping[str, list[float]] | None = None, *, experiment: bool = False) -> LabResult:
    cells = cells or {"a": [100.0, 101.0, 99.0, 100.0, 102.0], "b": []}
    claim = LabClaim(
        text="a is large",
        over="a",
        under="",
        expected="at least 50",
        published=90.0,
        here=100.0,
        low=99.0,
        high=102.0,
        verdict="holds",
    )
    outcome = LabExperiment(
        number=1,
        question="Is a large?",
        published_on="PostgreSQL 10",
        scale=10.0,
        model="sizes divided by 10",
        claims=[claim],
        verdict="holds",
    )
    return LabResult(
        server_version="18.1",
        name="grid",
        machine="EPYC, 2 CPUs, 8 GB, Linux 6.1.0",
        seed=1,
        repetitions=5,
        runs_done=10,
        runs_planned=10,
        conditions={"scale": "1"},
        settings={},
        cells=[lab_cell(key, [float(run) for run in runs]) for key, runs in cells.items()],
        setup_seconds=10.0,
        measure_seconds=50.0,
        overhead_seconds=1.0,
        overhead_ratio=0.02,
        noise_ratio=0.03,
        samples="grid.samples.jsonl",
        experiment=outcome if experiment else None,
        notes=["busy: the load average was above 2 before 10 of 10 runs, at most 5"],
        provenance=provenance(),
    )


def lab_all_result() -> LabAllResult:
    result = lab_result(experiment=True)
    assert result.experiment is not None
    plot = LabPlot(kind="bars", title="how large", x="workload")
    control = LabControl(
        what="disk", runs=9, median_seconds=0.01, low_seconds=0.009, high_seconds=0.02, spread_ratio=1.1
    )
    shown = msgspec.structs.replace(
        result, experiment=msgspec.structs.replace(result.experiment, plots=[plot]), controls=[control]
    )
    skipped = LabSkipped(number=2, name="tpcb", question="How fast?", why="no memory cgroup can be made here")
    return LabAllResult(
        server_version="18.1",
        machine="EPYC, 2 CPUs",
        results=[shown],
        skipped=[skipped],
        seconds=61.0,
        samples="lab.samples",
        provenance=provenance(),
    )


def lab_compare_result() -> LabCompareResult:
    cell = LabDifference(
        key="a",
        unit="transactions/s",
        better="higher",
        first_median=100.0,
        second_median=120.0,
        first_runs=5,
        second_runs=5,
        ratio=1.2,
        low=1.1,
        high=1.3,
        verdict="higher",
    )
    return LabCompareResult(
        name="grid",
        first="before.json",
        second="after.json",
        cells=[cell],
        differs={"jit": ["default", "off"]},
        left_out=["only in before.json: b"],
        warnings=["the machines differ: a difference may be theirs"],
        provenance=provenance(),
    )


def lab_list_result() -> LabListResult:
    listed = LabListed(
        number=1,
        name="residency",
        question="Who is in which cache?",
        scale=10.0,
        seconds=240.0,
        needs=["memory cgroup"],
        state="not here",
        why="no memory cgroup can be made here: run as root",
    )
    return LabListResult(experiments=[listed], provenance=provenance())


def lab_header() -> Header:
    return Header(
        name="grid",
        plan="0" * 64,
        seed=1,
        repetitions=2,
        conditions={},
        settings={},
        server_version="18.1",
        machine="EPYC",
        pgsweep_version="0.1.0",
        command="pgsweep lab run grid.toml",
        at="2024-05-06T07:08:09Z",
    )


def heads_of(section: Section) -> list[str]:
    """Return the headers of the table of a page's section."""
    return [] if section.table is None else [column.title for column in section.table.shown]


def cells_of(section: Section) -> list[list[Cell]]:
    """Return the cells of the table of a page's section, by row."""
    return [] if section.table is None else section.table.cells
