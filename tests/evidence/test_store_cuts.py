"""Whatever cuts a recording short or breaks a part later, the rest is read, and what happened is reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import numpy as np
import pytest

from pgsweep.errors import EvidenceError
from pgsweep.evidence.store import Evidence, EvidenceWriter
from tests.fix_disk import fill_disk
from tests.fix_written import META, accesses


def test_an_error_before_the_first_row_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with pytest.raises(RuntimeError), EvidenceWriter(path, META):
        raise RuntimeError
    assert not path.exists()


def test_an_error_later_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with pytest.raises(KeyboardInterrupt), EvidenceWriter(path, META) as writer:
        writer.append("accesses", accesses(100))
        raise KeyboardInterrupt
    evidence = Evidence.open(path)
    assert evidence.rows("accesses") == 100
    assert not evidence.complete
    assert evidence.meta.ended_by == "interrupt"
    assert evidence.meta.seconds == pytest.approx(99e-6)
    assert "cut short" in evidence.warnings[0]


@pytest.mark.parametrize("keep", [0.99, 0.5, 0.0])
def test_a_truncated_part_ends_the_evidence(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "a.evidence"
    with EvidenceWriter(path, META) as writer:
        for number in range(3):
            writer.append("accesses", accesses(1000, begin=number * 1000))
            writer.flush()
    part = path / "accesses" / "part-00001.parquet"
    os.truncate(part, int(part.stat().st_size * keep))
    evidence = Evidence.open(path)
    assert evidence.rows("accesses") == 1000
    assert not evidence.complete
    assert "part-00001.parquet is cut short or damaged; 1 of 3 parts" in evidence.warnings[0]
    part.unlink()
    evidence = Evidence.open(path)
    assert evidence.rows("accesses") == 1000
    assert "part-00001.parquet is missing" in evidence.warnings[0]


def test_damage_inside_a_part_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with EvidenceWriter(path, META) as writer:
        writer.append("accesses", accesses(5000))
    part = path / "accesses" / "part-00000.parquet"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 0xFF
    part.write_bytes(data)
    with pytest.raises(EvidenceError, match="is damaged") as caught:
        Evidence.open(path).table("accesses")
    assert caught.value.hint is not None


def run_writer(path: Path, body: str) -> subprocess.Popen[str]:
    """Start a process of its own that writes evidence."""
    script = f"""
        import sys, time, os, resource
        from pathlib import Path
        from tests.fix_written import META, accesses
        from pgsweep.errors import EvidenceError
        from pgsweep.evidence.store import EvidenceWriter
        path = Path({str(path)!r})
        """
    source = textwrap.dedent(script) + textwrap.dedent(body)
    root = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, cwd=root)


def test_kill_of_the_writer_keeps_complete_parts(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    process = run_writer(
        path,
        """
        writer = EvidenceWriter(path, META)
        for number in range(100000):
            writer.append("accesses", accesses(2000, begin=number * 2000))
            writer.flush()
            print(number, flush=True)
        """,
    )
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            if int(line) >= 20:
                break
        evidence = Evidence.open(path)
        assert not evidence.complete
        assert "the recording is still under way" in evidence.warnings[0]
        process.send_signal(signal.SIGKILL)
    evidence = Evidence.open(path)
    assert not evidence.complete
    assert "cut short" in evidence.warnings[0]
    rows = evidence.table("accesses", ["time_ns"])["time_ns"]
    assert len(rows) >= 20 * 2000
    assert len(rows) % 2000 == 0
    assert np.array_equal(rows, np.arange(len(rows), dtype=np.uint64) * np.uint64(1000))
    assert evidence.meta.seconds == pytest.approx(len(rows) * 1e-6, rel=0.01)
    # The dead writer's lock is gone with it; its spare file is ours as well.
    assert (path / ".spare").stat().st_blocks * 512 >= 16 << 10
    with EvidenceWriter(path, META, overwrite=True) as writer:
        writer.append("accesses", accesses(1))
    assert Evidence.open(path).complete
    assert sorted(entry.name for entry in path.iterdir()) == ["accesses", "meta.json"]


def test_a_full_disk_is_reported_and_keeps_what_was_complete(small_disk: Path) -> None:
    path = small_disk / "a.evidence"
    written = 0
    with EvidenceWriter(path, META) as writer:
        with pytest.raises(EvidenceError) as caught:
            for number in range(1000):
                writer.append("accesses", accesses(20_000, begin=number * 20_000))
                writer.flush()
                written += 20_000
        with pytest.raises(EvidenceError):
            writer.append("accesses", accesses(1))
        fill_disk(small_disk)
        writer.close(msgspec.structs.replace(META, ended_by="disk"))
    assert caught.value.cause == "the file system is full"
    assert "free some space" in str(caught.value.hint)
    assert "readable" in str(caught.value.hint)
    assert written >= 20_000
    assert not list(path.rglob("*.part"))
    evidence = Evidence.open(path)
    assert evidence.rows("accesses") == written
    assert not evidence.complete
    assert evidence.meta.ended_by == "disk"


@pytest.mark.parametrize("inside", [False, True], ids=["after an error", "in close"])
def test_no_byte_left_still_leaves_room_to_say_so(small_disk: Path, *, inside: bool) -> None:
    path = small_disk / "a.evidence"
    with pytest.raises(EvidenceError if inside else RuntimeError), EvidenceWriter(path, META) as writer:
        writer.append("accesses", accesses(1000))
        writer.flush()
        writer.append("accesses", accesses(20_000, begin=1000))
        fill_disk(small_disk)
        if not inside:
            raise RuntimeError
        writer.close(msgspec.structs.replace(META, ended_by="time", warnings=["a word"]))
    evidence = Evidence.open(path)
    assert evidence.rows("accesses") == 1000
    assert (evidence.complete, evidence.meta.complete) == (False, False)
    assert evidence.meta.ended_by == "disk"
    assert ("a word" in evidence.warnings) == inside
    assert not (path / ".spare").exists()


@pytest.mark.parametrize("but_bytes", [0, 8192], ids=["no byte", "too little for the spare file"])
def test_a_disk_full_from_the_start_leaves_nothing(small_disk: Path, but_bytes: int) -> None:
    fill_disk(small_disk, but_bytes=but_bytes)
    with pytest.raises(EvidenceError) as caught:
        EvidenceWriter(small_disk / "a.evidence", META)
    assert caught.value.cause == "the file system is full"
    assert not (small_disk / "a.evidence").exists()


def test_a_disk_full_before_the_first_observation_leaves_nothing(small_disk: Path) -> None:
    """Also at the very end, when all that waits is written."""
    path = small_disk / "a.evidence"
    with pytest.raises(EvidenceError) as caught, EvidenceWriter(path, META) as writer:
        writer.append("accesses", accesses(20_000))
        fill_disk(small_disk)
        writer.close()
    assert caught.value.cause == "the file system is full"
    assert "readable" not in str(caught.value.hint)
    assert not path.exists()


def test_a_limit_on_file_size_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    process = run_writer(
        path,
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            with EvidenceWriter(path, META) as writer:
                writer.append("accesses", accesses(3000))
                writer.flush()
                writer.append("accesses", accesses(50_000, begin=3000))
        except EvidenceError as error:
            print(error.cause, "|", error.hint)
        """,
    )
    output, _ = process.communicate(timeout=60)
    assert "may not grow further" in output
    assert "readable" in output
    evidence = Evidence.open(path)
    assert evidence.rows("accesses") == 3000
    assert not evidence.complete


def test_a_folder_without_permission_is_reported(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError) as caught:
        EvidenceWriter(tmp_path / "missing" / "a.evidence", META)
    assert caught.value.hint is not None
    with pytest.raises(EvidenceError) as caught:
        EvidenceWriter(Path("/proc/a.evidence"), META)
    assert caught.value.hint is not None


def test_memory_stays_bounded_over_a_long_recording(tmp_path: Path) -> None:
    process = run_writer(
        tmp_path / "a.evidence",
        """
        with EvidenceWriter(path, META) as writer:
            rows = accesses(200_000)
            for number in range(12):
                writer.append("accesses", rows)
            early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for number in range(60):
                writer.append("accesses", rows)
        print(early, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        """,
    )
    output, _ = process.communicate(timeout=120)
    early_kb, late_kb = (int(word) for word in output.split())
    assert late_kb - early_kb < 100_000
