"""The servers of tests/load/test_model.py, one a bin folder, and its options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pgsweep.pg.private.cluster import Cluster

if TYPE_CHECKING:
    from tests.load.model_server import Server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--load-cases",
        type=int,
        metavar="N",
        help="compare N random loads with what they must do (tests/load/test_model.py)",
    )
    parser.addoption(
        "--load-seed",
        type=int,
        metavar="N",
        help="only the case of this seed, or with --load-cases those that begin with it",
    )


@pytest.fixture(scope="session")
def model_servers() -> Iterator[Callable[[Path | None], Server]]:
    """Gives the server of the model, by bin folder."""
    # What they need takes a while to import.
    from tests.load.model_server import SETTINGS, Server

    made: dict[Path | None, Server] = {}
    with ExitStack() as closing:

        def server_of(bindir: Path | None) -> Server:
            if bindir not in made:
                made[bindir] = Server(closing.enter_context(Cluster.create(bindir, SETTINGS)))
            return made[bindir]

        yield server_of
        for server in made.values():
            server.connection.close()
