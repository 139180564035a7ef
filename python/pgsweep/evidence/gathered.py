"""Make evidence of what the script for psql gathered: the same as a recording of snapshots by SQL makes.

What the script prints is in gathered_file.py. Here it goes the way of a recording: samples of counters,
snapshots, the relations at both ends, and the same judgement of whether it was long enough.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from pgsweep._native import __version__
from pgsweep.errors import EvidenceError
from pgsweep.evidence.checks import MOST_TEXT_BYTES, trouble_in, trouble_in_counters
from pgsweep.evidence.clock_passes import PassClock
from pgsweep.evidence.gathered_file import GatheredFile, GatheredSection, Row, columns_of
from pgsweep.evidence.meta import trouble_in_meta
from pgsweep.evidence.observe import CounterTable, closed, relation_columns
from pgsweep.evidence.place import place_text
from pgsweep.evidence.sampling import MODULUS
from pgsweep.evidence.schema import EvidenceMeta
from pgsweep.evidence.snapshots import judged, snapshot_columns, time_columns
from pgsweep.evidence.store import EvidenceWriter
from pgsweep.pg.catalog.buffercache import Snapshot, assembled
from pgsweep.pg.catalog.counters import Counter, of_databases, of_writers
from pgsweep.pg.catalog.place import place_at
from pgsweep.pg.catalog.provider import PROVIDERS
from pgsweep.pg.catalog.server import Relation, Server, relation_of
from pgsweep.pg.session.shapes import OID_MAX
from pgsweep.progress import NullListener, Progress
from pgsweep.records.prediction import RecordResult
from pgsweep.versions import beyond_tested

_CUT: Final = (
    "the file ends before the script did: psql was interrupted or lost the connection, or the file was cut; "
    "the evidence ends there"
)
_COUNTS: Final = frozenset({"count_database", "count_bgwriter", "count_relation", "count_io"})
_PIECE_BYTES: Final = 1 << 16
_LEAST_SET_BACK_SECONDS: Final = 0.01


def import_gathered(
    path: Path, output: Path, *, progress: Progress | None = None, overwrite: bool = False
) -> RecordResult:
    """Make evidence of what the script of `record_script` gathered, and return what there is.

    A file that was cut gives what stands before the cut, with a warning.

    Args:
        path: the file that psql wrote, compressed with gzip or not.
        output: the folder to write.
        progress: called with what is being done.
        overwrite: replace evidence that is there already.

    Raises:
        EvidenceError: the file cannot be read, is not such a file, is damaged, or holds no snapshot; or the
            evidence cannot be written.
    """
    heard = progress or NullListener()
    heard.stage("reading what psql gathered")
    file = GatheredFile(Path(path))
    sections = file.sections()
    head = next(sections, None)
    server = databases = None
    if head is not None and not head.what:
        facts, server, databases = _server(file, head)
    if head is None or server is None or databases is None:
        raise _too_short(file)
    with EvidenceWriter(output, facts, overwrite=overwrite) as writer:
        try:
            return _Import(file, server, databases, writer).run(sections, heard)
        except BaseException:
            writer.discard()
            raise


class _Import:
    """One import: what was read so far."""

    def __init__(
        self, file: GatheredFile, server: Server, databases: dict[int, str], writer: EvidenceWriter
    ) -> None:
        self._file = file
        self._server = server
        self._databases = databases
        self._writer = writer
        self._table = CounterTable(writer)
        self._clock = PassClock(server.shared_buffers_blocks)
        self._start = 0.0
        self._length_seconds = 0.0
        self._expected_share: float | None = None
        self._snapshot_seconds = 0.0
        self._counting_seconds = 0.0
        self._accesses_before: float | None = None
        self._statements = 0
        self._late = 0
        self._begin: list[Relation] | None = None
        self._end: list[Relation] | None = None

    def run(self, sections: Iterator[GatheredSection], progress: Progress) -> RecordResult:
        """Read the sections into the evidence, and close it."""
        for section in sections:
            self._read(section)
            progress.advance(self._length_seconds)
        if self._begin is None or self._clock.snapshots == 0 or self._accesses_before is None:
            raise _too_short(self._file)
        self._writer.replace("relations", relation_columns(self._begin, self._end, self._databases))
        accesses = max(0.0, self._table.accesses(self._server.database) - self._accesses_before)
        warnings, advice = judged(self._server, self._clock, accesses, was_reset=self._table.was_reset)
        warnings = [*self._own_warnings(), *warnings]
        meta = self._meta(warnings)
        trouble = trouble_in_meta(meta)
        if trouble is not None:
            raise _impossible(self._file, trouble)
        newer = beyond_tested(self._server.version_num)
        return closed(
            self._writer,
            meta,
            snapshots=self._clock.snapshots,
            accesses=int(accesses),
            expected=self._expected_share,
            warnings=[*([newer] if newer else []), *warnings, *advice],
        )

    def _own_warnings(self) -> list[str]:
        warnings = [_CUT] if self._file.cut else []
        if self._late:
            warnings.append(
                f"{self._late} snapshots were left out, because earlier ones took the server too long"
            )
        if self._file.backwards_seconds > _LEAST_SET_BACK_SECONDS:
            warnings.append(
                f"the server's clock was set back by {self._file.backwards_seconds:.2f} s meanwhile: "
                "times are uncertain by that much"
            )
        return warnings

    def _meta(self, warnings: list[str]) -> EvidenceMeta:
        started = datetime.datetime.fromtimestamp(self._start, datetime.UTC)
        spent_seconds = self._snapshot_seconds + self._counting_seconds
        return msgspec.structs.replace(
            self._writer.meta,
            started_at=started.isoformat(timespec="milliseconds"),
            seconds=self._length_seconds,
            ended_by="cut" if self._file.cut else "time",
            warnings=warnings,
            overhead={
                "snapshot_seconds": self._snapshot_seconds / self._clock.snapshots,
                "expected_share": self._expected_share or 0.0,
                "measured_share": spent_seconds / max(self._length_seconds, 1e-3),
                "statements": float(self._statements),
                **self._clock.facts(),
            },
        )

    def _read(self, section: GatheredSection) -> None:
        if section.what == "relations":
            relations = self._relations(section)
            if section.number == 0:
                self._begin = relations
                self._writer.replace("relations", relation_columns(relations, None, self._databases))
            else:
                self._end = relations
        elif section.what == "trial":
            for row in section.rows:
                self._start = self._file.number(row, "start")
                self._expected_share = self._file.number(row, "share")
                if not 0 <= self._start <= 1e11 or not 0 <= self._expected_share <= 1e6:
                    raise self._file.damaged(row, "its numbers are impossible")
        elif section.what == "sample":
            self._sample(section)
        elif section.what == "snapshot":
            self._snapshot(section)
        elif section.what == "created":
            self._table.write_created(self._checked(section, self._counters(section.rows)))

    def _sample(self, section: GatheredSection) -> None:
        begin, end = self._times(section)
        counters = self._checked(section, self._counters(section.rows))
        self._table.write((begin + end) / 2, counters)
        self._counting_seconds += end - begin
        self._statements += len({row.tag for row in section.rows})
        if self._accesses_before is None:
            self._accesses_before = self._table.accesses(self._server.database)

    def _snapshot(self, section: GatheredSection) -> None:
        begin, end = self._times(section)
        if not section.rows:
            self._late += 1
            return
        snapshot = self._buffers(section.rows)
        number = self._clock.snapshots
        columns = snapshot_columns(snapshot, number)
        for name, values in columns.items():
            trouble = trouble_in("snapshots", name, values)
            if trouble is not None:
                raise self._file.damaged(section.rows[0], trouble)
        if snapshot.used_buffers > self._server.shared_buffers_blocks:
            raise self._file.damaged(section.rows[0], "the snapshot has more buffers than the pool")
        self._writer.append("snapshots", columns)
        self._writer.append("snapshot_times", time_columns(number, begin, end, snapshot.used_buffers))
        self._snapshot_seconds += end - begin
        self._statements += 1
        self._clock.add(
            (begin + end) / 2,
            zero_buffers=snapshot.zero_buffers,
            used_buffers=snapshot.used_buffers,
            allocations=self._table.value("bgwriter", "buffers_alloc"),
        )

    def _times(self, section: GatheredSection) -> tuple[float, float]:
        """Return when a section began and ended, in seconds since the beginning of the observation."""
        begin, end = (max(0.0, epoch - self._start) for epoch in (section.begin_epoch, section.end_epoch))
        self._length_seconds = max(self._length_seconds, end)
        return begin, end

    def _relations(self, section: GatheredSection) -> list[Relation]:
        file = self._file
        sizes = {
            file.whole_number(row, "oid", OID_MAX): (
                file.whole_number(row, "main_blocks", 2**32),
                _or_zero(file, row, "fsm_blocks"),
                _or_zero(file, row, "vm_blocks"),
            )
            for row in section.rows
            # A relation dropped in between has no size.
            if row.tag == "size" and row.cells.get("main_blocks")
        }
        return [
            relation_of(
                (
                    file.whole_number(row, "oid", OID_MAX),
                    file.raw(row, "schema"),
                    file.raw(row, "name"),
                    row.cells.get("kind", "")[:1],
                    *(
                        file.whole_number(row, name, OID_MAX)
                        for name in ("database_oid", "tablespace_oid", "filenode", "table_oid")
                    ),
                    file.whole_number(row, "pages_estimate", 2**32, least=-1),
                    file.number(row, "tuples_per_block"),
                ),
                sizes,
            )
            for row in section.rows
            if row.tag == "relation"
        ]

    def _counters(self, rows: Iterable[Row]) -> Iterator[Counter]:
        found: dict[str, list[Counter]] = {}
        for row in rows:
            scope, label = row.tag.removeprefix("count_"), row.cells.get("object", "")
            if row.tag not in _COUNTS or len(label) > MOST_TEXT_BYTES // 4:
                raise self._file.damaged(row, "it has no place there")
            if scope in {"database", "relation"}:
                self._file.whole_number(row, "object", OID_MAX)
            found.setdefault(scope, []).extend(
                Counter(scope, label, name, self._file.number(row, name))
                for name, cell in columns_of(row).items()
                if name != "object" and cell
            )
        yield from of_databases(found.get("database", []), self._databases)
        yield from of_writers(found.get("bgwriter", []))
        yield from found.get("relation", [])
        yield from found.get("io", [])

    def _checked(self, section: GatheredSection, counters: Iterable[Counter]) -> list[Counter]:
        listed = list(counters)
        values = np.array([counter.value for counter in listed])
        names = np.array([counter.name for counter in listed], dtype=object)
        trouble = trouble_in("counters", "value", values) or trouble_in_counters(names, values)
        if trouble is not None:
            raise self._file.damaged(section.rows[0], trouble)
        return listed

    def _buffers(self, rows: list[Row]) -> Snapshot:
        file = self._file
        heads = np.array(
            [
                [file.whole_number(row, name) for name in ("spc", "db", "rel", "fork", "usage_count")]
                for row in rows
            ],
            dtype=np.int64,
        ).reshape(-1, 5)
        flags = np.array([[row.cells.get(name) == "t" for name in ("dirty", "pinned")] for row in rows])
        counts = [file.whole_number(row, "buffers", 2**30) for row in rows]
        packed = [_packed(file, row) for row in rows]
        if not self._writer.meta.sampling.get("snapshots"):
            for row, buffers, values in zip(rows, counts, packed, strict=True):
                if len(values) != buffers:
                    raise file.damaged(row, "it does not have as many blocks as it says")
        try:
            return assembled(heads, flags, counts, packed)
        except ValueError as error:
            raise file.damaged(rows[0], f"the snapshot that begins there has {error}") from error


def _packed(file: GatheredFile, row: Row) -> NDArray[np.uint64]:
    """Return an array of numbers as PostgreSQL prints it; none where the sample has no block of these."""
    text = row.cells.get("blocks", "")
    if not text:
        return np.zeros(0, dtype=np.uint64)
    wrong = file.damaged(row, "`blocks` is not an array of numbers")
    if not (text.startswith("{") and text.endswith("}")):
        raise wrong
    try:
        return np.concatenate(
            [np.array(piece.split(","), dtype=np.str_).astype(np.uint64) for piece in _pieces(text[1:-1])]
        )
    except (ValueError, OverflowError):
        raise wrong from None


def _pieces(text: str) -> Iterator[str]:
    """Yield a list in pieces: each number of one takes twenty times its length until it is a number."""
    begin = 0
    while (comma := text.find(",", begin + _PIECE_BYTES)) >= 0:
        yield text[begin:comma]
        begin = comma + 1
    yield text[begin:]


def _or_zero(file: GatheredFile, row: Row, column: str) -> int:
    return file.whole_number(row, column, 2**32) if row.cells.get(column) else 0


def _server(file: GatheredFile, head: GatheredSection) -> tuple[EvidenceMeta, Server | None, dict[int, str]]:
    """Return what is known of the server; None where its row is missing."""
    by_tag: dict[str, list[Row]] = {}
    for row in head.rows:
        by_tag.setdefault(row.tag, []).append(row)
    databases = {
        file.whole_number(row, "oid", OID_MAX): file.text(row, "name") for row in by_tag.get("database", [])
    }
    settings = {row.cells.get("name", ""): file.text(row, "setting") for row in by_tag.get("setting", [])}
    empty = EvidenceMeta(source="sql")
    if len(by_tag.get("server", [])) != 1:
        return empty, None, databases
    [row] = by_tag["server"]
    address, port = row.cells.get("address", ""), file.whole_number(row, "port", 65535)
    server = Server(
        version_num=file.whole_number(row, "version_num", 10**7),
        version=file.text(row, "version_bytes"),
        block_size_bytes=file.whole_number(row, "block_size_bytes", 32768),
        shared_buffers_blocks=file.whole_number(row, "shared_buffers_blocks", 2**30 - 1),
        database=file.text(row, "database"),
        database_oid=file.whole_number(row, "database_oid", OID_MAX),
        tablespace_oid=0,
        in_recovery=row.cells.get("in_recovery") == "t",
        settings=settings,
        place=f"{address or 'the local socket'}, port {port}",
    )
    identifiers = [one.cells.get("system_identifier", "") for one in by_tag.get("cluster", [])]
    services = [one.cells.get("provider", "") for one in by_tag.get("provider", [])]
    provider = PROVIDERS.get(services[0]) if len(services) == 1 else None
    hosted = {} if provider is None else {"place": place_text(place_at(provider))}
    drawn, seed = file.whole_number(row, "drawn", MODULUS), file.whole_number(row, "seed", 2**53)
    if server.shared_buffers_blocks < 16:
        raise file.damaged(row, "no pool is that small")
    meta = EvidenceMeta(
        source="sql",
        pgsweep_version=__version__,
        server_version_num=server.version_num,
        server_version=server.version,
        system_identifier=identifiers[0] if len(identifiers) == 1 else "",
        block_size_bytes=server.block_size_bytes,
        shared_buffers_blocks=server.shared_buffers_blocks,
        settings=settings,
        database=server.database,
        database_oid=server.database_oid,
        host={"server": server.place, "gathered_by": "psql", **hosted},
        sampling={
            "seed": float(seed),
            **({"snapshots": drawn / MODULUS, "block_seed": float(seed)} if drawn else {}),
        },
    )
    trouble = trouble_in_meta(meta)
    if trouble is not None:
        raise file.damaged(row, trouble)
    return meta, server, databases


def _too_short(file: GatheredFile) -> EvidenceError:
    return EvidenceError(
        f"`{file.path}` holds no snapshot",
        cause="psql ended before the first one was whole, or the file was cut there",
        hint="run the script again, to its end; psql says on its standard error why it ends early",
    )


def _impossible(file: GatheredFile, trouble: str) -> EvidenceError:
    return EvidenceError(
        f"`{file.path}` is damaged",
        cause=trouble,
        hint="copy it again from where it was gathered, or gather it again",
    )
