"""The command line as its users meet it: a process with arguments, two streams and an exit code."""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

import pgsweep
from pgsweep.cli import failures
from pgsweep.cli.common import Bytes, Duration, FileName, Sizes
from pgsweep.cli.overview import COMMANDS, EXIT_CODES
from pgsweep.cli.settings import Settings
from pgsweep.errors import ConnectionFailed, PgsweepError, UsageError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.ui.results import to_json
from tests.fix_cli import PGSWEEP, run, start
from tests.fix_disk import fill_disk
from tests.fix_results import MB, demo_result, predict_result
from tools.reference import all_commands


def best_of(arguments: Sequence[str], limit_seconds: float, tries: int = 40) -> tuple[float, float]:
    """Return the least wall and processor time; a busy machine gets many tries, a quiet one needs few.

    With more work than processors the wall clock measures the others, so the processor time decides there.
    """
    walls, cpus = [], []
    for _ in range(tries):
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([PGSWEEP, *arguments], stdout=subprocess.DEVNULL, check=True)
        walls.append(time.perf_counter() - begin)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if len(walls) >= 5 and min(cpus) < limit_seconds and (is_busy() or min(walls) < limit_seconds):
            break
    return min(walls), min(cpus)


def is_busy() -> bool:
    return os.getloadavg()[0] >= (os.cpu_count() or 1)


@pytest.mark.parametrize(("arguments", "limit_seconds"), [(["--help"], 0.060), (["--version"], 0.080)])
def test_first_answers_come_at_once(arguments: list[str], limit_seconds: float) -> None:
    """Help takes 25 ms and may take 100; the limit leaves room for slower machines, and not for an import."""
    wall, cpu = best_of(arguments, limit_seconds)
    assert cpu < limit_seconds
    if not is_busy():
        assert wall < limit_seconds


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_first_answers_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom pgsweep.cli.main import main\n"
        f"assert main({arguments!r}) == 0\n"
        "heavy = {'numpy', 'pyarrow', 'psycopg', 'scipy', 'rich', 'click', 'msgspec', 'jinja2', 'textual'}\n"
        "sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_a_command_imports_nothing_heavy(name: str) -> None:
    code = (
        f"import sys\nfrom pgsweep.cli.main import main\nassert main([{name!r}, '--help']) == 0\n"
        "heavy = {'numpy', 'pyarrow', 'psycopg', 'scipy', 'rich', 'msgspec', 'jinja2', 'textual'}\n"
        "heavy &= set(sys.modules)\nsys.exit(repr(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's value is Linux's")
def test_a_command_run_by_another_program_leaves_it_as_it_was() -> None:
    code = (
        "from pathlib import Path\nfrom pgsweep.cli.main import main\n"
        "value = Path('/proc/self/oom_score_adj')\nbefore = value.read_text()\n"
        "assert main(['completion', 'bash']) == 0\nassert value.read_text() == before"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version_names_pgsweep_its_build_and_libpq() -> None:
    done = start("--version")
    assert done.returncode == 0
    assert f"pgsweep {pgsweep.__version__} (native module: release build)" in done.stdout
    assert re.search(r"^libpq \d+\.\d+", done.stdout, re.MULTILINE)
    assert start("-V").stdout == done.stdout
    assert start("-V", "--quiet").stdout == done.stdout


def test_no_arguments_show_five_examples() -> None:
    done = start()
    assert done.returncode == 0
    assert done.stdout.count("\n  pgsweep ") == 5
    assert done.stderr == ""


@pytest.mark.parametrize("option", ["--help", "-?"])
def test_help_lists_every_command_and_exit_code(option: str) -> None:
    done = start(option)
    assert done.returncode == 0
    for name, entry in COMMANDS.items():
        listed = re.search(rf"^  {name} +{re.escape(entry.summary)}$", done.stdout, re.MULTILINE)
        assert bool(listed) == bool(entry.group), "`convert` and `completion` work, and are not on this page"
    assert "lab compare" not in done.stdout
    assert re.search(r"^  compare", start("lab", "-?").stdout, re.MULTILINE)
    for code, _ in EXIT_CODES:
        assert f"\n  {code} " in done.stdout


def test_help_needs_no_home_and_no_server() -> None:
    env = {"HOME": "/nonexistent", "PGHOST": "/nonexistent", "PGSERVICE": "absent"}
    assert start("--help", env=env).returncode == 0
    for name in COMMANDS:
        assert start(name, "-?", env=env).returncode == 0


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_overview_agrees_with_the_command(name: str) -> None:
    command = importlib.import_module(f"pgsweep.cli.{COMMANDS[name].module}").command
    assert isinstance(command, click.Command)
    assert command.get_short_help_str(limit=200).rstrip(".") == COMMANDS[name].summary
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--color", "--quiet", "--no-progress", "--debug"} <= options


@pytest.mark.parametrize(("typed", "meant"), [("reprot", "report"), ("complete", "completion")])
def test_unknown_command_suggests_the_nearest(typed: str, meant: str) -> None:
    done = start(typed)
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"did you mean `pgsweep {meant}`?" in done.stderr


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (("warm", "kepe"), "no such command `pgsweep warm kepe`; did you mean `pgsweep warm keep`?"),
        (("warm", "shop"), "no such command `pgsweep warm shop`"),
    ],
)
def test_unknown_subcommand_suggests_the_nearest(typed: tuple[str, ...], words: str) -> None:
    done = start(*typed)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"error: {words}",
        "hint: `pgsweep warm --help` explains the arguments",
    ]


