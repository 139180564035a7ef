"""Journals of several servers and selections beside each other, and folders that take none."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.files import state_folder
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.warm import WarmResult
from pgsweep.warm.block_ranges import Call
from pgsweep.warm.run.gather import Selection
from pgsweep.warm.run.journal import Header, Journal, is_held, read_header, read_journal
from pgsweep.warm.run.journal_place import find_journal, place_for
from pgsweep.warm.run.prepare import WarmOptions, prepare
from pgsweep.warm.run.warming import run
from tests.fix_cli import run as pgsweep
from tests.fix_process import wait_until
from tests.fix_standby import PRIMARY, promote, standby_of
from tests.fix_warm import as_reader, database_to_warm

ORDERS = Selection(relations=["orders"])


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "pgsweep"


def stopped(conninfo: str, selection: Selection) -> Path:
    """Begin a run and stop it before it reads anything; return its journal."""
    place = place_for(conninfo, selection, "pool")
    assert place is not None
    ended = threading.Event()
    ended.set()
    result = run(conninfo, WarmOptions(selection=selection), stop=ended, journal=place)
    assert result.work is not None
    assert result.work.journal == str(place)
    return place


def resumed(conninfo: str, selection: Selection | None = None) -> WarmResult:
    place = find_journal(conninfo, selection)
    return run(conninfo, WarmOptions(), journal=place, resume=place)


def test_each_run_finds_its_own(
    wheel18: Cluster, debian15: Cluster, warm_databases: Callable[[Cluster], str], state: Path
) -> None:
    one, two = warm_databases(wheel18), warm_databases(debian15)
    notes = Selection(relations=["notes"])
    places = [stopped(one, ORDERS), stopped(one, notes), stopped(two, ORDERS)]
    assert len(set(places)) == 3
    assert state.stat().st_mode & 0o777 == 0o700
    with pytest.raises(UsageError, match="2 runs on this server") as caught:
        find_journal(one)
    assert str(places[0]) in (caught.value.cause or "")
    assert find_journal(two) == places[2]
    for conninfo, selection in ((one, notes), (two, None), (one, ORDERS)):
        result = resumed(conninfo, selection)
        assert result.work is not None
        assert result.work.read_bytes == result.work.asked_bytes > 0
    assert list(state.iterdir()) == []
    with pytest.raises(UsageError, match="no stopped run"):
        find_journal(one, ORDERS)


@pytest.mark.parametrize(
    "content", [b"", b'{"schema":"pgsweep.warm-jou', b"\0" * 100, b"\xff\n", b'{"a":"\xff"}']
)
def test_a_damaged_journal_is_named(towarm: str, state: Path, content: bytes) -> None:
    place = stopped(towarm, ORDERS)
    whole = place.read_bytes()
    place.write_bytes(content)
    for selection in (None, ORDERS):
        with pytest.raises(UsageError, match=f"`{place}` is there, but is damaged") as caught:
            find_journal(towarm, selection)
        assert caught.value.cause
        assert caught.value.hint == "remove the file and begin anew without --resume"
    # Those of other databases and selections are of no concern, nor is a damaged one beside one that fits.
    with pytest.raises(UsageError, match="no stopped run"):
        find_journal(towarm, Selection(relations=["notes"]))
    (state / "warm-other-0123456789abcdef.journal").write_bytes(content)
    (state / "warm-towarm-0123456789abcdef.journal").write_bytes(content)
    place.write_bytes(whole)
    assert find_journal(towarm) == place
    (state / "warm-towarm-0123456789abcdef.journal").unlink()
    place.unlink()
    with pytest.raises(UsageError, match="no stopped run"):
        find_journal(towarm)


def test_a_journal_of_another_server_is_refused(
    wheel18: Cluster, debian15: Cluster, warm_databases: Callable[[Cluster], str], state: Path
) -> None:
    place = stopped(warm_databases(wheel18), ORDERS)
    with pytest.raises(UsageError, match="is the journal of a run on the server at"):
        run(warm_databases(debian15), WarmOptions(), journal=place, resume=place)
    header = read_header(place)
    assert header.run is not None
    assert (header.run.database, header.run.relations) == ("towarm", ["orders"])
    assert not is_held(place)


def test_the_journal_of_a_primary_is_refused_on_its_standby(state: Path) -> None:
    """It has the same system identifier and relations; a finished run would remove the primary's journal."""
    with (
        Cluster.create(settings=PRIMARY) as primary,
        database_to_warm(primary) as at_primary,
        tempfile.TemporaryDirectory(dir="/tmp") as short,
    ):
        place = stopped(at_primary, ORDERS)
        with standby_of(primary) as standby:
            there = standby.conninfo("towarm")
            with pytest.raises(UsageError, match="is the journal of a run on the server at") as caught:
                run(there, WarmOptions(), journal=place, resume=place)
            for server in (conninfo_to_dict(at_primary), conninfo_to_dict(there)):
                assert f"at {server['host']}, port {server['port']}" in caught.value.message
            assert "-h " in str(caught.value.hint)
            assert "without --resume" in str(caught.value.hint)
            assert place.exists()
        # The same server under another name is known by its pool, until that is begun anew.
        words = conninfo_to_dict(at_primary)
        link = Path(short) / "other"  # the path of a socket has 107 bytes at most
        link.symlink_to(str(words["host"]))
        other_name = make_conninfo(at_primary, host=str(link))
        whole = place.read_bytes()
        result = run(other_name, WarmOptions(), journal=place, resume=place)
        assert result.work is not None
        assert result.work.read_bytes == result.work.asked_bytes > 0
        place.write_bytes(whole)
        primary.restart()
        with pytest.raises(UsageError, match="is the journal of a run on the server at"):
            run(other_name, WarmOptions(), journal=place, resume=place)
        run(at_primary, WarmOptions(), journal=place, resume=place)
        assert not place.exists()


