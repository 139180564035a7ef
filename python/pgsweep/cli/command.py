"""How a command is declared, and what it is called with: the server it asks, and where its result goes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from pgsweep.cli.common import HELP_NAMES, Options, common_options, options
from pgsweep.cli.connection import Target, connection_flags, connection_options
from pgsweep.cli.output import Output, output_options
from pgsweep.cli.settings import Settings
from pgsweep.errors import NotConfirmed

if TYPE_CHECKING:
    import msgspec

    from pgsweep.condition import Condition
    from pgsweep.records.common import Subject
    from pgsweep.residency.access import Access, PoolSource

    M = TypeVar("M", bound=msgspec.Struct)

R = TypeVar("R")

_PLACE = ("database", "host", "port", "username", "dbname")
_OF_SERVER = (*_PLACE, "no_password", "ask_password")
_OF_OUTPUT = ("as_json", "as_csv", "html", "out")


@dataclass
class Run:
    """One run of a command.

    Attributes:
        ctx: click's, for a command that asks which options were given.
        settings: how to speak.
        server_options: the options that name the server, as `Target` takes them.
        output_options: the options for the result, as `Output` takes them. A command that is not `prepared`
            may change both before it calls `prepare`.
    """

    ctx: click.Context
    settings: Settings
    server_options: dict[str, Any]
    output_options: dict[str, Any]

    def prepare(self) -> None:
        """Check the options for server and result before any work begins.

        Raises:
            UsageError: they contradict each other, or a file cannot be written.
        """
        if self.server_options:
            self.target  # noqa: B018 (it is made here)
        if self.output_options:
            self.output  # noqa: B018

    @functools.cached_property
    def target(self) -> Target:
        """The server that the options name."""
        return Target(**self.server_options)

    @functools.cached_property
    def output(self) -> Output:
        """Where the result goes."""
        return Output(self.settings, **self.output_options)

    def look(self, source: PoolSource, feature: Callable[[Access], R]) -> R:
        """Call the feature with a session that can read the caches, and say what reading them costs."""
        from pgsweep.residency.access import opened

        def looked(conninfo: str) -> R:
            with opened(conninfo, source) as access:
                if access.pool_source == "sql":
                    self.settings.say(access.cost_note())
                return feature(access)

        return self.target.use(looked)

    def made(self, result: M, *, server: str | None = "", subject: Subject | None = None) -> M:
        """Return the result with its provenance.

        Args:
            result: a record with a field `provenance`.
            server: where the server is, in words; "" for the one that the options name.
            subject: the server that the result is about, where the result does not name it.
        """
        from pgsweep.cli.provenance import with_provenance

        if server == "":
            server = self.target.server if self.server_options and subject is None else None
        return with_provenance(result, server=server, subject=subject)

    def show(self, result: Any, *, server: str | None = "", subject: Subject | None = None) -> None:
        """Write a result with its provenance, as `made` takes them.

        Raises:
            PgsweepError: a file cannot be written.
        """
        self.output.write(self.made(result, server=server, subject=subject))

    def holding(self, conditions: Sequence[Condition], verdict: str) -> bool:
        """Return whether one of the conditions of --fail-if holds, after saying which."""
        held = [condition for condition in conditions if condition.holds({"verdict": verdict})]
        for condition in held:
            self.settings.say(f"--fail-if {condition.text} holds: verdict is {verdict}")
        return bool(held)


class _Command(click.Command):
    """A command for a server, which the hint names also where an argument is refused."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments into the context; return what is left of them."""
        ctx.ensure_object(Settings).named = functools.partial(_options_read, ctx)
        return super().parse_args(ctx, args)


def _options_read(ctx: click.Context) -> dict[str, str]:
    """Return the options of a command line whose other arguments are still being read."""
    given = {name: ctx.params.get(name) for name in _PLACE}
    # click puts a mark of its own in the place of what was not given.
    names = {name: one if isinstance(one, str) else None for name, one in given.items()}
    return Target(no_password=True, ask_password=False, **names).options()


def subcommand(
    *,
    server: Literal["database", "options", ""] = "",
    output: bool = True,
    prepared: bool = True,
    takes: Callable[..., Any] | None = None,
    **more: Any,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function that is called with its `Run`, then with its own options by name.

    Args:
        server: which options name a server: psql's and, after the command's own arguments, DBNAME; psql's
            alone; or none.
        output: whether it has the options for a result.
        prepared: whether `Run.prepare` is called first; else the command calls it.
        takes: makes one value of the command's own options, which it is called with instead.
        more: what click's decorator takes besides.
    """
    before = {"database": [connection_options], "options": [connection_flags], "": []}[server]
    after = [*([output_options] if output else []), common_options]

    def declared(function: Callable[..., Any]) -> click.Command:
        @click.pass_context
        @functools.wraps(function)
        def called(ctx: click.Context, /, **given: Any) -> Any:
            of_server = {name: given.pop(name) for name in _OF_SERVER if server and name in given}
            of_output = {name: given.pop(name) for name in _OF_OUTPUT if output}
            run = Run(ctx, ctx.ensure_object(Settings), of_server, of_output)
            if prepared:
                run.prepare()
            return function(run, **given) if takes is None else function(run, takes(**given))

        own = called.__dict__.pop("__click_params__", [])[::-1]
        arguments = [one for one in own if isinstance(one, click.Argument)]
        others = [one for one in own if not isinstance(one, click.Argument)]
        every = [*arguments, *_params(before), *others, *_params(after)]
        # Help texts are raw strings; click wants the character itself before a paragraph not to be wrapped.
        text = (function.__doc__ or "").replace("\\b\n", "\b\n")
        declaring: Any = click.command(
            cls=more.pop("cls", _Command if server else click.Command),
            params=every,
            help=text,
            context_settings={"help_option_names": HELP_NAMES, "show_default": True},
            **more,
        )
        made: click.Command = declaring(called)
        return made

    return declared


def _params(decorators: Sequence[Options]) -> list[Any]:
    """Return the options that these decorators give a command, in order."""

    def bare() -> None:
        pass

    options(*decorators)(bare)
    return list(reversed(bare.__dict__.get("__click_params__", [])))


def confirm(
    question: str, *, yes: bool, what: str, hint: str = "or see what would be done: --dry-run"
) -> None:
    """Ask on the terminal whether to go on; not where `yes` was given.

    Args:
        question: for a person.
        yes: whether the answer was given on the command line.
        what: what is about to happen, for the error: `this changes the database`.
        hint: what else can be done than to add --yes.

    Raises:
        UsageError: there is no terminal to ask on.
        Abort: the answer is no.
    """
    if yes:
        return
    require_terminal(what, hint)
    click.confirm(question, abort=True, err=True)


def require_terminal(what: str, hint: str = "or see what would be done: --dry-run") -> None:
    """Fail where nobody can be asked.

    Raises:
        UsageError: stdin is not a terminal.
    """
    if not sys.stdin.isatty():
        raise NotConfirmed(
            f"{what}, and there is no terminal to ask on", hint=f"add --yes, {hint}".removesuffix(", ")
        )
