"""`import pgsweep`: what it promises, what it loads, and the example of its page, run on a real server."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pgsweep
from pgsweep import records
from pgsweep.pg.private.cluster import Cluster
from tests.fix_shop import shop_under_load

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")


def typed_names() -> set[str]:
    """Return the names that a type checker sees."""
    tree = ast.parse(Path(pgsweep.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imported = {alias.asname for n in tree.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    assigned = {ast.unparse(n.targets[0]) for n in tree.body if isinstance(n, ast.Assign)}
    return {name for name in imported | assigned if name and (name[:2] == "__" or name[0] != "_")}


def test_the_names_are_there_and_those_that_a_type_checker_sees() -> None:
    assert set(pgsweep.__all__) == typed_names()
    assert set(dir(pgsweep)) == set(pgsweep.__all__)
    for name in pgsweep.__all__:
        assert getattr(pgsweep, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'predicts'"):
        getattr(pgsweep, "predicts")  # noqa: B009


def test_functions_are_typed_documented_and_on_the_page() -> None:
    for name in pgsweep.__all__:
        value = getattr(pgsweep, name)
        if not inspect.isfunction(value):
            continue
        assert value.__doc__, name
        annotations = inspect.get_annotations(value)
        assert {*inspect.signature(value).parameters, "return"} == set(annotations), name
        assert f"`{name}(" in PAGE, name


def test_the_page_names_functions_and_results_that_exist() -> None:
    rows = re.findall(r"^\| `(\w+)\(.*?\)` \| `pgsweep .*?` \| `(\w+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) == 33
    modules = [p.stem for p in Path(records.__file__).parent.glob("[a-z]*.py")]
    texts = "\n".join((Path(records.__file__).parent / f"{m}.py").read_text() for m in modules)
    for function, result in rows:
        assert function in pgsweep.__all__
        assert inspect.get_annotations(getattr(pgsweep, function))["return"] == result
        assert f"class {result}(" in texts


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, pgsweep; print(*sorted(m for m in sys.modules if m.partition('.')[0] in %r))"
    heavy = ("numpy", "psycopg", "pyarrow", "scipy", "click", "msgspec", "typing")
    done = subprocess.run([sys.executable, "-c", code % (heavy,)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_version_has_one_source() -> None:
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert pgsweep.__version__ == cargo["workspace"]["package"]["version"]
    assert "version" in project["dynamic"]
    for crate in ("core", "probe", "bindings"):
        text = (ROOT / crate / "Cargo.toml").read_text(encoding="utf-8")
        assert tomllib.loads(text)["package"]["version"] == {"workspace": True}


def test_the_example_runs(wheel18: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with shop_under_load(wheel18) as conninfo:
        known = {"conninfo": conninfo, "folder": tmp_path}
        exec(compile(example, "python.md", "exec"), known)
    printed = capsys.readouterr().out
    assert "pgbench_accounts" in printed
    assert re.search(r"^(peek|sql) \d+ time$", printed, re.MULTILINE)
    assert re.search(r"^(reliable|rough|refused)$", printed, re.MULTILINE)
