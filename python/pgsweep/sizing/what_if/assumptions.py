"""What is taken to happen for each what-if, in a sentence."""

from __future__ import annotations

from dataclasses import replace

from pgsweep.plain import shown
from pgsweep.records import trace_reasons as reasons
from pgsweep.records.prediction import WhatIf
from pgsweep.sizing.estimate import Estimate
from pgsweep.sizing.page_cache.memory_shares import SESSION_BYTES
from pgsweep.sizing.snapshots.observations import Table, main_fork_blocks
from pgsweep.sizing.verdict import Doubt, judged
from pgsweep.sizing.what_if.grammar import (
    Asked,
    Connections,
    Grows,
    HugePages,
    Insert,
    Keep,
    OfRelation,
    Ram,
    Scan,
    SharedBuffers,
    Without,
)
from pgsweep.sizing.what_if.relations import Named, find
from pgsweep.units import BLOCK_BYTES, format_bytes, format_count, format_many, format_plain


def assumption_of(asked: Asked, relations: Table, database_oid: int) -> WhatIf:
    """Return the what-if with its assumption.

    Raises:
        UsageError: it names a relation that is not in the evidence.
    """
    if isinstance(asked, OfRelation):
        text = _relation_assumption(asked, find(asked, relations, database_oid), relations)
    elif isinstance(asked, Connections):
        text = (
            f"{format_plain(asked.factor)} times the sessions do what those of today do, to the same pages, "
            "and none waits longer for another; the miss ratio depends on the order of the accesses, not on "
            "how fast they come; a session takes as much private memory and page tables as a process of the "
            f"server today, {format_bytes(SESSION_BYTES)} where that was not measured"
        )
    elif isinstance(asked, Ram):
        text = (
            f"the pool and the page cache share {format_bytes(asked.memory_bytes)}; all else takes as much "
            "memory as today"
        )
    elif isinstance(asked, HugePages):
        text = (
            "shared memory lies in huge pages, and needs no page tables; what the processor saves is left out"
            if asked.on
            else "shared memory lies in pages of 4 kB, and processes have page tables for what they touch"
        )
    elif isinstance(asked, SharedBuffers):
        text = f"shared_buffers is {format_bytes(asked.size_bytes)}, and the pool has settled"
    else:
        raise TypeError(asked)
    return WhatIf(text=asked.text, assumption=text)


def _relation_assumption(asked: OfRelation, relation: Named, relations: Table) -> str:
    blocks = main_fork_blocks(relations)
    all_of_it = format_bytes(sum(int(blocks[row]) for row in relation.rows) * BLOCK_BYTES)
    own = format_bytes(relation.blocks * BLOCK_BYTES)
    more = len(relation.rows) - 1
    name = shown(relation.name)
    with_it = f"{name} and the {more} relations that go with it" if more > 1 else name
    if more == 1:
        with_it = f"{name} and the index or TOAST table that goes with it"
    if isinstance(asked, Grows):
        verb = "get" if more else "gets"
        return (
            f"{with_it} ({all_of_it}) {verb} {format_plain(asked.factor)} times the blocks; they are visited "
            "as often as today in total, and the visits to a block are spread over the blocks that replace "
            "it; scans and vacuums read all of them. If nobody visited the new blocks, only scans would "
            "change"
        )
    if isinstance(asked, Insert):
        rows, fit = format_many(asked.rows_per_second, "row"), format_count(relation.tuples_per_block)
        return (
            f"added at the end of {name}: {rows} a second, besides those of today, {fit} to a block; "
            f"each is one access, and one descent of each of its indexes ({len(relation.indexes)}), to pages "
            "as they are visited today; the indexes do not grow"
        )
    if isinstance(asked, Scan):
        return (
            f"all of {name} ({own}) is read in order every {format_plain(asked.every_seconds)} s, besides "
            "what reads it today; through a ring in each pool whose quarter is smaller than it"
        )
    if isinstance(asked, Keep):
        verb = "are" if more else "is"
        return (
            f"{with_it} ({all_of_it}) {verb} always found in the pool, and the rest of the load has the "
            "other buffers; what keeps it so costs no reads"
        )
    assert isinstance(asked, Without)
    return f"nobody accesses {with_it} ({all_of_it}); the rest of the load stays as it is, and as fast"


def rough_at_best(changed: Estimate, now: Estimate) -> Estimate:
    """Return the curve with its verdict: at best rough, and no better than the one without changes.

    What speaks against both is said once, with the numbers of the load that was recorded.
    """
    doubts = [Doubt("rough", reasons.load_not_observed())]
    known = set() if now.level == "reliable" else {reason.code for reason in now.reasons}
    doubts += [Doubt(changed.level, reason) for reason in changed.reasons if reason.code not in known]
    if now.level != "reliable":
        doubts += [Doubt(now.level, reason) for reason in now.reasons]
    if changed.too_small_blocks:
        sizes = [size * BLOCK_BYTES for size in changed.too_small_blocks]
        doubts.append(Doubt("rough", reasons.kept_leaves_little(sizes)))
    level, said = judged(doubts)
    return replace(changed, level=level, reasons=said)
