"""`pgsweep hugepages`: how many, whether used, what they save; --apply sets them aside."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pgsweep.cli.command import Run, require_terminal, subcommand
from pgsweep.cli.common import Bytes, Count, FileName
from pgsweep.cli.interrupt import held_back
from pgsweep.commands import on_server, sudo
from pgsweep.errors import ConnectionFailed, NeedsRoot, PgsweepError, UsageError
from pgsweep.plain import shown
from pgsweep.units import format_count

if TYPE_CHECKING:
    from pgsweep.cli.connection import Target
    from pgsweep.host.reserve import Reserver
    from pgsweep.records.hugepages import HugePagesResult


@dataclass(frozen=True)
class _Asked:
    """The options, by name."""

    shared_buffers: int | None
    max_connections: int | None
    others: tuple[str, ...]
    page_size: int | None
    connections: int | None
    log: Path | None
    wants_apply: bool
    persist: bool
    undo: bool
    undo_for: str | None
    dry_run: bool
    yes: bool
    state_dir: Path
    sysctl_dir: Path


@subcommand(server="database", prepared=False, takes=_Asked)
@click.option("--shared-buffers", type=Bytes(), help="Ask about another shared_buffers.")
@click.option("--max-connections", type=Count(min=1), help="Ask about another max_connections.")
@click.option(
    "--set", "others", multiple=True, metavar="NAME=VALUE", help="Ask about any other setting. Repeatable."
)
@click.option(
    "--page-size",
    type=Bytes(),
    help="Size of the huge pages: 2MB, 1GB.  [default: the server's huge_page_size, or the kernel's default]",
)
@click.option(
    "--connections",
    type=Count(min=1),
    help="Predict page tables for N connections.  [default: max_connections]",
)
@click.option(
    "--log",
    type=FileName(needed="file", dir_okay=False),
    help="Explain the log of a server that did not start, instead of asking a server.",
)
@click.option("--apply", "wants_apply", is_flag=True, help="Set the pages aside (needs root); asks first.")
@click.option(
    "--persist", is_flag=True, help="With --apply: keep the number over a restart of the host (sysctl.d)."
)
@click.option("--undo", is_flag=True, help="Undo what --apply did (needs root); asks first.")
@click.option(
    "--undo-for",
    metavar="SERVER",
    help="With --undo: give back only what was set aside for this server, by its data directory.",
)
@click.option(
    "-n",
    "--dry-run",
    is_flag=True,
    help="With --apply or --undo: print what would be written, and do nothing.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--state-dir",
    type=FileName(file_okay=False),
    default=Path("/var/lib/pgsweep"),
    help="Where --apply keeps the previous values.",
)
@click.option(
    "--sysctl-dir",
    type=FileName(file_okay=False),
    default=Path("/etc/sysctl.d"),
    help="Where --persist writes.",
)
def command(run: Run, asked: _Asked) -> None:
    r"""Show how many huge pages the server needs, whether it uses them, and what they save.

    The number is exact: the size that the server requests from the kernel, for its own settings or for
    others. It is shown with what the kernel has available, why the server uses none, the size of its page
    tables with and without huge pages, and the lines for sysctl, systemd and boot.

    Nothing is changed without --apply. --apply sets aside all missing pages or none, and says what to
    restart; --undo restores the former number.

    \b
    Examples:
      pgsweep hugepages -U postgres
      pgsweep hugepages --shared-buffers 128GB --max-connections 1000
      sudo pgsweep hugepages -h localhost -U postgres --apply --persist
      pgsweep hugepages --log /var/log/postgresql/postgresql-15-main.log
      sudo pgsweep hugepages --undo
    """
    from pgsweep.host.reserve import Reserver

    _check(asked)
    changing = (asked.wants_apply or asked.undo) and not asked.dry_run
    if changing and not asked.yes:
        require_terminal("this changes the host's kernel settings")
    reserver = Reserver(
        state_directory=asked.state_dir.absolute(), sysctl_directory=asked.sysctl_dir.absolute()
    )
    if asked.undo:
        _undo(run, reserver, asked)
        return
    run.output  # noqa: B018 (checked before the work)
    changes = _changes(asked)
    result: HugePagesResult
    if asked.log is not None:
        result = _explained(asked.log, asked.page_size)
    else:
        from pgsweep.memory.hugepages.inspect import examine

        result = run.target.use(
            lambda conninfo: examine(
                conninfo, settings=changes, page_bytes=asked.page_size, connections=asked.connections
            )
        )
    if asked.wants_apply:
        result = _applied(run, result, reserver, asked)
    run.show(result, server=None if asked.log is not None else "")


def _applied(run: Run, result: HugePagesResult, reserver: Reserver, asked: _Asked) -> HugePagesResult:
    """Set the pages aside, after asking, and return the result with what was done; or what would be."""
    from pgsweep.memory.hugepages.apply import apply, planned, server_name

    plan = planned(result, reserver, persist=asked.persist)
    if asked.dry_run:
        run.settings.say("dry run: nothing was changed")
        return plan
    _ask(result, plan, yes=asked.yes)
    name = run.target.use(server_name) if asked.log is None else str(asked.log.absolute())
    with held_back(run.settings, "restoring the previous values") as stop:
        return apply(result, reserver, persist=asked.persist, stop=stop, server=name)


def _check(asked: _Asked) -> None:
    if asked.wants_apply and asked.undo:
        raise UsageError("--apply and --undo contradict each other", hint="leave one of them out")
    if asked.dry_run and not (asked.wants_apply or asked.undo):
        raise UsageError(
            "--dry-run goes with --apply or --undo",
            cause="nothing is changed without these",
            hint="leave it out",
        )
    if asked.persist and not asked.wants_apply:
        raise UsageError("--persist goes with --apply", hint="--apply --persist")
    if asked.undo_for is not None and not asked.undo:
        raise UsageError("--undo-for goes with --undo", hint="--undo --undo-for SERVER")


def _changes(asked: _Asked) -> dict[str, str]:
    changes = {}
    if asked.shared_buffers is not None:
        changes["shared_buffers"] = f"{asked.shared_buffers // 1024}kB"
    if asked.max_connections is not None:
        changes["max_connections"] = str(asked.max_connections)
    for text in asked.others:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"`{text}` is not a setting", hint="--set max_locks_per_transaction=256")
        changes[name.strip().lower()] = value.strip()
    return changes


def _explained(log: Path, page_bytes: int | None) -> HugePagesResult:
    from pgsweep.memory.hugepages.log import explain_log, read_log, requested_bytes
    from pgsweep.regular import open_at_once

    try:
        with open_at_once(log) as file:
            text = read_log(file)
            result = explain_log(text, page_bytes)
    except OSError as error:
        raise PgsweepError(f"cannot read `{log}`: {error.strerror}") from error
    size = requested_bytes(text)
    if result is None and size is not None:
        raise PgsweepError(
            f"`{log}` does not say that huge pages were missing",
            cause=f"the server requested {format_count(size)} bytes, which are no whole number of huge "
            "pages: "
            "ordinary memory was missing",
            hint="lower shared_buffers, or see vm.overcommit_memory: " + on_server("pgsweep memory kernel"),
        )
    if result is None:
        raise PgsweepError(
            f"`{log}` does not say that huge pages were missing",
            cause="the server says `could not map anonymous shared memory` then, with the size in the hint",
            hint=f"{on_server('pgsweep hugepages')} asks a running server",
        )
    return result


def _ask(result: HugePagesResult, plan: HugePagesResult, *, yes: bool) -> None:
    """Ask whether to write what the plan says.

    Raises:
        MissingAbility: not root.
        Abort: the answer is no.
    """
    if os.geteuid() != 0:
        raise NeedsRoot(
            "this user may not set huge pages aside",
            cause="that needs root",
            hint=f"run the same as root, or: {sudo()}sysctl -w vm.nr_hugepages={result.target}",
        )
    if not yes:
        for step in plan.plan:
            click.echo(f"write {step.text}", err=True)
        click.confirm("Set huge pages aside on this host?", abort=True, err=True)


def _asked(target: Target) -> str:
    """Return the name of the server whose pages are to be given back.

    Raises:
        ConnectionFailed: it does not run.
    """
    from pgsweep.memory.hugepages.apply import server_name

    try:
        return target.use(server_name)
    except ConnectionFailed as error:
        error.hint = (
            "if it was stopped, name it by its data directory: --undo-for /var/lib/postgresql/15/main"
        )
        raise


def _undo(run: Run, reserver: Reserver, asked: _Asked) -> None:
    settings, server = run.settings, asked.undo_for
    if server is None and run.target.is_named:
        server = _asked(run.target)
    undone = reserver.undo(dry_run=True, server=server)
    files = " and ".join(undone.files)
    for name in undone.servers:
        settings.say(f"set aside for the server {shown(name)}")
    if asked.dry_run:
        removes = f" and remove {files}" if files else ""
        settings.say(f"would make it {format_count(undone.before)} huge pages again{removes}")
        settings.say("dry run: nothing was changed")
        return
    if os.geteuid() != 0:
        raise NeedsRoot(
            "this user may not give huge pages back",
            cause="that needs root",
            hint=reserver.undo_command,
        )
    if not asked.yes:
        click.confirm(
            f"Make it {format_count(undone.before)} huge pages again on this host?", abort=True, err=True
        )
    with held_back(settings, "ending when all is put back"):
        undone = reserver.undo(server=server)
    settings.say(
        f"huge pages are {format_count(undone.before)} again; "
        + (f"removed {files}" if files else f"those of other servers stay: {reserver.state_file}")
    )
    settings.say("pages that a running server uses come back when it stops")
    if undone.left:
        settings.warn(f"{undone.left} is not as pgsweep wrote it, and stays: see what it sets")
