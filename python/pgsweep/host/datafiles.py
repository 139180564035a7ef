"""The files of a server's relations, found through its process.

A relation's data lies in segments of 1 GB (`segment_size`) in base/DATABASE, in global/ for shared catalogs,
or below pg_tblspc/ (src/common/relpath.c): `16384` is its main fork, `16384.1` the second segment,
`16384_fsm`, `16384_vm` and `16384_init` are other forks; `t3_16384` is temporary and left out. Whole folders
are listed rather than names guessed, so that what the catalog does not know is found too, and 100,000
relations cost no more than a few listings.

The data directory is reached as /proc/PID/cwd, the postmaster's working directory. So it is found whatever
path it has in the server's own mount namespace (a container); it takes the server's user, or root. Other
tablespaces are found below /proc/PID/root, see `resolve_in_root`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pgsweep.errors import NeedsRoot
from pgsweep.host.postmaster import user_of
from pgsweep.host.yama import who_may

GLOBAL_TABLESPACE = 1664
"""Oid of pg_global (src/include/catalog/pg_tablespace.dat)."""

DEFAULT_TABLESPACE = 1663
"""Oid of pg_default."""

MAIN_FORK = 0

MAX_LINKS = 40
"""Links the kernel follows in one path (path_resolution(7); MAXSYMLINKS in include/linux/namei.h)."""

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
        unreadable: folders that could not be listed, and entries of pg_tblspc/ whose folder could not be
            listed or found: files are missing here.
    """

    forks: list[Fork] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def find_data_files(
    postmaster_pid: int, version_num: int, databases: Iterable[int] | None = None
) -> DataFiles:
    """Return the segment files of all relations, or of those of some databases (0: shared catalogs).

    Files that vanish meanwhile do no harm: whoever reads them later finds that they are gone.

    Raises:
        MissingAbility: the data directory cannot be entered.
    """
    top = Path(f"/proc/{postmaster_pid}/cwd")
    root = Path(f"/proc/{postmaster_pid}/root")
    try:
        next((top / "base").iterdir(), None)
    except OSError as error:
        raise NeedsRoot(
            "the server's data directory cannot be read",
            cause=f"{error.strerror}; pgsweep runs as user {os.geteuid()}",
            hint=who_may(user=user_of(postmaster_pid)),
        ) from error
    wanted = None if databases is None else set(databases)
    found: list[tuple[Fork, int, str]] = []
    unreadable: list[str] = []
    for tablespace, database, folder in _folders(root, top, version_num // 10000, unreadable):
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


def resolve_in_root(root: Path, path: str | Path) -> Path:
    """Return where a path leads for a process whose root is `root`, as a path without links below `root`.

    `root / path` alone is not enough: where it meets an absolute link, the kernel begins again at our own
    root, in another mount namespace, and finds nothing or another folder. So links are followed here, by the
    rule of path_resolution(7) with `root` as the root, which is RESOLVE_IN_ROOT of openat2(2): an absolute
    link begins again at `root`, a relative one at its own folder, and `..` does not leave `root`. (That call
    itself needs Linux 5.6, and Python does not have it.)

    Args:
        root: the process's root, /proc/PID/root.
        path: as the process names it, from its root.

    Raises:
        FileNotFoundError: a component does not exist, or a link leads nowhere.
        NotADirectoryError: a component that others follow is a file.
        PermissionError: a folder on the way may not be searched.
        OSError: with errno ELOOP after more than `MAX_LINKS` links.
    """
    here = root
    links = 0
    ahead = os.fspath(path).split("/")[::-1]
    while ahead:
        name = ahead.pop()
        if name in {"", "."}:
            continue
        if name == "..":
            (here / "..").lstat()  # an error where `here` is a file, or a folder that may not be searched
            here = root if here == root else here.parent
            continue
        try:
            target = str((here / name).readlink())
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            here /= name  # not a link
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        if target.startswith("/"):
            here = root
        ahead += target.split("/")[::-1]
    return here


def _folders(root: Path, top: Path, major: int, unreadable: list[str]) -> list[tuple[int, int, Path]]:
    """Return tablespace, database and folder of every place where relations lie."""
    folders = [(GLOBAL_TABLESPACE, 0, top / "global")]
    folders += [(DEFAULT_TABLESPACE, oid, folder) for oid, folder in _numbered(top / "base", unreadable)]
    for tablespace, link in _numbered(top / "pg_tblspc", unreadable):
        try:
            inside = list(_tablespace_folder(root, link).iterdir())
        except OSError as error:
            # A link that is gone was a dropped tablespace's; one that leads nowhere hides files.
            if not isinstance(error, FileNotFoundError) or os.path.lexists(link):
                unreadable.append(str(link))
            continue
        versions = [path for path in inside if path.name.startswith(f"PG_{major}_")]
        for version in versions:
            folders += [(tablespace, oid, folder) for oid, folder in _numbered(version, unreadable)]
    return folders


def _tablespace_folder(root: Path, link: Path) -> Path:
    """Return the folder of a tablespace by its entry in pg_tblspc/.

    Raises:
        OSError: the link leads nowhere, see `resolve_in_root`.
    """
    try:
        target = link.readlink()
    except OSError:
        return link  # allow_in_place_tablespaces makes a folder instead
    # CREATE TABLESPACE takes absolute paths only. A relative one, made by hand, begins in pg_tblspc/, where
    # the kernel is in the server's mounts already.
    return resolve_in_root(root, target) if target.is_absolute() else link


def _numbered(folder: Path, unreadable: list[str]) -> list[tuple[int, Path]]:
    try:
        inside = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError:
        unreadable.append(str(folder))
        return []
    return [(int(path.name), path) for path in inside if _NUMBER.fullmatch(path.name)]
