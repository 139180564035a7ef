"""The commands that end a load that has begun, as hints name them."""

from __future__ import annotations

from pgsweep.commands import on_server
from pgsweep.plain import shell_word


class Ways:
    """The commands for one table, to be pasted."""

    def __init__(self, table: str, role: str | None = None) -> None:
        """Make them for the table; `role`: that may run them, instead of the user's own."""
        word = shell_word(table)
        self.resume = on_server("pgsweep load", f"--resume {word}", role=role)
        self.rollback = on_server("pgsweep load", f"--rollback {word}", role=role)
        self.keep_as_is = on_server("pgsweep load", f"--keep-as-is {word} --yes", role=role)

    @property
    def either(self) -> str:
        """Finish it or undo it."""
        return f"finish it: {self.resume}; or undo it: {self.rollback}"

    @property
    def forward(self) -> str:
        """Where it cannot be undone."""
        return f"finish the load: {self.resume}; or end it with the rows that are there: {self.keep_as_is}"

    def are_in(self, hint: str | None) -> bool:
        """Return whether a hint names one of them."""
        return any(way in (hint or "") for way in (self.resume, self.rollback, self.keep_as_is))
