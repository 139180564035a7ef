"""`pgsweep load`: files into a table, fast, without losing an index or a row."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pgsweep.cli.command import Run, confirm, subcommand
from pgsweep.cli.common import Bytes, Count, FileName, require_no_connection
from pgsweep.cli.completing import load_words
from pgsweep.cli.interrupt import stoppable
from pgsweep.cli.progress import ConsoleProgress
from pgsweep.errors import INTERRUPTED, PgsweepError, UsageError
from pgsweep.ui.kit.numbers import byte_rate, count, counted, format_bytes
from pgsweep.ui.kit.numbers import seconds as seconds_text

if TYPE_CHECKING:
    from pgsweep.cli.settings import Settings
    from pgsweep.load.agreed import Agreed
    from pgsweep.load.copying import CopyState
    from pgsweep.load.options import LoadOptions
    from pgsweep.records.load import LoadResult

_MAX_REJECTS = 1000
_MAX_RECORD = 1 << 30


class _Names(click.ParamType[Any]):
    """Names of columns, separated by commas; one in double quotes may hold a comma."""

    name = "names"

    def __init__(self, option: str = "columns") -> None:
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """Return the names.

        Raises:
            UsageError: a name is empty; that of a field of a header may be.
        """
        import csv

        if isinstance(value, list):
            return value
        names = next(csv.reader([str(value)], skipinitialspace=True), [])
        if not names or not (all(names) or self._option == "leave-out"):
            raise UsageError(f"`{value}` names no columns", hint=f"--{self._option} id,price,note")
        return names


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The options, by name; those of the load itself apart."""

    words: tuple[str, ...]
    plan: bool
    yes: bool
    resume: bool
    rollback: bool
    keep_as_is: bool
    forget: bool
    compare: bool
    rejects: Path | None
    max_rejects: int | None
    on_failure: str
    journal: Path | None
    of_load: dict[str, Any]

    @classmethod
    def of(cls, **given: Any) -> _Asked:
        """Return the options of a command line."""
        of_load = {name: given.pop(name) for name in list(given) if name not in cls.__dataclass_fields__}
        return cls(of_load=of_load, **given)

    @property
    def ends_another(self) -> bool:
        """Whether a load that was cut short is to be finished, undone or given up."""
        return self.resume or self.rollback or self.keep_as_is or self.forget


