"""One run of a case of the model of load: load, fault, resume or roll back, compare."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import psycopg

from pgsweep.errors import INTERRUPTED
from tests.fix_cli import Command, launch
from tests.fix_process import Patience
from tests.load.model_cases import OWNER, Case, Fault, make_case
from tests.load.model_files import written
from tests.load.model_oracle import Record, refused_rightly
from tests.load.model_server import PATIENCE_SECONDS, Server
from tests.load.model_tables import Row, literal, quote

INCOMPLETE = "not all indexes and constraints could be made again|cannot be made again|cannot be validated"
"""What is said where rows are loaded, and then an index or a constraint does not allow them."""
UNNAMED = "the server refuses a record, and does not say which"
NOTHING_LEFT = "is unfinished"
REFUSALS = (
    "standard input is compressed",
    "has names of columns, and also other fields",
    "the first record of .* has N fields?, the table N columns",
    "cannot be frozen at once",
    "cannot be made UNLOGGED for the load",
    "too many connections for role",
    "only the owner of the table may disable its triggers",
    "standard input can be read only once, and --rejects would read it again",
    "needs schemas that are not safe for a superuser",
    "permission denied for table",  # which the role may not read
)
"""The reasons for which a load that could be done may be refused before it begins."""


@dataclass
class Step:
    """One command, and how it ended."""

    words: list[str]
    fault: Fault | None
    code: int = 0
    outcome: dict[str, Any] = field(default_factory=dict)
    said: str = ""
    hit: bool = False

    @property
    def verb(self) -> str:
        return next(
            (word for word in self.words if word in ("--resume", "--rollback", "--keep-as-is")), "load"
        )


class Wrong(AssertionError):
    """A load did not do what it must."""


class Run:
    """Runs one case, and compares."""

    def __init__(self, server: Server, seed: int, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.state = folder / "state"
        self.case: Case = make_case(seed, server.version, folder, server.binary)
        self.steps: list[Step] = []
        self.rejects = folder / "refused.csv"
        self._inputs = [path.read_bytes() for path in self.case.files]
        names = [column.name for column in self.case.table.columns]
        self._columns = [*names, *self.case.table.computed]

    def go(self) -> str:
        """Run it, and return how it ended: `loaded`, `undone`, `faulted`, `incomplete`, or the refusal.

        Raises:
            Wrong: with all that is needed to see why.
        """
        case, server = self.case, self.server
        server.settle()
        for statement in case.setup:
            server.ask(statement)
        try:
            self.schema_before = server.schema()
            self._run_all()
            return self._compare()
        except (Wrong, psycopg.Error, subprocess.TimeoutExpired) as error:
            raise Wrong(self._told(error)) from error
        finally:
            self._clean()

    def _clean(self) -> None:
        for pid in self.server.sessions():
            self.server.ask(f"SELECT pg_terminate_backend({pid})")
        self.server.settle()
        self.server.ask(f"ALTER ROLE {OWNER} CONNECTION LIMIT -1")
        self.server.ask(f"DROP SCHEMA IF EXISTS {self.case.table.schema} CASCADE")
        left = self.server.ask("SELECT nspname FROM pg_namespace WHERE starts_with(nspname::text, 'pgsweep')")
        for (name,) in left:
            self.server.ask(f"DROP SCHEMA {name} CASCADE")

    # Commands

    def _run_all(self) -> None:
        case = self.case
        words = ["load", *(["-"] if case.style.stdin else map(str, case.files)), case.table.target]
        if case.rejects:
            words += ["--rejects", str(self.rejects)]
        faults = [*case.faults]
        if any(fault is not None and fault.victim == "server" for fault in faults):
            self.server.ask("CHECKPOINT")  # its recovery is short
        if case.limit:
            self.server.ask(f"ALTER ROLE {OWNER} CONNECTION LIMIT 1")
        if case.plan:
            self._plan([*words, *case.options])
        others = threading.Thread(target=self._insert_neighbours)
        others.start()
        try:
            self._step([*words, *case.options], faults.pop(0) if faults else None)
            self._end(faults)
        finally:
            others.join()
        case.before += case.neighbours
        if any(step.hit for step in self.steps) and case.seed % 2:
            self._nothing_to_do()

    def _plan(self, words: list[str]) -> None:
        """Ask for the plan, which changes nothing."""
        step = Step([*words, "--plan"], None)
        self._execute(step)
        self.server.settle()
        if self.server.schema() != self.schema_before:
            raise Wrong(f"--plan changed the catalog: {step.said}")

    def _insert_neighbours(self) -> None:
        """Insert rows as another session does, one by one."""
        case, table = self.case, self.case.table
        if not case.neighbours:
            return
        columns = [column.name for column in table.columns]
        into = f"INSERT INTO {table.full_name} ({', '.join(map(quote, columns))}) VALUES "
        with psycopg.connect(self.server.conninfo, autocommit=True) as connection:
            connection.execute(f"SET search_path = {table.schema}")
            for number, row in enumerate(case.neighbours):
                time.sleep((case.seed % 97 + 10) / 1000 * (number + 1))
                connection.execute((into + f"({', '.join(literal(row[name]) for name in columns)})").encode())

    def _end(self, faults: list[Fault | None]) -> None:
        """Do what the command says until the load has ended."""
        case = self.case
        then = [*case.then, "--rollback"]
        while self.server.journal() and NOTHING_LEFT not in self.steps[-1].said:
            last = self.steps[-1]
            told = last.outcome.get("ended") == "interrupted" or re.search("--resume|--rollback", last.said)
            told = told or (last.verb != "load" and last.code == INTERRUPTED)
            if last.code != -signal.SIGKILL and not told:
                raise Wrong("the load has not ended, and there is no word of what to do")
            if not then:
                raise Wrong("the load cannot be ended")
            verb = then.pop(0)
            if case.keep and not case.neighbours and last.outcome.get("ended") == "incomplete":
                verb = "--keep-as-is"
            self._step(["load", verb, case.table.target], faults.pop(0) if faults else None)

    def _nothing_to_do(self) -> None:
        """Ask for what has nothing to do now, which must change nothing."""
        step = Step(["load", "--rollback", self.case.table.target], None)
        self._execute(step)
        if step.code == 0 and step.outcome.get("rows"):
            raise Wrong(f"--rollback of a load that had ended did something: {step.outcome}")

    def _step(self, words: list[str], fault: Fault | None) -> None:
        step = Step(words, fault)
        self.steps.append(step)
        self._execute(step)
        self.server.settle()

    def _execute(self, step: Step) -> None:
        conninfo = self.server.conninfo.replace("user=postgres", f"user={self.case.user}")
        words = [*step.words, "--dbname", conninfo, "--yes", "--json", "--quiet"]
        takes = self.case.style.stdin and step.verb in ("load", "--resume")
        with ExitStack() as closing:
            stdin: Any = closing.enter_context(self.case.files[0].open("rb")) if takes else DEVNULL
            env = {"XDG_STATE_HOME": str(self.state), **self.case.env}
            process = closing.enter_context(launch(*words, cwd=self.folder, env=env, stdin=stdin))
            closing.callback(process.kill)
            if step.fault is not None:
                step.hit = self._inject(step.fault, process)
            out, step.said = process.communicate(timeout=PATIENCE_SECONDS)
            step.code = process.wait()
        if out.startswith("{"):
            step.outcome = json.loads(out)["outcome"]

    def _inject(self, fault: Fault, process: Command) -> bool:
        """Have the fault happen; return whether the command had not ended before."""
        end = Patience(PATIENCE_SECONDS)
        while fault.journal and not self.server.journal() and process.poll() is None:
            assert end.left() > 0
            time.sleep(0.005)
        time.sleep(fault.delay_seconds)
        if process.poll() is not None:
            return False
        match fault.victim:
            case "kill":
                process.kill()
            case "interrupt":
                process.send_signal(signal.SIGINT)
            case "server":
                self.server.crash()
            case victim:
                pids = self.server.sessions()
                for pid in pids[-1:] if victim == "session" else pids:
                    self.server.ask(f"SELECT pg_terminate_backend({pid})")
        return True

    # What is there

    def _compare(self) -> str:
        case, last = self.case, self.steps[-1]
        hit = any(step.hit for step in self.steps)
        kept = last.verb == "--keep-as-is" and last.code == 0
        self._nothing_else_changed(kept=kept)
        table = case.table.full_name
        found = self.server.rows(f"ONLY {table}" if case.table.heir else table, self._columns)
        before = Counter(self._tuple(row) for row in case.before)
        if kept:
            self._kept(found, before)
            return "incomplete"
        if last.code == 0 and last.verb != "--rollback":
            self._loaded(found, before, last)
            return "loaded"
        if found == before:
            self._as_before()
            if last.code == 0 and last.verb != "--rollback":
                raise Wrong("exit code 0, but the table is as before")
        elif last.code == 0:
            raise Wrong("rolled back, but the table is not as before\n" + _difference(found, before))
        elif hit:
            self._loaded(found, before, None)
        else:
            raise Wrong("the load failed, but the table is not as before\n" + _difference(found, before))
        if hit:
            return "faulted"
        if not self._loadable():
            bad, said = set(range(len(case.records))) - case.verdict.may, self.steps[0].said
            early = any(re.search(allowed, self._reason(said)) for allowed in REFUSALS)
            if bad and bad == set(self._raised()) and not early and "no such row" not in said:
                raise Wrong(f"a trigger refused the load, and its words are not told: {said}")
            return "undone"
        if len(case.verdict.must) < len(case.records) and any(
            re.search(INCOMPLETE, step.said) for step in self.steps
        ):
            return "incomplete"
        reason = self._reason(self.steps[0].said)
        if UNNAMED in self.steps[0].said:  # of deferred keys
            return f"undone: {UNNAMED}"
        if not any(re.search(allowed, reason) for allowed in REFUSALS):
            raise Wrong(f"refused, though it could be loaded: {reason}")
        return f"refused: {reason}"

    def _loadable(self) -> bool:
        case, verdict = self.case, self.case.verdict
        # The file may be one that was cut short.
        if any(record.fault == "open" for record in case.records):
            return False
        if case.table.raises[:2] in ("08", "40", "57", "53", "0A", "XX") and self._raised():
            return False
        bad = len(case.records) - len(verdict.must)
        return bad == 0 or (case.rejects and bad <= case.max_rejects)

    def _raised(self) -> list[int]:
        """Return the records that a trigger refuses."""
        case = self.case
        if not case.fired or "raise" not in case.table.triggers:
            return []
        return [number for number, row in enumerate(case.full) if row[case.table.id] == "14"]

    def _reason(self, said: str) -> str:
        """Return the first line of an error without what only this case has."""
        text = next((line for line in said.splitlines() if line.startswith("error")), said[:200])
        text = text.replace(str(self.folder), "FOLDER").replace(self.case.table.target, "TABLE")
        return re.sub(r"case_\d+", "SCHEMA", re.sub(r"\b\d+\b", "N", text))

    def _tuple(self, row: Row) -> tuple[str | None, ...]:
        return tuple(row[name] for name in self._columns)

    def _nothing_else_changed(self, *, kept: bool) -> None:
        """Compare everything but the rows of the table.

        Args:
            kept: indexes and constraints that the rows do not allow are not there.
        """
        schema = self.server.schema()
        old, new = self.schema_before.splitlines(), schema.splitlines()
        may_differ = "the_|ALTER TABLE ONLY" if kept else "$^"
        more = [line for line in new if line not in old and not re.search(may_differ, line)]
        less = [line for line in old if line not in new and not re.search(may_differ, line)]
        if not (more or less or kept or schema == self.schema_before):
            more = ["another order"]
        if more or less:
            lines = [f"+ {line}" for line in more] + [f"- {line}" for line in less]
            raise Wrong("the catalog is not as before\n" + "\n".join(lines[:20]))
        for path, data in zip(self.case.files, self._inputs, strict=True):
            if path.read_bytes() != data:
                raise Wrong(f"{path} was changed")
        schema_name = self.case.table.schema
        if self.server.rows(f"{schema_name}.parent", ["id"]) != Counter((str(n),) for n in range(10)):
            raise Wrong("rows of the table that is referred to have changed")
        if self.case.table.heir:
            found = self.server.rows(f"{schema_name}.heir", self._columns)
            inherited = self.case.before[: len(self.case.before) - len(self.case.neighbours)]
            if found != Counter(self._tuple(row) for row in inherited):
                raise Wrong("rows of a table that inherits from it have changed")
        if self.case.table.child:
            found = self.server.rows(f"{schema_name}.child", ["n", "ref"])
            wanted = Counter((str(n), ref) for n, ref in enumerate(self.case.child))
            if found != wanted:
                raise Wrong("rows of a table that refers to it have changed\n" + _difference(found, wanted))

    def _as_before(self) -> None:
        self._audited(Counter())

    def _audited(self, ids: Counter[str | None]) -> None:
        """Compare what triggers wrote with the keys of the rows that the load inserted."""
        schema, triggers = self.case.table.schema, self.case.table.triggers
        ids = ids + Counter(row[self.case.table.id] for row in self.case.neighbours)
        found = self.server.rows(f"{schema}.audit", ["op", "id"])
        wanted = Counter({("INSERT", number): count for number, count in ids.items()})
        if found != (wanted if "row" in triggers and self.case.fired else Counter()):
            raise Wrong("triggers for rows wrote what they must not\n" + _difference(found, wanted))
        rows = self.server.ask(f"SELECT op, rows FROM {schema}.statements")
        if any(op == "TRUNCATE" for op, _ in rows):
            raise Wrong("a trigger on TRUNCATE fired")
        if sum(count for _, count in rows) != (
            sum(ids.values()) if "statement" in triggers and self.case.fired else 0
        ):
            raise Wrong(f"triggers for statements wrote {rows}, for {sum(ids.values())} rows")
        most = len(self.case.files) + len(self.case.neighbours) if not self.case.rejects else 10**6
        if len(rows) > most:
            raise Wrong(f"triggers for statements fired {len(rows)} times for {most} files")

    def _loaded(self, found: Counter[Any], before: Counter[Any], last: Step | None) -> None:
        """Compare the table and the rejects with the records."""
        case, verdict = self.case, self.case.verdict
        everything = frozenset(range(len(case.records)))
        refused = self._refused() if self.rejects.exists() else {}
        if not case.rejects and verdict.may != everything:
            bad = min(everything - verdict.may)
            raise Wrong(f"loaded, though record {bad} is bad: {_record(case.records[bad])}")
        if wrong := verdict.must & set(refused):
            number = min(wrong)
            raise Wrong(
                f"record {number} is good, but refused: {refused[number]} {_record(case.records[number])}"
            )
        if lost := everything - verdict.may - set(refused):
            raise Wrong(f"record {min(lost)} is bad, but not refused: {_record(case.records[min(lost)])}")
        accepted = everything - set(refused)
        wanted = before + Counter(self._tuple(case.full[number]) for number in accepted)
        if found != wanted:
            raise Wrong("the table has not the records that were not refused\n" + _difference(found, wanted))
        final = [*case.before, *(case.full[number] for number in accepted)]
        for number in set(refused) & verdict.may:
            if not refused_rightly(case.table, verdict, case.records, case.full, number, final):
                raise Wrong(
                    f"record {number} is refused, but nothing is in its way: {_record(case.records[number])}"
                )
        self._audited(Counter(case.full[number][case.table.id] for number in accepted))
        for name in case.table.any_value:
            if self.server.ask(f"SELECT 1 FROM {case.table.full_name} WHERE {quote(name)} IS NULL"):
                raise Wrong(f"{name} has no value")
        if last is not None:
            said = {name: last.outcome.get(name) for name in ("ended", "rows", "rejected", "unchanged")}
            true = {"ended": "loaded", "rows": len(accepted), "rejected": len(refused), "unchanged": True}
            if said != true:
                raise Wrong(f"the outcome says {said}, but true is {true}")
        if self.state.exists() and not any(step.hit for step in self.steps):
            left = [str(path) for path in self.state.rglob("*") if path.is_file()]
            if left:
                raise Wrong(f"local files are left: {left}")

    def _kept(self, found: Counter[Any], before: Counter[Any]) -> None:
        """Compare the table, without what its rows do not allow, with the records."""
        case = self.case
        refused = self._refused() if self.rejects.exists() else {}
        taken = [row for number, row in enumerate(case.full) if number not in refused]
        wanted = before + Counter(self._tuple(row) for row in taken)
        if found != wanted:
            raise Wrong("the table has not the records that were not refused\n" + _difference(found, wanted))
        self._audited(Counter(row[case.table.id] for row in taken))

    def _refused(self) -> dict[int, str]:
        """Return the reasons in the file of rejects by the number of the record; each stands there once."""
        case = self.case
        text = self.rejects.read_bytes().decode("latin-1")
        by_place = {(record.file, record.line): number for number, record in enumerate(case.records)}
        names = ["-"] if case.style.stdin else [str(path) for path in case.files]
        found: dict[int, str] = {}
        csv.field_size_limit(1 << 30)
        for row in csv.DictReader(io.StringIO(text, newline="")):
            place = names.index(row["file"]), int(row["line"])
            if place not in by_place:
                raise Wrong(f"line {place[1]} of file {place[0]} begins no record: {row}")
            number = by_place[place]
            if number in found:
                raise Wrong(f"record {number} is refused twice")
            found[number] = row["reason"]
            record = case.records[number]
            if case.style.kind == "parquet":
                self._same_document(row["record"].encode("latin-1"), record)
            elif row["record"].encode("latin-1").rstrip(b"\r\n") != record.data.rstrip(b"\r\n"):
                raise Wrong(f"record {number} is not as in its file: {row}, {record.data!r}")
        return found

    def _same_document(self, data: bytes, record: Record) -> None:
        names = {written(self.case.style, column.name): column.name for column in self.case.columns}
        document = {names.get(name, name): value for name, value in json.loads(data).items()}
        for column in self.case.columns:
            wanted = record.wrong.get(column.name, record.row[column.name])
            if column.name not in document:
                raise Wrong(f"a reject of Parquet lacks {column.name!r}: {document}")
            value = document[column.name]
            if (
                column.kind in ("text", "short", "int", "bigint")
                and value is not None
                and str(value) != wanted
            ):
                raise Wrong(f"a reject of Parquet has {value!r}, not {wanted!r}")

    # What is said of a failure

    def _told(self, error: BaseException) -> str:
        case = self.case
        parts = [f"seed {case.seed} (pytest tests/load/test_model.py --load-seed {case.seed}): {error}"]
        parts.append("\n".join(f"{statement[:2000]};" for statement in case.setup))
        parts.extend(
            f"$ pgsweep {shlex.join(step.words)}\n"
            f"# as {case.user}, {case.env}, {step.fault}, hit: {step.hit}\n"
            f"exit code {step.code}, outcome {step.outcome}\n{step.said[:3000]}"
            for step in self.steps
        )
        for path in case.files:
            data = path.read_bytes()
            parts.append(f"{path.name}, {len(data)} bytes: {data[:1500]!r}")
        bad = [f"{n}: {_record(record)}" for n, record in enumerate(case.records) if record.fault]
        parts.append("bad by themselves:\n" + "\n".join(bad[:20]))
        verdict, everything = case.verdict, set(range(len(case.records)))
        parts.append(
            f"{len(everything)} records; may not: {sorted(everything - verdict.may)[:50]};"
            f" depends: {sorted(verdict.may - verdict.must)[:50]}"
        )
        if self.rejects.exists():
            parts.append(f"rejects: {self.rejects.read_bytes()[:2000]!r}")
        return "\n\n".join(parts)


def _record(record: Record) -> str:
    return f"[{record.fault or 'good'}] line {record.line}: {record.data[:200]!r} {str(record.row)[:300]}"


def _difference(found: Counter[Any], wanted: Counter[Any]) -> str:
    more, less = list((found - wanted).elements()), list((wanted - found).elements())
    return f"too many ({len(more)}): {str(more[:5])[:1500]}\nmissing ({len(less)}): {str(less[:5])[:1500]}"
