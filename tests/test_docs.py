"""The docs agree with the program: every command in them can be parsed, the reference is what --help says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from unittest.mock import patch

import click
import numpy as np
import pytest
from psycopg.conninfo import conninfo_to_dict

from pgsweep.cli.demo import _REPORT_NAME
from pgsweep.cli.overview import COMMANDS, EXAMPLES, EXIT_CODES
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.heat import HeatState
from pgsweep.serve.board import Board
from pgsweep.serve.config import ServeConfig
from pgsweep.serve.metrics import exposed
from pgsweep.ui.results import MODULES
from pgsweep.versions import NEWEST_TESTED_MAJOR, OLDEST_MAJOR, TESTED
from tests.fix_shop import shop_under_load
from tools.json_reference import attributes, json_page
from tools.reference import MANUAL, ROOT, all_commands, command_of, outdated
from tools.same_answers import kept
from tools.screenshots import write_png

PAGES = [path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if path.name != "CHANGELOG.md"]

_COMMAND = re.compile(r"(?:^|\| )((?:sudo (?:-u \w+ )?)?(?:\S*/)?pgsweep\b)")


def commands_in(text: str) -> list[str]:
    """Return the commands of the console blocks, and those of help texts' examples."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.split("\n") if line.startswith("$ ")]
    # What comes before a pipe, as in `zcat x.gz | pgsweep load -`, is not ours.
    return [line[found.start(1) :] for line in lines if (found := _COMMAND.search(line))]


def links_in(text: str) -> list[str]:
    """Return the targets of links, without the heading that they name."""
    return re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text)


