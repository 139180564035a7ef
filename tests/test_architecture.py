"""ARCHITECTURE.md says what is checked, and what import-linter cannot check is checked here."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pgsweep import errors
from pgsweep.evidence import schema

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python" / "pgsweep"
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS: list[dict[str, Any]] = PROJECT["tool"]["importlinter"]["contracts"]


def contract(name: str) -> dict[str, Any]:
    [found] = [each for each in CONTRACTS if each["name"].startswith(name)]
    return found


def layers() -> list[list[str]]:
    """Return the layers of the contract, each with its names."""
    return [
        [name.removeprefix("pgsweep.") for name in line.split(" | ")] for line in contract("each")["layers"]
    ]


def top_level() -> set[str]:
    """Return the packages and modules below pgsweep."""
    packages = {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists()}
    return packages | {file.stem for file in PACKAGE.glob("[a-z]*.py")}


@cache
def parsed() -> dict[Path, ast.Module]:
    """Return every module."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def sources(*left_out: str) -> Iterator[tuple[Path, ast.Module]]:
    """Yield every module but those of the packages and modules left out."""
    for path, tree in parsed().items():
        first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if first not in left_out:
            yield path, tree


def calls(tree: ast.Module, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last_name(node.func) in names:
            yield node


def _last_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def place(path: Path, node: ast.expr | ast.stmt) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def test_the_picture_is_what_is_checked() -> None:
    section = ARCHITECTURE.partition("## Dependency direction")[2]
    picture = re.search(r"(?:^    .*\n)+", section, re.MULTILINE)
    assert picture is not None
    lines = [re.split(r"\s{2,}", line.strip())[0].split(", ") for line in picture[0].splitlines()]
    assert [sorted(line) for line in lines] == [sorted(line) for line in layers()]


def test_every_package_has_a_layer() -> None:
    assert sorted(name for line in layers() for name in line) == sorted(top_level())


def test_psycopg_is_forbidden_to_all_but_those_named() -> None:
    row = re.search(r"^\| psycopg \| (.*) \|$", ARCHITECTURE, re.MULTILINE)
    assert row is not None
    forbidden = {name.removeprefix("pgsweep.") for name in contract("psycopg only")["source_modules"]}
    assert top_level() - forbidden == set(row[1].split(", "))


def test_proc_and_sys_are_read_in_host_only() -> None:
    found = []
    for path, tree in sources("host"):
        for call in calls(tree, "Path", "open", "read_text", "listdir", "scandir", "readlink", "stat"):
            words = [
                n.value for n in ast.walk(call) if isinstance(n, ast.Constant) and isinstance(n.value, str)
            ]
            found += [place(path, call) for word in words if re.match(r"/(proc|sys)(/|$)", word)]
    assert found == []


def test_exit_codes_are_numbers_in_errors_only() -> None:
    kinds = [errors.PgsweepError, errors.UsageError, errors.ConnectionFailed, errors.MissingAbility]
    codes = {kind.exit_code for kind in kinds} | {errors.CONDITION_HOLDS, errors.INTERRUPTED}
    assert codes == {1, 2, 3, 4, 5, 130}
    found = []
    for path, tree in sources("errors", "pg", "testbed"):
        for node in ast.walk(tree):
            values: Sequence[ast.expr | None] = ()
            if (isinstance(node, ast.Return) and "cli" in path.parts) or (
                isinstance(node, ast.Assign) and "exit_code" in ast.unparse(node.targets[0])
            ):
                values = [node.value]
            elif isinstance(node, ast.Dict) and "cli" in path.parts:
                values = node.values  # the exit code of each of several cases
            found += [
                place(path, value)
                for value in values
                if isinstance(value, ast.Constant) and type(value.value) is int and value.value in codes
            ]
        found += [
            place(path, c)
            for c in calls(tree, "exit", "_exit", "SystemExit")
            if c.args and ast.unparse(c.args[0]) not in ("INTERRUPTED", "code")
        ]
    assert found == []


def test_sql_is_sent_by_pg_and_not_made_of_pieces() -> None:
    sent, made = [], []
    for path, tree in sources("testbed"):
        ours = ("history", "history_consumers", "history_reads", "storage")
        if path.parent == PACKAGE / "serve" and path.stem in ours:
            continue  # SQL for tables of our own, in SQLite or PostgreSQL (pg/history_store.py)
        for call in calls(tree, "execute", "mogrify"):
            if PACKAGE / "pg" not in path.parents:
                sent.append(place(path, call))
            text = call.args[0]
            pieces = isinstance(text, ast.JoinedStr | ast.BinOp) or (
                isinstance(text, ast.Call)
                and isinstance(text.func, ast.Attribute)
                and isinstance(text.func.value, ast.JoinedStr | ast.Constant)
                and (
                    text.func.attr in ("format", "join", "replace")
                    or (text.func.attr == "encode" and isinstance(text.func.value, ast.JoinedStr))
                )
            )
            if pieces:
                made.append(place(path, call))
        made += [
            place(path, call)
            for call in calls(tree, "format", "replace")
            if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value).startswith("load(")
        ]
    assert sent == []
    assert made == []


