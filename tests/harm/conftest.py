"""The fixtures of this package, whose server ends with its tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.harm.fix_poolers", "tests.harm.fix_world")

from tests.harm.fix_poolers import world_through  # noqa: E402
from tests.harm.fix_world import make_world, primary, standby_world, world  # noqa: E402

__all__ = ["make_world", "primary", "standby_world", "world", "world_through"]
