"""A load: the plan, and what was done; as text, as a page, as rows."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from pgsweep.plain import quoted_where_needed, sentence
from pgsweep.records.load import (
    LoadChoice,
    LoadFunction,
    LoadObject,
    LoadOutcome,
    LoadPlan,
    LoadResult,
    LoadStep,
)
from pgsweep.ui.kit.numbers import count, counted, format_bytes, seconds
from pgsweep.ui.kit.section import Fact, Page, Section
from pgsweep.ui.kit.table import Cell, Column, Measured, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import View, listed


def load_text(result: LoadResult, terminal: Terminal) -> str:
    """Return the plan where nothing was done yet, else what was done."""
    if result.outcome is None:
        return "\n".join(_plan_lines(result.plan, terminal)) + "\n"
    return "\n".join(_outcome_lines(result.plan, result.outcome, terminal)) + "\n"


def _plan_lines(plan: LoadPlan, terminal: Terminal) -> list[str]:
    lines = [f"{plan.table}: {_what(plan)}"]
    where = []
    if plan.published:
        where.append("it is published: subscribers get all rows")
    if plan.replication_slots:
        where.append(
            f"{counted(plan.replication_slots, 'replication slot')} "
            f"{'retains' if plan.replication_slots == 1 else 'retain'} WAL until it is received"
        )
    if plan.referenced_by:
        where.append("referred to by " + ", ".join(plan.referenced_by[:5]))
    lines += [f"  {line}" for line in where]
    names = ", ".join(file.path for file in plan.files[:3]) + (" ..." if len(plan.files) > 3 else "")
    lines.append(
        f"from {names} ({plan.format}); columns: {', '.join(map(quoted_where_needed, plan.columns))}"
    )
    lines.append("")
    for choice in plan.choices:
        lines += _wrapped(f"{choice.what}: {choice.choice}. {sentence(choice.reason)}", terminal, "", "  ")
    if plan.objects:
        lines += ["", *_objects(plan.objects, terminal)]
    if plan.functions:
        lines += ["", "Functions that may run, with the rights of your role:"]
        for function in plan.functions:
            use = f"{function.used_by}; " if function.used_by else "named by another; "
            text = f"{function.name} of role {function.owner} ({use}search_path {function.path})"
            lines += _wrapped(text, terminal, "- ", "  ")
    if plan.given_up:
        lines += ["", "While the load runs:"]
        for line in plan.given_up:
            lines += _wrapped(line, terminal, "- ", "  ")
    lines += ["", _estimate(plan)]
    for note in plan.notes:
        lines += _wrapped(f"{terminal.paint('note:', 'yellow')} {note}", terminal, "", "  ")
    return lines


def _what(plan: LoadPlan) -> str:
    words = [f"a {plan.kind}" if plan.persistence == "logged" else f"an {plan.persistence} {plan.kind}"]
    if plan.partitions:
        words.append(counted(plan.partitions, "partition"))
    words.append("never analyzed" if plan.rows is None else f"about {counted(plan.rows, 'row')}")
    words.append(f"{format_bytes(plan.table_bytes)} and {format_bytes(plan.index_bytes)} of indexes")
    return ", ".join(words)


def _estimate(plan: LoadPlan) -> str:
    estimate = plan.estimate
    if estimate.records is None or estimate.seconds is None:
        return "How long it takes is not known, because the number of records is not known."
    wal = "" if estimate.wal_bytes is None else f", {format_bytes(estimate.wal_bytes)} of WAL"
    return (
        f"Expected ({estimate.certainty}): about {counted(estimate.records, 'record')}, "
        f"{seconds(estimate.seconds) if estimate.seconds >= 0.1 else 'less than 100 ms'}{wal}."
    )


def _named(entry: LoadObject) -> str:
    return f"{entry.kind} {quoted_where_needed(entry.name)}"


def _objects(objects: Sequence[LoadObject], terminal: Terminal) -> list[str]:
    lines = []
    for entry in objects:
        size = f", {format_bytes(entry.size_bytes)}" if entry.size_bytes is not None else ""
        text = f"{_named(entry)}{size}: {entry.action}"
        lines += _wrapped(f"{text} ({entry.reason})" if entry.reason else text, terminal, "", "  ")
    return lines


def _outcome_lines(plan: LoadPlan, outcome: LoadOutcome, terminal: Terminal) -> list[str]:
    copied = outcome.rows if outcome.copied_rows is None else outcome.copied_rows
    loaded = f"loaded into {plan.table}"
    if outcome.resumed and outcome.copied_rows is not None:
        loaded += f", {count(copied) if copied else 'none'} of them by this run,"
    loaded += f" in {seconds(outcome.seconds)}"
    if copied and outcome.seconds:
        loaded += f" ({count(copied / outcome.seconds)} rows/s)"
    rows, are = counted(outcome.rows, "row"), "is" if outcome.rows == 1 else "are"
    head = {
        "loaded": f"{rows} {loaded}",
        "rolled back": f"the load of {plan.table} is undone, in {seconds(outcome.seconds)}",
        "interrupted": f"interrupted: {rows} {are} in {plan.table}, the load is not finished",
        "kept as it is": f"{plan.table} is kept as it is: {rows}, without the objects missing below",
        "forgotten": f"the journal of the load of {plan.table} is removed; nothing else was changed",
        "incomplete": f"{rows} {are} in {plan.table}, but not all objects could be made again",
    }.get(outcome.ended, outcome.ended)
    good = outcome.ended in ("loaded", "rolled back") and outcome.unchanged is not False
    mark = terminal.paint(terminal.pick("✓", "+"), "green") if good else terminal.paint("!", "yellow")
    lines = [f"{mark} {head}"]
    facts = [counted(outcome.jobs, "session"), format_bytes(outcome.copied_bytes)]
    if outcome.wal_bytes is not None:
        facts.append(f"{format_bytes(outcome.wal_bytes)} of WAL (all sessions')")
    if outcome.resumed and outcome.copied_rows is not None:
        facts.append("begun by an earlier run")
    lines.append("  " + ", ".join(facts))
    if outcome.rejected:
        lines.append(f"  {counted(outcome.rejected, 'record')} refused, in {outcome.rejects_file}")
    if outcome.headers:
        what = (
            "the first record was"
            if len(plan.files) == 1
            else f"{counted(len(outcome.headers), 'first record')} were"
        )
        lines.append(f"  {what} taken for a header")
    if outcome.unchanged:
        same = "the catalog is equal to what it was before"
        if plan.partition_of:
            same = f"it is a partition of {plan.partition_of}, which has not changed otherwise"
        lines.append(f"  {same}")
    if outcome.steps:
        lines += ["", _steps(outcome).text(terminal)]
    for problem in outcome.problems:
        lines += _wrapped(f"{terminal.paint('!', 'yellow')} {problem}", terminal, "", "  ")
    # Not wrapped: each has a statement to paste, with names in which a space counts.
    lines += [f"  {terminal.paint('note:', 'yellow')} {note}" for note in outcome.notes]
    if outcome.journal:
        lines.append(f"  journal: {outcome.journal}")
    return lines


def _steps(outcome: LoadOutcome) -> Table[LoadStep]:
    columns: list[Column[LoadStep]] = [
        Column("step", lambda step: step.what, left=True),
        Column("measured", lambda step: seconds(step.seconds)),
    ]
    return Table(columns, outcome.steps)


def _wrapped(text: str, terminal: Terminal, first: str, further: str) -> list[str]:
    width = max(40, min(terminal.width, 110))
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=further, break_long_words=False)


def load_page(result: LoadResult) -> Page:
    """Return the plan, the objects and the steps."""
    plan, outcome = result.plan, result.outcome
    facts: list[Fact] = []
    if outcome is not None:
        facts = [
            Fact(count(outcome.rows), "rows", Measured),
            Fact(seconds(outcome.seconds), "time", Measured),
            Fact(format_bytes(outcome.copied_bytes), "of the files", Measured),
        ]
        if outcome.rejected:
            facts.append(Fact(count(outcome.rejected), f"refused, in {outcome.rejects_file}", Measured))
    choices: list[Column[LoadChoice]] = [
        Column("what", lambda choice: choice.what, left=True),
        Column("choice", lambda choice: choice.choice, left=True),
        Column("why", lambda choice: choice.reason, left=True),
    ]
    objects: list[Column[LoadObject]] = [
        Column("object", _named, left=True),
        Column("what is done", lambda entry: Cell(entry.action, entry.reason), left=True),
        Column("definition", lambda entry: Cell(entry.definition, code=True), left=True),
    ]
    functions: list[Column[LoadFunction]] = [
        Column("function", lambda function: function.name, left=True),
        Column("owner", lambda function: function.owner, left=True),
        Column("called by", lambda function: function.used_by, left=True),
        Column("search_path", lambda function: function.path, left=True),
    ]
    decided = Table(choices, plan.choices)
    sections = [
        Section("Decisions", "decisions", _estimate(plan), facts, table=decided, notes=plan.given_up),
        Section("Indexes, constraints, triggers", "objects", table=Table(objects, plan.objects)),
    ]
    if plan.functions:
        may_run = Table(functions, plan.functions)
        sections.append(Section("Functions that may run", "functions", table=may_run))
    if outcome is not None and outcome.steps:
        sections.append(Section("Steps", "steps", table=_steps(outcome)))
    title = "The plan of a load" if outcome is None else f"{plan.table}: {outcome.ended}"
    notes = [*plan.notes, *([*outcome.problems, *outcome.notes] if outcome is not None else [])]
    return Page(title, f"{plan.table}: {_what(plan)}.", sections, notes=notes)


VIEW = View(LoadResult, load_text, load_page, listed(LoadObject, "plan.objects"))
