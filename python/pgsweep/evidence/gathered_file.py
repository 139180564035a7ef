"""The file that the script for psql prints (pg/gather.psql): read line by line, up to where it ends.

The first line names the format. After it come results: a header with the names of the columns, the first of
them `tag`, then rows, each beginning with its tag. A row with the tag `mark` has the server's time, and ends
a section and begins another one; a section that has no mark after it may lack rows and is left out. A line
without its end is one that was being written, and is left out too.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec

from pgsweep.decoded import Budget, TooMuch, stored_bytes
from pgsweep.errors import EvidenceError
from pgsweep.evidence.schema import DISK_TROUBLE
from pgsweep.pg.gather_script import MAGIC
from pgsweep.plain import decode_name, shown
from pgsweep.regular import NotRegular, open_regular

_MOST_LINE_BYTES: Final = 64 << 20
"""A line has all blocks of one relation that are in one state: at most those of a pool of half a million
buffers, with 20 digits each."""

_MOST_SECTION_BYTES: Final = 1 << 30
"""The most that the rows of one section may take in memory. Those of a million relations take 0.4 GB."""

_ROW_BYTES: Final = 192
"""What a row takes in memory besides its text."""

_BLOCK_BYTES: Final = 64
"""What a block of a snapshot takes when that is assembled."""

_LINE_BYTES: Final = 64
"""What a line counts besides its length: short ones take time too."""

_MOST_FIRST_BYTES: Final = 80
_GZIP: Final = b"\x1f\x8b"
_MOST_TEXT_DIGITS: Final = 2 * 4096
_KEPT: Final = frozenset(
    {"server", "cluster", "provider", "setting", "database", "relation", "size", "mark", "plan", "buffers"}
    | {"count_database", "count_bgwriter", "count_relation", "count_io"}
)
_IGNORED: Final = frozenset({"waited", "settled", "none"})


class Row(msgspec.Struct, frozen=True):
    """One row: what it is, and its columns as text.

    The line is divided when columns are asked for, because many rows are held at once.

    Attributes:
        line: its number in the file.
        names: of the columns, the tag's first; one list for all rows of a result.
        text: the line.
    """

    line: int
    tag: str
    names: list[str]
    text: str

    @property
    def cells(self) -> dict[str, str]:
        """The columns by name."""
        return dict(zip(self.names, self.text.split("\t"), strict=True))


class GatheredSection(msgspec.Struct, frozen=True, kw_only=True):
    """What was printed between two marks.

    Attributes:
        what: the mark that it begins with: `sample`, `snapshot`, ...; nothing for what stands before all.
        number: of that mark.
        begin_epoch: the server's time there, in seconds.
        end_epoch: the same at the next mark.
    """

    what: str
    number: int
    begin_epoch: float
    end_epoch: float
    rows: list[Row]


class GatheredFile:
    """What psql gathered.

    Attributes:
        path: of the file.
        cut: it ends before the script did; known when all sections were read.
        backwards_seconds: by how much the server's clock was set back meanwhile, at most.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut = False
        self.backwards_seconds = 0.0
        self._pid = ""
        self._stored_bytes = 0

    def sections(self) -> Iterator[GatheredSection]:
        """Yield the sections that are whole, in the order of the file.

        Raises:
            EvidenceError: the file cannot be read, is not such a file, or is damaged.
        """
        what, number, begin, rows = "", 0, math.nan, list[Row]()
        latest = -math.inf
        held_bytes, budget, ended = 0, None, False
        for row in self._rows():
            if ended:
                raise self._damaged(row.line, "it goes on after its end")
            if row.tag != "mark":
                # Trials that measured the cost are printed too.
                if what != "trial" or row.tag == "plan":
                    rows.append(row)
                    held_bytes += len(row.text) + _ROW_BYTES
                    blocks = row.text.count(",") if row.tag == "buffers" else 0
                    budget = budget or Budget(self._stored_bytes)
                    self._spend(budget, row, len(row.text) + _ROW_BYTES + blocks * _BLOCK_BYTES)
                if held_bytes > _MOST_SECTION_BYTES:
                    raise self._damaged(row.line, "there is more between two marks than any server has")
                continue
            self._check_session(row)
            epoch = self.number(row, "seconds")
            self.backwards_seconds = max(self.backwards_seconds, latest - epoch)
            latest = epoch = max(latest, epoch)
            yield GatheredSection(what=what, number=number, begin_epoch=begin, end_epoch=epoch, rows=rows)
            what, number, begin, rows = row.cells.get("what", ""), int(self.number(row, "number")), epoch, []
            held_bytes, budget, ended = 0, None, what == "end"
        self.cut = not ended

    def _spend(self, budget: Budget, row: Row, count: int) -> None:
        try:
            budget.spend(count)
        except TooMuch as error:
            raise self._damaged(row.line, f"between two marks, {error}") from error

    def number(self, row: Row, column: str) -> float:
        """Return a number of a row.

        Raises:
            EvidenceError: there is none.
        """
        text = row.cells.get(column, "")
        try:
            value = float(text)
        except ValueError:
            raise self._damaged(row.line, f"`{column}` is not a number") from None
        if not math.isfinite(value):
            raise self._damaged(row.line, f"`{column}` is not a number")
        return value

    def whole_number(self, row: Row, column: str, most: int = 2**63 - 1, *, least: int = 0) -> int:
        """Return a number of a row that has no fraction, within limits.

        Raises:
            EvidenceError: there is none.
        """
        text = row.cells.get(column, "")
        if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 20):
            raise self._damaged(row.line, f"`{column}` is not a whole number")
        if not least <= int(text) <= most:
            raise self._damaged(row.line, f"`{column}` is {int(text)}, which is impossible")
        return int(text)

    def text(self, row: Row, column: str) -> str:
        """Return a text of a row that was printed as bytes.

        Raises:
            EvidenceError: it was not.
        """
        return decode_name(self.raw(row, column))

    def raw(self, row: Row, column: str) -> bytes:
        """Return the bytes of a row's column.

        Raises:
            EvidenceError: there are none, or too many.
        """
        printed = row.cells.get(column, "")
        wrong = self._damaged(row.line, f"`{column}` is not text in hexadecimal")
        if not printed.startswith("\\x") or len(printed) > _MOST_TEXT_DIGITS:
            raise wrong
        try:
            return bytes.fromhex(printed[2:])
        except ValueError:
            raise wrong from None

    def damaged(self, row: Row, why: str) -> EvidenceError:
        """Return the error for an impossible row."""
        return self._damaged(row.line, why)

    def _rows(self) -> Iterator[Row]:
        names: list[str] = []
        for line, text in self._lines():
            cells = text.split("\t")
            tag = cells[0]
            if tag == "tag":
                names = cells
                continue
            if tag == "refused":
                raise EvidenceError(
                    f"nothing was gathered in `{self.path}`",
                    cause=shown(cells[1]) if len(cells) > 1 else None,
                    hint="run the script again when that is corrected; the output of psql there shows how",
                )
            if not names or len(cells) != len(names):
                raise self._damaged(line, "it is not a row of the result that it stands in")
            if tag in _KEPT:
                yield Row(line, tag, names, text)
            elif tag not in _IGNORED:
                raise self._damaged(line, "it is not a row that the script prints")

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Yield number and text of the lines that have an end, without the first, which names the format."""
        try:
            with open_regular(self.path) as file:
                opened: IO[bytes] = file
                self._stored_bytes = stored_bytes(file)
                if file.read(2) == _GZIP:
                    opened = cast(IO[bytes], gzip.GzipFile(fileobj=file))
                file.seek(0)
                yield from self._lines_of(opened)
        except TooMuch as error:
            raise EvidenceError(
                f"`{self.path}` is damaged",
                cause=str(error),
                hint="copy it again from where it was gathered, or gather it again",
            ) from error
        except NotRegular:
            raise self._unknown("it is not a regular file") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise EvidenceError(
                f"`{self.path}` is damaged",
                cause=f"it is compressed, and cannot be decompressed: {error}",
                hint="copy it again from where it was gathered",
            ) from error
        except OSError as error:
            raise EvidenceError(
                f"cannot read `{self.path}`",
                cause=DISK_TROUBLE.get(error.errno or 0, error.strerror),
                hint="name the file that psql wrote with `-o`",
            ) from error

    def _lines_of(self, file: IO[bytes]) -> Iterator[tuple[int, str]]:
        try:
            first = file.readline(_MOST_FIRST_BYTES)
        except EOFError:
            raise self._unknown("it is compressed, and cut before its first line ends") from None
        if first.strip() != MAGIC.encode():
            ours = MAGIC.encode().partition(b"/")[0]
            raise self._unknown(
                "it is from another version of the script"
                if first.startswith(ours + b"/")
                else "it does not begin like the output of the script"
            )
        number = 1
        budget = Budget(self._stored_bytes)
        while True:
            try:
                found = file.readline(_MOST_LINE_BYTES)
                budget.spend(len(found) + _LINE_BYTES)
            except EOFError:
                # A compressed file that was cut: what could be decompressed has been read.
                return
            number += 1
            if not found.endswith(b"\n"):
                if len(found) >= _MOST_LINE_BYTES:
                    raise self._damaged(number, "it is too long")
                return
            try:
                yield number, found.rstrip(b"\r\n").decode("utf-8")
            except UnicodeDecodeError:
                raise self._damaged(number, "it is not text") from None

    def _check_session(self, row: Row) -> None:
        pid = row.cells.get("pid", "")
        self._pid = self._pid or pid
        if pid != self._pid:
            raise EvidenceError(
                f"`{self.path}` was gathered through a connection pooler",
                cause="several sessions of the server answered, and a name may mean something else in each",
                hint="run the script over a connection to the server itself: psql -h HOST -p PORT",
            )

    def _unknown(self, cause: str) -> EvidenceError:
        return EvidenceError(
            f"`{self.path}` is not a file that `pgsweep record --script` gathers",
            cause=cause,
            hint="gather it with: psql -X -d DBNAME -f gather.sql -o FILE",
        )

    def _damaged(self, line: int, why: str) -> EvidenceError:
        return EvidenceError(
            f"`{self.path}` is damaged: line {line}",
            cause=why,
            hint="copy it again from where it was gathered, or gather it again",
        )


def columns_of(row: Row) -> dict[str, Any]:
    """Return the cells of a row but for its tag."""
    return {name: cell for name, cell in row.cells.items() if name != "tag"}
