"""The heat file that a command is given, and what stands in its place by mistake.

psql puts the database first; here the file comes first. A connection string in the place of the file, or a
database with the file in the other place, is an error whose hint is the right command.
"""

from __future__ import annotations

from pathlib import Path

from pgsweep.cli.command import Run
from pgsweep.cli.common import existing, is_connection
from pgsweep.cli.settings import Settings
from pgsweep.commands import on_server
from pgsweep.errors import UsageError


def save_one() -> str:
    """Return the hint where a heat file is missing; `{}` in it becomes its name."""
    return f"make one: {on_server('pgsweep warm save', '{}')}"


def heat_file(run: Run, file: str, *, writes: bool = False) -> Path:
    """Prepare the run, and return the path of the heat file.

    Args:
        run: it knows the command line, which is shown as it should be, and DBNAME.
        file: as given for FILE.
        writes: the file need not be there yet.

    Raises:
        UsageError: there is no such file, or the two stand in each other's place; of `Run.prepare` too.
    """
    database: str | None = run.server_options["database"]
    if is_connection(file) and not Path(file).exists():
        what = "a connection string"
    elif database is not None and _is_file_instead(file, database, writes=writes):
        what = "a database, as it seems"
    else:
        run.prepare()  # first: a hint names the server
        return Path(file) if writes else existing(Path(file), hint=save_one())
    from pgsweep.pg.session.secrets import without_secrets

    words = list(run.settings.arguments)
    at = words.index(file) if file in words else len(words)
    if database in words:
        assert database is not None
        words[words.index(database)], words[at : at + 1] = file, [database]
    else:
        words[at:at] = ["shop.heat"]
    raise UsageError(
        f"`{without_secrets(file)}` stands where the heat file belongs",
        cause=f"it is {what}; the file comes first, the database after it",
        hint=Settings(arguments=words).command(),
    )


def _is_file_instead(file: str, database: str, *, writes: bool) -> bool:
    if Path(file).exists():
        return False
    if writes:
        return database.endswith(".heat") and not file.endswith(".heat")
    return Path(database).is_file()
