"""Files written whole or not at all, and folders that nobody else can interfere with.

A file is written beside its target, in the same folder, under a name that cannot be guessed, and renamed over
the target when it is whole and on the disk. The name is made with O_EXCL and O_NOFOLLOW (open(2)), so a link
or a file that somebody has put there is never written through. The writer holds a lock (flock(2)) on the file
until then; the kernel drops it with the process. A file aside without its lock is therefore left over from a
process that was killed, and whoever writes the same target next removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from pgsweep.errors import PgsweepError
from pgsweep.plain import shell_word

_ASIDE: Final = re.compile(r"\.(.+)\.[0-9a-f]{16}\.part", re.DOTALL)
_LONGEST_NAME_BYTES: Final = 255 - len(".") - len(".0123456789abcdef.part")
"""Of the target's name within the name aside: NAME_MAX is 255 (limits.h of Linux)."""

_FOLDER: Final = os.O_DIRECTORY | os.O_CLOEXEC
_LOOK: Final = getattr(os, "O_PATH", os.O_RDONLY) | _FOLDER
"""Opens a folder that one may enter, also where one may not list it."""

_LINKS_FOLLOWED: Final = 40
"""As many as the kernel follows (MAXSYMLINKS, include/linux/namei.h)."""


def where_to_look(path: Path) -> str:
    """Return the hint for a file that could not be written."""
    return f"is there room, and may you write there? df -h {shell_word(str(path.parent))}"


class Untrusted(PgsweepError):
    """A folder or file that somebody else could have put there, or could change."""


class Aside:
    """A file that is written beside its target, until `commit` renames it or `discard` removes it.

    Args:
        path: the target.
        mode: of the file, less the process's umask.
        private: refuse a folder that others may write to, see `check_private`.
        durable: flush the file and its folder to the disk, and remove what killed writers of the same target
            left. Without it the caller does both for a whole folder at once.
        buffered: whether `file` has a buffer.

    Attributes:
        file: open for writing and reading; it stays open and locked after `commit`, until it is closed.

    Raises:
        OSError: the folder does not allow it, or the disk is full.
        Untrusted: `private`, and the folder is not.
    """

    def __init__(
        self,
        path: Path,
        *,
        mode: int = 0o666,
        private: bool = False,
        durable: bool = True,
        buffered: bool = True,
    ) -> None:
        self.path = path
        self._durable = durable
        self._folder = _opened_private(path.parent) if private else os.open(path.parent, _LOOK)
        try:
            if durable:
                _remove_leftovers(self._folder, path.name)
            self._name, descriptor = _made(self._folder, path.name, mode)
        except BaseException:
            os.close(self._folder)
            raise
        self.file = open(descriptor, "w+b", buffering=-1 if buffered else 0)  # noqa: PTH123, SIM115

    def commit(self) -> None:
        """Rename the file over its target, flushed to the disk before and after.

        Raises:
            OSError: it cannot be written out or renamed; the target is as it was.
        """
        self.file.flush()
        if self._durable:
            os.fsync(self.file.fileno())
        os.replace(self._name, self.path.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        if self._durable:
            _flush(self._folder)
        self._close_folder()

    def discard(self) -> None:
        """Remove the file; for use before `commit` or after it failed."""
        with contextlib.suppress(OSError):
            self.file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._name, dir_fd=self._folder)
        self._close_folder()

    def _close_folder(self) -> None:
        folder, self._folder = self._folder, -1
        if folder >= 0:
            os.close(folder)


@contextlib.contextmanager
def replacing(
    path: Path, *, mode: int = 0o666, private: bool = False, durable: bool = True
) -> Iterator[BinaryIO]:
    """Yield a file that replaces the target when the body ends, and is removed if the body fails.

    Args:
        path: the target; a link there is replaced, not followed.
        mode: of the file, less the process's umask.
        private: refuse a folder that others may write to, see `check_private`.
        durable: see `Aside`.

    Raises:
        OSError: it cannot be written; the target is as it was.
        Untrusted: `private`, and the folder is not.
    """
    aside = Aside(path, mode=mode, private=private, durable=durable)
    try:
        yield aside.file
        aside.commit()
    except BaseException:
        aside.discard()
        raise
    aside.file.close()


