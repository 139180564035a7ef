"""`pgsweep lab run`: an experiment, or a grid of settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pgsweep.cli.command import Run, confirm, subcommand
from pgsweep.cli.common import Count, FileName, bindir_option
from pgsweep.cli.output import check_writable
from pgsweep.cli.progress import ConsoleProgress
from pgsweep.commands import this_command
from pgsweep.errors import ClusterError, UsageError
from pgsweep.ui.kit.numbers import seconds as seconds_text

if TYPE_CHECKING:
    from pgsweep.lab.protocol import Disposable


@dataclass(frozen=True)
class _Asked:
    """The options, by name."""

    what: str | None
    every: bool
    scale: float | None
    full: bool
    repeat: int | None
    seed: int | None
    samples: Path | None
    pg_bindir: Path | None
    work_dir: Path | None
    executor: str | None
    dsn: str | None
    restart_command: str | None
    dry_run: bool
    yes: bool

    @property
    def divisor(self) -> float | None:
        """What the article's sizes are divided by; None for the experiment's own."""
        return 1.0 if self.full else self.scale


@subcommand(takes=_Asked)
@click.argument("what", metavar="[NAME|GRID.toml]", required=False)
@click.option("--all", "every", is_flag=True, help="Every experiment, one after the other; one report.")
@click.option(
    "--scale",
    type=click.FloatRange(min=1),
    metavar="N",
    help="For an experiment: divide the article's sizes by N.  [default: see `pgsweep lab list`]",
)
@click.option("--full", is_flag=True, help="For an experiment: use the article's sizes, as with --scale 1.")
@click.option(
    "--repeat",
    type=Count(min=1),
    help="How often each run is repeated; intervals need 5.  [default: the experiment's, or the grid's]",
)
@click.option("--seed", type=Count(min=0), help="Seed of the order of runs and of pgbench.")
@click.option(
    "--samples",
    type=FileName(),
    help="File of the runs; if it exists, its runs are kept and the rest is done. With --all a folder.  "
    "[default: NAME.samples.jsonl, or lab.samples]",
)
@bindir_option
@click.option(
    "--work-dir",
    type=FileName(file_okay=False),
    help="Where the server's data directory is made.  [default: the place for temporary files]",
)
@click.option(
    "--executor",
    metavar="EXECUTOR",
    help="For a grid: run cells in parallel, each with a private server, on N processes of this machine "
    "(processes:N) or through a dask scheduler (tcp://HOST:PORT).",
)
@click.option(
    "--dsn",
    metavar="CONNINFO",
    help="For a grid: a server that may be disturbed, instead of a private one; conninfo or URI of a "
    "superuser.",
)
@click.option(
    "--restart-command",
    metavar="COMMAND",
    help="With --dsn: the shell command that restarts that server, such as 'systemctl restart postgresql'.",
)
@click.option("-n", "--dry-run", is_flag=True, help="With --dsn: say what would be done, and do nothing.")
@click.option("-y", "--yes", is_flag=True, help="With --dsn: do not ask.")
def command(run: Run, asked: _Asked) -> None:
    r"""Run an experiment of `pgsweep lab list`, or the grid of settings that a TOML file describes.

    An experiment repeats what a published article measured, its sizes divided by --scale, and shows
    published beside measured here, with a verdict on each conclusion: holds, does not hold here, cannot tell.

    With --all the experiments follow each other, and all results make one report. How long that takes is said
    first. What cannot run here is skipped, with its reason.

    A grid combines settings, workloads, caches and clients. Each run restarts a private server with the
    settings of its cell; the order of runs is drawn from a seed. A setting that the server refuses, or a
    script with an error, fails its cell; the others go on. A file can be as short as this:

    \b
      [settings]
      shared_buffers = ["128MB", "1GB"]
      [[workload]]
      builtin = "select-only"

    With --dsn a grid runs on a server that its owner names disposable. It says first what it will do there,
    and asks. Standbys and servers with other clients are refused. The load runs in a database of its own, or
    with scale = 0 and no setup in the one that --dsn names. What ALTER SYSTEM had set before is put back at
    the end, and by the next run where this one is killed.

    Every run is written to the file of samples before the next begins. After Ctrl-C or a kill the same
    command goes on where it stopped; when all runs are there it shows the result without running anything.

    \b
    Examples:
      pgsweep lab run residency
      pgsweep lab run tpcb --scale 40 --repeat 5 -o tpcb.html
      pgsweep lab run --all -o lab.html -o lab.json
      pgsweep lab run my-grid.toml --json -o my-grid.html
      pgsweep lab run my-grid.toml --executor processes:2
      pgsweep lab run my-grid.toml --dsn service=test --restart-command 'systemctl restart postgresql'
    """
    from pgsweep.lab.protocol import Place

    _check(asked)
    server = _server_of(asked)
    place = Place(asked.pg_bindir, asked.work_dir, server)
    line = this_command()
    how: dict[str, Any] = {"repetitions": asked.repeat, "seed": asked.seed, "place": place, "command": line}
    if asked.what is None:
        _run_every(run, asked.samples or Path("lab.samples"), asked.divisor, how)
    else:
        _run_one(run, asked.what, asked, how)


def _check(asked: _Asked) -> None:
    if asked.full and asked.scale is not None:
        raise UsageError("--full and --scale both say the scale", hint="leave one of them out")
    if asked.every == (asked.what is not None):
        raise UsageError(
            "name an experiment or a grid, or give --all",
            cause="both were given" if asked.every else "neither was given",
            hint="pgsweep lab list",
        )


def _run_one(run: Run, what: str, asked: _Asked, how: dict[str, Any]) -> None:
    """Run an experiment or a grid; `how` as `Chosen.run` takes it.

    Raises:
        ClusterError: no run could be done.
    """
    from pgsweep.lab.chosen import prepare
    from pgsweep.pg.session.conninfo import place_of

    settings, server = run.settings, how["place"].server
    chosen = prepare(what, scale=asked.divisor)
    shown = "a private server"
    if server is not None:
        for line in chosen.announced(server, asked.repeat):
            click.echo(line, err=True)
        if asked.dry_run:
            settings.say("dry run: nothing was changed")
            return
        confirm("Run these steps on this server now?", yes=asked.yes, what="this disturbs the server")
        shown = place_of(server.conninfo)
    file = asked.samples or Path(f"{chosen.plan.name.replace('/', '-')}.samples.jsonl")
    check_writable(file)
    settings.kept.append(file)
    with ConsoleProgress(settings) as progress:
        if chosen.seconds is not None:
            progress.note(f"about {seconds_text(chosen.seconds)}, assumed")
        result = chosen.run(samples=file, progress=progress, executor=asked.executor, **how)
    run.show(result, server=shown)
    settings.say(f"every run: {file}")
    failed = [cell for cell in result.cells if cell.failures]
    if failed and not any(cell.runs for cell in result.cells):
        raise ClusterError("no run could be done", cause=failed[0].failures[0])


def _run_every(run: Run, folder: Path, scale: float | None, how: dict[str, Any]) -> None:
    """Run all experiments, with their runs in a folder; `how` as `run_every` takes it.

    Raises:
        ClusterError: none could be run.
    """
    from pgsweep.lab.every import run_every

    if folder.exists() and not folder.is_dir():
        raise UsageError(f"`{folder}` is not a folder", hint="name another: --samples FOLDER")
    run.settings.kept.append(folder)
    with ConsoleProgress(run.settings) as progress:
        found = run_every(folder, scale=scale, progress=progress, **how)
    run.show(found, server="a private server")
    run.settings.say(f"every run: {folder}")
    if not found.results:
        raise ClusterError("no experiment could be run", cause=found.skipped[0].why)


def _server_of(asked: _Asked) -> Disposable | None:
    """Return the server that is named disposable, where one is; what cannot be combined is refused."""
    from pgsweep.lab.protocol import Disposable
    from pgsweep.pg.session.conninfo import build_conninfo

    dsn, restart_command = asked.dsn, asked.restart_command or ""
    if dsn is None and (asked.restart_command is not None or asked.dry_run or asked.yes):
        raise UsageError(
            "--restart-command, --dry-run and --yes go with --dsn",
            cause="without --dsn the server is a private one, and no other is touched",
            hint="leave them out, or name a server: --dsn 'host=... dbname=...'",
        )
    if dsn is not None and not restart_command.strip():
        raise UsageError(
            "--dsn needs --restart-command: each run restarts the server",
            hint="--restart-command 'systemctl restart postgresql'",
        )
    for option, given in (("--dsn", dsn), ("--executor", asked.executor)):
        if given is not None and asked.what is None:
            raise UsageError(
                f"{option} goes with a grid, not with --all", hint=f"pgsweep lab run GRID.toml {option} ..."
            )
    if asked.executor is not None:
        from pgsweep.workers import check_executor

        check_executor(asked.executor)
    return None if dsn is None else Disposable(build_conninfo(dsn), restart_command)