def check(line: str) -> None:
    """Parse the command as the program would, without running it."""
    before_pipe = line.split(" | ", maxsplit=1)[0].split("  #", maxsplit=1)[0].split(" > ", maxsplit=1)[0]
    words = shlex.split(re.sub(r"^sudo (-u \w+ )?", "", before_pipe))[1:]
    if not words or words[0] in ("--help", "--version"):
        return
    assert words[0] in COMMANDS, f"no such command: {line}"
    # Files of the example's need not be on this machine.
    with patch("pgsweep.cli.common.existing", lambda path, *_: path):
        try:
            command_of(words[0]).make_context(words[0], words[1:])
        except click.exceptions.Exit as stop:
            assert stop.exit_code == 0, line


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_are_at_most_120_characters_long(path: Path) -> None:
    """But those of tables and of what a terminal shows."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    long = [line for line in text.split("\n") if len(line) > 120 and not line.lstrip().startswith("|")]
    assert not long


def test_generated_pages_are_what_help_says() -> None:
    rewritten = [str(path.relative_to(ROOT)) for path in outdated()]
    assert not rewritten, f"these were out of date and have been rewritten: commit them: {rewritten}"


def test_manual_pages_can_be_formatted() -> None:
    if shutil.which("groff") is None:
        pytest.skip("no groff on this machine")
    pages = sorted(MANUAL.glob("*.1"))
    assert "pgsweep-warm-run.1" in {page.name for page in pages}
    for page in pages:
        done = subprocess.run(
            ["groff", "-man", "-Tascii", "-ww", page], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and not done.stderr, f"{page.name}: {done.stderr}"
        assert "pgsweep" in done.stdout


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_commands_in_the_docs_can_be_parsed(path: Path) -> None:
    for line in commands_in(path.read_text(encoding="utf-8")):
        check(line)


@pytest.mark.parametrize("words", [words for words, _ in all_commands()])
def test_examples_in_help_can_be_parsed(words: str) -> None:
    text = dict(all_commands())[words].help or ""
    examples = re.findall(
        r"^ *((?:sudo (?:-u \w+ )?)?pgsweep .+)$", text.partition("Examples:")[2], re.MULTILINE
    )
    assert examples
    for line in examples:
        check(line)


def test_commands_and_links_are_found_at_all() -> None:
    """Otherwise the tests of each page could not fail."""
    texts = [path.read_text(encoding="utf-8") for path in PAGES]
    commands = [line for text in texts for line in commands_in(text)]
    assert len(commands) > 80
    assert {"sudo", "pgsweep"} <= {line.split()[0] for line in commands}
    assert len([link for text in texts for link in links_in(text)]) > 40


def test_examples_of_the_first_page_can_be_parsed() -> None:
    assert len(EXAMPLES) == 5
    for line, _ in EXAMPLES:
        check(line)


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_links_lead_somewhere(path: Path) -> None:
    for target in links_in(path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/concepts/load.md"])
def test_the_files_that_developers_are_sent_to_exist(name: str) -> None:
    """Paths are written as below python/pgsweep or as below the checkout; diagrams and links are left out."""
    text = re.sub(r"^    .*\n|\]\([^)]*\)", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = re.findall(r"(?<![\w/])((?:[\w*.-]+/)+[\w*-]+\.(?:py|rs|sql|toml|txt|md))", text)
    assert len(found) > 5
    assert not [path for path in found if not [*ROOT.glob(path), *(ROOT / "python/pgsweep").glob(path)]]


def test_what_commands_leave_in_a_checkout_is_not_offered_to_git() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    for name in (_REPORT_NAME, "shop.evidence/meta.json"):
        done = subprocess.run(["git", "check-ignore", "--quiet", name], cwd=ROOT, check=False)
        assert done.returncode == 0, name


def test_the_functions_that_developers_are_sent_to_are_there() -> None:
    """In the table of questions a function or class follows its file: `file.py`, `function`."""
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.findall(r"`((?:[\w-]+/)+\w+\.(?:py|rs))`, `(\w+)`", table)
    assert len(found) >= 8
    for name, symbol in found:
        (path,) = [place for place in (ROOT / name, ROOT / "python/pgsweep" / name) if place.exists()]
        assert re.search(rf"\b(?:def|class|fn|struct) {symbol}\b", path.read_text(encoding="utf-8")), name


def test_the_site_has_no_dead_link(tmp_path: Path) -> None:
    """`make docs` builds it in the same way; links to headings are checked here alone."""
    mkdocs = Path(sys.executable).with_name("mkdocs")
    done = subprocess.run(
        [mkdocs, "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site/reference/glossary.html").exists()


def test_commands_of_the_readme_do_what_they_say(wheel18: Cluster, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Five commands")[2].partition("\n## ")[0]
    lines = [line.split("   #")[0].strip() for line in commands_in(section)]
    assert len(lines) == 5
    with shop_under_load(wheel18) as conninfo:
        parts = conninfo_to_dict(conninfo)
        for line in lines:
            if line == "pgsweep demo":
                continue  # It takes minutes; tests/sizing/test_demo.py runs it.
            here = line.replace("-h db1", f"-h {parts['host']} -p {parts['port']}")
            if shutil.which("jq") is None:
                here = here.replace("jq .points", f"{sys.executable} -m json.tool")
            done = subprocess.run(
                ["bash", "-c", f"set -eo pipefail; {here}"],
                cwd=tmp_path,
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"shop.evidence", "shop.html"}


def test_the_docs_name_the_tested_versions_in_the_same_words() -> None:
    said = {}
    for path in PAGES:
        text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
        for match in re.finditer(r"PostgreSQL 14 ?(?:to|-|–)", text):
            begin = match.start()
            said[f"{path.relative_to(ROOT)}:{begin}"] = text[begin : begin + len(TESTED)]
    assert {"README.md", "docs/index.md"} <= {place.partition(":")[0] for place in said}
    assert set(said.values()) == {TESTED}, said


def test_what_pgsweep_needs_stands_in_the_readme_and_on_the_first_page() -> None:
    found = set()
    for name in ("README.md", "docs/index.md"):
        text = re.sub(r"\s+", " ", (ROOT / name).read_text(encoding="utf-8"))
        [sentences] = re.findall(r"pgsweep needs Linux .*? Tracing needs [\w-]+\.", text)
        found.add(sentences)
    assert len(found) == 1, found


def test_the_matrix_is_of_the_tested_versions() -> None:
    lines = (ROOT / "tools/postgresql-matrix.txt").read_text(encoding="utf-8").splitlines()
    majors = [int(line.split()[0]) for line in lines if not line.startswith("#")]
    assert majors == list(range(OLDEST_MAJOR, NEWEST_TESTED_MAJOR))
    first, last = majors[0], majors[-1]
    assert (
        f"PostgreSQL {first} to {last} and the release candidate of {NEWEST_TESTED_MAJOR}, not 19.0 itself"
        == TESTED
    )


def test_exit_codes_stand_in_the_docs() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("\n## Exit codes\n")[2].strip()
    sentence = " ".join(section.split("\n\n")[0].split()).partition(". ")[0]
    said = [part.partition(" ") for part in sentence.split(", ")]
    assert [code for code, _, _ in said] == [code for code, _ in EXIT_CODES]
    for (code, _, words), (_, meaning) in zip(said, EXIT_CODES, strict=True):
        assert set(re.findall(r"\w{2,}", words)) & set(re.findall(r"\w{2,}", meaning)), code


def test_the_guide_names_every_metric(tmp_path: Path) -> None:
    config = ServeConfig(servers=[], host="", port=1, history=tmp_path, evidence=tmp_path)
    lines = exposed(Board(config, [], lambda: None), [], 20).decode().splitlines()
    exist = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    guide = (ROOT / "docs/guides/serve.md").read_text(encoding="utf-8")
    section = guide.partition("\n## Metrics\n")[2].partition("\n## Who may see it\n")[0]
    assert set(re.findall(r"`(pgsweep_[a-z_]+)`", section)) == exist


def test_pictures_have_the_width_that_they_name_and_are_small() -> None:
    pictures = sorted((ROOT / "docs/guides/images").glob("*.png"))
    assert {1440, 800, 390} <= {width_of(picture) for picture in pictures}
    for picture in pictures:
        assert picture.stat().st_size < 150_000, picture
        if named := re.fullmatch(r"serve-(\d+)", picture.stem):
            assert width_of(picture) == int(named[1]), picture


def width_of(picture: Path) -> int:
    return int.from_bytes(picture.read_bytes()[16:20])


def test_a_picture_is_written_as_it_is(tmp_path: Path) -> None:
    pixels = np.full((7, 5, 3), 252, dtype=np.uint8)
    pixels[2, 1:4] = [0, 114, 178]
    write_png(tmp_path / "a.png", pixels)
    chunks, data = {}, (tmp_path / "a.png").read_bytes()[8:]
    while data:
        length = int.from_bytes(data[:4])
        chunks[data[4:8]] = data[8 : 8 + length]
        data = data[12 + length :]
    palette = np.frombuffer(chunks[b"PLTE"], dtype=np.uint8).reshape(-1, 3)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), dtype=np.uint8).reshape(7, 6)
    assert not rows[:, 0].any()
    assert (palette[rows[:, 1:]] == pixels).all()


def test_every_time_in_json_is_a_date() -> None:
    """Not seconds since some epoch, wherever it stands."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", json_page(), re.MULTILINE)
    times = [(name, kind) for name, kind in rows if re.fullmatch(r"(\w+_)?(at|since)|begin|end", name)]
    assert len(times) > 20
    assert [row for row in times if not row[1].startswith(("string", "list of string"))] == []


def test_the_page_of_json_has_every_field_that_is_written() -> None:
    """Of real results, also those of records within; the meaning is that of the docstring."""
    page = json_page()
    names = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    for name in ("calm-18", "load-trace", "peek-timed-16"):
        for text in re.findall(r"^(\{$.*?^\}$)", kept(name), re.MULTILINE | re.DOTALL):
            left: list[object] = [json.loads(text)]
            while left:
                one = left.pop()
                if isinstance(one, dict):
                    assert set(one) <= names, name
                    left += [value for key, value in one.items() if key != "provenance"]
                elif isinstance(one, list):
                    left += one
    for schema in MODULES:
        assert f"`{schema}`" in page
    assert "| `decision` | `change`, `leave`, `unknown` | on shared_buffers:" in page
    assert attributes(HeatState)["worth"].startswith("the same of the blocks worth having")
    for target in set(re.findall(r"\]\(#(\w+)\)", page)):
        assert re.search(rf"^## {target}$", page, re.MULTILINE | re.IGNORECASE), target
