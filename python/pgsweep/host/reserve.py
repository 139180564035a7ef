"""Reserve huge pages, and release them: the only place where pgsweep changes the host.

The kernel may give fewer pages than asked for, without an error: free memory lies in pieces. Then memory is
compacted once and asked for again; what is still missing is a failure, and the number is put back, because a
server needs all of its pages or uses none.

What nr_hugepages was before is kept in a file, so that it can be put back (`undo`); pages kept over a restart
of the host are a line in sysctl.d (sysctl.d(5)). The file is written before the first page is asked for. The
kernel ends an allocation early when a signal arrives (mm/hugetlb.c, set_max_huge_pages), so a process that is
killed leaves any number between before and after: `undo` treats any of them as ours.
"""

from __future__ import annotations

import os
import platform
import re
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from pgsweep.commands import on_server, sudo, this_command
from pgsweep.errors import MissingAbility, NeedsRoot, PgsweepError, UsageError
from pgsweep.files import make_private, read_private, remove_leftovers, remove_private, write_whole
from pgsweep.host.hugepages import Pool, pool_file, read_pools
from pgsweep.host.procfile import PROC, read_host_memory
from pgsweep.plain import shell_word, shell_words, shown
from pgsweep.units import format_bytes, format_count, huge_page_word

STATE_DIRECTORY = Path("/var/lib/pgsweep")
SYSCTL_DIRECTORY = Path("/etc/sysctl.d")
STATE_NAME, SYSCTL_NAME = "hugepages.json", "90-pgsweep-hugepages.conf"
_COMPACT = Path("/proc/sys/vm/compact_memory")
_HEAD = "# by pgsweep hugepages --apply; removed by --undo"
_OUR_LINE = re.compile(rb"%s\nvm\.nr_hugepages = \d+\n" % re.escape(_HEAD).encode())


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What `undo` needs to know.

    Attributes:
        page_bytes: size of the pages.
        before: what nr_hugepages was before the first change.
        after: what it was made.
        sysctl_file: the file that was written; empty where none was.
        host: the host whose number it is; empty in files of earlier versions.
        servers: how many pages were added for each server; not there in files of earlier versions.
    """

    page_bytes: int
    before: int
    after: int
    sysctl_file: str
    host: str = ""
    servers: dict[str, int] = {}


class Undone(msgspec.Struct, frozen=True, kw_only=True):
    """What `undo` does.

    Attributes:
        before: the number of pages to be.
        files: the files to be removed; none where other servers' pages stay.
        left: a sysctl file that is not as it was written, and stays; empty where there is none.
        servers: for which the pages were that are given back.
    """

    before: int
    files: list[str]
    left: str = ""
    servers: list[str] = []


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """The change of nr_hugepages.

    Attributes:
        before: pages before.
        after: pages now, as the kernel says.
        compacted: memory had to be compacted.
        state_file: where the number before is kept.
        sysctl_file: the file that keeps the pages over a restart of the host, if one was written.
    """

    before: int
    after: int
    compacted: bool
    state_file: str
    sysctl_file: str | None


class Reserver:
    """Changes the number of huge pages of one size, and remembers it.

    Attributes:
        state_file: where the number before is kept.
        sysctl_file: the line in sysctl.d.
    """

    def __init__(
        self,
        *,
        state_directory: Path = STATE_DIRECTORY,
        sysctl_directory: Path = SYSCTL_DIRECTORY,
        sys: Path = Path("/sys"),
        compact: Path = _COMPACT,
        proc: Path = PROC,
    ) -> None:
        """Take the places.

        Args:
            state_directory: of the file with the number before.
            sysctl_directory: of the line that keeps the pages over a restart.
            sys: the sysfs to write.
            compact: the file by which the kernel is asked to compact memory.
        """
        self.state_file = state_directory / STATE_NAME
        self.sysctl_file = sysctl_directory / SYSCTL_NAME
        self._sys = sys
        self._compact = compact
        self._proc = proc

    @property
    def undo_command(self) -> str:
        """The command that puts back what `reserve` found, for a shell."""
        words = ["pgsweep", "hugepages", "--undo"]
        if self.state_file.parent != STATE_DIRECTORY:
            words += ["--state-dir", str(self.state_file.parent)]
        if self.sysctl_file.parent != SYSCTL_DIRECTORY:
            words += ["--sysctl-dir", str(self.sysctl_file.parent)]
        return sudo() + shell_words(words)

    def writes(self, pool: Pool, target: int, *, persist: bool) -> list[tuple[str, str]]:
        """Return what `reserve` would write, file by file: `(file, text)`.

        Args:
            pool: the kernel's pool.
            target: what nr_hugepages is to be.
            persist: over a restart of the host too.

        Raises:
            UsageError: sysctl.d cannot keep pages of this size.
        """
        kept = Kept(
            page_bytes=pool.size_bytes,
            before=pool.persistent,
            after=target,
            sysctl_file="",
            host=_this_host(),
        )
        lines = [(str(pool_file(pool.size_bytes, self._sys)), str(target))]
        lines.append((str(self.state_file), msgspec.json.encode(kept).decode()))
        if persist:
            lines.append((str(self.sysctl_file), self._line(pool, target).rstrip()))
        return lines

    def reserve(
        self,
        pool: Pool,
        target: int,
        *,
        persist: bool = False,
        stop: threading.Event | None = None,
        server: str = "",
    ) -> Reservation:
        """Make the number of pages at least the target, all of it or nothing.

        Args:
            pool: the kernel's pool.
            target: what nr_hugepages is to be; where there are more already none are taken away.
            persist: over a restart of the host too.
            stop: set by a signal: all is put back.
            server: for which they are, as `undo` names it.

        Raises:
            KeyboardInterrupt: `stop` was set; the number is as before.
            MissingAbility: not root, or the kernel's files cannot be written here (a container).
            PgsweepError: there is not that much memory, or the kernel gave fewer; the number is as before.
            UsageError: sysctl.d cannot keep pages of this size.
        """
        line = self._line(pool, target) if persist else ""
        before, compacted = pool.persistent, False
        self._refuse_beyond_memory(pool, target)
        if persist:
            self._refuse_foreign_file()
        stop = stop or threading.Event()
        earlier = self._read()
        self._check_host(earlier)
        if earlier is not None and earlier.page_bytes != pool.size_bytes:
            raise PgsweepError(
                f"huge pages of {format_bytes(earlier.page_bytes)} were set aside by an earlier run",
                cause=f"{self.state_file} can keep one size only",
                hint=self.undo_command,
            )
        self._keep(pool, target, persist, earlier, server)
        former = self._sysctl_text(self.sysctl_file) if persist else None
        try:
            if target > before:
                compacted = self._raise(pool, before, target, stop)
            if persist:
                self._put(self.sysctl_file, line)
            _heed(stop)
        except BaseException:
            self._put_back(pool, before, persist, former)
            self._forget(earlier)
            raise
        return Reservation(
            before=before,
            after=self._count(pool),
            compacted=compacted,
            state_file=str(self.state_file),
            sysctl_file=str(self.sysctl_file) if persist else None,
        )

    def undo(self, *, dry_run: bool = False, server: str | None = None) -> Undone:
        """Put back what was before the first reservation and remove the files.

        Any number between before and after is taken for ours: a run that was killed leaves such a number.

        Args:
            dry_run: only say what would be put back.
            server: give back only what was reserved for this one; the files are removed with the last.

        Raises:
            MissingAbility: not root.
            PgsweepError: nothing was reserved, or on another host, or somebody has changed the number since.
            UsageError: it was reserved for several servers and none is named, or for others than that one.
        """
        kept = self._read()
        if kept is None:
            if not dry_run:
                self._clear()
            raise PgsweepError(
                "there is nothing to undo",
                cause=f"{self.state_file} is not there: `pgsweep hugepages --apply` has not set pages aside",
                hint="how many huge pages there are, for whatever reason: sysctl vm.nr_hugepages",
            )
        self._check_host(kept)
        remaining = self._remaining(kept, server)
        pool = next((p for p in read_pools(self._sys) if p.size_bytes == kept.page_bytes), None)
        low, high = sorted((kept.before, kept.after))
        if pool is not None and not low <= pool.persistent <= high:
            raise PgsweepError(
                f"there are {format_count(pool.persistent)} huge pages now, and pgsweep had made it "
                f"{format_count(kept.after)}",
                cause="somebody else has changed the number since, who may still need the pages",
                hint=f"if not: {self._by_hand(kept.before)}",
            )
        sysctl = Path(kept.sysctl_file) if kept.sysctl_file else None
        written = self._sysctl_text(sysctl) if sysctl is not None else None
        ours = sysctl is not None and sysctl.name == SYSCTL_NAME and _is_ours(written)
        undone = Undone(
            before=kept.before,
            files=[*([str(sysctl)] if ours else []), str(self.state_file)],
            left=str(sysctl) if written is not None and not ours else "",
            servers=list(kept.servers) if server is None else [server],
        )
        if remaining is not None:
            undone = msgspec.structs.replace(undone, before=remaining.after, files=[])
        if dry_run:
            return undone
        if remaining is not None:
            if pool is not None and pool.persistent > remaining.after:
                self._write(pool, remaining.after)
            if pool is not None and ours and sysctl is not None:
                self._put(sysctl, self._line(pool, remaining.after))
            self._put_state(remaining)
            return undone
        if pool is not None:
            self._write(pool, kept.before)
        # The state last: whatever ends this early, the next undo finds what is left.
        for file in undone.files:
            self._remove(Path(file))
        self._clear()
        return undone

    def _by_hand(self, pages: int | str) -> str:
        return f"{sudo()}sysctl -w vm.nr_hugepages={pages} && {sudo()}rm {self.state_file}"

    def _check_host(self, kept: Kept | None) -> None:
        """Refuse a state that came here from another host, with a copy of its disk or over a shared folder.

        Raises:
            PgsweepError: it is of another host.
        """
        if kept is not None and kept.host and kept.host != _this_host():
            raise PgsweepError(
                f"`{self.state_file}` is of another host, and is left as it is",
                cause=f"that host is {shown(kept.host)}, this one is {_this_host()}",
                hint="run it there; or, if nothing was set aside here or this host was renamed, set it "
                f"(it was {kept.before}) by: {self._by_hand('N')}",
            )

    def _remaining(self, kept: Kept, server: str | None) -> Kept | None:
        """Return what is kept after the pages of one server were given back; None where that was all.

        Raises:
            UsageError: it was reserved for several servers and none is named, or for others than that one.
        """
        named = ", ".join(
            f"{shell_word(shown(name))} ({count} pages)" for name, count in kept.servers.items()
        )
        if server is None and len(kept.servers) > 1:
            first = shell_word(shown(next(iter(kept.servers))))
            raise UsageError(
                f"huge pages were set aside for {len(kept.servers)} servers",
                cause=named,
                hint=f"name the one that does not need them any more: {self.undo_command} --undo-for {first}",
            )
        if server is None or list(kept.servers) == [server]:
            return None
        if server not in kept.servers:
            raise UsageError(
                f"no huge pages were set aside for the server {shell_word(shown(server))}",
                cause=f"they were for {named}" if named else f"{self.state_file} does not say for which",
                hint=f"see what would be done: {self.undo_command} --dry-run",
            )
        left = {name: count for name, count in kept.servers.items() if name != server}
        return msgspec.structs.replace(kept, after=kept.after - kept.servers[server], servers=left)

    def _clear(self) -> None:
        """Remove what killed runs left beside the files, and the folder of the state where it is empty."""
        for file in (self.state_file, self.sysctl_file):
            remove_leftovers(file)
        with suppress(OSError):
            self.state_file.parent.rmdir()

    def _put_back(self, pool: Pool, before: int, persist: bool, former: bytes | None) -> None:
        """Undo a reservation that was not finished, as far as it went."""
        with suppress(MissingAbility):
            if self._count(pool) > before:
                self._write(pool, before)
        with suppress(OSError, PgsweepError):
            if persist and former is None and _is_ours(self._sysctl_text(self.sysctl_file)):
                remove_private(self.sysctl_file)
            elif persist and former is not None:
                self._put(self.sysctl_file, former.decode())

    def _refuse_foreign_file(self) -> None:
        """Refuse to replace a file in sysctl.d that somebody else wrote.

        Raises:
            PgsweepError: there is one.
        """
        text = self._sysctl_text(self.sysctl_file)
        if text is not None and not _is_ours(text):
            raise PgsweepError(
                f"`{self.sysctl_file}` is not replaced: `pgsweep hugepages --apply` did not write it",
                cause="--undo would remove what somebody else has set",
                hint=f"leave out --persist, or look at it and remove it: {sudo()}rm {self.sysctl_file}",
            )

    def _sysctl_text(self, file: Path) -> bytes | None:
        """Return what is in a sysctl file: nothing where there is none, empty where it cannot be trusted."""
        try:
            return read_private(file)
        except FileNotFoundError:
            return None
        except (OSError, PgsweepError):
            return b""

    def _remove(self, file: Path) -> None:
        try:
            remove_private(file)
        except OSError as error:
            raise _unwritable(file, error) from error

    def _refuse_beyond_memory(self, pool: Pool, target: int) -> None:
        """Refuse a request that cannot succeed: the attempt alone would evict the page cache.

        Raises:
            PgsweepError: the pages are more than the kernel could free (MemAvailable in proc_meminfo(5)).
        """
        wanted = (target - pool.persistent) * pool.size_bytes
        available = read_host_memory(self._proc).available
        if available is not None and wanted > available:
            raise PgsweepError(
                f"{target - pool.persistent} more huge pages of {format_bytes(pool.size_bytes)} are "
                f"{format_bytes(wanted)}, and this host has {format_bytes(available)} available",
                cause="huge pages are taken from memory that nobody else uses; nothing was changed",
                hint="stop what uses memory (the server too: it holds its shared memory in small pages) "
                f"and try again, or ask for less: {on_server('pgsweep hugepages', '--shared-buffers SIZE')}",
            )

    def _raise(self, pool: Pool, before: int, target: int, stop: threading.Event) -> bool:
        """Make the number of pages the target; return whether memory was compacted.

        Raises:
            KeyboardInterrupt: `stop` was set; the caller puts the number back.
            MissingAbility: not root.
            PgsweepError: the kernel gave fewer; the number is as before.
        """
        self._write(pool, target)
        _heed(stop)
        if self._count(pool) >= target:
            return False
        with suppress(OSError):
            self._compact.write_text("1")
        _heed(stop)
        self._write(pool, target)
        _heed(stop)
        given = self._count(pool)
        if given < target:
            self._write(pool, before)
            raise _fewer(pool, before, target, given)
        return True

    def _line(self, pool: Pool, target: int) -> str:
        if not pool.is_default:
            size = huge_page_word(pool.size_bytes)
            raise UsageError(
                f"--persist cannot keep pages of {format_bytes(pool.size_bytes)}",
                cause="vm.nr_hugepages of sysctl.d counts pages of the kernel's default size only",
                hint=f"add to the kernel's command line: hugepagesz={size} hugepages={target}",
            )
        return f"{_HEAD}\nvm.nr_hugepages = {target}\n"

    def _read(self) -> Kept | None:
        try:
            return msgspec.json.decode(read_private(self.state_file), type=Kept)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise PgsweepError(
                f"cannot read {self.state_file}", cause=str(error), hint=f"{sudo()}rm {self.state_file}"
            ) from error

    def _keep(self, pool: Pool, target: int, persist: bool, earlier: Kept | None, server: str) -> None:
        now = pool.persistent
        kept = earlier or Kept(page_bytes=pool.size_bytes, before=now, after=now, sysctl_file="")
        added = max(target - now, 0)
        kept = msgspec.structs.replace(
            kept,
            after=max(target, now),
            sysctl_file=str(self.sysctl_file) if persist else kept.sysctl_file,
            host=_this_host(),
            servers={**kept.servers, server: kept.servers.get(server, 0) + added} if added else kept.servers,
        )
        self._put_state(kept)

    def _put_state(self, kept: Kept) -> None:
        self._put(self.state_file, msgspec.json.encode(kept).decode() + "\n")

    def _forget(self, earlier: Kept | None) -> None:
        """Keep again what was kept before a reservation that failed."""
        with suppress(OSError, MissingAbility):
            if earlier is None:
                remove_private(self.state_file)
                self.state_file.parent.rmdir()
            else:
                self._put_state(earlier)

    def _count(self, pool: Pool) -> int:
        now = next((p for p in read_pools(self._sys) if p.size_bytes == pool.size_bytes), None)
        return now.persistent if now is not None else 0

    def _write(self, pool: Pool, target: int) -> None:
        try:
            pool_file(pool.size_bytes, self._sys).write_text(str(target))
        except OSError as error:
            raise _refused(pool, target, error) from error

    def _put(self, path: Path, text: str) -> None:
        """Write a file whole or not at all, in a folder that nobody else may write to."""
        try:
            make_private(path.parent)
            write_whole(path, text.encode(), private=True)
        except OSError as error:
            raise _unwritable(path, error) from error


def _this_host() -> str:
    """Return what tells this host from others: its name, and the number that its system was given."""
    number = ""
    with suppress(OSError, ValueError):
        number = Path("/etc/machine-id").read_text(encoding="ascii").strip()[:64]
    return " ".join(filter(None, (platform.node(), number)))


def _heed(stop: threading.Event) -> None:
    if stop.is_set():
        raise KeyboardInterrupt


def _is_ours(text: bytes | None) -> bool:
    """Return whether a sysctl file holds what `_line` writes, and nothing else."""
    return text is not None and _OUR_LINE.fullmatch(text) is not None


def _unwritable(path: Path, error: OSError) -> MissingAbility:
    return NeedsRoot(
        f"cannot write {path}", cause=error.strerror, hint=f"run the same as root: {sudo()}{this_command()}"
    )


def _refused(pool: Pool, target: int, error: OSError) -> MissingAbility:
    inside = os.geteuid() == 0
    line = f"echo {target} | sudo tee {pool_file(pool.size_bytes)}"
    if pool.is_default:
        line = f"sudo sysctl -w vm.nr_hugepages={target}"
    return NeedsRoot(
        "this user may not set huge pages aside" if not inside else "the kernel's settings are closed here",
        cause=error.strerror if not inside else f"{error.strerror}: a container without that privilege?",
        hint=f"{'on the host: ' if inside else ''}{line}",
    )


def _fewer(pool: Pool, before: int, target: int, given: int) -> PgsweepError:
    """Return the failure to get all pages; the number has been put back."""
    size = huge_page_word(pool.size_bytes)
    return PgsweepError(
        f"the kernel gave {given - before} of {target - before} huge pages of "
        f"{format_bytes(pool.size_bytes)}, also after memory was compacted; the number is {before} again",
        cause="not that much memory is free, or it lies in pieces",
        hint="stop what uses memory (the server too) and try again, or let the kernel set them aside when it "
        f"starts: hugepagesz={size} hugepages={target} on its command line",
    )