def test_ui_and_records_do_not_see_the_native_module() -> None:
    """import-linter does not: it knows modules in Python only."""
    found = []
    for path, tree in sources():
        if path.relative_to(PACKAGE).parts[0] in ("ui", "records"):
            names = [ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
            found += [name for name in names if "_native" in name]
    assert found == []


def test_no_module_is_too_long() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path, _ in sources()}
    assert [path for path, length in lengths.items() if length > 600] == []


def test_no_short_module_serves_one_other() -> None:
    """Each command has a module of its own, however short; it is called by its name in cli/overview.py."""
    texts = {path: path.read_text(encoding="utf-8") for path, _ in sources()}
    lonely = []
    for path, text in texts.items():
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        is_command = path.parts[-2] in ("cli", "warm", "memory", "lab") and "\ndef command(" in text
        if len(text.splitlines()) >= 40 or path.name == "__init__.py" or is_command:
            continue
        if sum(1 for other in texts.values() if re.search(rf"\b{re.escape(name)}\b", other)) < 2:
            lonely.append(name)
    assert lonely == []


def test_test_modules_do_not_import_each_other() -> None:
    """What several need is in tests/fix_*.py."""
    found = [
        place(path, node)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom) and _imports_tests(node)
    ]
    assert not found


@pytest.mark.parametrize(
    ("line", "does"),
    [
        ("from tests.evidence.test_trace import counters", True),
        ("from tests import fix_cli, test_trace", True),
        ("from tests.evidence import test_trace as trace", True),
        ("import tests.evidence.test_trace", True),
        ("import tests.evidence.test_trace as trace", True),
        ("from . import test_trace", True),
        ("from .test_trace import counters", True),
        ("from tests.fix_cli import run", False),
        ("from tests import fix_cli", False),
        ("import tests.fix_cli", False),
        ("from . import fix_cli", False),
    ],
)
def test_each_form_of_importing_tests_is_seen(line: str, does: bool) -> None:
    [node] = ast.parse(line).body
    assert isinstance(node, ast.Import | ast.ImportFrom)
    assert _imports_tests(node) == does


def _imports_tests(node: ast.Import | ast.ImportFrom) -> bool:
    """Return whether a statement imports a module of tests, or something from one."""
    if isinstance(node, ast.Import):
        names = [each.name for each in node.names]
    else:
        module = ".".join(filter(None, ["tests" if node.level else "", node.module or ""]))
        names = [f"{module}.{each.name}" for each in node.names]
    return any(re.match(r"tests\.(\w+\.)*test_", name) for name in names)


def test_the_flags_of_an_access_are_the_same_where_it_is_written_and_where_it_is_read() -> None:
    """Evidence is also read where there is no probe, so both sides name the bits."""
    written = (ROOT / "probe" / "src" / "columns.rs").read_text(encoding="utf-8")
    bits = {name: int(value) for name, value in re.findall(r"pub const (FLAG_\w+): u8 = (\d+);", written)}
    assert bits == {name: value for name, value in vars(schema).items() if name.startswith("FLAG_")}
    assert len(bits) == 3
