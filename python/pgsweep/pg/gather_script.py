"""The observation of `pgsweep record --source sql` as one script for psql, for places without pgsweep.

The script is gather.psql with the very queries of pg/queries in it, each with a text for every version of the
server, because nothing is known of the server when the script is written. What it prints are lines with
tabs between the columns, a header before each result, and `mark` lines with the server's time between them;
evidence/gathered.py reads them. Names and settings are printed as bytes in hexadecimal, so no line can be
broken by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from psycopg import sql

from pgsweep._native import __version__
from pgsweep.pg.catalog.buffercache import ROW_MEMORY_BYTES, WORK_MEMORY_LIMIT_BYTES
from pgsweep.pg.catalog.server import BUFFERCACHE_OBJECTS
from pgsweep.pg.queries import filled, load, versions
from pgsweep.pg.session.connect import (
    LEFT_TO_LOGIN,
    NEWER,
    OLDEST_VERSION_NUM,
    session_settings,
    setting_statement,
    startup_options,
)
from pgsweep.units import format_plain

MAGIC: Final = "pgsweep-gathered/1"
"""The first line of what the script prints."""

_SAME: Final = (
    "buffercache",
    "cluster",
    "databases",
    "extension_trust",
    "provider",
    "relations",
    "server",
    "settings",
    "sizes",
    "snapshot",
    "snapshot_sample",
    "temporary",
)
"""Queries that have one text for all versions."""

_COUNTED: Final = (
    # Statement, query, the word before its rows, its parameters in the statement, and what the query gets.
    ("count_databases", "count_databases", "database", "", ":'pgsweep_database_oids'"),
    ("count_writers", "count_writers", "bgwriter", "", ""),
    ("count_relations", "count_relations", "relation", "", ":'pgsweep_relation_oids'"),
    ("count_io", "count_io", "io", "", ""),
    ("count_created", "count_relations", "relation", " (pg_catalog.oid[])", "$1"),
)
"""Statements whose query has a text for some versions each."""

_COUNTED_RELATIONS: Final = """\
SELECT q.oid
FROM (
{relations}) AS q
JOIN pg_catalog.pg_database AS d ON d.oid = q.database_oid AND d.datname = pg_catalog.current_database()
UNION
SELECT t.oid
FROM (
{temporary}) AS t (oid)"""

_SCRIPT_SETTINGS: Final = {
    "DateStyle": "ISO, MDY",
    "bytea_output": "hex",
    "plan_cache_mode": "force_generic_plan",
    "work_mem": f"{WORK_MEMORY_LIMIT_BYTES >> 10}kB",
}
"""Settings of the script's session besides those of every session that only reads. A limit of memory is not
memory: a snapshot takes what it needs, and the server writes no temporary file."""

_SAMPLES: Final = ("lock_timeout", "default_transaction_isolation", "plan_cache_mode")
"""Settings by which a pooler that ignores those of the connection is found: psql knows no process."""

_NOTHING: Final = "SELECT 'none' AS tag WHERE false"


def gather_script(
    *,
    seconds: float,
    seed: int,
    offsets: Sequence[int],
    numbers: Mapping[str, int | float],
) -> str:
    """Return the script.

    Args:
        seconds: length of the observation.
        seed: that the offsets were drawn with.
        offsets: all there are, in the order in which a sample of blocks takes them.
        numbers: those of the schedule, by their names in gather.psql.
    """
    parts: dict[str, str] = {name: load(name, OLDEST_VERSION_NUM) for name in _SAME}
    parts["extension_trust"] = filled(
        parts["extension_trust"], "'pg_buffercache'", f"'{{{','.join(BUFFERCACHE_OBJECTS)}}}'"
    )
    parts["sizes"] = filled(parts["sizes"], "$1")
    parts["counted"] = _COUNTED_RELATIONS.format(**parts)
    for name in ("snapshot", "snapshot_sample"):
        parts[name] = (
            parts[name]
            .replace("{schema}", ":pgsweep_schema")
            .replace("{modulus}", str(len(offsets)))
            .replace("{offsets}", ":'pgsweep_offsets'")
        )
    for statement, query, tag, parameters, value in _COUNTED:
        parts[statement] = _by_version(query, _counting(statement, tag, parameters, value))
    parts["settle"] = _by_version("settle", _settling)
    known = sorted(
        {version for _, query, *_ in _COUNTED for version in versions(query)} | set(versions("settle"))
    )
    parts["version_tests"] = "SELECT " + ",\n       ".join(
        f"pg_catalog.current_setting('server_version_num')::pg_catalog.int4 >= {version} AS v{version}"
        for version in known
    )
    parts |= {
        "pgsweep_version": __version__,
        "magic": MAGIC,
        **_session_parts(),
        "seconds": _number(seconds),
        "length": f"{format_plain(seconds)} s",
        "seed": str(seed),
        "offsets": ",".join(str(int(offset)) for offset in offsets),
        "modulus": str(len(offsets)),
        "row_memory_bytes": str(ROW_MEMORY_BYTES),
        "work_memory_limit_bytes": str(WORK_MEMORY_LIMIT_BYTES),
        "duty_percent": format_plain(100 * numbers["duty"]),
        "most_duty_percent": format_plain(100 * numbers["most_duty"]),
        **{name: _number(value) for name, value in numbers.items()},
    }
    template = (Path(__file__).parent / "gather.psql").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _counting(statement: str, tag: str, parameters: str, value: str) -> Callable[[str, int], str]:
    """Return what makes a statement that reads counters from a text of its query."""

    def prepared(text: str, _version: int) -> str:
        query = filled(text, value) if value else text
        return (
            f"PREPARE pgsweep_{statement}{parameters} AS\n"
            f"SELECT 'count_{tag}' AS tag, q.*\nFROM (\n{query.rstrip()}) AS q;"
        )

    return prepared


def _settling(text: str, version: int) -> str:
    """Return the statement after which the statistics hold what this session did.

    Before 15 a session sends its counters at most every half second, with the end of a statement.
    """
    query = text.rstrip() if version > OLDEST_VERSION_NUM else "SELECT pg_catalog.pg_sleep(0.7)"
    return f"PREPARE pgsweep_settle AS\nSELECT 'settled' AS tag, q.*\nFROM (\n{query}) AS q;"


def _by_version(query: str, statement: Callable[[str, int], str]) -> str:
    """Return the statement of the server's version, chosen by psql."""
    lines: list[str] = []
    known = versions(query)
    for version in reversed(known):
        lines += [
            f"\\{'elif' if lines else 'if'} :pgsweep_v{version}",
            statement(load(query, version), version),
        ]
    if known[0] > OLDEST_VERSION_NUM:
        name = f"pgsweep_{query}"
        lines += ["\\else", f"PREPARE {name} AS\n{_NOTHING};"]
    return "\n".join([*lines, "\\endif"])


def _number(value: float) -> str:
    """Return a number as SQL has it; a float keeps its point, so that it is not divided as an integer."""
    return str(value) if isinstance(value, int) else f"{value:.6f}"


def _session_parts() -> dict[str, str]:
    """Return how the session gets its settings: in the startup packet, or some of them later."""
    settings = session_settings(inspection=True) | _SCRIPT_SETTINGS
    later = {name: settings.pop(name) for name in LEFT_TO_LOGIN}
    same = "pg_catalog.current_setting({}) OPERATOR(pg_catalog.=) {}"
    return {
        "options": startup_options(settings),
        "left": startup_options(later),
        "newer": ", ".join(sql.SQL("({}, {})").format(*each).as_string(None) for each in NEWER.items()),
        "in_force": " AND ".join(
            sql.SQL(same).format(name, settings[name]).as_string(None) for name in _SAMPLES
        ),
        "later": setting_statement(**later).as_string(None).replace("%s", ":pgsweep_pid"),
    }
