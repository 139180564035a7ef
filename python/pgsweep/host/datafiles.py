"""The files of a server's relations, found through its process.

A relation's data lies in segments of 1 GB (`segment_size`) in base/DATABASE, in global/ for shared catalogs,
or below pg_tblspc/ (src/common/relpath.c): `16384` is its main fork, `16384.1` the second segment,
`16384_fsm`, `16384_vm` and `16384_init` are other forks; `t3_16384` is temporary and left out. Whole folders
are listed rather than names guessed, so that what the catalog does not know is found too, and 100,000
relations cost no more than a few listings.

The data directory is reached as /proc/PID/cwd, the postmaster's working directory. So it is found whatever
path it has in the server's own mount namespace (a container); it takes the server's user, or root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pgsweep.errors import MissingAbility

GLOBAL_TABLESPACE = 1664
"""Oid of pg_global (src/include/catalog/pg_tablespace.dat)."""

DEFAULT_TABLESPACE = 1663
"""Oid of pg_default."""

MAIN_FORK = 0

_FORKS = {None: 0, "fsm": 1, "vm": 2, "init": 3}
_SEGMENT = re.compile(r"(\d+)(?:_(fsm|vm|init))?(?:\.(\d+))?")
_NUMBER = re.compile(r"\d+")

Fork = tuple[int, int, int, int]
"""Tablespace, database, relfilenode, fork."""


@dataclass(slots=True)
class DataFiles:
    """Segment files of relations; `forks`, `segments` and `paths` are parallel and sorted.

    Attributes:
        forks: which fork of which relation.
        segments: number of the segment, from 0.
        paths: through /proc, as we can open them.
        unreadable: folders that could not be listed.
    """

    forks: list[Fork] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def find_data_files(
    postmaster_pid: int, version_num: int, databases: Iterable[int] | None = None
) -> DataFiles:
    """Return the segment files of all relations, or of those of some databases (0: shared catalogs).

    Files that vanish meanwhile are of no consequence here: they are found to be gone when they are looked at.

    Raises:
        MissingAbility: the data directory cannot be entered.
    """
    top = Path(f"/proc/{postmaster_pid}/cwd")
    try:
        next((top / "base").iterdir(), None)
    except OSError as error:
        raise MissingAbility(
            "the server's data directory cannot be read",
            cause=f"{error.strerror}; pgsweep runs as user {os.geteuid()}",
            hint="run it as the server's user or as root: sudo -u postgres pgsweep ...",
        ) from error
    wanted = None if databases is None else set(databases)
    found: list[tuple[Fork, int, str]] = []
    unreadable: list[str] = []
    for tablespace, database, folder in _folders(postmaster_pid, top, version_num // 10000, unreadable):
        if wanted is not None and database not in wanted:
            continue
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    match = _SEGMENT.fullmatch(entry.name)
                    if match is not None:
                        fork = (tablespace, database, int(match.group(1)), _FORKS[match.group(2)])
                        found.append((fork, int(match.group(3) or 0), entry.path))
        except FileNotFoundError:
            continue  # the database was dropped
        except OSError:
            unreadable.append(str(folder))
    found.sort()
    return DataFiles(
        forks=[fork for fork, _, _ in found],
        segments=[segment for _, segment, _ in found],
        paths=[path for _, _, path in found],
        unreadable=unreadable,
    )


def _folders(pid: int, top: Path, major: int, unreadable: list[str]) -> list[tuple[int, int, Path]]:
    """Return tablespace, database and folder of every place where relations lie."""
    folders = [(GLOBAL_TABLESPACE, 0, top / "global")]
    folders += [(DEFAULT_TABLESPACE, oid, folder) for oid, folder in _numbered(top / "base", unreadable)]
    for tablespace, link in _numbered(top / "pg_tblspc", unreadable):
        try:
            # The link holds a path as the server sees it, which in a container is not ours.
            target = Path(f"/proc/{pid}/root") / str(link.readlink()).lstrip("/")
        except OSError:
            target = link  # allow_in_place_tablespaces makes a folder instead
        try:
            versions = [path for path in target.iterdir() if path.name.startswith(f"PG_{major}_")]
        except FileNotFoundError:
            continue
        except OSError:
            unreadable.append(str(target))
            continue
        for version in versions:
            folders += [(tablespace, oid, folder) for oid, folder in _numbered(version, unreadable)]
    return folders


def _numbered(folder: Path, unreadable: list[str]) -> list[tuple[int, Path]]:
    try:
        inside = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError:
        unreadable.append(str(folder))
        return []
    return [(int(path.name), path) for path in inside if _NUMBER.fullmatch(path.name)]
