"""The native module is a release build of this version."""

from __future__ import annotations

import pgsweep
from pgsweep import _native
from pgsweep.sizing.inference import accesses


def test_native_is_release_and_same_version() -> None:
    assert _native.build_profile() == "release"
    assert _native.__version__ == pgsweep.__version__


def test_flags_are_those_of_the_simulator() -> None:
    mine = (accesses.STRATEGY, accesses.REPEAT, accesses.EXTEND, accesses.DROP, accesses.UNCOUNTED)
    native = (_native.STRATEGY_MASK, _native.REPEAT, _native.EXTENSION, _native.DROP, _native.UNCOUNTED)
    assert mine == native