def test_a_copy_behind_the_same_address_does_not_take_a_journal(wheel18: Cluster, state: Path) -> None:
    """As behind a tunnel: address, path and system identifier are the same. Its pool never had the blocks."""
    with (
        Cluster.create(wheel18.bindir, {"shared_buffers": "16MB"}) as cluster,
        database_to_warm(cluster) as conninfo,
    ):
        place = stopped(conninfo, ORDERS)
        data, aside = cluster.data_directory, cluster.data_directory.with_name("aside")
        cluster.stop()
        data.rename(aside)
        made = int((aside / "PG_VERSION").stat().st_ctime)
        wait_until(lambda: int(time.time()) > made)  # the server says it in seconds
        subprocess.run(["cp", "--archive", aside, data], check=True)
        cluster.start()
        with pytest.raises(UsageError, match="no stopped run") as said:
            find_journal(conninfo)
        assert f"`{place}` is the journal of a run on another server" in str(said.value.cause)
        assert "the one here was copied at" in str(said.value.cause)
        with pytest.raises(UsageError, match="is the journal of a run on the server at"):
            run(conninfo, WarmOptions(), journal=place, resume=place)
        assert place_for(conninfo, ORDERS, "pool") != place, "its own run would replace it"
        assert place.exists()
        cluster.stop()
        subprocess.run(["rm", "-r", data], check=True)
        aside.rename(data)
        cluster.start()
        assert find_journal(conninfo) == place
        resumed(conninfo)
        assert not place.exists()


def test_a_run_on_a_standby_goes_on_after_its_promotion(state: Path) -> None:
    """The pool survives it."""
    with (
        Cluster.create(settings=PRIMARY) as primary,
        database_to_warm(primary),
        standby_of(primary) as standby,
    ):
        there = standby.conninfo("towarm")
        place = stopped(there, ORDERS)
        promote(standby)
        assert find_journal(there) == place
        result = resumed(there)
        assert result.work is not None
        assert result.work.read_bytes == result.work.asked_bytes > 0


def test_a_stopped_resume_goes_on_in_the_same_journal(towarm: str, state: Path) -> None:
    place = stopped(towarm, ORDERS)
    ended = threading.Event()
    ended.set()
    again = run(towarm, WarmOptions(), stop=ended, journal=place, resume=place)
    assert again.work is not None
    assert again.work.journal == str(place)
    assert find_journal(towarm, ORDERS) == place
    assert resumed(towarm).work is not None


def test_a_crash_of_the_server_undoes_what_was_read_into_the_pool(wheel18: Cluster, state: Path) -> None:
    """The postmaster stays, and when it was started; the pool is made anew."""
    with (
        Cluster.create(wheel18.bindir, {"shared_buffers": "16MB"}) as cluster,
        database_to_warm(cluster) as conninfo,
    ):
        place = stopped(conninfo, ORDERS)
        asked = read_journal(place).pool
        with place.open("ab") as journal:
            journal.write(b'{"done":0,"read_blocks":1}\n')
        assert prepare(conninfo, WarmOptions(), resume=place).pool == asked[:0]
        with psycopg.connect(conninfo, autocommit=True) as victim:
            os.kill(victim.info.backend_pid, signal.SIGKILL)
            wait_until(lambda: no_session_is(conninfo, victim.info.backend_pid))
        assert prepare(conninfo, WarmOptions(), resume=place).pool == asked


def no_session_is(conninfo: str, pid: int) -> bool:
    """Return whether the server accepts connections and does not list this session any more."""
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            found = connection.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).fetchall()
    except psycopg.OperationalError:
        return False
    return not found


def test_resume_enters_no_database_of_which_nothing_is_left(towarm: str, state: Path) -> None:
    stopped(towarm, ORDERS)
    with psycopg.connect(towarm, autocommit=True) as connection:
        connection.execute("CREATE DATABASE shut ALLOW_CONNECTIONS false")
        try:
            result = resumed(towarm)
        finally:
            connection.execute("DROP DATABASE shut")
    assert result.work is not None
    assert result.work.read_bytes == result.work.asked_bytes > 0
    assert result.missing == []