def write_whole(
    path: Path,
    data: bytes | memoryview,
    *,
    mode: int = 0o666,
    private: bool = False,
    durable: bool = True,
) -> None:
    """Write a file whole or not at all; the arguments are those of `replacing`.

    Raises:
        OSError: it cannot be written; the target is as it was.
        Untrusted: `private`, and the folder is not.
    """
    with replacing(path, mode=mode, private=private, durable=durable) as file:
        file.write(data)


def rename_flushed(path: Path, target: Path) -> None:
    """Rename a file or a folder within its folder, and flush that to the disk.

    Args:
        path: what lies there is on the disk already.
        target: a name in the same folder.

    Raises:
        OSError: it cannot be renamed, or the folder cannot be flushed.
    """
    folder = os.open(path.parent, _LOOK)
    try:
        os.rename(path.name, target.name, src_dir_fd=folder, dst_dir_fd=folder)
        _flush(folder)
    finally:
        os.close(folder)


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replace a file by what is made of it, whole or not at all; owner, group and mode stay.

    Its folder may be another user's, who can put a link in the place of anything in it, or of the folder. So
    the folder is opened once, and the file in it must be a regular one of the folder's owner without a second
    name: what is read and written are his files then, in a folder of his.

    Raises:
        OSError: it cannot be read or written; it is as it was.
    """
    folder = os.open(path.parent, _LOOK)
    try:
        with open(_opened_owned(folder, path), "rb") as former:
            status = os.fstat(former.fileno())
            data = change(former.read())
        _remove_leftovers(folder, path.name)
        name, descriptor = _made(folder, path.name, 0o600)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123
                file.write(data)
                file.flush()
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
                # Last, as nobody but its owner removes a file aside that a killed process leaves.
                os.fchown(descriptor, status.st_uid, status.st_gid)
                os.fsync(descriptor)
                os.replace(name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
            raise
        _flush(folder)
    finally:
        os.close(folder)


def is_aside(name: str) -> bool:
    """Return whether a name is one that `Aside` gives to its temporary files."""
    return _ASIDE.fullmatch(name) is not None


def remove_leftovers(path: Path) -> list[str]:
    """Remove what killed writers of the target left beside it; return the names."""
    try:
        folder = os.open(path.parent, _LOOK)
    except OSError:
        return []
    try:
        return _remove_leftovers(folder, path.name)
    finally:
        os.close(folder)


def make_private(folder: Path, mode: int = 0o755) -> None:
    """Make a folder, with those above it, where it is not there; check that nobody else may write to it.

    Raises:
        OSError: it cannot be made.
        Untrusted: somebody else could put something there.
    """
    if os.geteuid() == 0:
        _check_above(folder.absolute())  # before: links of others would have folders made elsewhere
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    check_private(folder)


def check_private(folder: Path) -> None:
    """Refuse a folder that is a link, belongs to another user, or may be written by others.

    What lies in it is believed, written and removed with our rights, so nobody else may put it there. For
    root the folders above count as well: whoever may write to one of those can put another in its place.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be looked at.
        Untrusted: somebody else could put something there.
    """
    os.close(_opened_private(folder))


def read_private(path: Path) -> bytes:
    """Return what a file of ours in a private folder holds.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read, or is a link.
        Untrusted: the folder, or the file, is not ours alone.
    """
    folder = _opened_private(path.parent)
    try:
        descriptor = os.open(
            path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
        with open(descriptor, "rb") as file:  # noqa: PTH123
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in _trusted_users():
                raise _untrusted(path, "it is not a file of ours")
            return file.read()
    finally:
        os.close(folder)


def remove_private(path: Path) -> None:
    """Remove a file from a private folder, where it is there.

    Raises:
        OSError: it cannot be removed.
        Untrusted: the folder is not ours alone.
    """
    with contextlib.suppress(FileNotFoundError):
        folder = _opened_private(path.parent)
        try:
            os.unlink(path.name, dir_fd=folder)
        finally:
            os.close(folder)


def state_folder() -> Path | None:
    """Return the state folder of pgsweep for this user; None if there is no home folder."""
    named = os.environ.get("XDG_STATE_HOME", "")
    if named.startswith("/"):  # the specification says to ignore relative ones
        return Path(named) / "pgsweep"
    with contextlib.suppress(RuntimeError):
        home = Path.home()
        if home.is_dir():
            return home / ".local" / "state" / "pgsweep"
    return None


def through_own_links(path: Path) -> Path:
    """Return where a path leads through links that we, or root, made.

    Raises:
        OSError: a link is another user's (ELOOP), or leads nowhere else than to links.
    """
    for _ in range(_LINKS_FOLLOWED):
        if not path.is_symlink():
            return path
        if path.lstat().st_uid not in _trusted_users():
            break
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, "it is a link that another user made", str(path))


def _made(folder: int, name: str, mode: int) -> tuple[str, int]:
    """Make a file aside that only we have, locked; return its name and descriptor."""
    short = os.fsdecode(os.fsencode(name)[:_LONGEST_NAME_BYTES])
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        aside = f".{short}.{os.urandom(8).hex()}.part"
        descriptor = os.open(aside, flags, mode, dir_fd=folder)
        # Without locks on this file system, no other run can lock the file either, so none removes it.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink > 0:
            return aside, descriptor
        os.close(descriptor)  # removed as a leftover before it was locked


def _remove_leftovers(folder: int, name: str) -> list[str]:
    short = os.fsdecode(os.fsencode(name)[:_LONGEST_NAME_BYTES])
    removed = []
    with contextlib.suppress(OSError):  # a folder that may be written and not listed
        readable = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=folder)
        try:
            found = [entry for entry in os.listdir(readable) if _target(entry) == short]  # noqa: PTH208
        finally:
            os.close(readable)
        for entry in found:
            with contextlib.suppress(OSError):
                if _remove_dead(folder, entry):
                    removed.append(entry)
    return removed


def _target(entry: str) -> str | None:
    match = _ASIDE.fullmatch(entry)
    return None if match is None else match.group(1)


def _remove_dead(folder: int, name: str) -> bool:
    """Remove a file aside if it is ours and nobody holds its lock; return whether it was."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=folder)
        return True
    finally:
        os.close(descriptor)


