"""The commands that end a load that has begun, as hints name them."""

from __future__ import annotations

from pgsweep.plain import shell_word


class Ways:
    """The commands for one table, to be pasted."""

    def __init__(self, table: str) -> None:
        word = shell_word(table)
        self.resume = f"pgsweep load --resume {word}"
        self.rollback = f"pgsweep load --rollback {word}"
        self.keep_as_is = f"pgsweep load --keep-as-is {word} --yes"

    @property
    def either(self) -> str:
        """Finish it or undo it."""
        return f"finish it: {self.resume}; or undo it: {self.rollback}"

    @property
    def forward(self) -> str:
        """Where it cannot be undone."""
        return f"finish the load: {self.resume}; or end it with the rows that are there: {self.keep_as_is}"

    @staticmethod
    def are_in(hint: str | None) -> bool:
        """Return whether a hint names one of them."""
        options = ("--resume", "--rollback", "--keep-as-is")
        return any(f"pgsweep load {option}" in (hint or "") for option in options)
