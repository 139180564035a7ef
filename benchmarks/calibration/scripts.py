"""A specification in the words of PostgreSQL and pgbench: SQL that makes the tables, scripts that use them.

Keys are drawn by pgbench's own functions. Its random_zipfian knows exponents above 1 only; below, the
inverse of the continuous distribution function is taken. permute() scatters ranks over a table, as ranks
in the order of the rows would put all hot rows side by side.

pgbench has no clock in its scripts. A window that moves, and a loop, advance with the variable `step`,
which counts the transactions of a client and goes on from stretch to stretch (`-D step=N`).
"""

from __future__ import annotations

from benchmarks.calibration.specification import Popularity, Script, Specification, Statement, Table

COPIED_ROWS = 2000
"""Rows of the file that COPY reads."""

_ZIPF_LEAST = 1.001  # random_zipfian refuses less (pgbench.c, evalStandardFunc)
_DRAWS = 1_000_000_000


def setup_sql(spec: Specification) -> list[str]:
    """Return the statements that make and fill the tables, each for a transaction of its own."""
    statements: list[str] = list(spec.setup)
    for number, table in enumerate(spec.tables):
        statements += _make_table(table, spec.seed * 1000 + number)
    copied = {
        s.table
        for stream in spec.streams
        for script in stream.scripts
        for s in script.statements
        if s.kind in {"copy", "stage"}
    }
    for number in sorted(copied):
        statements += _make_copy_file(spec.tables[number])
    statements += ["VACUUM (ANALYZE)", "CHECKPOINT"]
    return statements