def _flush(folder: int) -> None:
    """Make a rename survive a crash of the host; some file systems cannot, and say EINVAL."""
    with contextlib.suppress(PermissionError):
        readable = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=folder)
        try:
            os.fsync(readable)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(readable)


def _trusted_users() -> tuple[int, int]:
    return (os.geteuid(), 0)


def _opened_owned(folder: int, path: Path) -> int:
    """Return a descriptor of a regular file of the folder's owner that has no other name."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path.name, flags, dir_fd=folder)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.fstat(folder).st_uid or status.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EPERM, "it is not a file of the folder's owner alone", str(path))
    return descriptor


def _opened_private(folder: Path) -> int:
    """Return a descriptor of the folder, which has been checked: see `check_private`."""
    folder = folder.absolute()
    try:
        descriptor = os.open(folder, _LOOK | os.O_NOFOLLOW)
    except OSError as error:
        if folder.is_symlink():
            raise _untrusted(folder, "it is a link") from error
        raise
    try:
        _check_folder(folder, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_folder(folder: Path, status: os.stat_result) -> None:
    if status.st_uid not in _trusted_users():
        raise _untrusted(folder, f"it belongs to the user {status.st_uid}")
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _untrusted(folder, f"others may write to it: its mode is {mode:04o}")
    if os.geteuid() == 0:
        _check_above(folder)


def _check_above(folder: Path) -> None:
    for above in folder.parents:
        try:
            status = above.lstat()
        except FileNotFoundError:
            continue  # to be made, or found missing by whoever opens the folder
        others = stat.S_IWGRP | stat.S_IWOTH
        if stat.S_ISLNK(status.st_mode):
            others = 0  # the mode of a link says nothing
        elif status.st_mode & stat.S_ISVTX:
            others = 0  # only the owner of an entry may rename it
        if status.st_uid not in _trusted_users() or status.st_mode & others:
            raise _untrusted(folder, f"others than root may put another in its place, in {above}")


def _untrusted(path: Path, why: str) -> Untrusted:
    return Untrusted(
        f"`{path}` cannot be trusted",
        cause=why,
        hint=f"name another place, or see who made it: ls -ld {shell_word(str(path))}",
    )
