"""`pgsweep mcp`: pgsweep's questions for assistants, by the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path

import click

from pgsweep.cli.command import Run, subcommand
from pgsweep.cli.common import FileName
from pgsweep.errors import LacksPackage, UsageError


@subcommand(output=False)
@click.argument("targets", metavar="[[NAME:]DSN]...", nargs=-1)
@click.option(
    "--evidence",
    multiple=True,
    type=FileName(needed="folder", hint="--evidence DIR, where recordings lie", file_okay=False),
    help="A folder with recorded evidence; may be given several times.  [default: the working directory]",
)
def command(_run: Run, /, *, targets: tuple[str, ...], evidence: tuple[Path, ...]) -> None:
    r"""Answer an assistant's questions about servers, over stdin and stdout.

    It speaks the Model Context Protocol. The tools are doctor, cache, memory, predict_misses,
    advise_settings, and `servers`, which lists what can be asked about. All of them only read. An assistant
    reaches the servers that are named here, under these names, and evidence in the given folders, and
    nothing else. Results are the JSON that --json writes.

    \b
    Examples:
      pgsweep mcp shop
      pgsweep mcp prod:service=shop test:service=shop_test --evidence /var/lib/evidence
    """
    from pgsweep.pg.session.conninfo import build_conninfo, describe

    servers: dict[str, str] = {}
    for target in targets:
        name, mark, dsn = target.partition(":")
        # The colon of a URI is followed by slashes.
        if not mark or dsn.startswith("//") or "=" in name:
            name, dsn = "", target
        conninfo = build_conninfo(dsn)
        name = name or describe(conninfo).removeprefix("database ").split(" at ")[0]
        if name in servers:
            raise UsageError(f"two servers have the name `{name}`", hint=f"name them: a:{name} b:{name}")
        servers[name] = conninfo
    try:
        from pgsweep.mcp import run as answer
    except ImportError as error:
        raise LacksPackage(
            f"`pgsweep mcp` needs the package {error.name}, which is not installed",
            cause="the protocol is an extra: other commands do without",
            hint="pip install 'pgsweep[mcp]'",
        ) from error
    answer(servers, list(evidence) or [Path.cwd()])
