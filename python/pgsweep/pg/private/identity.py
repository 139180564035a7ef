"""Which user a private server runs as, and whether that user can reach its program files.

PostgreSQL refuses to run as root. When we are root the server runs as `postgres` where that account exists,
else as `nobody`. The wheel often lies where such a user may not go (a virtual environment below /root): then
its files are copied, or linked, into the run folder.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from pgsweep.errors import ClusterError
from pgsweep.host.postmaster import user_name
from pgsweep.pg.private.bindir import ServerBinaries

_ACCOUNTS = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The user that a private server runs as.

    Attributes:
        name: the account.
        uid: its user id.
        gid: its primary group.
        changed: whether it is another user than we are.
    """

    name: str
    uid: int
    gid: int
    changed: bool

    def give(self, path: Path) -> None:
        """Make the user the owner of a file or folder."""
        if self.changed:
            os.chown(path, self.uid, self.gid)

    def may(self, path: Path, wanted: int) -> bool:
        """Return whether the permission bits of one file or folder allow them what is wanted.

        Args:
            path: the file; every folder above it must be asked about too.
            wanted: bits as for others: 4 read, 2 write, 1 enter or execute.
        """
        try:
            status = path.stat()
        except OSError:
            return False
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid == self.gid else 0
        return (stat.S_IMODE(status.st_mode) >> shift) & wanted == wanted

    def reaches(self, path: Path) -> bool:
        """Return whether they may pass through all folders above a path."""
        return all(self.may(folder, 1) for folder in path.resolve().parents)


def choose_server_user() -> ServerUser:
    """Return ourselves, or an unprivileged account when we are root.

    Raises:
        ClusterError: we are root and there is no such account.
    """
    if os.getuid() != 0:
        # In a container a user may be a number without an account; initdb refuses it, and says so.
        return ServerUser(user_name(os.getuid()), os.getuid(), os.getgid(), changed=False)
    for name in _ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return ServerUser(name, entry.pw_uid, entry.pw_gid, changed=True)
    raise ClusterError(
        "no unprivileged user to run PostgreSQL as",
        cause="PostgreSQL refuses to run as root, and neither `postgres` nor `nobody` exists",
        hint="adduser --system postgres, or run pgsweep as an ordinary user",
    )


def reachable_bindir(server: ServerBinaries, user: ServerUser, run: Path) -> Path:
    """Return a bin folder that the user can run: the installed one, or a copy in the run folder.

    Raises:
        ClusterError: it is out of reach and not relocatable (share/ and lib/ are not beside bin/).
    """
    postgres = server.bindir / "postgres"
    if user.reaches(postgres) and user.may(postgres.resolve(), 5) and user.may(server.bindir.parent, 5):
        return server.bindir
    install = server.bindir.parent
    if not (install / "share").is_dir() or not (install / "lib").is_dir():
        raise ClusterError(
            f"user {user.name} cannot run {postgres}",
            cause="a folder above it may not be entered by that user",
            hint=f"chmod o+x the folders above {server.bindir}, or use another --pg-bindir",
        )
    # A repaired wheel keeps its libraries in PACKAGE.libs beside the package, and its programs find them by
    # the relative path ($ORIGIN/../../../PACKAGE.libs): so both keep their places relative to each other.
    package = install.parent
    top = run / "server"
    copy = top / package.name / install.name
    libraries = package.with_name(package.name + ".libs")
    try:
        shutil.copytree(install, copy, symlinks=True, copy_function=_link_or_copy)
        if libraries.is_dir():
            shutil.copytree(libraries, top / libraries.name, symlinks=True, copy_function=_link_or_copy)
    except (OSError, shutil.Error) as error:
        raise ClusterError(f"cannot copy {install} to {copy}", cause=str(error)) from error
    for folder in (top, *(path for path in top.rglob("*") if path.is_dir() and not path.is_symlink())):
        folder.chmod(0o755)
    return copy / "bin"


def _link_or_copy(source: str, target: str, *, follow_symlinks: bool = True) -> str:
    """Hard-link a file that others may read (free), else copy it and let them read the copy."""
    mode = Path(source).lstat().st_mode
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        try:
            os.link(source, target)
        except OSError:
            pass  # another file system
        else:
            return target
    shutil.copy2(source, target, follow_symlinks=follow_symlinks)
    if not Path(target).is_symlink():
        Path(target).chmod(0o755 if mode & stat.S_IXUSR else 0o644)
    return target
