"""Setting huge pages aside on the real kernel, and on captured ones: what was done can be undone."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest

from pgsweep.cli.interrupt import held_back
from pgsweep.cli.settings import Settings
from pgsweep.errors import PgsweepError, UsageError
from pgsweep.files import Untrusted
from pgsweep.host.hugepages import Pool, pool_file, read_pools
from pgsweep.host.reserve import Reserver
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import launch, run
from tests.fix_cluster import SETTINGS
from tests.fix_hugepages import PAGE, give, locked_pages, needs_2mb
from tests.fix_process import needs_root


@needs_root
@needs_2mb
def test_apply_and_undo(server: Cluster, tmp_path: Path) -> None:
    state, sysctl = tmp_path / "state", tmp_path / "sysctl.d"
    sysctl.mkdir()
    words = ["hugepages", server.conninfo(), "--state-dir", str(state), "--sysctl-dir", str(sysctl)]
    with locked_pages() as pages:
        give(pages, 0)
        before = pages.pool().persistent
        unasked = run(*words, "--apply")
        assert unasked.returncode == 2
        assert "--yes" in unasked.stderr
        dry = run(*words, "--apply", "--persist", "--dry-run", "--json")
        assert dry.returncode == 0, dry.stderr
        assert "nothing was changed" in dry.stderr
        plan = [step["text"] for step in json.loads(dry.stdout)["plan"]]
        assert pages.pool().persistent == before
        assert not state.exists()
        done = run(*words, "--apply", "--persist", "--yes", "--json")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        target, needed = result["target"], result["huge_pages_needed"]
        assert result["change"]["before"] == before
        assert result["change"]["after"] == target == before + needed
        line = f"vm.nr_hugepages = {target}"
        assert line in (sysctl / "90-pgsweep-hugepages.conf").read_text()
        assert plan[0].endswith(f"nr_hugepages: {target}")
        assert line in plan[2]
        # Nothing is left to do, and the number before is not forgotten.
        again = run(*words, "--apply", "--yes")
        assert again.returncode == 0, again.stderr
        assert "restart the server" in again.stdout
        undone = run("hugepages", "--undo", "--yes", *words[2:])
        assert undone.returncode == 0, undone.stderr
        assert pages.pool().persistent == before
        assert not state.exists()
        assert list(sysctl.iterdir()) == []
        nothing = run("hugepages", "--undo", "--yes", *words[2:])
        assert nothing.returncode == 1
        assert "nothing to undo" in nothing.stderr


@needs_root
@needs_2mb
def test_after_apply_the_numbers_are_those_of_now(wheel18: Cluster, tmp_path: Path) -> None:
    """Not `38 are available` in one line and `0 are available: 38 too few` in the next."""
    state = str(tmp_path / "state")
    with (
        locked_pages() as pages,
        Cluster.create(wheel18.bindir, {**SETTINGS, "huge_pages": "try"}, start=False) as cluster,
    ):
        give(pages, 0)
        cluster.start()
        before = run("hugepages", cluster.conninfo())
        assert "0 are available" in before.stdout
        # Where others use some of the kernel's pages, that follows.
        assert re.search(r": \d+ too few", " ".join(before.stdout.split()))
        done = run("hugepages", cluster.conninfo(), "--apply", "--yes", "--state-dir", state)
        assert done.returncode == 0, done.stderr
        assert "0 are available" not in done.stdout
        assert f"hugepages --undo --state-dir {state}\n" in done.stdout
        assert ": it will use them when it is restarted" in " ".join(done.stdout.split())
        assert not re.search(r": \d+ too few", " ".join(done.stdout.split()))
        cluster.restart()
        used = run("hugepages", cluster.conninfo())
        assert "are available" not in used.stdout.splitlines()[1]
        assert "the server has " in used.stdout.splitlines()[1]
        cluster.stop()
        assert run("hugepages", "--undo", "--yes", "--state-dir", state).returncode == 0


@needs_root
@needs_2mb
def test_somebody_else_changed_the_number_since(tmp_path: Path) -> None:
    reserver = Reserver(state_directory=tmp_path / "state", sysctl_directory=tmp_path)
    with locked_pages() as pages:
        pool = pages.pool()
        reserver.reserve(pool, pool.persistent + 2)
        pool_file(PAGE).write_text(str(pool.persistent + 3))
        with pytest.raises(PgsweepError, match="had made it"):
            reserver.undo()
        assert pages.pool().persistent == pool.persistent + 3
        pool_file(PAGE).write_text(str(pool.persistent + 2))
        reserver.undo()
        assert pages.pool().persistent == pool.persistent


@needs_root
@needs_2mb
def test_any_number_that_a_killed_run_leaves_is_undone(tmp_path: Path) -> None:
    reserver = Reserver(state_directory=tmp_path / "state", sysctl_directory=tmp_path)
    with locked_pages() as pages:
        before = pages.pool().persistent
        for left in (0, 1, 3, 4):
            reserver.reserve(pages.pool(), before + 4, persist=True)
            pool_file(PAGE).write_text(str(before + left))
            (tmp_path / "state/.hugepages.json.0123456789abcdef.part").touch()
            (tmp_path / ".90-pgsweep-hugepages.conf.0123456789abcdef.part").touch()
            assert reserver.undo().before == before
            assert pages.pool().persistent == before
            assert list(tmp_path.iterdir()) == []
        # Killed before there was anything to undo.
        (tmp_path / "state").mkdir()
        (tmp_path / "state/.hugepages.json.0123456789abcdef.part").touch()
        with pytest.raises(PgsweepError, match="nothing to undo"):
            reserver.undo()
        assert list(tmp_path.iterdir()) == []


def test_with_nothing_to_undo_no_command_that_takes_pages_away_is_named(tmp_path: Path) -> None:
    with pytest.raises(PgsweepError, match="nothing to undo") as caught:
        Reserver(state_directory=tmp_path, sysctl_directory=tmp_path).undo(dry_run=True)
    assert "nr_hugepages=" not in str(caught.value.hint)


class Signalled(Reserver):
    """Gets a signal while it writes what it was asked for."""

    number = signal.SIGTERM

    def _write(self, pool: Pool, target: int) -> None:
        if target > pool.persistent:
            signal.raise_signal(self.number)
        super()._write(pool, target)


@needs_root
@needs_2mb
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_signal_puts_back_what_was(number: signal.Signals, earlier: bool, tmp_path: Path) -> None:
    reserver = Signalled(state_directory=tmp_path / "state", sysctl_directory=tmp_path)
    reserver.number = number
    with locked_pages() as pages:
        before = pages.pool().persistent
        if earlier:
            Reserver(state_directory=tmp_path / "state", sysctl_directory=tmp_path).reserve(
                pages.pool(), before + 1, persist=True
            )
        files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        held = pages.pool()
        with pytest.raises(KeyboardInterrupt), held_back(Settings(), "putting back") as stop:
            reserver.reserve(held, held.persistent + 4, persist=True, stop=stop)
        assert pages.pool().persistent == held.persistent
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
        assert (tmp_path / "state").exists() == earlier


@needs_root
@needs_2mb
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_command_is_interrupted(number: signal.Signals, server: Cluster, tmp_path: Path) -> None:
    state, sysctl = tmp_path / "state", tmp_path / "sysctl.d"
    sysctl.mkdir()
    places = ["--state-dir", str(state), "--sysctl-dir", str(sysctl), "--yes"]
    words = ("hugepages", server.conninfo(), "--shared-buffers", "2GB", "--apply", "--persist")
    with locked_pages() as pages:
        before = pages.pool().persistent
        with launch(*words, *places) as process:
            while process.poll() is None and not (state / "hugepages.json").exists():
                time.sleep(0.001)
            process.send_signal(number)
            _, reported = process.communicate(timeout=60)
        # The signal cannot be handled, or came when all was done, perhaps while the interpreter was ending.
        if process.returncode in {0, -number} or (state / "hugepages.json").exists():
            undone = run("hugepages", "--undo", *places)
            assert undone.returncode == 0, undone.stderr
        else:
            assert process.returncode == 130, reported
            assert "restoring the previous values" in reported
        assert pages.pool().persistent == before
        assert not state.exists()
        assert list(sysctl.iterdir()) == []


@needs_root
@needs_2mb
def test_only_a_sysctl_file_of_ours_is_replaced_and_removed(tmp_path: Path) -> None:
    reserver = Reserver(state_directory=tmp_path / "state", sysctl_directory=tmp_path)
    theirs, victim = tmp_path / "90-pgsweep-hugepages.conf", tmp_path / "victim"
    victim.write_text("# by pgsweep hugepages --apply; removed by --undo\nvm.nr_hugepages = 7\n")
    with locked_pages() as pages:
        pool = pages.pool()
        for plant in (lambda: theirs.write_text("vm.nr_hugepages = 7\n"), lambda: theirs.symlink_to(victim)):
            plant()
            with pytest.raises(PgsweepError, match="is not replaced"):
                reserver.reserve(pool, pool.persistent + 2, persist=True)
            assert pages.pool().persistent == pool.persistent
            theirs.unlink()
            reserver.reserve(pool, pool.persistent + 2, persist=True)
            theirs.unlink()
            plant()
            undone = reserver.undo()
            assert undone.left == str(theirs)
            assert str(theirs) not in undone.files
            assert pages.pool().persistent == pool.persistent
            assert theirs.exists()
            assert "= 7" in victim.read_text()
            theirs.unlink()


@needs_root
@needs_2mb
def test_a_state_that_others_could_have_written_is_not_believed(tmp_path: Path) -> None:
    state, precious = tmp_path / "state", tmp_path / "precious"
    precious.write_text("# by pgsweep hugepages --apply; removed by --undo\nvm.nr_hugepages = 7\n")
    reserver = Reserver(state_directory=state, sysctl_directory=tmp_path)
    with locked_pages() as pages:
        pool = pages.pool()
        reserver.reserve(pool, pool.persistent + 2)
        state.chmod(0o777)
        with pytest.raises(Untrusted):
            reserver.undo()
        with pytest.raises(Untrusted):
            reserver.reserve(pool, pool.persistent + 3)
        state.chmod(0o755)
        # Not even a state of ours has a file removed that is not sysctl's.
        kept = json.loads((state / "hugepages.json").read_bytes())
        (state / "hugepages.json").write_text(json.dumps({**kept, "sysctl_file": str(precious)}))
        assert reserver.undo().left == str(precious)
        assert precious.exists()
        assert pages.pool().persistent == pool.persistent


class StingyKernel(Reserver):
    """A captured kernel that has memory for a few pages only."""

    has = 7

    def _write(self, pool: Pool, target: int) -> None:
        super()._write(pool, min(target, self.has))


def captured_sys(folder: Path, total: int = 3, free: int = 2, reserved: int = 1, surplus: int = 0) -> Path:
    pool = folder / "sys/kernel/mm/hugepages/hugepages-2048kB"
    pool.mkdir(parents=True)
    names = ("nr_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages")
    for name, value in zip(names, (total, free, reserved, surplus), strict=True):
        (pool / name).write_text(f"{value}\n")
    (pool / "nr_overcommit_hugepages").write_text("5\n")
    (folder / "proc").mkdir()
    (folder / "proc/meminfo").write_text(
        "HugePages_Total: 3\nHugePages_Free: 2\nHugePages_Rsvd: 1\nHugepagesize: 2048 kB\n"
    )
    return folder / "sys"


def test_the_kernel_gives_fewer(tmp_path: Path) -> None:
    sys = captured_sys(tmp_path)
    (pool,) = read_pools(sys, tmp_path / "proc")
    assert (pool.available, pool.persistent, pool.overcommit, pool.is_default) == (1, 3, 5, True)
    compact = tmp_path / "compact_memory"
    reserver = StingyKernel(
        state_directory=tmp_path / "state", sysctl_directory=tmp_path, sys=sys, compact=compact
    )
    with pytest.raises(PgsweepError, match=r"gave 4 of 17 huge pages of 2 MB.*the number is 3 again") as few:
        reserver.reserve(pool, 20, persist=True)
    assert "hugepagesz=2M hugepages=20" in (few.value.hint or "")
    assert compact.read_text() == "1"
    assert pool_file(PAGE, sys).read_text() == "3"
    assert not (tmp_path / "state").exists()
    assert not list(tmp_path.glob("*.conf"))
    assert reserver.reserve(pool, 7).after == 7


@needs_2mb
def test_more_than_there_is_memory_is_not_even_tried(tmp_path: Path) -> None:
    pool = next(pool for pool in read_pools() if pool.size_bytes == PAGE)
    with pytest.raises(PgsweepError, match=r"more huge pages of 2 MB are .* and this host has .* available"):
        Reserver(state_directory=tmp_path / "state").reserve(pool, pool.persistent + (1 << 50) // PAGE)
    now = next(pool for pool in read_pools() if pool.size_bytes == PAGE)
    assert now.persistent == pool.persistent
    assert not (tmp_path / "state").exists()


def test_pages_of_another_size_are_not_kept_by_sysctl(tmp_path: Path) -> None:
    pool = Pool(1 << 30, False, 0, 0, 0, 0, 0)
    with pytest.raises(UsageError) as refused:
        Reserver(state_directory=tmp_path).reserve(pool, 3, persist=True)
    assert refused.value.hint is not None
    assert "hugepagesz=1G hugepages=3" in refused.value.hint
    assert list(tmp_path.iterdir()) == []


def captured_reserver(folder: Path) -> tuple[Reserver, Path]:
    """Return what changes a captured kernel, and the file with its number."""
    sys = captured_sys(folder)
    reserver = Reserver(
        state_directory=folder / "state",
        sysctl_directory=folder,
        sys=sys,
        compact=folder / "compact",
    )
    return reserver, pool_file(PAGE, sys)


def pool_of(number: Path, folder: Path) -> Pool:
    (pool,) = read_pools(folder / "sys", folder / "proc")
    assert pool.persistent == int(number.read_text())
    return pool


def test_each_server_gives_back_its_own(tmp_path: Path) -> None:
    reserver, number = captured_reserver(tmp_path)
    state, line = tmp_path / "state/hugepages.json", tmp_path / "90-pgsweep-hugepages.conf"
    reserver.reserve(pool_of(number, tmp_path), 10, persist=True, server="/data/a")
    reserver.reserve(pool_of(number, tmp_path), 30, persist=True, server="/data/b")
    files = state.read_bytes()
    with pytest.raises(UsageError, match="set aside for 2 servers") as unnamed:
        reserver.undo()
    assert "/data/a (7 pages), /data/b (20 pages)" in str(unnamed.value.cause)
    assert "--undo-for /data/a" in str(unnamed.value.hint)
    # A copy of one of them on another directory.
    with pytest.raises(UsageError, match="no huge pages were set aside for the server /data/copy"):
        reserver.undo(server="/data/copy")
    assert (number.read_text(), state.read_bytes()) == ("30", files)
    # Not in the order of their beginnings.
    undone = reserver.undo(server="/data/a")
    assert (undone.before, undone.files, undone.servers) == (23, [], ["/data/a"])
    assert number.read_text() == "23"
    assert "vm.nr_hugepages = 23\n" in line.read_text()
    # The last one takes the files with it, named or not.
    assert reserver.undo().servers == ["/data/b"]
    assert number.read_text() == "3"
    assert not state.exists()
    assert not line.exists()


def test_the_pages_of_a_killed_run_are_not_taken_from_the_other_server(tmp_path: Path) -> None:
    reserver, number = captured_reserver(tmp_path)
    reserver.reserve(pool_of(number, tmp_path), 10, server="/data/a")
    reserver.reserve(pool_of(number, tmp_path), 30, server="/data/b")
    number.write_text("12")  # the second was killed after two of its pages
    assert reserver.undo(server="/data/b").before == 10
    assert number.read_text() == "10"
    assert reserver.undo(server="/data/a").before == 3
    assert number.read_text() == "3"


def test_the_state_of_another_host_is_left(tmp_path: Path) -> None:
    """It came with a copy of the disk, or lies in a folder that hosts share."""
    reserver, number = captured_reserver(tmp_path)
    reserver.reserve(pool_of(number, tmp_path), 10, server="/data/a")
    state = tmp_path / "state/hugepages.json"
    state.write_text(json.dumps({**json.loads(state.read_bytes()), "host": "elsewhere"}))
    files = state.read_bytes()
    for server in (None, "/data/a"):
        with pytest.raises(PgsweepError, match="is of another host, and is left as it is") as refused:
            reserver.undo(server=server)
        assert "that host is elsewhere" in str(refused.value.cause)
    with pytest.raises(PgsweepError, match="is of another host"):
        reserver.reserve(pool_of(number, tmp_path), 20)
    assert (number.read_text(), state.read_bytes()) == ("10", files)


@needs_root
@needs_2mb
def test_an_undo_that_names_another_server_changes_nothing(
    wheel18: Cluster, debian15: Cluster, tmp_path: Path
) -> None:
    places = ["--state-dir", str(tmp_path / "state"), "--sysctl-dir", str(tmp_path), "--yes"]
    with locked_pages() as pages:
        give(pages, 0)
        before = pages.pool().persistent
        done = run("hugepages", wheel18.conninfo(), "--apply", *places)
        assert done.returncode == 0, done.stderr
        there = pages.pool().persistent
        assert there > before
        other = run("hugepages", debian15.conninfo(), "--undo", *places)
        assert other.returncode == 2
        assert f"for the server {debian15.data_directory}" in other.stderr
        assert pages.pool().persistent == there
        undone = run("hugepages", wheel18.conninfo(), "--undo", *places)
        assert undone.returncode == 0, undone.stderr
        assert f"set aside for the server {wheel18.data_directory}" in undone.stderr
        assert pages.pool().persistent == before
