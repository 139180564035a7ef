"""Users without an account, without a home, and with nothing that they may write: no command ends by that."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import psycopg
import pytest

from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.refusals import translate
from tests.fix_cli import PGSWEEP
from tests.fix_doctor import tcp
from tests.fix_place import run_inside
from tests.fix_process import needs_root

COMMANDS = (
    ["doctor", "TARGET"],
    ["hugepages", "-d", "TARGET"],
    ["hugepages", "-d", "TARGET", "--shared-buffers", "1GB"],
    ["memory", "-d", "TARGET"],
    ["memory", "budget", "-d", "TARGET", "--ram", "4GB", "--max-connections", "90"],
    ["memory", "kernel", "-d", "TARGET"],
    ["cache", "-d", "TARGET"],
    ["top", "-d", "TARGET", "--once"],
    ["advise", "--undo", "--yes", "-d", "TARGET"],
    ["warm", "plan", "-d", "TARGET", "--budget", "1MB"],
    ["demo", "--help"],
)
CODE = """
import json, os, sys, tempfile
from pgsweep.cli.app import run
commands, target, uid = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
answer = os.dup(1)

def said(words):
    files = [os.memfd_create("out"), os.memfd_create("err")]
    sys.stdout.flush(), sys.stderr.flush()
    for number, file in enumerate(files):
        os.dup2(file, number + 1)
    code = run([target if word == "TARGET" else word for word in words])
    sys.stdout.flush(), sys.stderr.flush()
    return [words, code, *(os.pread(file, 1 << 20, 0).decode() for file in files)]

for words in commands:  # once as root, so that all modules are loaded
    said(words)
os.environ.pop("HOME", None)
os.environ.pop("TMPDIR", None)
tempfile.tempdir = None
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
os.write(answer, json.dumps([said(words) for words in commands]).encode())
"""


@needs_root
@pytest.mark.parametrize("account", ["nobody at all", "the server's"])
def test_a_user_without_account_home_or_a_folder_to_write_to(
    own: Cluster, account: str, tmp_path: Path
) -> None:
    uid = 54321 if account == "nobody at all" else own._user.uid
    inner = (
        "mount --make-rprivate / && mount --bind / /mnt && for name in proc sys dev; do mount --rbind /$name "
        '/mnt/$name; done && mount -o remount,ro,bind /mnt && exec chroot /mnt "$@"'
    )
    words = [sys.executable, "-c", textwrap.dedent(CODE), json.dumps(COMMANDS), tcp(own), str(uid)]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inner, "sh", *words], capture_output=True, text=True, check=False
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"needs mount namespaces: {done.stderr}")
    assert done.returncode == 0, done.stderr
    for command, code, _, err in json.loads(done.stdout):
        assert code in (0, 1, 2, 4), (command, err)
        assert "Traceback" not in err and "unexpected error" not in err, (command, err)
        if command[:2] in (["memory", "budget"], ["hugepages", "-d"], ["doctor", "TARGET"]):
            assert code == 0, (command, err)


@pytest.mark.parametrize(
    ("message", "monitor"),
    [
        ("permission denied for function pg_ls_waldir", True),
        ("permission denied to examine shared memory", True),
        ("permission denied for table orders", False),
        ("permission denied for schema private", False),
    ],
)
def test_a_missing_privilege_is_not_always_pg_monitor(message: str, monitor: bool) -> None:
    error = translate(psycopg.errors.InsufficientPrivilege(message))
    assert ("pg_monitor" in (error.hint or "")) == monitor


@needs_root
def test_a_proc_of_processes_alone(own: Cluster) -> None:
    """As ProcSubset=pid of a unit: what needs the host's memory says so, and the rest works."""
    subset = "mount -t proc -o subset=pid proc /proc"
    for words, code in (
        (["memory", tcp(own)], 4),
        (["memory", "budget", tcp(own), "--ram", "1GB"], 4),
        (["doctor", tcp(own)], 0),
        (["hugepages", tcp(own)], 0),
        (["cache", tcp(own)], 0),
    ):
        done = run_inside(words, first=subset)
        assert done.returncode == code, done.stderr
        assert ("subset=pid" in done.stderr) == (code == 4)


@needs_root
def test_the_root_of_a_user_namespace_is_not_sent_to_sudo(own: Cluster) -> None:
    """As in a rootless container: it is root already, and may not enter what belongs to others."""
    words = ["unshare", "--user", "--map-root-user", PGSWEEP, "memory", own.conninfo()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if "unshare" in done.stderr:
        pytest.skip("needs user namespaces")
    assert done.returncode == 3
    assert "user namespace" in done.stderr and "sudo" not in done.stderr, done.stderr