@subcommand(server="options", prepared=False, takes=_Asked.of)
@click.argument("words", metavar="FILE... TABLE", nargs=-1, required=True, shell_complete=load_words)
@click.option(
    "-n", "--plan", "--dry-run", "plan", is_flag=True, help="Show what would be done; change nothing."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--resume", is_flag=True, help="Finish a load of TABLE that was cut short.")
@click.option("--rollback", is_flag=True, help="Undo a load of TABLE that was cut short: rows, indexes, all.")
@click.option(
    "--keep-as-is",
    is_flag=True,
    help="End a load of TABLE without the indexes and constraints that its rows do not allow; with --yes "
    "also where rows of the files were not copied.",
)
@click.option(
    "--forget",
    is_flag=True,
    help="Remove the journal of a load of TABLE, after showing what it would leave; change nothing else.",
)
@click.option(
    "--compare",
    is_flag=True,
    help="Load a sample into a copy of the table in different ways, and show which of them pay here.",
)
@click.option(
    "--format",
    type=click.Choice(["csv", "tsv", "jsonl", "parquet", "binary"]),
    help="Format of the files; tsv is COPY's text format.  [default: by their names; csv for stdin]",
)
@click.option(
    "--header/--no-header", default=None, help="The first record names the columns.  [default: detected]"
)
@click.option(
    "--columns",
    type=_Names(),
    metavar="NAME,...",
    help="Columns in the order of the file; of JSON and Parquet those to load.  [default: the file's names]",
)
@click.option(
    "--leave-out",
    type=_Names("leave-out"),
    metavar="NAME,...",
    help="Names of the header, keys of JSON or columns of Parquet that are not loaded.",
)
@click.option("--delimiter", metavar="CHAR", help="Character between fields.  [default: comma; tab for tsv]")
@click.option("--quote", metavar="CHAR", help="Quote of CSV.  [default: double quote]")
@click.option(
    "--escape", metavar="CHAR", help="Character that escapes a quote in a quoted field.  [default: the quote]"
)
@click.option(
    "--null",
    metavar="TEXT",
    help="Text that stands for NULL.  [default: an empty unquoted field; \\N for tsv]",
)
@click.option(
    "--empty-is-null", is_flag=True, help='CSV: the text for NULL means NULL if it is quoted too: "".'
)
@click.option(
    "--encoding", metavar="NAME", help="Encoding of the files, as the server names it.  [default: UTF8]"
)
@click.option(
    "--rejects",
    type=FileName(dir_okay=False),
    help="Write records that the server "
    "refuses to FILE, with line and reason, and load the others.  [default: stop at the first, and undo]",
)
@click.option(
    "--max-rejects",
    type=Count(min=0),
    help=f"With --rejects: give up and undo after more than N.  [default: {_MAX_REJECTS}]",
)
@click.option("--jobs", type=Count(1, 64), help="Sessions that copy.  [default: measured when it begins]")
@click.option("--single-transaction", is_flag=True, help="One transaction in one session: all or nothing.")
@click.option(
    "--unlogged",
    is_flag=True,
    help="Make an empty table UNLOGGED while its rows are copied; a crash of the server then empties it.",
)
@click.option(
    "--partition-of",
    metavar="PARENT",
    help="Make TABLE, fill it, and attach it as a partition of PARENT, in one transaction.",
)
@click.option(
    "--for-values",
    metavar="BOUND",
    help='Bound of that partition: "FROM (...) TO (...)", "IN (...)", DEFAULT.',
)
@click.option(
    "--indexes",
    type=click.Choice(["auto", "keep", "drop"]),
    default="auto",
    help="Keep indexes and foreign keys, or drop them and make them again at the end.",
)
@click.option(
    "--search-path",
    type=_Names(),
    metavar="SCHEMA,...",
    help="Schemas in which functions of triggers, checks and defaults look for names.  [default: as in "
    "psql; for superusers only those in which nobody else may create]",
)
@click.option("--disable-triggers", is_flag=True, help="Triggers on INSERT do not fire during the load.")
@click.option(
    "--freeze/--no-freeze",
    default=None,
    help="Freeze rows at once; needs an empty table and one transaction.  [default: where it costs nothing]",
)
@click.option(
    "--maintenance-work-mem",
    "maintenance_work_mem_bytes",
    type=Bytes(),
    help="Memory for all index builds together.  [default: see the plan]",
)
@click.option(
    "--vacuum", is_flag=True, help="VACUUM at the end, for the visibility map; ANALYZE runs anyway."
)
@click.option(
    "--piece",
    "piece_bytes",
    type=Bytes(),
    help="Size of the parts of a file that are copied in one transaction each.  [default: 8 to 64 MB]",
)
@click.option(
    "--max-record",
    "max_record_bytes",
    type=Bytes(),
    help="The longest record; a longer one ends the load.  [default: 1 GB, the server's limit]",
)
@click.option(
    "--on-failure",
    type=click.Choice(["rollback", "keep"]),
    default="rollback",
    help="After a refused record: undo the load, or leave it for --resume.",
)
@click.option(
    "--journal",
    type=FileName(dir_okay=False),
    help="Local copy of the journal.  [default: a file in ~/.local/state/pgsweep]",
)
def command(run: Run, asked: _Asked) -> int:
    r"""Load files into a table: fast, and without losing an index, a constraint, a trigger or a row.

    The plan is shown first: what is on the table, what is dropped and made again, and why. A journal in the
    database (schema pgsweep_load, followed by the OID of a role that is not a superuser) and a local file
    hold every definition before anything is dropped. Each piece of a file is copied in one transaction with
    its entry in the journal; so after a kill -9, a lost connection or a crash of the server, --resume
    continues the load, and --rollback undoes it.

    Files may be compressed (.gz, .zst, .xz); - is standard input. Where a file has a header, its fields are
    matched with columns by name. A record that the server refuses stops the load and undoes it, unless
    --rejects names a file for such records.

    \b
    Examples:
      pgsweep load orders.csv orders -d shop --plan
      pgsweep load 'orders-*.csv.gz' sales.orders -d shop --yes
      pgsweep load orders.csv orders -d shop --rejects bad.csv --max-rejects 100
      zcat orders.gz | pgsweep load - orders -d shop --yes --single-transaction
      pgsweep load eu.csv orders_eu -d shop --partition-of orders --for-values "IN ('eu')"
      pgsweep load --resume orders -d shop
      pgsweep load --rollback orders -d shop
      pgsweep load --keep-as-is orders -d shop
      pgsweep load --forget orders -d shop
      pgsweep load orders.csv orders -d shop --compare
    """
    files, table = _words(asked.words, alone=asked.ends_another)
    exclusive = (asked.resume, asked.rollback, asked.keep_as_is, asked.forget, asked.compare, asked.plan)
    if sum(exclusive) > 1:
        raise UsageError(
            "--plan, --resume, --rollback, --keep-as-is, --forget and --compare exclude each other",
            hint="name one of them",
        )
    require_no_connection(table, what="the table")
    options = _options(asked)
    run.prepare()
    if asked.compare:
        _compare(run, files, table, options, yes=asked.yes)
        return 0
    agreed = None
    if asked.forget:
        _ask_to_forget(run, table, yes=asked.yes)
    elif not asked.ends_another:
        agreed = _agreed(run, files, table, options, asked)
        if asked.plan:
            run.show(agreed.result)
            run.settings.say("plan only: nothing was changed")
            return 0
        _show_plan(run.settings, agreed.result)
        _ask(f"Load into {table} on {run.target.server}?", yes=asked.yes)
    result = _done(run, table, options, asked, agreed)
    run.show(result)
    return _ended(run.settings, result, rolling_back=asked.rollback)


def _compare(run: Run, files: list[str], table: str, options: LoadOptions, *, yes: bool) -> None:
    """Load a sample in different ways, and show which of them pay."""
    from pgsweep.load.compare import compare_practices

    _ask(f"Make a copy of {table} on {run.target.server} for a while?", yes=yes)
    with (
        stoppable(run.settings, "ending after this practice") as stop,
        ConsoleProgress(run.settings) as shown,
    ):
        compared = run.target.use(
            lambda conninfo: compare_practices(conninfo, files, table, options, progress=shown, stop=stop)
        )
    run.show(compared)


def _ask_to_forget(run: Run, table: str, *, yes: bool) -> None:
    """Ask whether to remove a journal, after saying what that leaves."""
    from pgsweep.load.loading import forget

    found = run.target.use(lambda conninfo: forget(conninfo, table, really=False))
    if found.outcome is not None:
        run.settings.say("without its journal: " + "; ".join(found.outcome.problems))
    _ask(f"Remove the journal of the load of {table} on {run.target.server}?", yes=yes)


def _done(run: Run, table: str, options: LoadOptions, asked: _Asked, agreed: Agreed | None) -> LoadResult:
    """Carry out the plan, or do to another load what was asked for."""
    from pgsweep.load import loading as feature

    with (
        stoppable(run.settings, "ending after the pieces and builds that are under way") as stop,
        ConsoleProgress(run.settings) as shown,
    ):
        listener = LoadProgress(shown)

        def work(conninfo: str) -> LoadResult:
            if asked.resume:
                return feature.resume(
                    conninfo, table, search_path=options.search_path, listener=listener, stop=stop
                )
            if asked.rollback:
                return feature.roll_back(conninfo, table, listener=listener, stop=stop)
            if asked.forget:
                return feature.forget(conninfo, table, really=True, listener=listener)
            if asked.keep_as_is:
                return feature.keep_as_is(conninfo, table, partly=asked.yes, listener=listener, stop=stop)
            assert agreed is not None
            return feature.carry_out(
                conninfo, agreed, listener=listener, stop=stop, journal=asked.journal, rejects=asked.rejects
            )

        return run.target.use(work)


def _ended(settings: Settings, result: LoadResult, *, rolling_back: bool) -> int:
    outcome = result.outcome
    assert outcome is not None
    if outcome.ended == "interrupted":
        kept = (
            "; nothing was changed"
            if not outcome.load_id
            else "; go on with --rollback"
            if rolling_back
            else "; go on with --resume, or undo it with --rollback"
        )
        settings.say(f"interrupted{kept}")
        return INTERRUPTED
    if outcome.ended == "incomplete":
        raise PgsweepError(
            "not all indexes and constraints could be made again",
            cause="; ".join(outcome.problems[:1]),
            hint="; ".join(outcome.problems[1:2]),
        )
    return 0


def _words(words: tuple[str, ...], *, alone: bool) -> tuple[list[str], str]:
    """Return files and table.

    Raises:
        UsageError: one of them is missing, or files are given to a load that has its own.
    """
    *files, table = words
    if alone and files:
        raise UsageError(
            "--resume, --rollback, --keep-as-is and --forget take the table only",
            hint="the journal knows the files",
        )
    if not alone and not files:
        raise UsageError("name the files and the table", hint="pgsweep load FILE... TABLE -d DBNAME")
    return files, table


def _options(asked: _Asked) -> LoadOptions:
    """Return the options as the feature takes them.

    Raises:
        UsageError: they contradict each other.
    """
    from pgsweep.load.options import LoadOptions

    taken, rejects, max_rejects = dict(asked.of_load), asked.rejects, asked.max_rejects
    for name in ("delimiter", "quote", "escape"):
        value = taken[name]
        if value in ("\\t", "tab"):
            taken[name] = "\t"
        elif value is not None and (len(value) != 1 or not value.isascii()):
            raise UsageError(f"--{name} is one character of ASCII", hint=f"--{name} ';'")
    if max_rejects is not None and rejects is None:
        raise UsageError("--max-rejects goes with --rejects", hint="name the file: --rejects FILE")
    if rejects is not None and max_rejects is None:
        max_rejects = _MAX_REJECTS
    taken["max_record_bytes"] = min(_MAX_RECORD, taken["max_record_bytes"] or _MAX_RECORD)
    if rejects is not None:
        from pgsweep.cli.output import check_writable

        check_writable(rejects)
    return LoadOptions(**taken, max_rejects=max_rejects, keep_on_failure=asked.on_failure == "keep")


def _agreed(run: Run, files: list[str], table: str, options: LoadOptions, asked: _Asked) -> Agreed:
    """Return the plan; the user is asked where it is not clear whether the first record is a header."""
    import msgspec

    from pgsweep.load.input.header import Unclear
    from pgsweep.load.input.source import check_outputs, find_inputs
    from pgsweep.load.loading import agree

    inputs, places = find_inputs(files, options), run.output_options
    check_outputs([asked.rejects, asked.journal, places["html"], *places["out"]], inputs)

    def plan(options: LoadOptions) -> Agreed:
        return run.target.use(lambda conninfo: agree(conninfo, inputs, table, options, waits=not asked.plan))

    try:
        return plan(options)
    except Unclear as error:
        if asked.yes or not sys.stdin.isatty():
            raise
        click.echo(error.message, err=True)
        header = click.confirm("Is it a header?", err=True)
    return plan(msgspec.structs.replace(options, header=header))


def _show_plan(settings: Settings, result: LoadResult) -> None:
    from pgsweep.ui.results import to_text

    if not settings.quiet:
        settings.say(to_text(result, settings.terminal(sys.stderr)))


def _ask(question: str, *, yes: bool) -> None:
    confirm(question, yes=yes, what="this changes the database", hint="or see what would be done: --plan")


class LoadProgress:
    """Shows the progress of a load."""

    def __init__(self, shown: ConsoleProgress) -> None:
        self._shown = shown

    def stage(self, title: str) -> None:
        """Begin a new bar."""
        self._shown.stage(title)

    def note(self, text: str) -> None:
        """Write the line."""
        self._shown.note(text)

    def state(self, state: CopyState) -> None:
        """Move the bar of the copying."""
        words = [counted(state.rows, "row"), format_bytes(state.done_bytes)]
        if state.rejected:
            words.append(f"{count(state.rejected)} rejected")
        words.append(byte_rate(state.bytes_per_second))
        left = state.left_seconds
        if left is not None and left >= 1:
            words.append(f"{seconds_text(left)} left")
        share = state.done_bytes / state.total_bytes if state.total_bytes else 0.0
        self._shown.portion(min(1.0, share), ", ".join(words))

    def building(self, name: str, phase: str, done_ratio: float) -> None:
        """Move the bar of the builds."""
        self._shown.portion(min(1.0, done_ratio), f"{name}: {phase}")
