"""Results of earlier runs, as `pgsweep report` reads them: JSON, or an HTML page with JSON in it."""

from __future__ import annotations

from pathlib import Path
from random import Random

from pgsweep.ui.kit.report import to_html
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.results import read_result, to_csv, to_json, to_text
from tests.fuzz.mutate import mutate_bytes, mutate_json
from tests.fuzz.targets import seed_files


def seeds() -> list[bytes]:
    return seed_files("result")


def mutate(data: bytes, random: Random) -> bytes:
    return mutate_bytes(data, random) if data.lstrip()[:1] == b"<" else mutate_json(data, random)


def run_one(data: bytes, workdir: Path) -> str | None:
    path = workdir / "result.json"
    path.write_bytes(data)
    record = read_result(path)
    for terminal in (Terminal(80, unicode=True, colour=True), Terminal(60, unicode=False, colour=False)):
        to_text(record, terminal)
    to_csv(record)
    to_json(record)
    to_html(record)
    return record.schema
