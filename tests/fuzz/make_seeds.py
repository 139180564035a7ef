"""Write seeds/: `python -m tests.fuzz.make_seeds`. What it writes is committed; findings lie beside it.

Small and made by hand, so that a run takes milliseconds: a pool of 64 buffers, three relations.
"""

from __future__ import annotations

import gzip
import subprocess
import tempfile
import threading
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psycopg
import pyarrow as pa

from pgsweep.evidence.oracle_general import RECORD
from pgsweep.evidence.schema import TABLES
from pgsweep.evidence.script import record_script
from pgsweep.evidence.store import EvidenceMeta, EvidenceWriter
from pgsweep.pg.private.cluster import Cluster
from pgsweep.ui.kit.report import to_html
from pgsweep.ui.kit.view import Result
from pgsweep.ui.results import MODULES, view_of
from pgsweep.warm.heat.file import NOT_IN_POOL, HeatMeta, HeatPart, SavedHeat, write_heat
from tests.fix_results import demo_result, doctor_result, predict_result, prove_result, record_result
from tests.fuzz.bombs import evidence_bombs, gathered_bombs, heat_bombs, oracle_bombs, result_bombs
from tests.fuzz.mutate import pack
from tests.fuzz.targets import PACKED, SEEDS

POOL = 64
SNAPSHOTS = 12
FILES = ((1663, 5, 16384), (1663, 5, 16385), (1663, 5, 16386))
BLOCKS = (200, 40, 10)


def relations() -> dict[str, Any]:
    names, kinds = ["accounts", "accounts_pkey", "branches"], ["r", "i", "r"]
    rows: dict[str, list[Any]] = {name: [] for name in TABLES["relations"]}
    for (spc, db, rel), blocks, name, kind in zip(FILES, BLOCKS, names, kinds, strict=True):
        values = {
            "db": db, "database": "bench", "schema": "public", "name": name, "kind": kind, "oid": rel,
            "spc": spc, "rel": rel, "table_oid": 16384, "blocks_begin": blocks, "blocks_end": blocks,
            "fsm_blocks": 3, "vm_blocks": 1, "tuples_per_block": 60.0,
        }  # fmt: skip
        for column, value in values.items():
            rows[column].append(value)
    return rows


def evidence_meta(source: str) -> EvidenceMeta:
    return EvidenceMeta(
        pgsweep_version="0.1.0",
        source=source,
        started_at="2024-05-06T07:08:09.123+00:00",
        seconds=60.0,
        server_version_num=180000,
        server_version="18.0",
        shared_buffers_blocks=POOL,
        settings={"max_connections": "100", "io_combine_limit": "16", "vacuum_buffer_usage_limit": "2048"},
        database="bench",
        database_oid=5,
        host={"recovery_pid": "77"} if source == "trace" else {},
        sampling={"seed": 1.0},
        overhead={"measured_share": 0.01},
        complete=True,
    )


