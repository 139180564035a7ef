"""Evidence on disk: a folder with `meta.json` and, per table, numbered Parquet parts.

    NAME.evidence/meta.json
    NAME.evidence/accesses/part-00000.parquet, part-00001.parquet, ...

A part appears under its name only when it is whole (written aside, then renamed), and `meta.json`
stands before the first part and is replaced at the end, for which a file `.spare` keeps room until then. So
whatever cuts a recording short - Ctrl-C, `kill -9`, a full disk, a crash of the host - leaves a folder that
is readable up to the last complete part, and says that it was cut.

Parquet comes from pyarrow and not from the parquet crate: the readers are Python as well, and the recorders
hand over whole columns, so nothing would be gained by doing it in Rust.
"""

from __future__ import annotations

from pgsweep.evidence.reader import Evidence
from pgsweep.evidence.schema import TABLES, EvidenceMeta
from pgsweep.evidence.writer import EvidenceWriter

__all__ = ["TABLES", "Evidence", "EvidenceMeta", "EvidenceWriter"]
