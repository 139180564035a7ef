"""Broken streams: nobody reads stdout, nobody reads stderr, or neither."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from array import array
from pathlib import Path

from pgsweep.evidence.store import Evidence
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import PGSWEEP
from tests.fix_process import wait_until

_NO_READER = "2> >(true)"


_TALKING = """
from pgsweep.cli.interrupt import stoppable
from pgsweep.cli.settings import Settings
from pgsweep.cli.streams import steady_stderr
settings = Settings()
with steady_stderr():
    with stoppable(settings, "ending") as stop:
        while not stop.is_set():
            settings.say("x" * 1_000_000)
    settings.say("ended")
"""


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run a pipeline; its exit code is that of the first command that failed."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PGSWEEP": PGSWEEP},
    )


def test_a_recording_goes_on_without_a_reader(wheel18: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    record = f"'{PGSWEEP}' record '{wheel18.conninfo()}' --source sql --for 2s"
    done = shell(f"{record} -o {path} 2>&1 | head -1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    evidence = Evidence.open(path)
    assert evidence.complete
    assert evidence.has("snapshots")


def test_without_stderr_the_result_comes(wheel18: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    record = f"'{PGSWEEP}' record '{wheel18.conninfo()}' --source sql --for 1s --json -o {path}"
    done = shell(f"{record} {_NO_READER}")
    assert done.returncode == 0
    assert json.loads(done.stdout)["path"] == str(path)
    assert Evidence.open(path).complete
    assert shell(f"{record} {_NO_READER}").returncode == 2, "it is there"


def test_a_failure_without_stderr_keeps_its_exit_code(tmp_path: Path) -> None:
    done = shell(f"'{PGSWEEP}' predict {tmp_path}/absent.evidence {_NO_READER}")
    assert done.returncode == 2


def test_stderr_on_a_full_device_does_not_matter() -> None:
    done = shell(f"'{PGSWEEP}' nonsense 2>/dev/full")
    assert done.returncode == 2
    assert shell(f"'{PGSWEEP}' --version 2>/dev/full").returncode == 0


def test_a_terminal_that_has_gone_does_not_matter() -> None:
    code = f"""
import os, subprocess, sys
ours, theirs = os.openpty()
process = subprocess.Popen([{PGSWEEP!r}, "nonsense"], stderr=theirs, stdin=subprocess.PIPE)
os.close(theirs)
os.close(ours)
sys.exit(process.wait())
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 2


def test_only_stdout_means_that_the_reader_has_gone() -> None:
    code = """
import os, sys
import click
from pgsweep.cli.app import Application
group = Application("x")
@click.command()
def command():
    os.write(int(sys.argv[2]), b"x")
group.get_command = lambda ctx, name: command
group.resolve_command = lambda ctx, args: ("cache", command, [])
try:
    group.main(["cache"], standalone_mode=False)
except Exception as error:
    print(type(error).__name__, file=sys.stderr)
"""
    ours, theirs = os.pipe()
    os.close(ours)
    other = subprocess.run(
        [sys.executable, "-c", code, "-", str(theirs)],
        pass_fds=[theirs],
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.stderr == "PgsweepError\n"
    gone = subprocess.run(
        [sys.executable, "-c", code, "-", "1"], stdout=theirs, stderr=subprocess.PIPE, text=True, check=False
    )
    assert gone.stderr == "ReaderGone\n"
    os.close(theirs)


_SIGNAL_WHILE_WRITING = """
import os, signal, sys
from pgsweep.cli import streams
real, sent = os.write, []
def write(descriptor, data):
    if not sent:
        sent.append(True)
        signal.raise_signal(signal.SIGUSR1)
    return real(descriptor, data)
streams.os.write = write
with streams.steady_stderr():
    signal.signal(signal.SIGUSR1, lambda *_: sys.stderr.write("from the handler\\n"))
    sys.stderr.write("a message\\n")
"""


def test_a_signal_handler_may_write_while_a_message_is_written() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SIGNAL_WHILE_WRITING], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stderr.splitlines()) == ["a message", "from the handler"]


def test_a_signal_during_a_write_ends_the_work_in_good_order() -> None:
    with subprocess.Popen([sys.executable, "-c", _TALKING], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        pipe = process.stderr.fileno()

        def waits_to_write() -> bool:
            waiting = array("i", [0])
            fcntl.ioctl(pipe, termios.FIONREAD, waiting)
            return waiting[0] >= fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)

        wait_until(waits_to_write)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said.replace(b"x", b"").decode()
    assert b"\nending; Ctrl-C again ends it at once\n" in said
    assert said.endswith(b"ended\n")


_SIGNAL_WHILE_WAITING = """
import signal, sys, threading
from pgsweep.cli.interrupt import stoppable
from pgsweep.cli.settings import Settings
places = []
def trace(frame, event, _):
    if frame.f_code.co_filename != threading.__file__ or threading.current_thread().name != "MainThread":
        return None
    if event == "line" and frame.f_lineno not in places:
        places.append(frame.f_lineno)
        sys.settrace(None)
        signal.raise_signal(signal.SIGTERM)
    return trace
found = -1
while found < len(places):
    found = len(places)
    with stoppable(Settings(quiet=True), "ending") as stop:
        sys.settrace(trace)
        stop.wait(0.01)
        sys.settrace(None)
        assert len(places) == found or stop.wait(20), places
print(found)
"""


def test_a_signal_at_any_moment_of_waiting_ends_it() -> None:
    """The main thread may hold the lock of the event it waits for; a handler that takes it never returns."""
    done = subprocess.run(
        [sys.executable, "-c", _SIGNAL_WHILE_WAITING],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
