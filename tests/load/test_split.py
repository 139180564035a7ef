"""Record boundaries against Python's csv module, and that the splitter is fast."""

from __future__ import annotations

import csv
import io
import random
import time

import pytest

from pgsweep._native import RecordSplitter

LETTERS = ["a", '"', ",", "\n", "\r\n", "é", " ", "'", "\\", ""]


def _field(rng: random.Random) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randrange(6)))


def random_rows(rng: random.Random) -> list[list[str]]:
    width = rng.randrange(1, 6)
    return [
        ["".join(rng.choices(LETTERS, k=rng.randrange(6))) for _ in range(width)]
        for _ in range(rng.randrange(30))
    ]


@pytest.mark.parametrize("seed", range(200))
def test_boundaries_are_those_of_pythons_csv(seed: int) -> None:
    rng = random.Random(seed)
    rows = random_rows(rng)
    out = io.StringIO(newline="")
    ends = []
    ending = rng.choice(["\n", "\r\n"])
    if rng.random() < 0.5:
        writer = csv.writer(out, lineterminator=ending, quoting=csv.QUOTE_ALL)
    else:
        writer = csv.writer(out, lineterminator=ending)
    for row in rows:
        writer.writerow(row)
        ends.append(len(out.getvalue().encode()))
    data = out.getvalue().encode()
    assert RecordSplitter("csv").ends(data).tolist() == ends
    # However it is cut into blocks.
    splitter = RecordSplitter("csv")
    found, records, lines, at = [], 0, 0, 0
    while at < len(data):
        block = data[at : at + rng.randrange(1, 40)]
        end, ended, passed = splitter.feed(block)
        if end >= 0:
            found.append(at + end)
            records, lines = records + ended, lines + passed
        at += len(block)
    assert set(found) <= set(ends)
    assert records == len(rows)
    assert lines == data.count(b"\n")
    assert not splitter.is_open
    assert list(csv.reader(io.StringIO(data.decode(), newline=""))) == rows


def test_an_escape_other_than_the_quote() -> None:
    splitter = RecordSplitter("csv", quote=ord("'"), escape=ord("\\"))
    assert splitter.ends(b"'it\\'s\n one',2\nx\\'\n'\n").tolist() == [15, 21]
    assert RecordSplitter("csv", quote=ord("'"), escape=ord("\\")).ends(b"'a\\\\'\nb\n").tolist() == [6, 8]


def test_text_and_lines() -> None:
    assert RecordSplitter("text").ends(b"a\\\nb\nc\\\\\nd\n").tolist() == [5, 9, 11]
    assert RecordSplitter("lines").ends(b'{"a":"\\n"}\n"\n').tolist() == [11, 13]
    open_text = RecordSplitter("text")
    assert open_text.feed(b"a\\")[0] == -1
    assert open_text.is_open
    assert open_text.feed(b"\nb\n") == (3, 1, 2)


def test_files_without_line_feeds() -> None:
    assert RecordSplitter("csv", terminator=13).ends(b'a,"\r"\rb\r').tolist() == [6, 8]


def test_a_rule_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="csv, text or lines"):
        RecordSplitter("xml")  # type: ignore[arg-type]


def test_plain_csv_is_split_at_memory_speed() -> None:
    block = b"123456,abcdefgh,2024-01-01 00:00:00,1234.56,some words of a note\n" * 16_000
    best = 0.0
    for _ in range(20):
        splitter = RecordSplitter("csv")
        begin = time.thread_time()
        for _ in range(8):
            splitter.feed(block)
        best = max(best, 8 * len(block) / max(1e-9, time.thread_time() - begin))
    # The aim is 1 GB/s; `make bench NAME=load` measures it. Less than half of that is another algorithm.
    assert best > 5e8
