"""The native module is a release build of this version."""

from __future__ import annotations

import pgsweep
from pgsweep import _native


def test_native_is_release_and_same_version() -> None:
    assert _native.build_profile() == "release"
    assert _native.version() == pgsweep.__version__
