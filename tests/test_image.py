"""The container image: built from packaging/Containerfile, started beside a server, and asked.

Takes minutes, and needs root, podman and mmdebstrap: `make test-packaging` runs it. The base is a Debian made
by mmdebstrap instead of the image that the Containerfile names, and all packages of Python are there as
wheels, so nothing comes from a registry of images.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from pgsweep.pg.private.cluster import Cluster
from tests.fix_process import wait_until
from tests.fix_systemd import asked
from tools.reference import ROOT

pytestmark = pytest.mark.slow
CONTAINERFILE = ROOT / "packaging/Containerfile"
SUITE, PYTHON = "bookworm", "3.11"
BASE, IMAGE, NAME = "localhost/base", "localhost/pgsweep", "pgsweep"
USER = 8432
PATIENCE_SECONDS = 90.0
TOKEN = "0123456789abcdef-token"
ADDRESS = "http://127.0.0.1:8432"
SERVE_TOML = """
[serve]
interval = 1
[[server]]
name = "shop"
conninfo = "host=/run/postgresql user=monitor dbname=postgres passfile=/etc/pgsweep/pgpass"
"""


def said(*words: str | Path) -> str:
    """Return what a command prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()


@dataclass(frozen=True)
class Podman:
    """podman, with images and containers in a folder of the test's own.

    Attributes:
        folder: for these.
        namespace: a process in whose mount namespace it runs.
    """

    folder: Path
    namespace: int

    def __call__(self, *words: str | Path) -> str:
        places = {"root": "images", "runroot": "run", "tmpdir": "tmp"}
        options = [f"--{option}={self.folder / name}" for option, name in places.items()]
        enter = ["nsenter", f"--mount=/proc/{self.namespace}/ns/mnt"]
        return said(*enter, "podman", *options, "--cgroup-manager=cgroupfs", "--events-backend=none", *words)

    def shown(self, template: str) -> str:
        """Return a property of the container."""
        return self("container", "inspect", "--format", template, NAME)

    def ask(self, path: str, *, token: str | None = TOKEN) -> tuple[int, str]:
        """Return status and text of an answer in the container's network; 0 where nobody answers."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        enter = ["nsenter", f"--target={self.shown('{{.State.Pid}}')}", "--net"]
        return asked(enter, f"{ADDRESS}{path}", headers)


@pytest.fixture(scope="module")
def podman(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    if not request.config.getoption("--packaging"):
        pytest.skip("takes minutes: make test-packaging runs it")
    missing = [name for name in ("podman", "mmdebstrap", "nsenter", "unshare") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root, and {', '.join(missing) or 'podman'}")
    with namespace_with_newer_cgroups() as process:
        found = Podman(tmp_path_factory.mktemp("podman"), process)
        yield found
        found("rm", "--all", "--force", "--time", "0")
        found("rmi", "--all", "--force")
    shutil.rmtree(found.folder, ignore_errors=True)


@contextmanager
def namespace_with_newer_cgroups() -> Iterator[int]:
    """A mount namespace that has the cgroups of version 2 alone, by a process that ends with the test.

    crun starts no container where those of both versions are mounted, whatever --cgroups says.
    """
    make = "umount -R /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup; echo made; exec cat"
    process = subprocess.Popen(
        ["unshare", "--mount", "--propagation=private", "sh", "-e", "-c", make],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        yield process.pid
        process.kill()


@pytest.fixture(scope="module")
def image(podman: Podman, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image, built without an index of packages."""
    folder = tmp_path_factory.mktemp("image")
    archive = folder / "base.tar"
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    said("mmdebstrap", "--variant=minbase", "--include=python3,python3-venv", SUITE, archive,
         *([sources] if sources.exists() else []))  # fmt: skip
    podman("import", archive, BASE)
    archive.unlink()
    context = folder / "context"
    context.mkdir()
    shutil.copy(wheel, context)
    said("python3", "-m", "pip", "download", "--quiet", "--dest", context, "--only-binary=:all:",
         "--python-version", PYTHON, "--constraint", ROOT / "constraints.txt", f"{wheel}[serve]")  # fmt: skip
    podman("build", "--pull=never", "--isolation=chroot", "--network=host", "--file", CONTAINERFILE,
           "--build-arg", f"BASE={BASE}", "--build-arg", f"WHEEL={wheel.name}",
           "--build-arg", "PIP_NO_INDEX=1", "--tag", IMAGE, context)  # fmt: skip
    shutil.rmtree(context)
    return IMAGE


