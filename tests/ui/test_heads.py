"""The head of every kind of result, in all three forms: server, version, database, time.

The commands that give them are in tests/ui/test_subject.py; here are the kinds, from results kept for
fuzzing.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from pgsweep.cli.provenance import with_provenance
from pgsweep.records.cache import PoolState
from pgsweep.records.common import Subject
from pgsweep.records.top import TopBackends, TopSample
from pgsweep.ui.kit.report import to_html
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.live.frame import title_bar
from pgsweep.ui.results import MODULES, read_result, to_json, to_text, view_of
from tests.fix_results import doctor_result
from tests.fuzz.targets import SEEDS

PLACE = "db1, port 5433"
AT = "2026-01-02T03:04:05Z"
EVIDENCE = {
    "pgsweep.predict/1",
    "pgsweep.record/1",
    "pgsweep.prove/1",
    "pgsweep.advise/1",
    "pgsweep.verify/1",
}
"""Kinds of which the evidence says what they are about."""

PRIVATE = {"pgsweep.demo/1", "pgsweep.lab/1", "pgsweep.lab-all/1"}
"""Kinds that are about servers made for them, whose database is pgsweep's own."""

NO_SERVER = {"pgsweep.lab-list/1", "pgsweep.lab-compare/1"}
"""Kinds about no server, or about two results that name their own."""


def kept(schema: str) -> Any:
    """Return a result of a kind, of a server of 18.1 and its database `shop`."""
    if schema == "pgsweep.doctor/1":
        doctor = doctor_result()
        assert doctor.server is not None
        seen = msgspec.structs.replace(doctor.server, version="18.1", database="shop")
        return msgspec.structs.replace(doctor, target=f"shop at {PLACE}", server=seen)
    name = schema.removeprefix("pgsweep.").removesuffix("/1")
    found = read_result(SEEDS / "result" / f"{name}.json")
    known = {"server_version": "18.1", "database": "shop"}
    record = view_of(schema).record
    assert isinstance(found, record)
    return msgspec.structs.replace(
        found, **{name: value for name, value in known.items() if name in record.__struct_fields__}
    )


def sample() -> TopSample:
    return TopSample(
        server_version="18.1", database="shop", block_size_bytes=8192, pool_source="peek", at=AT,
        look_seconds=0.1, backend_share=0.0, interval_seconds=2.0, held_back=False,
        pool=PoolState(
            size_bytes=1 << 20, used_bytes=0, unused_bytes=1 << 20, dirty_bytes=0, pinned_bytes=0,
            usage_counts=[0] * 6,
        ),
        page_cache=None, rates=None, relations=[], relations_found=0, missing=[],
        backends=TopBackends(
            total=1, active=1, idle=0, idle_in_transaction=0, hidden=0, max_connections=100, waits=[]
        ),
    )  # fmt: skip


@pytest.mark.parametrize("schema", sorted(set(MODULES) - NO_SERVER))
def test_every_kind_of_result_says_what_it_is_about(schema: str) -> None:
    subject = None
    if schema in EVIDENCE:
        subject = Subject(server=PLACE, server_version="18.1", database="shop", recorded_at=AT)
    result = with_provenance(kept(schema), server=PLACE, subject=subject)
    text = to_text(result, Terminal(width=200)).splitlines()[0]
    assert text.startswith("PostgreSQL ")
    assert f" at {PLACE}; " in text
    recorded = schema in EVIDENCE or schema in ("pgsweep.record/1", "pgsweep.demo/1")
    assert ("recorded 20" if recorded else "checked at 20") in text, "nothing was recorded for the others"
    assert schema in PRIVATE or "; database " in text
    assert text in to_html(result)
    said = json.loads(to_json(result))["provenance"]["subject"]
    assert said["server"] == PLACE
    assert said["server_version"]
    assert datetime.fromisoformat(said["recorded_at"]) <= datetime.now(UTC)
    assert schema in PRIVATE or said["database"]


def test_the_bar_of_top_names_the_server_in_any_width() -> None:
    for width, wanted in (
        (120, f" pgsweep top  PostgreSQL 18.1 at {PLACE}, shop"),
        (80, f" PostgreSQL 18.1 at {PLACE}, "),
        (72, " at db1, …5433, shop"),
        (60, "18.1"),
    ):
        bar = title_bar(sample(), 2.0, ["PAUSED"], Terminal(width=width), server=PLACE).plain
        assert len(bar) <= width
        assert wanted in bar
        assert "PostgreSQL 18.1" in bar
    assert "every 2 s" in title_bar(sample(), 2.0, [], Terminal(width=80), server="/a/long/folder" * 5).plain
