"""Transcripts of the command line: what was typed, what came on both streams, the exit code.

A file in golden/ holds commands (`$ pgsweep ...`) and what they gave. Where that has changed the file is
rewritten and the test fails: read the difference, and commit it if it is meant. To add one, write a file with
only the commands.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pgsweep.ui.kit.view import Result
from pgsweep.ui.results import to_json
from tests.fix_cli import run
from tests.fix_memory import budget_of, kernel_result, memory_result, seen
from tests.fix_results import demo_result, doctor_result, predict_result, prove_result, record_result

GOLDEN = Path(__file__).parents[1] / "golden"


def transcript(commands: list[str], folder: Path) -> str:
    out = []
    for line in commands:
        words = shlex.split(line)
        assert words[0] == "pgsweep"
        done = run(*words[1:], cwd=folder, env={"HOME": str(folder)})
        out.append(f"$ {line}\n")
        for name, text in (("stdout", done.stdout), ("stderr", done.stderr)):
            if text:
                out.append(f"--- {name}\n{text}" + ("" if text.endswith("\n") else "\n(no line end)\n"))
        out.append(f"--- exit {done.returncode}\n\n")
    return "".join(out).replace(str(folder), "FOLDER")


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.txt")))
def test_transcript(name: str, tmp_path: Path) -> None:
    results: dict[str, Result] = {
        "predict": predict_result(),
        "demo": demo_result(),
        "prove": prove_result(),
        "record": record_result(),
        "doctor": doctor_result(),
        "memory": memory_result(),
        "budget": budget_of(seen()),
        "kernel": kernel_result(),
    }
    for file, result in results.items():
        (tmp_path / f"{file}.json").write_text(to_json(result))
    path = GOLDEN / name
    before = path.read_text(encoding="utf-8")
    commands = re.findall(r"^\$ (.+)$", before, re.MULTILINE)
    assert commands, f"{name} holds no command"
    now = transcript(commands, tmp_path)
    if now != before:
        path.write_text(now, encoding="utf-8")
        pytest.fail(
            f"golden/{name} has changed and was rewritten: read the difference, commit it if it is meant"
        )
