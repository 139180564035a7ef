"""What is known when settings are decided, and sizes as settings are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pgsweep.records.budget import BudgetResult
from pgsweep.records.hugepages import HugePagesResult
from pgsweep.records.prediction import PredictResult, ReadCosts
from pgsweep.sizing.page_cache.memory_shares import MemoryFacts, Share

MB: Final = 1 << 20
GB: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What the pool held when it was last seen.

    Attributes:
        relations: the ones with most of its blocks, and their bytes.
        bytes_by_usage_count: how much of it has usage counts 0 to 5.
    """

    relations: list[tuple[str, int]]
    bytes_by_usage_count: list[int]

    @property
    def often_used_bytes(self) -> int:
        """What buffers with usage counts of 4 and 5 take."""
        return sum(self.bytes_by_usage_count[4:6])


@dataclass(frozen=True, kw_only=True)
class Situation:
    """All that settings are decided from.

    Attributes:
        prediction: the curve, at the sizes that are considered and those that bounds need.
        candidates: the sizes that are considered.
        settings: the server's, as the evidence has them, in the units of pg_settings.
        facts: how the memory was used; None where that is not known.
        memory_bytes: what pool and page cache share; None where it is not known.
        memory_assumed: how the memory is used was not measured but assumed.
        data_bytes: of all relations that the evidence names.
        every_database: it names those of all databases.
        contents: of the pool; None where it was not seen.
        costs: of reads.
        huge_pages, budgets: for the size advised or for today's, by size; empty without a session.
        memory_named: the user named the memory.
        no_page_cache: the provider behind whose pool there is no page cache of Linux, or may be none.
    """

    prediction: PredictResult
    candidates: list[int]
    settings: Mapping[str, str]
    facts: MemoryFacts | None
    memory_bytes: int | None
    memory_assumed: bool
    data_bytes: int
    contents: Contents | None
    costs: ReadCosts
    huge_pages: HugePagesResult | None = None
    budget: BudgetResult | None = None
    no_page_cache: str | None = None
    memory_named: bool = False

    @property
    def today_bytes(self) -> int:
        """shared_buffers when the evidence was recorded."""
        return self.prediction.observed.shared_buffers_bytes

    def share(self, size_bytes: int) -> Share | None:
        """Return what a size leaves for the page cache; None where it leaves none or nothing is known."""
        found = self.share_or_why(size_bytes)
        return None if isinstance(found, str) else found

    def share_or_why(self, size_bytes: int) -> Share | str:
        """Return what a size leaves for the page cache, or why it leaves none or nothing is known."""
        from pgsweep.errors import UsageError

        if self.facts is None or self.memory_bytes is None:
            return "how much memory is left for the page cache is not known"
        try:
            return self.facts.share(self.memory_bytes, size_bytes, self.today_bytes)
        except UsageError as error:
            return f"{error.message}: {error.cause}"

    def number(self, name: str) -> int | None:
        """Return a setting as a number; None where the evidence does not have it."""
        text = self.settings.get(name, "")
        return int(text) if text.lstrip("-").isdigit() else None


def rounded_down(size_bytes: int) -> int:
    """Return a size as people set it: whole GB from 16 GB on, below that steps of 2 to 3%."""
    if size_bytes >= 16 * GB:
        return size_bytes // GB * GB
    if size_bytes < MB:
        return size_bytes
    step = max(MB, 1 << max(0, size_bytes.bit_length() - 6))
    return size_bytes // step * step
