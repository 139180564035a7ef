"""What the commands that look at one server and show one result have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pgsweep.cli.common import settings_of
from pgsweep.cli.connection import Target
from pgsweep.cli.output import Output


def observing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call a command with its Settings, Target and Output, then its own options by name.

    It stands in the place of `click.pass_context`, below `connection_options`, `output_options` and
    `common_options`.

    Raises:
        UsageError: the options contradict each other, or a file cannot be written.
    """

    @click.pass_context
    @functools.wraps(function)
    def command(
        ctx: click.Context,
        /,
        *,
        database: str | None,
        host: str | None,
        port: str | None,
        username: str | None,
        dbname: str | None,
        no_password: bool,
        ask_password: bool,
        as_json: bool,
        as_csv: bool,
        html: Path | None,
        out: tuple[Path, ...],
        **options: Any,
    ) -> Any:
        settings = settings_of(ctx)
        target = Target(
            no_password=no_password,
            ask_password=ask_password,
            database=database,
            host=host,
            port=port,
            username=username,
            dbname=dbname,
        )
        output = Output(settings, as_json=as_json, as_csv=as_csv, html=html, out=out)
        return function(settings, target, output, **options)

    return command