@pytest.fixture(scope="module")
def watched() -> Iterator[Cluster]:
    """A PostgreSQL whose socket may be reached, with a role for which a password is asked."""
    with Cluster.create(None, {"shared_buffers": "16MB", "unix_socket_permissions": "0777"}) as cluster:
        cluster.socket_directory.chmod(0o711)
        rules = cluster.data_directory / "pg_hba.conf"
        rules.write_text("local all monitor scram-sha-256\n" + rules.read_text())
        cluster.create_extensions("postgres", "pg_buffercache")
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE ROLE monitor LOGIN PASSWORD 'a password'")
            connection.execute("GRANT pg_monitor TO monitor")
            connection.execute("SELECT pg_reload_conf()")
        yield cluster


def test_the_image_serves_what_it_sees_of_a_server(
    podman: Podman, image: str, watched: Cluster, tmp_path: Path
) -> None:
    """Started as the Containerfile says, without any privilege; its history outlives the container."""
    secrets = {"token": TOKEN, "pgpass": "*:*:*:monitor:a password\n"}
    for name, text in secrets.items():
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(text)
        os.chown(tmp_path / name, USER, USER)
    (tmp_path / "serve.toml").write_text(SERVE_TOML)
    files = [f"--volume={tmp_path}/{name}:/etc/pgsweep/{name}:ro" for name in (*secrets, "serve.toml")]

    def start() -> None:
        podman("run", "--detach", f"--name={NAME}", "--network=host", "--cgroups=disabled", "--read-only",
               "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--tmpfs=/tmp",
               "--cap-drop=all", "--security-opt=no-new-privileges", *files,
               f"--volume={watched.socket_directory}:/run/postgresql", "--volume=history:/var/lib/pgsweep",
               image)  # fmt: skip
        wait_until(
            lambda: 'pgsweep_up{server="shop"} 1.0' in podman.ask("/metrics")[1],
            PATIENCE_SECONDS,
            lambda: podman("logs", NAME) + repr(podman.ask("/metrics")),
        )

    start()
    assert podman.ask("/metrics", token=None)[0] == 401
    assert podman.ask("/metrics", token="x" * 20)[0] == 401
    [value] = re.findall(
        r'^pgsweep_shared_buffers_bytes{server="shop"} (.*)$', podman.ask("/metrics")[1], re.M
    )
    assert float(value) == 16 << 20
    summary = json.loads(podman.ask("/servers/shop/summary.json")[1])
    assert summary["pool_source"] == "sql"
    # The first process of the container, as this machine sees it.
    status = Path(f"/proc/{podman.shown('{{.State.Pid}}')}/status").read_text().splitlines()
    found = {name: text.split() for name, _, text in (line.partition(":") for line in status)}
    assert set(found["Uid"]) == {str(USER)}
    assert {int(found[name][0], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {0}
    assert found["NoNewPrivs"] == ["1"]

    def times() -> list[str]:
        answer = podman.ask("/servers/shop/series.json")[1]
        return list(json.loads(answer)["at"]) if answer.startswith("{") else []

    wait_until(lambda: len(times()) >= 2, PATIENCE_SECONDS, lambda: podman("logs", NAME))
    before = times()
    podman("stop", "--time", "30", NAME)
    assert podman.shown("{{.State.ExitCode}}") == "0"
    logs = podman("logs", NAME)
    assert "Traceback" not in logs
    for secret in secrets.values():
        assert secret.rpartition(":")[2].strip() not in logs
    podman("rm", NAME)
    start()
    wait_until(lambda: times()[-1:] > before[-1:], PATIENCE_SECONDS, lambda: podman("logs", NAME))
    assert set(before) <= set(times())
