"""Files that are written whole or not at all, in folders where others plant links."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from pgsweep.cli.output import write_file
from pgsweep.errors import PgsweepError, UsageError
from pgsweep.evidence.writer import holds_nothing
from pgsweep.files import (
    Aside,
    Untrusted,
    check_private,
    is_aside,
    make_private,
    read_private,
    remove_leftovers,
    rename_flushed,
    replacing,
    rewrite,
    state_folder,
    through_own_links,
    write_whole,
)
from tests.fix_process import NOBODY, needs_root

_WRITES_AND_WAITS = """
import sys, time
from pathlib import Path
from pgsweep.files import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("written", flush=True)
    time.sleep(600)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def asides(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if is_aside(path.name))


def killed_writer(target: Path) -> None:
    """Kill a process while it writes the file aside."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITES_AND_WAITS, str(target)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_the_target_is_old_or_new_and_never_half(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    write_whole(target, b"old")
    with pytest.raises(RuntimeError), replacing(target) as file:
        file.write(b"new, and then a fail")
        raise RuntimeError
    assert target.read_bytes() == b"old"
    with replacing(target) as file:
        file.write(b"new")
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert names(tmp_path) == ["result.json"]


@pytest.mark.parametrize("name", ["a" * 255, "ü" * 127, "line\nbreak", "-"])
def test_any_name_that_a_file_may_have(tmp_path: Path, name: str) -> None:
    killed_writer(tmp_path / name)
    assert len(asides(tmp_path)) == 1
    write_whole(tmp_path / name, b"whole")
    assert names(tmp_path) == [name]


def test_a_mode_is_taken_with_the_umask_and_the_umask_stays(tmp_path: Path) -> None:
    former = os.umask(0o027)
    try:
        write_whole(tmp_path / "open", b"")
        write_whole(tmp_path / "closed", b"", mode=0o600)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "closed").stat().st_mode) == 0o600


def test_what_a_killed_writer_left_goes_and_what_others_write_stays(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    killed_writer(target)
    killed_writer(tmp_path / "other.json")
    [left, other] = asides(tmp_path)[::-1]
    (tmp_path / ".result.json.notes.part").write_text("not ours: no random name")
    (tmp_path / ".result.json.0123456789abcdef.part").symlink_to(tmp_path / "elsewhere")
    alive = Aside(target)
    alive.file.write(b"alive")
    assert left not in asides(tmp_path)
    assert other in asides(tmp_path)
    assert remove_leftovers(target) == []
    alive.commit()
    alive.file.close()
    assert target.read_bytes() == b"alive"
    assert (tmp_path / ".result.json.notes.part").exists()
    assert (tmp_path / ".result.json.0123456789abcdef.part").is_symlink()


def test_many_writers_of_one_target_do_not_take_each_other_for_dead(tmp_path: Path) -> None:
    target, failed = tmp_path / "result.json", []

    def write(number: int) -> None:
        try:
            for _ in range(50):
                write_whole(target, bytes([number]) * 5000)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(set(target.read_bytes())) == 1
    assert names(tmp_path) == ["result.json"]


def test_planted_links_are_replaced_or_left_and_never_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("result.json", "result.json.part", "result.json.tmp", ".result.json.former"):
        (tmp_path / name).symlink_to(victim)
    write_file(tmp_path / "result.json", "{}")
    assert victim.read_text() == "precious"
    assert (tmp_path / "result.json").read_text() == "{}"
    assert not (tmp_path / "result.json").is_symlink()


def test_a_folder_that_may_be_written_and_not_listed(tmp_path: Path) -> None:
    folder = tmp_path / "drop"
    folder.mkdir()
    folder.chmod(0o733)
    code = """
        import os, sys
        from pathlib import Path
        from pgsweep.files import write_whole
        try:
            os.listdir(sys.argv[1])
            sys.exit("it may be listed")
        except PermissionError:
            write_whole(Path(sys.argv[1]) / "result", b"whole")
        """
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    for above in (tmp_path, *tmp_path.parents):
        if not above.stat().st_mode & 0o001:
            above.chmod(0o711)
    gid, uid = NOBODY
    become = f"import pgsweep.files, os; os.setgroups([]); os.setgid({gid}); os.setuid({uid})\n"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            become + textwrap.dedent(code),
            str(folder),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "result").read_bytes() == b"whole"


def test_a_rename_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[tuple[int, list[str]]] = []

    def fsync(descriptor: int) -> None:
        flushed.append((os.fstat(descriptor).st_ino, names(tmp_path)))

    monkeypatch.setattr("pgsweep.files.os.fsync", fsync)
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / "part").touch()
    rename_flushed(tmp_path / "aside", tmp_path / "piece")
    assert flushed == [(tmp_path.stat().st_ino, ["piece"])]
    assert (tmp_path / "piece" / "part").exists()
    with pytest.raises(FileNotFoundError):
        rename_flushed(tmp_path / "aside", tmp_path / "piece")
    assert names(tmp_path) == ["piece"]


def test_a_file_is_rewritten_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "auto.conf"
    target.write_bytes(b"old")
    target.chmod(0o640)
    killed_writer(target)
    former = target.stat()
    rewrite(target, lambda data: data + b" and new")
    assert target.read_bytes() == b"old and new"
    assert names(tmp_path) == ["auto.conf"]
    status = target.stat()
    assert status.st_ino != former.st_ino, "it was written in place"
    assert (status.st_mode, status.st_uid, status.st_gid) == (former.st_mode, former.st_uid, former.st_gid)

    def fail(_data: bytes) -> bytes:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        rewrite(target, fail)
    with pytest.raises(FileNotFoundError):
        rewrite(tmp_path / "none", bytes.upper)
    assert target.read_bytes() == b"old and new"
    assert names(tmp_path) == ["auto.conf"]


def test_a_rewrite_that_fails_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "auto.conf"
    target.write_bytes(b"old")

    def refuse(*_arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr("pgsweep.files.os.fchown", refuse)
    with pytest.raises(PermissionError):
        rewrite(target, bytes.upper)
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["auto.conf"]


def test_a_rewrite_follows_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    folder = tmp_path / "data"
    folder.mkdir()
    target = folder / "auto.conf"
    target.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        rewrite(target, bytes.upper)
    target.unlink()
    target.hardlink_to(victim)
    with pytest.raises(OSError, match="owner alone"):
        rewrite(target, bytes.upper)
    target.unlink()
    os.mkfifo(target)
    with pytest.raises(OSError, match="owner alone"):
        rewrite(target, bytes.upper)
    assert victim.read_bytes() == b"precious"
    assert names(folder) == ["auto.conf"]


@needs_root
def test_root_rewrites_files_of_the_folders_owner_for_him(tmp_path: Path) -> None:
    target = tmp_path / "auto.conf"
    target.write_bytes(b"old")
    target.chmod(0o600)
    os.chown(tmp_path, *NOBODY)
    with pytest.raises(OSError, match="owner alone"):
        rewrite(target, bytes.upper)
    os.chown(target, *NOBODY)
    rewrite(target, bytes.upper)
    status = target.stat()
    assert target.read_bytes() == b"OLD"
    assert (status.st_uid, status.st_gid) == NOBODY
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert names(tmp_path) == ["auto.conf"]


def test_a_state_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    make_private(folder)
    write_whole(folder / "kept", b"ours", private=True)
    assert read_private(folder / "kept") == b"ours"
    for mode in (0o777, 0o1777, 0o775):
        folder.chmod(mode)
        for refused in (check_private, make_private):
            with pytest.raises(Untrusted) as reported:
                refused(folder)
            assert f"{mode:04o}" in str(reported.value.cause)
        with pytest.raises(Untrusted):
            read_private(folder / "kept")
        with pytest.raises(Untrusted):
            write_whole(folder / "kept", b"theirs", private=True)
    folder.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(Untrusted) as reported:
        make_private(link)
    assert reported.value.cause == "it is a link"
    (folder / "kept").unlink()
    (folder / "kept").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        read_private(folder / "kept")


@needs_root
def test_for_root_the_folders_above_count_and_so_does_the_owner(tmp_path: Path) -> None:
    above = tmp_path / "above"
    folder = above / "state"
    make_private(folder)
    os.chown(folder, *NOBODY)
    with pytest.raises(Untrusted) as reported:
        check_private(folder)
    assert "belongs to the user" in str(reported.value.cause)
    os.chown(folder, 0, 0)
    os.chown(above, *NOBODY)
    with pytest.raises(Untrusted) as reported:
        check_private(folder)
    assert str(above) in str(reported.value.cause)
    os.chown(above, 0, 0)
    check_private(folder)


@needs_root
def test_only_links_of_ours_are_followed(tmp_path: Path) -> None:
    there, first, second = tmp_path / "there", tmp_path / "first", tmp_path / "second"
    second.symlink_to("there")
    first.symlink_to(second)
    assert through_own_links(first) == there
    os.chown(second, *NOBODY, follow_symlinks=False)
    with pytest.raises(OSError, match="another user"):
        through_own_links(first)
    second.unlink()
    second.symlink_to(first)
    with pytest.raises(OSError, match="link"):
        through_own_links(first)


def test_the_state_folder_of_journals_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, towarm: str
) -> None:
    from pgsweep.warm.run.gather import Selection
    from pgsweep.warm.run.journal_place import find_journal, place_for

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = state_folder()
    assert folder == tmp_path / "pgsweep"
    place = place_for(towarm, Selection(), "pool")
    assert place is not None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    with pytest.raises(Untrusted):
        place_for(towarm, Selection(), "pool")
    with pytest.raises(Untrusted):
        find_journal(towarm)
    folder.chmod(0o700)
    with pytest.raises(UsageError):
        find_journal(towarm)


def test_a_recording_that_was_killed_before_it_saw_anything(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    path.mkdir()
    assert holds_nothing(path)
    (path / ".meta.json.0123456789abcdef.part").write_text("{")
    (path / "relations").mkdir()
    (path / "relations/part-00000.parquet").touch()
    assert holds_nothing(path)
    (path / "meta.json").write_text('{"complete": false}')
    assert holds_nothing(path)
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert not holds_nothing(path), "it is being written"
    os.close(descriptor)
    (path / "snapshots").mkdir()
    (path / "snapshots/part-00000.parquet").touch()
    assert not holds_nothing(path), "it has observations"
    (path / "snapshots/part-00000.parquet").unlink()
    (path / "notes.txt").touch()
    assert not holds_nothing(path), "somebody else's file is in it"


def test_a_folder_that_has_gone_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(PgsweepError, match="cannot write"):
        write_file(tmp_path / "gone" / "result.json", "{}")


@needs_root
def test_no_folder_is_made_through_a_link_of_another_user(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / ".local").symlink_to(elsewhere)
    os.chown(home, *NOBODY)
    os.chown(home / ".local", *NOBODY, follow_symlinks=False)
    with pytest.raises(Untrusted):
        make_private(home / ".local/state/pgsweep", mode=0o700)
    assert not list(elsewhere.iterdir())
