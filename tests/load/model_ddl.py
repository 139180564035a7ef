"""The statements that make a table of `model_tables`, its rows and what is around it."""

from __future__ import annotations

from tests.load.model_tables import KINDS, LEAF, MOST, REGIONS, Row, Table, literal, quote

TYPES = """
CREATE TYPE {schema}.mood AS ENUM ('sad', 'so so', '');
CREATE DOMAIN {schema}.size AS int CONSTRAINT size_check CHECK (VALUE > 0);
"""


def statements_of(table: Table, before: list[Row], child: list[str | None]) -> list[str]:
    """Return what makes the table, its rows and what is around them.

    Args:
        before: its rows.
        child: the keys that rows of another table refer to.
    """
    schema, name = table.schema, table.full_name
    key = quote(table.id)
    made = [f"CREATE SCHEMA {schema}", *TYPES.format(schema=schema).strip().split(";\n")]
    made[-1] = made[-1].rstrip(";")
    made += [
        f"CREATE TABLE {schema}.parent (id int PRIMARY KEY)",
        f"INSERT INTO {schema}.parent SELECT generate_series(0, 9)",
        f"CREATE TABLE {name} ({', '.join(column_clauses(table))}){_partition_clause(table)}",
        *_partitions(table),
    ]
    if before:
        columns = [column.name for column in table.columns]
        rows = ", ".join(f"({', '.join(literal(row[column]) for column in columns)})" for row in before)
        made.append(f"INSERT INTO {name} ({', '.join(map(quote, columns))}) VALUES {rows}")
    made += _key_clauses(table)
    for number, index in enumerate(table.indexes):
        made.append(f"CREATE INDEX {quote(f'index {number}')} ON {name} {index}")
    if table.child:
        rows = ", ".join(f"({number}, {literal(ref)})" for number, ref in enumerate(child))
        made.append(f"CREATE TABLE {schema}.child (n int, ref bigint)")
        if child:
            made.append(f"INSERT INTO {schema}.child VALUES {rows}")
        made.append(
            f"ALTER TABLE {schema}.child ADD CONSTRAINT child_ref FOREIGN KEY (ref) REFERENCES {name} ({key})"
            f" ON DELETE {table.child}{' NOT VALID' if table.dangling else ''}"
        )
    made += _triggers(table)
    if table.heir:
        made.append(f"CREATE TABLE {schema}.heir () INHERITS ({name})")
        if before:
            made.append(f"INSERT INTO {schema}.heir SELECT * FROM ONLY {name}")
    if table.rule:
        made.append(f"CREATE RULE forbidden AS ON DELETE TO {name} DO INSTEAD NOTHING")
    if table.view:
        made.append(f"CREATE VIEW {schema}.grouped AS SELECT * FROM {name} GROUP BY {key}")
    other = next(each.name for each in table.columns if each.use != "key")
    extras = {
        "comment": f"COMMENT ON TABLE {name} IS 'it''s %s'",
        "statistics": f"CREATE STATISTICS {schema}.st (ndistinct) ON {key}, {quote(other)} FROM {name}",
        "grant": f"GRANT SELECT, INSERT ON {name} TO PUBLIC",
    }
    made += [extras[extra] for extra in table.extras if extra in extras]
    if "cluster" in table.extras and table.indexes and not table.partitioned:
        made.append(f'ALTER TABLE {name} CLUSTER ON "index 0"')
    if table.owner:
        made += [
            f"ALTER SCHEMA {schema} OWNER TO {table.owner}",
            *(f"ALTER TABLE {schema}.{each} OWNER TO {table.owner}" for each in _tables(table)),
        ]
    return made


def _tables(table: Table) -> list[str]:
    """Return the names of all tables of the case that a role must own to load, as SQL has them."""
    heirs = [*(["child"] if table.child else []), *(["part1"] if table.leaf else [])]
    return [quote(table.name), "parent", *heirs, "audit", "statements"]


def column_clauses(table: Table) -> list[str]:
    clauses = []
    for column in table.columns:
        kind = "int4range" if column.kind == "span" else KINDS[column.kind].sql.format(schema=table.schema)
        words = [quote(column.name), kind, column.clauses]
        if column.not_null:
            words.append("NOT NULL")
        if column.default is not None:
            words.append(f"DEFAULT {literal(column.default)}")
        clauses.append(" ".join(words))
    for name, how in table.computed.items():
        if how == "trigger":
            clauses.append(f"{quote(name)} text")
        else:
            clauses.append(
                f"{quote(name)} numeric GENERATED ALWAYS AS ({quote(table.id)}::numeric * 2) {how.upper()}"
            )
    clauses += [f"{quote(name)} {clause}" for name, clause in table.any_value.items()]
    return clauses


def _partition_clause(table: Table) -> str:
    match table.partitioned:
        case "":
            return ""
        case "list":
            region = table.of("region")
            assert region is not None
            return f" PARTITION BY LIST ({quote(region.name)})"
        case how:
            return f" PARTITION BY {how.upper()} ({quote(table.id)})"


