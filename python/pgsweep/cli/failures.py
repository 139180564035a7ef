"""The one place where a failure becomes words on stderr and an exit code.

What failed, the likely cause, and what to do next; a traceback only with `--debug`.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import textwrap
import traceback
from typing import Final

import click

from pgsweep.cli.settings import Settings
from pgsweep.commands import on_server, sudo
from pgsweep.errors import INTERRUPTED, MissingAbility, PgsweepError, UsageError
from pgsweep.plain import cleaned, shell_word

_FILES: Final = 1024
"""As many open files as most systems allow by default; more than any command needs."""

_REPORT_TO = "the issue tracker of pgsweep"


def describe(error: BaseException, settings: Settings) -> int:
    """Write the error to stderr and return its exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if settings.debug:
        sys.stderr.write(_masked(settings, "".join(traceback.format_exception(error))))
    if isinstance(error, KeyboardInterrupt | click.exceptions.Abort):
        _interrupted(settings)
        return INTERRUPTED
    if isinstance(error, PgsweepError):
        cause, hint = _no_more_files(error) or (error.cause, error.hint)
        _write(settings, error.message, cause, hint, error.code)
        return error.exit_code
    if isinstance(error, click.ClickException):
        _write(settings, _sentence(error.format_message()), None, _usage_hint(error), UsageError.code)
        return error.exit_code
    if isinstance(error, FileNotFoundError) and error.filename == "/proc/meminfo":
        _write(
            settings,
            "how much memory there is cannot be read",
            "/proc shows processes only: it is mounted with subset=pid, as by ProcSubset=pid of a unit",
            "run it where /proc is whole; what needs no memory of the host works: "
            + on_server("pgsweep doctor"),
        )
        return MissingAbility.exit_code
    if isinstance(error, OSError) and error.strerror:
        where = f" `{error.filename}`" if error.filename else ""
        why = _no_more_files(error) or (None, None)
        _write(settings, f"the operating system refused{where}: {error.strerror}", *why)
        return PgsweepError.exit_code
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        from pgsweep.pg.session.secrets import without_secrets

        foreign = next((word for word in settings.arguments if _is_foreign(word)), None)
        word = without_secrets(
            (foreign or "").encode(errors="surrogateescape").decode(errors="backslashreplace")
        )
        _write(
            settings,
            f"`{word}` is not UTF-8" if foreign else "a name from the environment is not UTF-8",
            "names of databases and relations are taken as UTF-8 from the command line",
            "write the name in UTF-8, as in a terminal with LC_ALL=C.UTF-8",
        )
        return UsageError.exit_code
    ours = _of_server(error)
    if ours is not None:
        _write(settings, ours.message, ours.cause, ours.hint, ours.code)
        return ours.exit_code
    _write(
        settings,
        f"unexpected error in pgsweep: {type(error).__name__}: {error}",
        None,
        f"run it again with `--debug` and send the traceback and `pgsweep --version` to {_REPORT_TO}",
    )
    return PgsweepError.exit_code


def _no_more_files(error: BaseException) -> tuple[str, str] | None:
    """Return cause and hint where something failed because this process may open no more files.

    Whatever the features take it for; a server's own such failure, which has an SQLSTATE, is not meant.
    """
    one: BaseException | None = error
    seen: list[BaseException] = []
    while one is not None and one not in seen:
        seen.append(one)
        one = one.__cause__ or one.__context__
    text = os.strerror(errno.EMFILE)
    ours = [each for each in seen if not isinstance(each, PgsweepError)]
    if not any(text in str(each) and getattr(each, "sqlstate", None) is None for each in ours):
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    may = os.geteuid() == 0 or hard == resource.RLIM_INFINITY or hard >= _FILES
    hint = f"ulimit -n {_FILES}" if may else f"{sudo()}prlimit --pid $$ --nofile={_FILES}"
    return f"{text}: this process may have {soft} (RLIMIT_NOFILE)", f"{hint}, then run it again"


def _of_server(error: BaseException) -> PgsweepError | None:
    """Return the error for a failed statement that no feature has explained."""
    if "pgsweep.pg.session.connect" not in sys.modules:
        return None  # then there was no session
    from pgsweep.pg.session.failures import DriverError
    from pgsweep.pg.session.refusals import translate

    return translate(error) if isinstance(error, DriverError) else None


def _is_foreign(word: str) -> bool:
    """Return whether an argument has bytes that are not UTF-8; Python keeps them as surrogates (PEP 383)."""
    return any("\udc80" <= letter <= "\udcff" for letter in word)


def _interrupted(settings: Settings) -> None:
    kept = [path for path in settings.kept if path.exists()]
    sys.stderr.write("\ninterrupted\n")
    for path in kept:
        sys.stderr.write(f"kept: {shell_word(str(path))}\n")
    if settings.kept and not kept:
        sys.stderr.write("nothing was kept\n")


def _write(
    settings: Settings, message: str, cause: str | None, hint: str | None, code: str = PgsweepError.code
) -> None:
    message = _masked(settings, message)
    cause, hint = cause and _masked(settings, cause), hint and _masked(settings, hint)
    terminal = settings.terminal(sys.stderr)
    lines = _labelled(terminal.paint("error:", "red", "bold"), "error:", message)
    if cause:
        lines += _labelled(terminal.paint("cause:", "yellow"), "cause:", cause)
    if hint:
        lines += _labelled(terminal.paint("hint:", "cyan"), "hint:", hint)
    if "--json" in settings.arguments:  # then a program reads it
        lines.append(f"code: {code}")
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def _masked(settings: Settings, text: str) -> str:
    """Return the text without passwords: an argument in the wrong place is quoted, and may hold one."""
    if not any("=" in word or ":/" in word for word in settings.arguments):
        return text
    from pgsweep.pg.session.secrets import masked  # psycopg comes with it, which takes a while to load

    return masked(text)


def _labelled(painted: str, label: str, text: str) -> list[str]:
    """Return the text after its label; further lines of the text are indented under the first."""
    first, *rest = cleaned(text).rstrip().split("\n")
    return [f"{painted} {first}", *(textwrap.indent(line, " " * (len(label) + 1)) for line in rest)]


def _sentence(text: str) -> str:
    """Return click's message as one of ours: no capital at the start, no full stop at the end."""
    # A list of choices is one a line there.
    text = " ".join(text.split())
    if len(text) > 1 and text[0].isupper() and text[1].islower():
        text = text[0].lower() + text[1:]
    return text.removesuffix(".")


def _usage_hint(error: click.ClickException) -> str | None:
    context = getattr(error, "ctx", None)
    if not isinstance(error, click.UsageError) or context is None:
        return None
    option = getattr(error, "param", None)
    from_environment = click.core.ParameterSource.ENVIRONMENT
    if option is not None and context.get_parameter_source(option.name) is from_environment:
        return f"it comes from the environment: unset {option.envvar}"
    return f"`{context.command_path} --help` explains the arguments"