def _make_table(table: Table, seed: int) -> list[str]:
    name = table.name
    columns = (
        f"id bigint NOT NULL DEFAULT nextval('{name}_seq'), ref int NOT NULL, grp int NOT NULL,"
        " val int NOT NULL, n int NOT NULL DEFAULT 0, filler text, body text"
    )
    # The last value counts as handed out: the newest row of the beginning has it.
    made = [f"CREATE SEQUENCE {name}_seq", f"SELECT setval('{name}_seq', {table.rows})"]
    if table.partitions:
        made.append(f"CREATE TABLE {name} ({columns}) PARTITION BY RANGE (id)")
        for part in range(table.partitions):
            low = "MINVALUE" if part == 0 else str(table.rows * part // table.partitions + 1)
            high = (
                "MAXVALUE"
                if part == table.partitions - 1
                else str(table.rows * (part + 1) // table.partitions + 1)
            )
            made.append(
                f"CREATE TABLE {name}_{part} PARTITION OF {name} FOR VALUES FROM ({low}) TO ({high})"
                f" WITH (fillfactor = {table.fillfactor})"
            )
    else:
        made.append(f"CREATE TABLE {name} ({columns}) WITH (fillfactor = {table.fillfactor})")
    if table.toast_bytes:
        made.append(f"ALTER TABLE {name} ALTER body SET STORAGE EXTERNAL")
    made.append(
        f"INSERT INTO {name} (id, ref, grp, val, filler, body)"
        f" SELECT i, 1 + abs(hashint8extended(i, {seed}) % {_refs(table)}), i / 50, i % 1000,"
        f" {_filler(table)}, {_body(table)} FROM generate_series(1, {table.rows}) i"
    )
    made.append(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
    if table.ref_index:
        made.append(f"CREATE INDEX ON {name} (ref{', val' if table.covering else ''})")
    return made


def _make_copy_file(table: Table) -> list[str]:
    """Return statements that write the file `TABLE.copy` beside the data and make a table to stage it in."""
    query = (
        f"SELECT 1 + (i * 7919) % {_refs(table)}, i / 50, i % 1000, 0, {_filler(table)}, {_body(table)}"
        f" FROM generate_series(1, {COPIED_ROWS}) i"
    )
    return [
        # COPY writes to absolute paths only, but reads from relative ones: a copy of the data reads its own.
        f"DO $do$ BEGIN EXECUTE $sql$COPY ({query}) TO $sql$"
        f" || quote_literal(current_setting('data_directory') || '/{table.name}.copy'); END $do$",
        f"CREATE TABLE {table.name}_stage (ref int, grp int, val int, n int, filler text, body text)",
    ]


def pgbench_script(spec: Specification, script: Script, *, spaced: bool = False) -> str:
    """Return the text of a script for pgbench.

    Args:
        spec: the script's tables are its.
        script: one of its scripts.
        spaced: every transaction begins with a pause, as long as the variable `gap` says.
    """
    lines: list[str] = ["\\sleep :gap ms"] if spaced else []
    if script.text:
        return "\n".join([*lines, script.text]) + "\n"
    if _steps(script):
        lines.append("\\set step :step + 1")
    body: list[str] = []
    key = "k0"
    for number, statement in enumerate(script.statements):
        table = spec.tables[statement.table]
        if not (statement.again and number):
            key = f"k{number}"
            lines += _draw(key, statement, table)
        body += _statement(spec, statement, table, key, number)
    if len(script.statements) > 1 and all(_in_transaction(s) for s in script.statements):
        body = ["BEGIN;", *body, "END;"]
    if script.think_milliseconds:
        body.append(f"\\sleep {script.think_milliseconds} ms")
    return "\n".join([*lines, *body]) + "\n"


def _in_transaction(statement: Statement) -> bool:
    return statement.kind != "vacuum"


def _steps(script: Script) -> bool:
    return any(s.popularity and s.popularity.law in {"moving", "loop"} for s in script.statements)


def _draw(key: str, statement: Statement, table: Table) -> list[str]:
    """Return the lines that set a variable to a key of the table."""
    popularity = statement.popularity
    if popularity is None:
        return []
    rows = table.rows
    rank, scattered = _rank(popularity, rows)
    if scattered:
        return [rank, f"\\set {key} 1 + permute(:rank - 1, {rows}, {popularity.seed})"]
    moved = popularity.rows_per_transaction
    if popularity.law == "moving":
        return [rank, f"\\set {key} 1 + (:step * {moved} + :rank) % {rows}"]
    if popularity.law == "loop":
        return [f"\\set {key} 1 + (:step * {moved} + :client_id * {max(rows // 16, 1)}) % {rows}"]
    return [rank, f"\\set {key} {rows} + 1 - :rank"]


def _rank(popularity: Popularity, rows: int) -> tuple[str, bool]:
    """Return the line that draws a rank, and whether ranks are scattered over the table."""
    if popularity.law == "zipf" and popularity.exponent < _ZIPF_LEAST:
        power = 1 / (1 - popularity.exponent)
        share = f"pow(random(1, {_DRAWS}) / {_DRAWS}.0, {power:.6f})"
        return f"\\set rank least(1 + int({rows} * {share}), {rows})", True
    if popularity.law == "zipf":
        return f"\\set rank random_zipfian(1, {rows}, {popularity.exponent})", True
    if popularity.law == "classes":
        hot = max(round(rows * popularity.hot_share), 1)
        part = round(popularity.hot_probability * 1000)
        return (
            f"\\set rank case when random(1, 1000) <= {part}"
            f" then random(1, {hot}) else random(1, {rows}) end",
            True,
        )
    if popularity.law in {"latest", "moving"}:
        window = rows if popularity.law == "latest" else max(round(rows * popularity.hot_share), 2)
        return f"\\set rank random_exponential(1, {window}, {popularity.exponent})", False
    return f"\\set rank random(1, {rows})", popularity.law == "uniform"


def _statement(spec: Specification, statement: Statement, table: Table, key: str, number: int) -> list[str]:
    name, rows = table.name, statement.rows
    k = f":{key}::bigint"
    latest = statement.popularity is not None and statement.popularity.law == "latest"
    if latest and statement.kind != "upsert":
        # Of a table that grows, the newest rows are those of now. An upsert of one of them could take the id
        # that an insert has drawn and not yet used.
        k = f"((SELECT last_value FROM {name}_seq) - {table.rows} + {k})"
    ref = f"(1 + ({k} - 1) % {_refs(table)})::int"
    other = spec.tables[statement.other]
    match statement.kind:
        case "point":
            return [f"SELECT val, n, filler FROM {name} WHERE id = {k};"]
        case "toast":
            return [f"SELECT md5(body) FROM {name} WHERE id = {k};"]
        case "range":
            return [f"SELECT sum(val + n) FROM {name} WHERE id BETWEEN {k} AND {k} + {rows};"]
        case "by_ref":
            return [f"SELECT sum(n) FROM {name} WHERE ref = {ref};"]
        case "bitmap":
            return [f"SELECT sum(n) FROM {name} WHERE ref BETWEEN {ref} AND {ref} + {rows};"]
        case "index_only":
            return [f"SELECT sum(val) FROM {name} WHERE ref BETWEEN {ref} AND {ref} + {rows};"]
        case "join":
            return [
                f"SELECT sum(b.val) FROM {name} a JOIN {other.name} b ON b.id = 1 + a.ref % {other.rows}"
                f" WHERE a.id BETWEEN {k} AND {k} + {rows};"
            ]
        case "update_hot":
            return [f"UPDATE {name} SET n = n + 1 WHERE id = {k};"]
        case "update_cold":
            return [f"UPDATE {name} SET ref = ref % {_refs(table)} + 1 WHERE id = {k};"]
        case "insert":
            return [
                f"\\set r{number} random(1, {_refs(table)})",
                f"INSERT INTO {name} (ref, grp, val, filler, body)"
                f" VALUES (:r{number}, 1, 1, {_filler(table)}, {_body(table)});",
            ]
        case "delete":
            return [f"DELETE FROM {name} WHERE id = {k};"]
        case "upsert":
            return [
                f"INSERT INTO {name} (id, ref, grp, val, filler, body)"
                f" VALUES ({k}, 1, 1, 1, {_filler(table)}, {_body(table)})"
                f" ON CONFLICT (id) DO UPDATE SET n = {name}.n + 1;"
            ]
        case "scan":
            return [f"SELECT count(filler) FROM {name};"]
        case "analytic":
            return [
                f"SELECT a.grp, count(*), sum(b.n) FROM {name} a"
                f" JOIN {other.name} b ON b.id = 1 + a.ref % {other.rows}"
                " GROUP BY a.grp ORDER BY 2 DESC, 1 LIMIT 10;"
            ]
        case "copy":
            return [f"COPY {name} (ref, grp, val, n, filler, body) FROM '{name}.copy';"]
        case "stage":
            return [
                f"TRUNCATE {name}_stage;",
                f"COPY {name}_stage FROM '{name}.copy';",
                f"SELECT count(*) FROM {name}_stage;",
            ]
        case "vacuum":
            return [f"VACUUM {name};"]
        case "temporary":
            return [
                f"CREATE TEMPORARY TABLE kept AS SELECT * FROM {name} WHERE id BETWEEN {k} AND {k} + {rows};",
                "SELECT sum(val) FROM kept;",
                "DROP TABLE kept;",
            ]
        case "create":
            made = "made_:client_id"
            return [
                f"CREATE TABLE {made} AS SELECT * FROM {name} WHERE id BETWEEN {k} AND {k} + {rows};",
                f"CREATE INDEX ON {made} (id);",
                f"SELECT sum(val) FROM {made} WHERE id = {k};",
                f"DROP TABLE {made};",
            ]


def _refs(table: Table) -> int:
    """Return how many values of ref there are."""
    return max(table.rows // table.rows_per_ref, 1)


def _filler(table: Table) -> str:
    return f"repeat('x', {table.filler_bytes})"


def _body(table: Table) -> str:
    return f"repeat('y', {table.toast_bytes})" if table.toast_bytes else "NULL"
