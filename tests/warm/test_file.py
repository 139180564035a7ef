"""FILE and DBNAME in each other's place: reported, with the command as it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fix_cli import run

URI = "postgresql://ann:sesame@db1/shop"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("save", URI, "a.heat"), "pgsweep warm save a.heat 'user=ann dbname=shop host=db1'"),
        (("save", "shop", "a.heat"), "pgsweep warm save a.heat shop"),
        (
            ("save", "host=db1 dbname=shop", "--keep", "3"),
            "pgsweep warm save shop.heat 'host=db1 dbname=shop' --keep 3",
        ),
        (("restore", "host=db1", "a.heat", "-n"), "pgsweep warm restore a.heat host=db1 -n"),
        (("restore", "shop", "there.heat"), "pgsweep warm restore there.heat shop"),
        (("check", URI, "there.heat"), "pgsweep warm check there.heat 'user=ann dbname=shop host=db1'"),
        (("check", "shop", "there.heat"), "pgsweep warm check there.heat shop"),
    ],
)
def test_the_right_command_is_named(words: tuple[str, ...], hint: str, tmp_path: Path) -> None:
    (tmp_path / "there.heat").write_bytes(b"")
    done = run("warm", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "stands where the heat file belongs" in done.stderr
    assert f"hint: {hint}" in " ".join(done.stderr.split())
    assert "sesame" not in done.stderr


def test_files_of_any_name_are_files(tmp_path: Path) -> None:
    for name in ("a=b.heat", "shop"):
        assert "there is no file" in run("warm", "check", name, cwd=tmp_path).stderr
    (tmp_path / "dbname=shop").write_bytes(b"")
    assert "is not a heat file" in run("warm", "restore", "dbname=shop", cwd=tmp_path).stderr
