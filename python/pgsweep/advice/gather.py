"""Advice from evidence, and from a session on its server where there is one: `pgsweep advise`.

The curve comes from the evidence alone. Huge pages and connections are counted on the server's host, for the
size that is advised, so a second look is taken once it is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from pgsweep.advice.candidates import candidates, sizes_for_bounds
from pgsweep.advice.decide import decide
from pgsweep.advice.least import (
    ROUGH_STEP,
    Predict,
    for_least,
    least_memory,
    least_words,
    pool_sizes,
    sessions_to_come,
    unknown_least,
)
from pgsweep.advice.owner import adapted, lacks_page_cache
from pgsweep.advice.reads import reads_by_size
from pgsweep.advice.resources import resources_of
from pgsweep.advice.shared_buffers import decide_size
from pgsweep.advice.situation import Contents, Situation
from pgsweep.commands import recording
from pgsweep.errors import ClusterError, MissingAbility, OtherServer, UsageError
from pgsweep.evidence.joined import JoinedEvidence
from pgsweep.evidence.kept import Question, Steps, answered
from pgsweep.evidence.meta import check_trace
from pgsweep.evidence.names import relation_names
from pgsweep.evidence.place import place_of
from pgsweep.evidence.same_cluster import check_cluster
from pgsweep.evidence.sampling import BlockSample
from pgsweep.evidence.store import Evidence, EvidenceMeta
from pgsweep.host.postmaster import search
from pgsweep.memory.budget import budget
from pgsweep.memory.hugepages.inspect import examine
from pgsweep.memory.processes import opened
from pgsweep.pg.catalog.manager import Source, read_sources
from pgsweep.pg.catalog.place import read_place
from pgsweep.pg.catalog.server import read_postmaster, read_server
from pgsweep.pg.session.connect import connect
from pgsweep.pg.session.refusals import explained
from pgsweep.records.advice import AdviceResult, LeastMemory
from pgsweep.records.budget import BudgetResult
from pgsweep.records.cache import Missing
from pgsweep.records.hugepages import HugePagesResult
from pgsweep.records.place import Place
from pgsweep.records.prediction import PredictResult
from pgsweep.sizing.forecast import Watch, forecast
from pgsweep.sizing.model import Prediction
from pgsweep.sizing.observed import Observation
from pgsweep.sizing.page_cache.memory_shares import MemoryFacts
from pgsweep.sizing.predict import WindowModel, judge
from pgsweep.sizing.throughput.read_times import costs_of_misses
from pgsweep.units import BLOCK_BYTES, as_setting, format_bytes

_RELATIONS: Final = 20
_SHARED_PER_CONNECTION_BYTES: Final = 20_000
"""By how much shared memory grows with max_connections (18, default settings): little beside what a
connection has for itself, so no server is started to ask."""


def advise_from(
    evidence: Path,
    conninfo: str | None,
    *,
    memory_bytes: int | None,
    loss: float | None,
    seed: int,
    kept: bool,
    watch: Watch | None = None,
) -> AdviceResult:
    """Return the advice, computed but for a prediction that is kept; the rest is as for `ask.advise`."""
    if evidence.is_file():
        check_trace(evidence)
        raise UsageError(
            f"`{evidence}` is a trace without its server: nothing can be advised from it",
            hint="name a folder that `pgsweep record` wrote",
        )
    recorded = Evidence.open(evidence)
    meta = recorded.meta
    now = None if conninfo is None else _look_at(conninfo, meta, evidence)
    place = place_of(meta) if now is None else now.place
    without = lacks_page_cache(place)
    contents = _contents(recorded)
    named = memory_bytes is not None and without is None
    if without is not None:
        memory_bytes = None
    elif memory_bytes is None and now is not None:
        memory_bytes = _resized(meta, now)
    missing: list[Missing] = []
    # The budget at today's size says how much may be added.
    today_budget = None if conninfo is None else _budget(conninfo, None, missing)
    least = None if loss is None else _least(evidence, meta, loss, today_budget, seed)
    if least is not None and least.memory_bytes is not None and least.reclaim_bytes:
        memory_bytes = _shared_with_files(meta, least)
    memory = _Memory.of(meta, memory_bytes, contents, known=without is None)
    today = meta.shared_buffers_blocks * BLOCK_BYTES

    prediction = _predicted(evidence, meta, memory, memory_bytes, seed, watch, kept=kept)
    situation = replace(
        _situation(recorded, memory, contents, prediction),
        no_page_cache=without,
        memory_named=named,
    )
    if now is not None:
        situation = replace(situation, settings={**situation.settings, **now.settings})
    points, basis = reads_by_size(situation)
    situation = replace(situation, budget=today_budget)
    decision = decide_size(situation, points, basis)
    if least is not None:
        decision = for_least(least, today) or decision
    if conninfo is not None:
        # Of another memory that is named, or is the least, as many sessions fit as it has room for.
        other = memory_bytes if named or (least is not None and least.reclaim_bytes) else None
        situation = _looked_again(situation, conninfo, decision.size_bytes, missing, other)
    result = decide(
        situation,
        decision,
        points,
        basis,
        server_version=meta.server_version,
        database=meta.database,
        evidence=str(evidence),
        missing=missing,
    )
    remarks = [] if now is None else now.remarks
    if least is not None:
        lead, of_least = least_words(least)
        remarks = [*remarks, *of_least]
        result = msgspec.structs.replace(result, summary=f"{lead}. {result.summary}")
    result = msgspec.structs.replace(
        result,
        remarks=[*remarks, *result.remarks],
        resources=resources_of(situation, result.settings, place),
        least=least,
    )
    return adapted(result, place, {} if now is None else now.sources)


def _looked_again(
    situation: Situation, conninfo: str, size_bytes: int, missing: list[Missing], memory_bytes: int | None
) -> Situation:
    """Return what is known with huge pages and connections counted for a size that is decided.

    Args:
        situation: so far.
        conninfo: of the server.
        size_bytes: of its pool.
        missing: is added to.
        memory_bytes: what the advice is for, where that is not what the server may use now.
    """
    changed = size_bytes != situation.today_bytes
    size = size_bytes if changed else None
    return replace(
        situation,
        huge_pages=_huge_pages(conninfo, size, missing),
        budget=_budget(conninfo, size, [], memory_bytes) if changed or memory_bytes else situation.budget,
    )


def advise_window(window: WindowModel, name: str, *, least: bool = False) -> tuple[AdviceResult, int | None]:
    """Return which settings follow from a window over recordings, and the size of shared_buffers advised.

    That is the current size if no change is advised, and None if it is unknown. Huge pages and connections
    are not counted: that takes a session on the server's host.

    Args:
        window: with its load.
        name: of the evidence, for the result.
        least: look for the least memory too, roughly; the settings are those for today's.

    Raises:
        EvidenceError: it holds no access.
    """
    evidence, meta = window.evidence, window.evidence.meta
    contents = _contents(evidence)
    place = place_of(meta)
    without = lacks_page_cache(place)
    memory = _Memory.of(meta, None, contents, known=without is None)
    prediction = window.predict(memory.sizes_for_bounds, memory.candidates)
    found = None
    if least and memory.facts is not None and prediction.verdict.level != "refused":
        found = _least_of_window(window, memory.facts)
    situation = replace(_situation(evidence, memory, contents, prediction), no_page_cache=without)
    points, basis = reads_by_size(situation)
    decision = decide_size(situation, points, basis)
    result = decide(
        situation,
        decision,
        points,
        basis,
        server_version=meta.server_version,
        database=meta.database,
        evidence=name,
        missing=[],
    )
    resources = resources_of(situation, result.settings, place)
    result = msgspec.structs.replace(result, resources=resources, least=found)
    result = adapted(result, place, {})
    return result, None if decision.advice.action == "unknown" else decision.size_bytes


@dataclass(frozen=True, kw_only=True)
class _Memory:
    """What is known of the memory, and the sizes that are considered for it.

    Attributes:
        facts: how it is used.
        size_bytes: what pool and page cache share.
        assumed: how it is used was not measured.
        candidates: sizes of shared_buffers.
        sizes_for_bounds: those at which the curve is needed.
    """

    facts: MemoryFacts | None
    size_bytes: int | None
    assumed: bool
    candidates: list[int]
    sizes_for_bounds: list[int]

    @classmethod
    def of(
        cls, meta: EvidenceMeta, asked_bytes: int | None, contents: Contents | None, *, known: bool = True
    ) -> _Memory:
        facts = MemoryFacts.of(meta) if known else None
        assumed = facts is None and asked_bytes is not None
        if facts is None and asked_bytes is not None:
            facts = MemoryFacts.supposed(asked_bytes, meta.shared_buffers_blocks * BLOCK_BYTES)
        if facts is not None:
            facts.check_asked(asked_bytes)
        size = asked_bytes or (None if facts is None else facts.memory_bytes)
        today = meta.shared_buffers_blocks * BLOCK_BYTES
        often_used = 0 if contents is None else contents.often_used_bytes
        sizes = candidates(today, size, facts, often_used)
        return cls(
            facts=facts,
            size_bytes=size,
            assumed=assumed,
            candidates=sizes,
            sizes_for_bounds=sizes_for_bounds(sizes, today, size, facts),
        )


def _situation(
    evidence: Evidence | JoinedEvidence, memory: _Memory, contents: Contents | None, prediction: PredictResult
) -> Situation:
    meta = evidence.meta
    relations = evidence.table("relations")
    return Situation(
        prediction=prediction,
        candidates=memory.candidates,
        settings=meta.settings,
        facts=memory.facts,
        memory_bytes=memory.size_bytes,
        memory_assumed=memory.assumed,
        data_bytes=int(relations["blocks_end"].clip(0).sum()) * BLOCK_BYTES,
        contents=contents,
        costs=costs_of_misses(Observation(evidence), prediction, memory_known=memory.size_bytes is not None),
    )


def _predicted(
    evidence: Path,
    meta: EvidenceMeta,
    memory: _Memory,
    asked_bytes: int | None,
    seed: int,
    watch: Watch | None,
    *,
    kept: bool,
) -> PredictResult:
    """Return the prediction at the sizes that are considered; one that is kept is not computed again."""

    def made(steps: Steps) -> PredictResult:
        if meta.source == "trace":
            found = judge(evidence, sizes_bytes=memory.candidates, seed=seed, watch=watch, steps=steps)
            named = None if memory.assumed else asked_bytes
            return forecast(found, memory_bytes=named, seed=seed, watch=watch)
        found = judge(evidence, sizes_bytes=memory.sizes_for_bounds, seed=seed, watch=watch, steps=steps)
        if memory.size_bytes is None:
            return found.record()
        return forecast(
            found, memory_bytes=asked_bytes, sizes_bytes=memory.candidates, seed=seed, watch=watch
        )

    if not kept:
        return made(Steps())
    question = Question(
        command="advise",
        sizes_bytes=memory.sizes_for_bounds,
        memory_bytes=asked_bytes,
        memory_sizes_bytes=None if memory.size_bytes is None else memory.candidates,
        seed=seed,
    )
    return answered(evidence, question, PredictResult, made)


def _least(
    evidence: Path, meta: EvidenceMeta, loss: float, budget: BudgetResult | None, seed: int
) -> LeastMemory:
    """Return the least memory; sessions up to max_connections besides, where the budget counts them."""
    facts = MemoryFacts.of(meta)
    if facts is None:
        return unknown_least(loss, "how the memory is used is not known: record on the server's host")
    today = meta.shared_buffers_blocks * BLOCK_BYTES
    found = judge(evidence, sizes_bytes=pool_sizes(facts.memory_bytes, today), seed=seed)
    sessions = sessions_to_come(budget)
    return least_memory(_with_memories(found, seed), facts, today, loss=loss, sessions_bytes=sessions)


def _least_of_window(window: WindowModel, facts: MemoryFacts) -> LeastMemory:
    """Return the least memory of a window, roughly."""
    today = window.evidence.meta.shared_buffers_blocks * BLOCK_BYTES
    found = window.judge(pool_sizes(facts.memory_bytes, today))
    return least_memory(_with_memories(found, window.seed), facts, today, step=ROUGH_STEP)


def _with_memories(found: Prediction, seed: int) -> Predict:
    """Return what predicts with another memory from one curve."""

    def predict(memory_bytes: int, sizes_bytes: Sequence[int]) -> PredictResult:
        return forecast(found, memory_bytes=memory_bytes, sizes_bytes=sizes_bytes, seed=seed)

    return predict


def _shared_with_files(meta: EvidenceMeta, least: LeastMemory) -> int:
    """Return the least memory as the evidence counts memory: without huge pages that lie apart."""
    facts = MemoryFacts.of(meta)
    assert facts is not None
    return facts.memory_bytes - (least.reclaim_bytes or 0)


def _contents(evidence: Evidence | JoinedEvidence) -> Contents | None:
    """Return what the last snapshot shows; None where there is none."""
    relations = evidence.table("relations")
    columns = ["snapshot", "spc", "db", "rel", "usage_count"]
    # All snapshots of a pool of gigabytes are gigabytes too; each lies in one part.
    seen = None
    for part in evidence.parts("snapshots", columns):
        seen = part if len(part["snapshot"]) else seen
    if seen is None:
        return None
    last = seen["snapshot"] == seen["snapshot"].max()
    rate = BlockSample.from_meta(evidence.meta.sampling).rate
    counts = np.bincount(seen["usage_count"][last].clip(0, 5), minlength=6)
    names = {
        (int(db), int(spc), int(rel)): name
        for db, spc, rel, name in zip(
            relations["db"], relations["spc"], relations["rel"], relation_names(relations), strict=True
        )
    }
    keys = np.stack([seen["db"][last], seen["spc"][last], seen["rel"][last]], axis=1)
    files, blocks = np.unique(keys, axis=0, return_counts=True)
    found: dict[str, int] = {}
    for key, count in zip(files.tolist(), blocks.tolist(), strict=True):
        name = names.get((key[0], key[1], key[2]))
        if name is not None and not name.startswith("pg_catalog."):
            found[name] = found.get(name, 0) + round(count / rate) * BLOCK_BYTES
    largest = sorted(found.items(), key=lambda one: -one[1])[:_RELATIONS]
    return Contents(
        relations=largest, bytes_by_usage_count=[round(int(n) / rate) * BLOCK_BYTES for n in counts]
    )


@dataclass(frozen=True, kw_only=True)
class _Now:
    """What the server of the evidence says now.

    Attributes:
        place: where it runs.
        sources: where its settings have their values from.
        settings: as in evidence.
        remarks: what must be known: that it may be another server, or was changed since.
    """

    place: Place
    sources: dict[str, Source]
    settings: dict[str, str]
    remarks: list[str]


_ADVISED: Final = ("shared_buffers", "effective_cache_size", "huge_pages", "max_connections")


def _look_at(conninfo: str, meta: EvidenceMeta, evidence: Path) -> _Now:
    """Return what the server says now, which is what is called today's.

    A server that the evidence cannot be of is refused, and one whose shared_buffers were changed since.

    Raises:
        UsageError: it is such a server.
    """
    with connect(conninfo) as connection, explained():
        server = read_server(connection)
        unknown = check_cluster(connection, meta, evidence)
        sources = read_sources(connection, _ADVISED)
        place = read_place(connection, search(*read_postmaster(connection)).pid)
    if server.version_num // 10000 != meta.server_version_num // 10000:
        raise OtherServer(
            f"`{evidence}` was recorded on another server",
            cause=f"that one was PostgreSQL {meta.server_version}, this one is {server.version}",
            hint=f"leave the server out, or record it: {recording()}",
        )
    if server.block_size_bytes != meta.block_size_bytes:
        raise OtherServer(
            f"`{evidence}` was recorded on another server",
            cause=f"that one has blocks of {meta.block_size_bytes} bytes, this one of "
            f"{server.block_size_bytes}",
            hint=f"leave the server out, or record it: {recording()}",
        )
    if server.shared_buffers_blocks != meta.shared_buffers_blocks:
        now, then = (
            as_setting(blocks * BLOCK_BYTES)
            for blocks in (server.shared_buffers_blocks, meta.shared_buffers_blocks)
        )
        raise UsageError(
            f"shared_buffers is {now}, and `{evidence}` was recorded with {then}",
            cause="it was changed since: the system identifier is the same, which a standby or a copy has too"
            if unknown is None
            else "it is another server, or it was changed since",
            hint=f"record it as it is now: {recording()}",
        )
    remarks = [] if unknown is None else [unknown]
    remarks += [
        f"{name} is {server.settings[name]} now, and was {meta.settings[name]} when the evidence was recorded"
        for name in (*_ADVISED[1:], "work_mem")
        if name in server.settings and server.settings[name] != meta.settings.get(name, server.settings[name])
    ]
    return _Now(place=place, sources=sources, settings=server.settings, remarks=remarks)


def _resized(meta: EvidenceMeta, now: _Now) -> int | None:
    """Return the memory that the server may use now, where that is not what it was when it was recorded."""
    facts, capacity = MemoryFacts.of(meta), now.place.memory.capacity_bytes
    if facts is None or capacity is None or not facts.is_another(capacity):
        return None
    now.remarks.append(
        f"the server may use {format_bytes(capacity)} of memory now, and {format_bytes(facts.memory_bytes)} "
        "when the evidence was recorded: the advice is for what it may use now"
    )
    return capacity


def _budget(
    conninfo: str, size_bytes: int | None, missing: list[Missing], memory_bytes: int | None = None
) -> BudgetResult | None:
    try:
        with opened(conninfo) as local:
            return budget(
                local,
                shared_buffers_bytes=size_bytes,
                shared_per_connection_bytes=_SHARED_PER_CONNECTION_BYTES,
                ram_bytes=memory_bytes,
            )
    except (MissingAbility, ClusterError) as error:
        missing.append(
            Missing(what="connections that fit", why=error.cause or error.message, enable=error.hint)
        )
        return None


def _huge_pages(conninfo: str, size_bytes: int | None, missing: list[Missing]) -> HugePagesResult | None:
    changes = {} if size_bytes is None else {"shared_buffers": as_setting(size_bytes)}
    try:
        found = examine(conninfo, settings=changes)
    except (MissingAbility, ClusterError) as error:
        missing.append(Missing(what="huge pages", why=error.cause or error.message, enable=error.hint))
        return None
    missing += found.missing
    return found
