"""systemd as the first process of namespaces of its own, on the files of this machine.

All that is written goes to an overlay in memory, the network is a loopback of its own, and systemd knows the
units that a test gives it and no others: nothing of the machine's own is started. It ends, with all that it
started, when the process that began it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

SYSTEMD = Path("/lib/systemd/systemd")
PROGRAMS = ("unshare", "nsenter", "setpriv", "pivot_root", "systemctl")
PATIENCE_SECONDS = 60.0
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

# The parameters are the folder for the overlay, that of the units, the options that mount cgroups of the
# older kind where there are to be some, and folders that all may enter.
_BEGIN = r"""
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" overlay "$1/root"
cd "$1/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
if [ -z "$3" ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
    mkdir sys/fs/cgroup/unified
    mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
    for options in $3; do
        name=${options#none,name=}
        mkdir "sys/fs/cgroup/$name"
        mount -t cgroup -o "$options" cgroup "sys/fs/cgroup/$name"
    done
fi
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
for node in null zero full random urandom tty; do : >"dev/$node"; mount --bind "/dev/$node" "dev/$node"; done
mkdir run/nothing
cp -r "$2" run/units
shift 3
for folder; do chmod a+x ".$folder"; done
mkdir .before
pivot_root . .before
umount -l /.before
cd /
exec env -i container=pgsweep-test PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    SYSTEMD_UNIT_PATH=/run/units SYSTEMD_GENERATOR_PATH=/run/nothing \
    SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/run/nothing /lib/systemd/systemd --log-target=null
"""

_TARGETS = {
    "default.target": "[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\n",
    "sysinit.target": "[Unit]\nDefaultDependencies=no\n",
    "basic.target": "[Unit]\nDefaultDependencies=no\nRequires=sysinit.target\nAfter=sysinit.target\n",
    "shutdown.target": "[Unit]\nDefaultDependencies=no\nRefuseManualStart=yes\n",
    "network-online.target": "[Unit]\nDefaultDependencies=no\n",
}


class Systemd:
    """A running systemd.

    Attributes:
        pid: of its first process, as this machine sees it.
    """

    def __init__(self, process: subprocess.Popen[str], pid: int) -> None:
        self.process = process
        self.pid = pid

    def inside(self, *command: str | Path, user: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command in its namespaces."""
        become = [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        return subprocess.run(
            ["nsenter", f"--target={self.pid}", "--all", "env", "--chdir=/", *become, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": PATH, "LANG": "C.UTF-8"},
        )

    def control(self, *words: str) -> str:
        """Run systemctl; return what it prints."""
        done = self.inside("systemctl", "--no-pager", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def shown(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.control("show", unit, f"--property={name}", "--value")

    def limit(self, unit: str, controller: str, *names: str) -> int | None:
        """Return the limit that the kernel has for a unit; None where there is no such controller.

        Args:
            unit: that is running.
            controller: `memory` or `pids`.
            names: of the file with the limit, of cgroups of the newer and of the older kind.
        """
        files = [f"{self.group(unit, controller)}/{name}" for name in names]
        text = self.inside("cat", *files).stdout.strip()
        return int(text) if text.isdigit() else None

    def group(self, unit: str, controller: str) -> str:
        """Return the folder of the cgroup in which a controller has a unit."""
        place = self.shown(unit, "ControlGroup")
        older = f"/sys/fs/cgroup/{controller}"
        root = older if self.inside("test", "-d", older).returncode == 0 else "/sys/fs/cgroup"
        return f"{root}{place}"

    def ask(self, address: str) -> tuple[int, str]:
        """Return status and text of an answer in its network; 0 where nobody answers."""
        return asked(["nsenter", f"--target={self.pid}", "--all"], address)


def asked(enter: Sequence[str], address: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return status and text of an answer in namespaces; 0 where nobody answers.

    Args:
        enter: the words that run a command there.
        address: what is asked for.
        headers: of the request.
    """
    done = subprocess.run(
        [*enter, "env", "--chdir=/", sys.executable, "-c", _ASK, address, json.dumps(headers or {})],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": PATH, "LANG": "C.UTF-8"},
    )
    status, _, text = done.stdout.partition("\n")
    return (int(status), text) if done.returncode == 0 else (0, done.stderr)


_ASK = """
import json, sys, urllib.error, urllib.request
try:
    request = urllib.request.Request(sys.argv[1], headers=json.loads(sys.argv[2]))
    answer = urllib.request.urlopen(request, timeout=20)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status)
print(answer.read().decode(), end="")
"""


def why_not() -> str | None:
    """Return why systemd cannot be started here; None where it can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if not SYSTEMD.exists() or missing:
        return f"no systemd here, or not its tools: {missing}"
    if os.geteuid() != 0:
        return "needs root: namespaces with a system in them"
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--cgroup", "--net", "--ipc", "--uts", "sh", "-c",
         "mount -t tmpfs tmpfs /mnt && mkdir /mnt/u /mnt/w /mnt/r && mount -t overlay -o "
         "lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w overlay /mnt/r && mount -t cgroup2 cgroup2 /mnt/r/sys"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return None if done.returncode == 0 else f"namespaces, overlays or cgroups may not be made: {done.stderr}"


@contextmanager
def running_systemd(
    units: Mapping[str, str], reached: Sequence[Path] = (), *, limits: bool = False
) -> Iterator[Systemd]:
    """Start it with some units, none of which it starts by itself.

    Args:
        units: contents of the units, and of what is added to them (`NAME.service.d/x.conf`), by file name.
        reached: programs and files that all users may reach in it, also below a folder of root's.
        limits: of memory and tasks are wanted. Where the machine has their controllers in cgroups of the
            older kind, systemd then uses those.
    """
    why = why_not()
    if why is not None:
        pytest.skip(why)
    with contextlib.ExitStack() as stack:
        groups, hierarchies = stack.enter_context(_own_cgroups(limits))
        folder = Path(stack.enter_context(_temporary_folder()))
        (folder / "units").mkdir()
        (folder / "overlay").mkdir()
        for name, text in {**_TARGETS, **units}.items():
            (folder / "units" / name).parent.mkdir(exist_ok=True)
            (folder / "units" / name).write_text(text)
        (folder / "begin").write_text(_BEGIN)
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", "sh", "-e", "-c",
             'for group in $0; do echo $$ >"$group/cgroup.procs"; done; exec unshare --mount --pid --fork '
             '--kill-child=KILL --cgroup --net --ipc --uts sh "$@"', " ".join(map(str, groups)),
             *(str(folder / name) for name in ("begin", "overlay", "units")), " ".join(hierarchies),
             *_closed(reached)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={"PATH": PATH},
        )  # fmt: skip
        stack.callback(_end, process)
        yield _awaited(process)


def _closed(paths: Sequence[Path]) -> list[str]:
    """Return the folders above some paths that others may not enter."""
    above = {folder for path in paths for folder in path.resolve().parents}
    return sorted(str(folder) for folder in above if not folder.stat().st_mode & 0o001)


def _awaited(process: subprocess.Popen[str]) -> Systemd:
    """Return it as soon as it answers."""
    until = time.monotonic() + PATIENCE_SECONDS
    said = ""
    while time.monotonic() < until:
        assert process.poll() is None, process.communicate()[1]
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children and Path(f"/proc/{children[0]}/comm").read_text().strip() == "systemd":
            found = Systemd(process, int(children[0]))
            done = found.inside("systemctl", "is-system-running")
            said = done.stdout + done.stderr
            if done.stdout.strip() in ("running", "degraded"):
                return found
        time.sleep(0.05)
    raise AssertionError(f"systemd did not start: {said}")


def _end(process: subprocess.Popen[str]) -> None:
    # unshare takes its child with it, which is the first process of its namespace: all in it end.
    process.kill()
    process.communicate()


_OLDER = {"memory", "pids", "cpu", "cpuacct", "blkio", "devices", "name=systemd"}
"""The hierarchies of the older kind in which systemd makes groups (CGROUP_MASK_V1 in basic/cgroup-util.h)."""


@contextmanager
def _own_cgroups(limits: bool) -> Iterator[tuple[list[Path], list[str]]]:
    """Groups that become the roots of systemd's own, and the options that mount those of the older kind."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    root = next(Path(fields[1]) for fields in mounts if fields[2] == "cgroup2")
    name = f"pgsweep-test-{os.getpid()}"
    groups, hierarchies = [root / name], []
    if limits and "memory" not in (root / "cgroup.controllers").read_text().split():
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, words, place = line.split(":", 2)
            controllers = set(words.split(","))
            if controllers & _OLDER:
                top = next(
                    Path(fields[1])
                    for fields in mounts
                    if fields[2] == "cgroup" and controllers <= set(fields[3].split(","))
                )
                groups.append(top / place.lstrip("/") / name)
                hierarchies.append(words.replace("name=", "none,name="))
    elif limits:
        (root / "cgroup.subtree_control").write_text("+memory +pids")
    try:
        for group in groups:
            group.mkdir()
        yield groups, hierarchies
    finally:
        until = time.monotonic() + 20
        for group in groups:
            _remove(group, until)


def _remove(group: Path, until: float) -> None:
    """Remove a group, with those that are in it, as soon as no process is."""
    while group.exists():
        folders = sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True)
        try:
            for path in (*folders, group):
                path.rmdir()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


@contextmanager
def _temporary_folder() -> Iterator[str]:
    """A folder that the overlay is not a part of, and that others may enter."""
    folder = Path("/var/tmp", f"pgsweep-systemd-{os.getpid()}-{time.monotonic_ns()}")
    folder.mkdir()
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
