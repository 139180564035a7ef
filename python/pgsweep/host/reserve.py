"""Set huge pages aside, and give them back: the only place where pgsweep changes the host.

The kernel may give fewer pages than asked for, without an error: free memory lies in pieces. Then memory is
compacted once and asked for again; what is still missing is a failure, and the number is put back, because a
server needs all of its pages or uses none.

What nr_hugepages was before is kept in a file, so that it can be put back (`undo`); pages kept over a restart
of the host are a line in sysctl.d (sysctl.d(5)).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from pgsweep.errors import MissingAbility, PgsweepError, UsageError
from pgsweep.host.hugepages import Pool, pool_file, read_pools
from pgsweep.host.procfile import PROC, read_host_memory
from pgsweep.units import format_bytes

STATE_DIRECTORY = Path("/var/lib/pgsweep")
SYSCTL_DIRECTORY = Path("/etc/sysctl.d")
STATE_NAME, SYSCTL_NAME = "hugepages.json", "90-pgsweep-hugepages.conf"
_COMPACT = Path("/proc/sys/vm/compact_memory")


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What `undo` needs to know.

    Attributes:
        page_bytes: size of the pages.
        before: what nr_hugepages was before the first change.
        after: what it was made.
        sysctl_file: the file that was written; empty where none was.
    """

    page_bytes: int
    before: int
    after: int
    sysctl_file: str


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """What became of nr_hugepages.

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
            proc: the proc file system to read.
        """
        self.state_file = state_directory / STATE_NAME
        self.sysctl_file = sysctl_directory / SYSCTL_NAME
        self._sys = sys
        self._compact = compact
        self._proc = proc

    def writes(self, pool: Pool, target: int, *, persist: bool) -> list[tuple[str, str]]:
        """Return what `reserve` would write, file by file: `(file, text)`.

        Args:
            pool: the kernel's pool.
            target: what nr_hugepages is to be.
            persist: over a restart of the host too.

        Raises:
            UsageError: sysctl.d cannot keep pages of this size.
        """
        kept = Kept(page_bytes=pool.size_bytes, before=pool.persistent, after=target, sysctl_file="")
        lines = [(str(pool_file(pool.size_bytes, self._sys)), str(target))]
        lines.append((str(self.state_file), msgspec.json.encode(kept).decode()))
        if persist:
            lines.append((str(self.sysctl_file), self._line(pool, target).rstrip()))
        return lines

    def reserve(self, pool: Pool, target: int, *, persist: bool = False) -> Reservation:
        """Make the number of pages at least the target, all of it or nothing.

        Args:
            pool: the kernel's pool.
            target: what nr_hugepages is to be; where there are more already none are taken away.
            persist: over a restart of the host too.

        Raises:
            MissingAbility: not root, or the kernel's files cannot be written here (a container).
            PgsweepError: there is not that much memory, or the kernel gave fewer; the number is as before.
            UsageError: sysctl.d cannot keep pages of this size.
        """
        line = self._line(pool, target) if persist else ""
        before, compacted = pool.persistent, False
        self._refuse_beyond_memory(pool, target)
        earlier = self._read()
        if earlier is not None and earlier.page_bytes != pool.size_bytes:
            raise PgsweepError(
                f"huge pages of {format_bytes(earlier.page_bytes)} were set aside by an earlier run",
                cause=f"{self.state_file} can keep one size only",
                hint="sudo pgsweep hugepages --undo",
            )
        self._keep(pool, earlier.before if earlier else before, target, persist, earlier)
        try:
            if target > before:
                compacted = self._raise(pool, before, target)
            if persist:
                self._put(self.sysctl_file, line)
        except BaseException:
            self._forget(earlier)
            raise
        return Reservation(
            before=before,
            after=self._count(pool),
            compacted=compacted,
            state_file=str(self.state_file),
            sysctl_file=str(self.sysctl_file) if persist else None,
        )

    def undo(self, *, dry_run: bool = False) -> Kept:
        """Put back what was before the first reservation and remove the files.

        Args:
            dry_run: only say what would be put back.

        Returns:
            What was kept: `before` is the number now.

        Raises:
            MissingAbility: not root.
            PgsweepError: nothing was reserved, or somebody has changed the number since.
        """
        kept = self._read()
        if kept is None:
            raise PgsweepError(
                "there is nothing to undo",
                cause=f"{self.state_file} is not there: `pgsweep hugepages --apply` has not set pages aside",
                hint="the number of huge pages is set by: sudo sysctl -w vm.nr_hugepages=0",
            )
        pool = next((p for p in read_pools(self._sys) if p.size_bytes == kept.page_bytes), None)
        if pool is not None and pool.persistent not in (kept.after, kept.before):
            raise PgsweepError(
                f"there are {pool.persistent} huge pages now, and pgsweep had made it {kept.after}",
                cause="somebody else has changed the number since, who may still need the pages",
                hint=f"if not: sudo sysctl -w vm.nr_hugepages={kept.before} && sudo rm {self.state_file}",
            )
        if dry_run:
            return kept
        if pool is not None:
            self._write(pool, kept.before)
        for file in (kept.sysctl_file, str(self.state_file)):
            if file:
                Path(file).unlink(missing_ok=True)
        with suppress(OSError):
            self.state_file.parent.rmdir()
        return kept

    def _refuse_beyond_memory(self, pool: Pool, target: int) -> None:
        """Ask for nothing that cannot be had: trying would first push everybody's page cache out.

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
                "and try again, or ask for less: pgsweep hugepages --shared-buffers SIZE",
            )

    def _raise(self, pool: Pool, before: int, target: int) -> bool:
        """Make the number of pages the target, or leave it as it was; return whether memory was compacted.

        Raises:
            MissingAbility: not root.
            PgsweepError: the kernel gave fewer.
        """
        try:
            self._write(pool, target)
            if self._count(pool) >= target:
                return False
            with suppress(OSError):
                self._compact.write_text("1")
            self._write(pool, target)
            given = self._count(pool)
        except KeyboardInterrupt:
            self._write(pool, before)
            raise
        if given < target:
            self._write(pool, before)
            raise _fewer(pool, before, target, given)
        return True

    def _line(self, pool: Pool, target: int) -> str:
        if not pool.is_default:
            size = f"{pool.size_bytes >> 30}G" if pool.size_bytes >= 1 << 30 else f"{pool.size_bytes >> 20}M"
            raise UsageError(
                f"--persist cannot keep pages of {format_bytes(pool.size_bytes)}",
                cause="vm.nr_hugepages of sysctl.d counts pages of the kernel's default size only",
                hint=f"add to the kernel's command line: hugepagesz={size} hugepages={target}",
            )
        return f"# by pgsweep hugepages --apply; removed by --undo\nvm.nr_hugepages = {target}\n"

    def _read(self) -> Kept | None:
        try:
            return msgspec.json.decode(self.state_file.read_bytes(), type=Kept)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise PgsweepError(
                f"cannot read {self.state_file}", cause=str(error), hint=f"sudo rm {self.state_file}"
            ) from error

    def _keep(self, pool: Pool, before: int, target: int, persist: bool, earlier: Kept | None) -> None:
        file = str(self.sysctl_file) if persist else earlier.sysctl_file if earlier else ""
        after = max(target, pool.persistent)
        kept = Kept(page_bytes=pool.size_bytes, before=before, after=after, sysctl_file=file)
        self._put(self.state_file, msgspec.json.encode(kept).decode() + "\n")

    def _forget(self, earlier: Kept | None) -> None:
        """Keep again what was kept before a reservation that failed."""
        with suppress(OSError, MissingAbility):
            if earlier is None:
                self.state_file.unlink(missing_ok=True)
                self.state_file.parent.rmdir()
            else:
                self._put(self.state_file, msgspec.json.encode(earlier).decode() + "\n")

    def _count(self, pool: Pool) -> int:
        now = next((p for p in read_pools(self._sys) if p.size_bytes == pool.size_bytes), None)
        return now.persistent if now is not None else 0

    def _write(self, pool: Pool, target: int) -> None:
        try:
            pool_file(pool.size_bytes, self._sys).write_text(str(target))
        except OSError as error:
            raise _refused(pool, target, error) from error

    def _put(self, path: Path, text: str) -> None:
        """Write a file whole or not at all."""
        part = path.with_name(path.name + ".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(text)
            part.replace(path)
        except OSError as error:
            raise MissingAbility(
                f"cannot write {path}", cause=error.strerror, hint="run the same as root: sudo pgsweep ..."
            ) from error


def _refused(pool: Pool, target: int, error: OSError) -> MissingAbility:
    line = f"echo {target} | sudo tee {pool_file(pool.size_bytes)}"
    if pool.is_default:
        line = f"sudo sysctl -w vm.nr_hugepages={target}"
    inside = os.geteuid() == 0
    return MissingAbility(
        "this user may not set huge pages aside" if not inside else "the kernel's settings are closed here",
        cause=error.strerror if not inside else f"{error.strerror}: a container without that privilege?",
        hint=f"{'on the host: ' if inside else ''}{line}",
    )


def _fewer(pool: Pool, before: int, target: int, given: int) -> PgsweepError:
    """Return the failure to get all pages; the number has been put back."""
    size = f"{pool.size_bytes >> 30}G" if pool.size_bytes >= 1 << 30 else f"{pool.size_bytes >> 20}M"
    return PgsweepError(
        f"the kernel gave {given - before} of {target - before} huge pages of "
        f"{format_bytes(pool.size_bytes)}, also after memory was compacted; the number is {before} again",
        cause="not that much memory is free, or it lies in pieces",
        hint="stop what uses memory (the server too) and try again, or let the kernel set them aside when it "
        f"starts: hugepagesz={size} hugepages={target} on its command line",
    )