def test_completion_for_every_shell() -> None:
    for shell in ("bash", "zsh", "fish"):
        done = start("completion", shell)
        assert done.returncode == 0
        assert "_PGSWEEP_COMPLETE" in done.stdout
    done = start(env={"_PGSWEEP_COMPLETE": "bash_complete", "COMP_WORDS": "pgsweep rep", "COMP_CWORD": "1"})
    assert done.stdout == "plain,report\n"


def test_report_beside_its_json(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text(to_json(demo_result()))
    done = run("report", "demo.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "report: demo.html\n"
    back = run("report", "--from", "demo.html", "--json", cwd=tmp_path)
    assert back.stdout == to_json(demo_result())
    again = run("report", "demo.html", cwd=tmp_path)
    assert "measured" in again.stdout
    assert run("report", "-", "--csv", cwd=tmp_path, stdin=to_json(predict_result())).stdout.count("\n") == 7


def test_report_writes_many_files_at_once(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(to_json(predict_result()))
    done = run("report", "x.json", "-q", "-o", "a.csv", "-o", "a.txt", "-o", "a.html", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    piped = run("report", "a.html", cwd=tmp_path)
    assert (tmp_path / "a.txt").read_text() == piped.stdout, "one drawing, of one width"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.html", "a.txt", "x.json"]


@pytest.mark.parametrize("text", [None, "{", "{}"], ids=["no file", "no JSON", "no schema"])
def test_the_error_of_report_lists_the_commands_that_make_results(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text or "")
    done = run("report", *([] if text is None else [str(path)]))
    assert done.returncode == 2
    listed = re.sub(r"\s+", " ", done.stderr).partition("--json or -o FILE: ")[2]
    found = listed.partition(" hint:")[0].strip().split(", ")
    made = {words for words, one in all_commands() if "as_json" in {option.name for option in one.params}}
    made -= {"report", "top", "import", "convert"}  # their JSON is for other programs
    assert set(found) == made
    assert len(found) == len(made)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report"], "name one result"),
        (["report", "x.json", "-o", "x.pdf"], "the suffix of `x.pdf`"),
        (["report", "x.json", "-o", "absent/x.html"], "there is no folder `absent`"),
        (["serve", "--export", "absent/x.parquet"], "there is no folder `absent`"),
        (["serve", "-q", "-h", "/nowhere", "--history", "x.json"], "the folder `x.json` cannot be made"),
        (["report", "x.json", "--json", "--csv"], "both want stdout"),
        (["report", "x.json", "--bogus"], "no such option"),
        (["report", "damaged.json"], "not a result of pgsweep"),
    ],
)
def test_errors_are_words_on_stderr(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(to_json(predict_result()))
    (tmp_path / "damaged.json").write_text("{")
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def named_files() -> Iterator[list[str]]:
    """Yield the words of each command that name a file or folder called `absent`."""
    for words, one in all_commands():
        arguments = [parameter for parameter in one.params if isinstance(parameter, click.Argument)]
        for parameter in one.params:
            if isinstance(parameter.type, FileName) and parameter.type.needed is not None:
                # Words for the arguments before it, and after it.
                named = ["absent" if each is parameter else "x.json" for each in arguments if each.required]
                option = [] if isinstance(parameter, click.Argument) else [parameter.opts[0], "absent"]
                yield [*words.split(), *(named if option or named else ["absent"]), *option]
    yield from (["warm", "check", "absent"], ["warm", "restore", "absent"], ["lab", "run", "absent.toml"])
    yield from (["load", "absent", "t"], ["advise", "absent.evidence"])


@pytest.mark.parametrize("arguments", list(named_files()), ids=" ".join)
def test_a_file_that_is_not_there_is_a_fault_of_usage(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert re.match(r"error: there is no \w+ `absent", done.stderr), done.stderr
    assert "Errno" not in done.stderr


@pytest.mark.parametrize("words", ["warm keep t", "load x.csv", "footprint", "predict", "verify", "prove"])
@pytest.mark.parametrize("dsn", ["host=/nowhere dbname=x password=sesame", "postgresql://a:sesame@/x"])
def test_a_server_in_the_place_of_something_else(words: str, dsn: str, tmp_path: Path) -> None:
    """Not asked for at the usual place, whose failure says nothing of it."""
    (tmp_path / "x.csv").write_text("1\n")
    done = run(*words.split(), dsn, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert re.search(r"-d|record that server first", done.stderr), done.stderr
    assert "sesame" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    ["predict", "prove", "verify", "advise", "import", "report", "warm check", "warm plan --heat"],
)
def test_a_folder_that_holds_no_evidence_is_a_fault_of_usage(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    done = run(*arguments.split(), "folder", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "folder" in done.stderr


def test_a_full_disk_keeps_the_result_from_no_other_place(tmp_path: Path, small_disk: Path) -> None:
    (tmp_path / "x.json").write_text(to_json(predict_result()))
    fill_disk(small_disk)
    done = run("report", "x.json", "--csv", "-o", str(small_disk / "x.html"), "-o", "y.html", cwd=tmp_path)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert done.stdout.startswith("shared_buffers_bytes,")
    assert (tmp_path / "y.html").stat().st_size > 0
    assert {path.name for path in small_disk.iterdir()} == {"ballast"}


def test_names_that_are_not_utf8_are_reported() -> None:
    done = run("warm", "plan", b"db\xe9")
    assert done.returncode == 2
    assert done.stderr.startswith("error: `db\\xe9` is not UTF-8\n")
    secret = run("warm", "plan", b"password=sesame\xe9 dbname=x")
    assert secret.returncode == 2
    assert "sesame" not in secret.stderr


def test_what_is_no_plain_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(to_json(predict_result()))
    os.mkfifo(tmp_path / "pipe.html")
    done = run("report", "x.json", "-o", "pipe.html", cwd=tmp_path)
    assert done.returncode == 2
    assert "`pipe.html` is a device or a pipe" in done.stderr
    assert (tmp_path / "pipe.html").is_fifo()


def test_debug_shows_the_traceback() -> None:
    done = run("report", "absent.json", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(to_json(demo_result()))
    for command in (f"{PGSWEEP} --help", f"{PGSWEEP} report {tmp_path}/x.json --json"):
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command} | true; echo ${{PIPESTATUS[0]}}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        assert done.stdout == "0\n"


def test_colour_only_when_wanted(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(to_json(predict_result()))
    arguments = ("report", "x.json", "--json", "--csv")
    assert "\x1b[" not in run(*arguments, cwd=tmp_path).stderr
    assert "\x1b[" in run(*arguments, "--color", "always", cwd=tmp_path).stderr
    assert "\x1b[" in run(*arguments, cwd=tmp_path, env={"FORCE_COLOR": "1"}).stderr
    assert "\x1b[" not in run(*arguments, cwd=tmp_path, env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stderr


def test_a_locale_without_unicode(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(to_json(demo_result()))
    run("report", "x.json", cwd=tmp_path)
    plain = subprocess.run(
        [PGSWEEP, "report", "--from", "x.html"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert plain.returncode == 0, plain.stderr
    assert b"|" in plain.stdout
    assert b"measured" in plain.stdout


def test_options_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(to_json(predict_result()))
    for name in ("PGSWEEP_REPORT_JSON", "PGSWEEP_REPORT_AS_JSON"):
        done = run("report", "x.json", cwd=tmp_path, env={name: "1"})
        assert json.loads(done.stdout)["schema"] == "pgsweep.predict/1"
    # Named as on the command line, also where the program has another word for it.
    for command, name, words in (
        ("record -h /nowhere", "PGSWEEP_RECORD_FOR", "`soon` is not a time"),
        ("warm plan -h /nowhere", "PGSWEEP_WARM_PLAN_ASSUME_RATE", "`soon`"),
        ("cache -h /nowhere", "PGSWEEP_CACHE_TOP", "unset PGSWEEP_CACHE_TOP"),
    ):
        done = run(*command.split(), cwd=tmp_path, env={name: "soon"})
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    # What must be decided at each run, and is no word, is not taken from there.
    done = run("cache", "-h", "/nowhere", cwd=tmp_path, env={"PGSWEEP_CACHE_PASSWORD": "sesame"})
    assert (done.returncode, "sesame" in done.stderr) == (3, False)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (
            PgsweepError("it broke", cause="age", hint="buy new"),
            1,
            "error: it broke\ncause: age\nhint: buy new\n",
        ),
        (UsageError("two\nlines"), 2, "error: two\n       lines\n"),
        (ConnectionFailed("gone"), 3, "error: gone\n"),
        (OSError(28, "No space left on device", "x"), 1, "refused `x`: No space left on device"),
        (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (click.exceptions.Abort(), 130, "interrupted"),
    ],
)
def test_every_failure_has_words_and_a_code(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failures.describe(error, Settings()) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert "Traceback" not in captured.err


def test_an_interrupt_names_what_was_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failures.describe(KeyboardInterrupt(), Settings(kept=[tmp_path, tmp_path / "absent"]))
    assert f"kept: {tmp_path}\n" in capsys.readouterr().err
    failures.describe(KeyboardInterrupt(), Settings(kept=[tmp_path / "absent"]))
    assert "nothing was kept" in capsys.readouterr().err


def test_sizes() -> None:
    assert Sizes().convert("64MB,8MB, 64MB", None, None) == [8 * MB, 64 * MB]
    assert Sizes().convert("128kB,131073", None, None) == [131072]
    for text, words in (
        ("127kB", "too small"),
        ("8", "too small"),
        ("9TB", "too large"),
        ("x", "not a size"),
        ("8MB,,", "size"),
    ):
        with pytest.raises(UsageError, match=words):
            Sizes().convert(text, None, None)


def test_durations_and_amounts() -> None:
    assert [Duration().convert(text, None, None) for text in ("40", "40s", "2min", "1h", "500ms")] == [
        40,
        40,
        120,
        3600,
        0.5,
    ]
    for text in ("", "0s", "-1s", "soon", "1d"):
        with pytest.raises(UsageError, match="not a time"):
            Duration().convert(text, None, None)
    assert Bytes().convert("2GB", None, None) == 2 * 1024 * MB
    with pytest.raises(UsageError):
        Bytes().convert("0", None, None)


def test_names_of_databases_and_relations_are_completed(wheel18: Cluster) -> None:
    place = f"-h {wheel18.socket_directory} -U postgres"

    def completed(words: str) -> list[str]:
        env = {"_PGSWEEP_COMPLETE": "bash_complete", "COMP_WORDS": f"pgsweep {words}"}
        done = start(env={**env, "COMP_CWORD": str(len(words.split()))})
        assert done.stderr == ""
        return [line.partition(",")[2] for line in done.stdout.splitlines() if line]

    assert completed(f"cache {place} templ") == ["template1"]
    assert completed(f"cache {place} -d templ") == ["template1"]
    assert "pg_catalog.pg_class" in completed(f"cache {place} -d template1 --map pg_catalog.pg_cla")
    assert completed("cache -h /nowhere templ") == []
    warm = f"{place} -d template1"
    listed = completed(f"warm plan {warm} --relations pg_catalog.pg_am,pg_catalog.pg_clas")
    assert "pg_catalog.pg_am,pg_catalog.pg_class" in listed
    assert completed(f"warm run {warm} --schema information_s") == ["information_schema"]
    assert "pg_catalog.pg_class" in completed(f"warm keep {warm} pg_catalog.pg_am pg_catalog.pg_clas")


@pytest.mark.parametrize("command", ["predict", "advise"])
def test_no_result_is_written_into_evidence(command: str, tmp_path: Path) -> None:
    """In the place of one of its files it would destroy the recording."""
    evidence = tmp_path / "x.evidence"
    evidence.mkdir()
    (evidence / "meta.json").write_text("{}")
    done = run(command, str(evidence), "-o", str(evidence / "meta.json"))
    assert done.returncode == 2
    assert "is evidence, which no result is written into" in done.stderr
    assert (evidence / "meta.json").read_text() == "{}"


def test_evidence_is_no_result_to_report(tmp_path: Path) -> None:
    done = run("report", str(tmp_path))
    assert done.returncode == 2
    assert f"hint: of evidence: pgsweep predict {tmp_path} -o result.html" in done.stderr


def test_choices_stand_in_one_line() -> None:
    assert "Choose from: bash, zsh, fish" in run("completion").stderr


@pytest.mark.parametrize(
    "words", ["predict", "import", "report", "prove", "verify", "record -o", "predict x --html"]
)
def test_a_file_name_that_is_empty_is_refused(words: str, tmp_path: Path) -> None:
    """As in `pgsweep predict "$EVIDENCE"` where that is not set: it would be the folder that one is in."""
    done = run(*words.split(), "", cwd=tmp_path)
    assert done.returncode == 2
    assert "the name is empty" in done.stderr
    assert list(tmp_path.iterdir()) == []
