"""Fixtures live in fix_*.py, one concern each; here is only what pytest needs to find them."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import settings

from pgsweep import __version__, _native
from pgsweep.pg.private.bindir import installed_servers

# A shell ignores SIGINT for what it runs in the background, and processes inherit that: the commands whose
# interruption is tested would then never hear of it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Likewise nohup and SIGHUP, by which a program learns that its terminal is gone.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes says more of what else this machine does than of what is tested.
settings.register_profile("pgsweep", deadline=None)
settings.load_profile("pgsweep")

pytest_plugins = (
    "tests.fix_initdb",  # first, as others import it
    "tests.fix_cluster",
    "tests.fix_disk",
    "tests.fix_doctor",
    "tests.fix_heated",
    "tests.fix_hostile",
    "tests.fix_lab",
    "tests.fix_load_model",
    "tests.fix_page",
    "tests.fix_proc",
    "tests.fix_quick",
    "tests.fix_serve",
    "tests.fix_warm",
    "tests.fix_wheel",
)


def pytest_collection_finish() -> None:
    """Leave what is here for good, modules and thousands of tests, out of every later garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_report_header(config: pytest.Config) -> list[str]:
    servers = ", ".join(f"{server.version} in {server.bindir}" for server in installed_servers())
    return [
        f"pgsweep {__version__} ({_native.build_profile()} build), uid {os.getuid()}",
        f"servers: {servers or 'none'}",
    ]