def _partitions(table: Table) -> list[str]:
    beginning = [f"CREATE TABLE {table.schema}.part{n} PARTITION OF {table.full_name}" for n in range(3)]
    match table.partitioned:
        case "list":
            return [f"{text} FOR VALUES IN ('{REGIONS[n]}')" for n, text in enumerate(beginning)]
        case "hash":
            return [f"{text} FOR VALUES WITH (MODULUS 3, REMAINDER {n})" for n, text in enumerate(beginning)]
        case "range":
            bounds = ("MINVALUE", *map(str, LEAF), str(MOST))
            values = [f"FOR VALUES FROM ({bounds[n]}) TO ({bounds[n + 1]})" for n in range(3)]
            made = [f"{beginning[n]} {values[n]}" for n in range(2)]
            if table.other_order:
                clauses = ", ".join(["gone int", *reversed(column_clauses(table))])
                made += [
                    f"CREATE TABLE {table.schema}.part2 ({clauses})",
                    f"ALTER TABLE {table.schema}.part2 DROP COLUMN gone",
                    f"ALTER TABLE {table.full_name} ATTACH PARTITION {table.schema}.part2 {values[2]}",
                ]
            else:
                made.append(f"{beginning[2]} {values[2]}")
            if table.rest:
                made.append(f"CREATE TABLE {table.schema}.rest PARTITION OF {table.full_name} DEFAULT")
            return made
    return []


def _key_clauses(table: Table) -> list[str]:
    name, key = table.full_name, quote(table.id)
    region, code, span = table.of("region"), table.of("code"), table.of("span")
    keys = f"{key}, {quote(region.name)}" if region else key
    made = []
    match table.key:
        case "primary":
            made.append(f"ALTER TABLE {name} ADD CONSTRAINT the_key PRIMARY KEY ({keys})")
        case "deferred":
            made.append(
                f"ALTER TABLE {name} ADD CONSTRAINT the_key PRIMARY KEY ({keys})"
                " DEFERRABLE INITIALLY DEFERRED"
            )
        case "unique":
            made.append(f"ALTER TABLE {name} ADD CONSTRAINT the_key UNIQUE ({keys})")
    if code is not None:
        column = quote(code.name)
        made.append(
            {
                "unique": f"ALTER TABLE {name} ADD CONSTRAINT the_code UNIQUE"
                f"{' NULLS NOT DISTINCT' if table.same_nulls else ''} ({column})",
                "deferred": f"ALTER TABLE {name} ADD CONSTRAINT the_code UNIQUE ({column}) DEFERRABLE",
                "lower": f"CREATE UNIQUE INDEX the_code ON {name} (lower({column}))",
                "partial": f"CREATE UNIQUE INDEX the_code ON {name} ({column}) WHERE {key} > 50",
                "index": f"CREATE INDEX the_code ON {name} ({column})",
            }[table.code]
        )
    if span is not None:
        made.append(
            f"ALTER TABLE {name} ADD CONSTRAINT the_span EXCLUDE USING gist ({quote(span.name)} WITH &&)"
        )
    if (parent := table.of("parent")) is not None:
        made.append(
            f"ALTER TABLE {name} ADD CONSTRAINT the_parent FOREIGN KEY ({quote(parent.name)}) REFERENCES"
            f" {table.schema}.parent{table.parent}"
        )
    if (up := table.of("up")) is not None:
        made.append(
            f"ALTER TABLE {name} ADD CONSTRAINT the_up FOREIGN KEY ({quote(up.name)}) REFERENCES"
            f" {name} ({key}){table.up}"
        )
    made.append(f"ALTER TABLE {name} ADD CONSTRAINT the_check CHECK ({key} <> 13)")
    return made


def _triggers(table: Table) -> list[str]:
    schema, name, key = table.schema, table.full_name, quote(table.id)
    refers = f" REFERENCES {name} ({key})" if table.noted else ""
    made = [
        f"CREATE TABLE {schema}.audit (op text, id bigint{refers})",
        f"CREATE TABLE {schema}.statements (op text, rows bigint)",
    ]
    place = "" if table.bare else f"{schema}."
    bodies = {
        "row": f"INSERT INTO {place}audit VALUES (TG_OP, CASE WHEN TG_OP = 'DELETE' THEN OLD.{key} ELSE"
        f" NEW.{key} END); RETURN NULL",
        "statement": f"INSERT INTO {place}statements SELECT TG_OP, count(*) FROM fresh; RETURN NULL",
        "before": f"NEW.tag := 'T' || NEW.{key}; RETURN NEW",
        "truncate": f"INSERT INTO {place}statements VALUES (TG_OP, 0); RETURN NULL",
        "raise": f"IF NEW.{key} = 14 THEN RAISE EXCEPTION 'no such row' USING ERRCODE = '{table.raises}';"
        " END IF; RETURN NEW",
        "guard": "RAISE EXCEPTION 'nobody may do that here'",
    }
    when = {
        "row": "AFTER INSERT OR DELETE OR UPDATE ON {} FOR EACH ROW",
        "statement": "AFTER INSERT ON {} REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT",
        "before": "BEFORE INSERT ON {} FOR EACH ROW",
        "truncate": "AFTER TRUNCATE ON {} FOR EACH STATEMENT",
        "raise": "BEFORE INSERT ON {} FOR EACH ROW",
        "guard": "BEFORE DELETE OR TRUNCATE ON {} FOR EACH STATEMENT",
    }
    for word in sorted(table.triggers):
        made.append(
            f"CREATE FUNCTION {schema}.on_{word}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$BEGIN {bodies[word]}; END$$"
        )
        made.append(
            f"CREATE TRIGGER {quote('on ' + word)} {when[word].format(name)}"
            f" EXECUTE FUNCTION {schema}.on_{word}()"
        )
    return made
