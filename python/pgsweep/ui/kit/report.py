"""A result as one HTML file: nothing is loaded from anywhere, and the result itself lies within as JSON.

The page is made whole here; its script only adds conveniences (a crosshair, saving charts and tables).
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

import jinja2
import msgspec

from pgsweep.ui.kit.numbers import format_bytes
from pgsweep.ui.kit.section import Page
from pgsweep.ui.kit.subject import subject_line
from pgsweep.ui.kit.view import Result
from pgsweep.ui.results import plain, to_csv, view_of


def to_html(result: Result) -> str:
    """Return the whole page."""
    page: Page = view_of(result.schema).page(plain(result))
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            page=page,
            subject=subject_line(result),
            provenance=_provenance_rows(plain(result), page),
            css=_static("report.css"),
            script=_static("report.js"),
            result_json=_embedded(msgspec.json.encode(result).decode()),
            csv_json=_embedded(json.dumps(to_csv(result))),
        )
    )


def _provenance_rows(result: Result, page: Page) -> list[tuple[str, str]]:
    made = result.provenance
    rows = [("result", result.schema), *page.made]
    if made is not None:
        native, memory = f"native module: {made.native_build} build", format_bytes(made.memory_bytes)
        rows += [
            ("command", made.command),
            ("made at", made.created_at),
            ("pgsweep", f"{made.pgsweep_version}, {native}, Python {made.python_version}"),
            ("machine", f"{made.kernel} {made.architecture}, {made.cpus} CPUs, {memory} of memory"),
        ]
    return rows


def _embedded(json_text: str) -> str:
    """Return JSON that may stand in a script element: no `<` in it, so nothing can end the element early."""
    return json_text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _static(name: str) -> str:
    return resources.files("pgsweep.ui").joinpath("static", name).read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("pgsweep.ui", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