def test_what_is_no_journal_is_left_alone(towarm: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("my precious notes\n")
    with pytest.raises(UsageError, match="is not replaced: it is not a journal"):
        run(towarm, WarmOptions(selection=ORDERS), journal=notes)
    assert notes.read_text() == "my precious notes\n"
    empty = tmp_path / "made-by-mktemp"
    empty.touch()
    run(towarm, WarmOptions(selection=ORDERS), journal=empty)
    assert not empty.exists(), "all is done"


def test_only_a_file_is_replaced(towarm: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="is not a regular file"):
        run(towarm, WarmOptions(selection=ORDERS), journal=pipe)
    assert pipe.is_fifo()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "there")
    ended = threading.Event()
    ended.set()
    run(towarm, WarmOptions(selection=ORDERS), stop=ended, journal=link)
    assert link.is_symlink()
    assert read_header(tmp_path / "there").into == "pool"


def test_roles_without_monitor_have_a_journal_too(towarm: str, state: Path) -> None:
    place = stopped(as_reader(towarm), ORDERS)
    assert find_journal(as_reader(towarm)) == place


def test_a_working_folder_that_takes_nothing_does_not_matter(
    wheel18: Cluster, warm_databases: Callable[[Cluster], str], tmp_path: Path
) -> None:
    words = ("warm", "run", "--relations", "orders", "-d", warm_databases(wheel18))
    # A folder of the kernel's takes files from nobody, not from root either.
    done = pgsweep(*words, cwd=Path("/proc/self"), env={"XDG_STATE_HOME": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "warming\n")
    assert [path.name for path in tmp_path.rglob("*")] == ["pgsweep"]
    nowhere = pgsweep(*words, env={"XDG_STATE_HOME": "/proc/self"})
    assert nowhere.returncode == 0
    assert "could not be resumed; name one: --journal FILE" in nowhere.stderr


def test_the_state_folder_is_where_the_specification_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state_folder() == tmp_path / ".local/state/pgsweep"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state_folder() == tmp_path / ".local/state/pgsweep"
    monkeypatch.setenv("HOME", "/absent")
    assert state_folder() is None


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_journal_that_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "journal"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    for read in (read_header, read_journal):
        with pytest.raises(UsageError, match="cannot read the journal"):
            read(path)
    assert not is_held(path)


HEADER = Header(server="18", started_us=1, block_size_bytes=8192, into="pool", mode="buffer")
PIECE: dict[str, object] = {
    "database": "shop", "oid": 1, "schema": "s", "relation": "r", "kind": "table", "fork": "main",
    "first_block": 0, "blocks": 1,
}  # fmt: skip


def written(path: Path, *lines: dict[str, object]) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in (HEADER, *lines)))
    return path


def test_what_is_done_of_a_call_that_is_not_there_does_not_matter(tmp_path: Path) -> None:
    path = written(tmp_path / "journal", {"done": 7, "read_blocks": 1}, {"undone": True})
    assert read_journal(path).done_blocks == 0
    assert read_journal(written(path, {"done": 7, "read_blocks": 1}), started_us=2).pool == []


def test_a_journal_that_is_written_in_part_is_an_error(tmp_path: Path) -> None:
    """The system takes a part of a write without an error where a limit or the disk's end lies within."""
    calls = [Call(number, "db", []) for number in range(3000)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(PgsweepError, match="cannot write the journal"):
            Journal(tmp_path / "journal", HEADER, calls)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    Journal(tmp_path / "journal", HEADER, calls).close(remove=False)
    assert len((tmp_path / "journal").read_bytes().splitlines()) == 3001


def test_a_journal_that_lacks_calls_is_refused(tmp_path: Path) -> None:
    """A resumed run would leave them out, and end as finished."""
    path = tmp_path / "journal"
    Journal(path, HEADER, [Call(n, "shop", []) for n in range(3)], [Call(3, "shop", [])]).close(remove=False)
    lines = path.read_bytes().splitlines(keepends=True)
    assert read_header(path).calls == 4
    assert read_journal(path).done_blocks == 0
    for cut in (lines[:4], [*lines[:4], lines[4][:9]], [*lines[:2], b"\0" * 40 + b"\n", *lines[3:]]):
        path.write_bytes(b"".join(cut))
        with pytest.raises(UsageError, match="is cut short") as refused:
            read_journal(path)
        assert refused.value.cause == "it has 3 of the 4 calls that its run had to do"
    # Versions that did not count them.
    path.write_bytes(b"".join(lines[:4]).replace(b',"calls":4', b"").replace(b',"calls":null', b""))
    assert read_header(path).calls is None
    assert read_journal(path).pool == []


@pytest.mark.parametrize("wrong", [{"blocks": 10**18}, {"oid": -1}, {"first_block": -1}, {"blocks": 0}])
def test_blocks_that_cannot_be_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    path = written(tmp_path / "journal", {"call": 1, "cache": "pool", "pieces": [{**PIECE, **wrong}]})
    with pytest.raises(UsageError, match="is damaged"):
        read_journal(path)
