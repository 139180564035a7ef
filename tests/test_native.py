"""The native module is a release build of this version."""

from __future__ import annotations

import re
from pathlib import Path

import pgsweep
from pgsweep import _native
from pgsweep.evidence import schema


def test_native_is_release_and_same_version() -> None:
    assert _native.build_profile() == "release"
    assert _native.__version__ == pgsweep.__version__


def test_flags_of_the_evidence_are_those_that_the_probe_writes() -> None:
    """The probe is not in every build, and its constants are not in the module."""
    source = Path(__file__).parents[1] / "probe/src/columns.rs"
    written = dict(re.findall(r"pub const (FLAG_\w+): u8 = (\d+);", source.read_text(encoding="utf-8")))
    known = {name: str(getattr(schema, name)) for name in dir(schema) if name.startswith("FLAG_")}
    assert known == written
