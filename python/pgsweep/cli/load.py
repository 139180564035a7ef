"""`pgsweep load`: files into a table, fast, without losing an index or a row."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pgsweep.cli.common import (
    HELP_NAMES,
    Bytes,
    FileName,
    common_options,
    require_no_connection,
    settings_of,
)
from pgsweep.cli.completing import load_words
from pgsweep.cli.connection import Target, connection_flags
from pgsweep.cli.interrupt import stoppable
from pgsweep.cli.output import Output, output_options
from pgsweep.cli.progress import ConsoleProgress
from pgsweep.errors import INTERRUPTED, PgsweepError, UsageError
from pgsweep.ui.numbers import byte_rate, count, counted, format_bytes
from pgsweep.ui.numbers import seconds as seconds_text

if TYPE_CHECKING:
    from pgsweep.cli.settings import Settings
    from pgsweep.load.copying import CopyState
    from pgsweep.load.options import LoadOptions
    from pgsweep.load.run import Agreed
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


@click.command(context_settings={"help_option_names": HELP_NAMES})
@click.argument("words", metavar="FILE... TABLE", nargs=-1, required=True, shell_complete=load_words)
@connection_flags
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
    metavar="FILE",
    help="Write records that the server "
    "refuses to FILE, with line and reason, and load the others.  [default: stop at the first, and undo]",
)
@click.option(
    "--max-rejects",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"With --rejects: give up and undo after more than N.  [default: {_MAX_REJECTS}]",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Sessions that copy.  [default: measured when it begins]",
)
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
    show_default=True,
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
    metavar="SIZE",
    help="Memory for all index builds together.  [default: see the plan]",
)
@click.option(
    "--vacuum", is_flag=True, help="VACUUM at the end, for the visibility map; ANALYZE runs anyway."
)
@click.option(
    "--piece",
    "piece_bytes",
    type=Bytes(),
    metavar="SIZE",
    help="Size of the parts of a file that are copied in one transaction each.  [default: 8 to 64 MB]",
)
@click.option(
    "--max-record",
    "max_record_bytes",
    type=Bytes(),
    metavar="SIZE",
    help="The longest record; a longer one ends the load.  [default: 1 GB, the server's limit]",
)
@click.option(
    "--on-failure",
    type=click.Choice(["rollback", "keep"]),
    default="rollback",
    show_default=True,
    help="After a refused record: undo the load, or leave it for --resume.",
)
@click.option(
    "--journal",
    type=FileName(dir_okay=False),
    metavar="FILE",
    help="Local copy of the journal.  [default: a file in ~/.local/state/pgsweep]",
)
@output_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    words: tuple[str, ...],
    plan: bool,
    yes: bool,
    resume: bool,
    rollback: bool,
    keep_as_is: bool,
    forget: bool,
    compare: bool,
    rejects: Path | None,
    max_rejects: int | None,
    on_failure: str,
    journal: Path | None,
    as_json: bool,
    as_csv: bool,
    html: Path | None,
    out: tuple[Path, ...],
    no_password: bool,
    ask_password: bool,
    **given: Any,
) -> int:
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
    settings = settings_of(ctx)
    later = resume or rollback or keep_as_is or forget
    files, table = _words(words, alone=later)
    if resume + rollback + keep_as_is + forget + compare + plan > 1:
        raise UsageError(
            "--plan, --resume, --rollback, --keep-as-is, --forget and --compare exclude each other",
            hint="name one of them",
        )
    require_no_connection(table, what="the table")
    options = _options(given, rejects, max_rejects, keep_on_failure=on_failure == "keep")
    target = Target(no_password=no_password, ask_password=ask_password, **given)
    output = Output(settings, as_json=as_json, as_csv=as_csv, html=html, out=out)
    from pgsweep.cli.provenance import with_provenance
    from pgsweep.load import run

    agreed = None
    if not (later or compare):
        outputs = [rejects, journal, html, *out]
        agreed = _agreed(target, files, table, options, outputs, yes=yes, waits=not plan)
    if plan:
        assert agreed is not None
        output.write(with_provenance(agreed.result, settings.arguments, server=target.server))
        settings.say("plan only: nothing was changed")
        return 0
    if compare:
        from pgsweep.load.compare import compare_practices

        _ask(f"Make a copy of {table} on {target.server} for a while?", yes=yes)
        with stoppable(settings, "ending after this practice") as stop, ConsoleProgress(settings) as shown:
            compared = target.use(
                lambda conninfo: compare_practices(conninfo, files, table, options, progress=shown, stop=stop)
            )
        output.write(with_provenance(compared, settings.arguments, server=target.server))
        return 0
    if forget:
        found = target.use(lambda conninfo: run.forget(conninfo, table, really=False))
        if found.outcome is not None and not settings.quiet:
            settings.say("without its journal: " + "; ".join(found.outcome.problems))
        _ask(f"Remove the journal of the load of {table} on {target.server}?", yes=yes)
    if agreed is not None:
        _show_plan(settings, agreed.result)
        _ask(f"Load into {table} on {target.server}?", yes=yes)
    with (
        stoppable(settings, "ending after the pieces and builds that are under way") as stop,
        ConsoleProgress(settings) as shown,
    ):
        listener = LoadProgress(shown)

        def work(conninfo: str) -> LoadResult:
            if resume:
                return run.resume(
                    conninfo, table, search_path=options.search_path, listener=listener, stop=stop
                )
            if rollback:
                return run.roll_back(conninfo, table, listener=listener, stop=stop)
            if forget:
                return run.forget(conninfo, table, really=True, listener=listener)
            if keep_as_is:
                return run.keep_as_is(conninfo, table, partly=yes, listener=listener, stop=stop)
            assert agreed is not None
            return run.carry_out(
                conninfo, agreed, listener=listener, stop=stop, journal=journal, rejects=rejects
            )

        result = target.use(work)
    output.write(with_provenance(result, settings.arguments, server=target.server))
    return _ended(settings, result, rolling_back=rollback)


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


def _options(
    given: dict[str, Any], rejects: Path | None, max_rejects: int | None, *, keep_on_failure: bool
) -> LoadOptions:
    """Return the options as the feature takes them; they are taken out of all parameters.

    Raises:
        UsageError: they contradict each other.
    """
    from pgsweep.load.options import LoadOptions

    taken = {name: given.pop(name) for name in LoadOptions.__struct_fields__ if name in given}
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
    return LoadOptions(max_rejects=max_rejects, keep_on_failure=keep_on_failure, **taken)


def _agreed(
    target: Target,
    files: list[str],
    table: str,
    options: LoadOptions,
    outputs: list[Path | None],
    *,
    yes: bool,
    waits: bool,
) -> Agreed:
    """Return the plan; the user is asked where it is not clear whether the first record is a header."""
    import msgspec

    from pgsweep.load import run
    from pgsweep.load.header import Unclear
    from pgsweep.load.source import check_outputs, find_inputs

    inputs = find_inputs(files, options)
    check_outputs(outputs, inputs)

    def plan(options: LoadOptions) -> Agreed:
        return target.use(lambda conninfo: run.agree(conninfo, inputs, table, options, waits=waits))

    try:
        return plan(options)
    except Unclear as error:
        if yes or not sys.stdin.isatty():
            raise
        click.echo(error.message, err=True)
        header = click.confirm("Is it a header?", err=True)
    return plan(msgspec.structs.replace(options, header=header))


def _show_plan(settings: Settings, result: LoadResult) -> None:
    from pgsweep.ui.results import to_text

    if not settings.quiet:
        settings.say(to_text(result, settings.terminal(sys.stderr)))


def _ask(question: str, *, yes: bool) -> None:
    """Ask whether to go on.

    Raises:
        UsageError: there is no terminal to ask on.
        Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "this changes the database, and there is no terminal to ask on",
            hint="add --yes, or see what would be done: --plan",
        )
    click.confirm(question, abort=True, err=True)


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