def _write(path: Path, meta: EvidenceMeta, tables: dict[str, Any]) -> bytes:
    with EvidenceWriter(path, meta) as writer:
        for name, columns in tables.items():
            (writer.replace if name == "relations" else writer.append)(name, columns)
        writer.close(meta)
    return pack(
        {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
    )


def snapshots(path: Path, source: str, *, used: int = POOL) -> bytes:
    """Snapshots of a pool that turns over twice from one to the next, or of one that is not full."""
    random = np.random.default_rng(1)
    taken: dict[str, list[Any]] = {name: [] for name in TABLES["snapshots"]}
    times: dict[str, list[Any]] = {name: [] for name in TABLES["snapshot_times"]}
    counted: dict[str, list[Any]] = {name: [] for name in TABLES["counters"]}

    def count(sample: int, seconds: float, scope: str, what: str, name: str, value: float) -> None:
        values = (sample, seconds, scope, what, name, value)
        for column, field in zip(TABLES["counters"], values, strict=True):
            counted[column].append(field)

    full = used >= POOL
    pages = np.concatenate([np.stack([np.full(n, f), np.arange(n)], 1) for f, n in enumerate(BLOCKS)])
    for number in range(SNAPSHOTS):
        at = 5.0 * number
        chosen = random.permutation(len(pages))[:used] if full else np.arange(used)
        for frame, (file, block) in enumerate(pages[chosen].tolist(), start=1):
            spc, db, rel = FILES[file]
            usage = int(random.integers(0, 6))
            values = (number, frame, spc, db, rel, 0, block, usage, False, False)
            for column, field in zip(TABLES["snapshots"], values, strict=True):
                taken[column].append(field)
        for column, field in zip(TABLES["snapshot_times"], (number, at, at + 0.01, used), strict=True):
            times[column].append(field)
        misses = 3.0 * POOL * number if full else 0.0
        count(number, at, "database", "bench", "blks_hit", 1000.0 * number)
        count(number, at, "database", "bench", "blks_read", 50.0 + misses)
        for _, _, rel in FILES:
            count(number, at, "relation", str(rel), "blks_hit", 300.0 * number)
            count(number, at, "relation", str(rel), "blks_read", misses / 3)
        if source == "peek":
            count(number, at, "pool", "", "hand_frames", 1000.0 + (2.0 * POOL * number if full else 0.0))
    tables = {"snapshots": taken, "snapshot_times": times, "counters": counted, "relations": relations()}
    return _write(path, evidence_meta(source), tables)


def trace(path: Path) -> bytes:
    random = np.random.default_rng(2)
    count = 2000
    file = random.integers(0, 3, count)
    columns = {
        "time_ns": np.sort(random.integers(0, 60 * 10**9, count)),
        "pid": random.integers(70, 80, count),
        "spc": np.full(count, 1663),
        "db": np.where(random.random(count) < 0.9, 5, 7),
        "rel": np.array([16384, 16385, 16386])[file],
        "fork": (random.random(count) < 0.02).astype(int),
        "block": (random.random(count) ** 3 * np.array(BLOCKS)[file]).astype(int),
        "kind": random.choice([0, 1, 2], count, p=[0.8, 0.19, 0.01]),
        "strategy": random.choice([0, 1, 2, 3], count, p=[0.9, 0.06, 0.02, 0.02]),
        "flags": random.choice([0, 1, 2], count),
        "scan": random.choice([0, 1, 2, 3], count, p=[0.9, 0.04, 0.03, 0.03]),
    }
    scans = {name: np.array([1, 2, 3]) for name in TABLES["scans"]}
    drops = {name: np.array([1]) for name in TABLES["drops"]}
    kinds = {table: TABLES[table] for table in ("accesses", "scans", "drops")}
    typed = {
        table: {name: np.asarray(column).astype(kinds[table][name]) for name, column in rows.items()}
        for table, rows in (("accesses", columns), ("scans", scans), ("drops", drops))
    }
    return _write(path, evidence_meta("trace"), {**typed, "relations": relations()})


def oracle(*, records: int = 400) -> bytes:
    random = np.random.default_rng(3)
    rows = np.zeros(records, dtype=RECORD)
    rows["time"] = np.sort(random.integers(0, 100, records))
    rows["object"] = random.integers(0, 100, records)
    rows["size"] = 4096
    rows["next"] = -1
    return rows.tobytes()


def heat(path: Path) -> bytes:
    random = np.random.default_rng(4)
    names = ["accounts", "accounts_pkey", "branches"]
    parts = [
        HeatPart(
            database="bench", schema="public", relation=name, kind="table", fork="main",
            table_schema="public", table="accounts", database_oid=5, tablespace_oid=1663, filenode=rel,
            size_blocks=blocks,
        )
        for (_, _, rel), blocks, name in zip(FILES, BLOCKS, names, strict=True)
    ]  # fmt: skip
    part = np.repeat(np.arange(3), BLOCKS).astype(np.int32)
    usage = random.choice([0, 1, 5, NOT_IN_POOL], len(part)).astype(np.uint8)
    page_cache = random.random(len(part)) < 0.5
    meta = HeatMeta(
        pgsweep_version="0.1.0", at="2024-05-06T07:08:09+00:00", server_version_num=180000,
        server_version="18.0", system_identifier="7300000000000000001", in_recovery=False,
        block_size_bytes=8192, shared_buffers_blocks=POOL, pool_source="peek", sees_page_cache=True,
        pool_blocks=int((usage != NOT_IN_POOL).sum()), page_cache_blocks=int(page_cache.sum()),
        nameless_blocks=0,
    )  # fmt: skip
    block = np.concatenate([np.arange(blocks) for blocks in BLOCKS]).astype(np.int64)
    write_heat(path, SavedHeat(meta, parts, part, block, usage, page_cache))
    return path.read_bytes()


def gathered(folder: Path) -> bytes:
    """What psql gathers of a small server, with few of its relations."""
    settings = {"shared_buffers": "1MB", "autovacuum": "off"}
    with Cluster.create(None, settings) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
            session.execute("CREATE TABLE accounts (id int PRIMARY KEY, filler text)")
            session.execute("INSERT INTO accounts SELECT g, repeat('x', 900) FROM generate_series(1, 4000) g")
            over = threading.Event()
            reading = threading.Thread(target=_read_accounts, args=(cluster.conninfo(), over))
            reading.start()
            script, output = folder / "gather.sql", folder / "shop.gathered"
            script.write_text(record_script(2, rng_seed=1), encoding="utf-8")
            psql: list[str | Path] = [
                cluster.bindir / "psql",
                "-X",
                "-d",
                cluster.conninfo(),
                "-f",
                script,
                "-o",
                output,
            ]
            subprocess.run(psql, check=True, capture_output=True)
            over.set()
            reading.join()
    return _few_relations(output.read_bytes())


def _read_accounts(conninfo: str, over: threading.Event) -> None:
    with psycopg.connect(conninfo, autocommit=True) as session:
        number = 0
        while not over.wait(0.002):
            number = (number * 7919 + 13) % 4000
            session.execute("SELECT length(filler) FROM accounts WHERE id = %s", (number,))


def _few_relations(text: bytes) -> bytes:
    """Return the file without the rows of the catalogs' relations, and with few settings."""
    lines = text.decode().splitlines()
    kept, names, settings = [], list[str](), 0
    for line in lines:
        cells = line.split("\t")
        if cells[0] == "tag":
            names = cells
        row = dict(zip(names, cells, strict=False))
        number = row.get("object" if cells[0] == "count_relation" else "oid", "")
        if cells[0] in {"relation", "size", "count_relation"} and number.isdecimal() and int(number) < 16384:
            continue
        settings += cells[0] == "setting"
        if cells[0] != "setting" or settings < 20:
            kept.append(line)
    return ("\n".join(kept) + "\n").encode()


def example(kind: msgspec.inspect.Type, name: str) -> Any:
    """Return a plain value of a type of a record, all lists with two elements."""
    inspect = msgspec.inspect
    match kind:
        case inspect.StructType():
            return {field.name: example(field.type, field.name) for field in kind.fields}
        case inspect.ListType() | inspect.VarTupleType():
            return [example(kind.item_type, name)] * 2
        case inspect.TupleType():
            return [example(item, name) for item in kind.item_types]
        case inspect.DictType():
            return {"a": example(kind.value_type, name)}
        case inspect.UnionType():
            return example(next(t for t in kind.types if not isinstance(t, inspect.NoneType)), name)
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 8192
        case inspect.FloatType():
            return 0.5
        case inspect.StrType():
            return "2024-05-06T07:08:09+00:00" if name in {"at", "created_at"} else name
    return None


def results() -> dict[str, bytes]:
    by_hand: list[Result] = [
        predict_result(),
        demo_result(),
        prove_result(),
        record_result(),
        doctor_result(),
    ]
    found = {}
    for schema in MODULES:
        value = example(msgspec.inspect.type_info(view_of(schema).record), "")
        found[schema] = msgspec.json.encode({**value, "schema": schema})
    found |= {f"{result.schema} by hand": msgspec.json.encode(result) for result in by_hand}
    found = {
        f"{schema.replace('pgsweep.', '').replace('/1', '').replace(' ', '-')}.json": text
        for schema, text in found.items()
    }
    return found | {"predict.html": to_html(predict_result()).encode()}


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        plain, psql = oracle(), gathered(folder)
        written = {
            "evidence/sql.zip": snapshots(folder / "sql.evidence", "sql"),
            "evidence/peek.zip": snapshots(folder / "peek.evidence", "peek"),
            "evidence/peek-not-full.zip": snapshots(folder / "free.evidence", "peek", used=20),
            "evidence/sql-not-full.zip": snapshots(folder / "free-sql.evidence", "sql", used=20),
            "evidence/trace.zip": trace(folder / "trace.evidence"),
            "heat/shop.heat": heat(folder / "shop.heat"),
            "oracle_general/plain": plain,
            "oracle_general/compressed.zst": bytes(pa.compress(plain, codec="zstd", asbytes=True)),
            "gathered/shop.gathered": psql,
            "gathered/shop.gathered.gz": gzip.compress(psql, mtime=0),
            **{f"result/{name}": text for name, text in results().items()},
        }
    bombs = {
        "evidence": evidence_bombs(written["evidence/sql.zip"], written["evidence/trace.zip"]),
        "heat": heat_bombs(written["heat/shop.heat"]),
        "oracle_general": oracle_bombs(),
        "gathered": gathered_bombs(psql),
        "result": result_bombs(written["result/predict.json"], written["result/cache.json"]),
    }
    for target, members in bombs.items():
        for name, data in members.items():
            written[f"{target}/bomb-{name}{PACKED}"] = zlib.compress(data, 9)
    for name, data in written.items():
        path = SEEDS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main()
