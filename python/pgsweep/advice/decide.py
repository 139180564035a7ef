"""All advice together, from what is known."""

from __future__ import annotations

from pgsweep.advice.connections import advise_connections
from pgsweep.advice.huge_pages import advise_huge_pages
from pgsweep.advice.planner import advise_planner
from pgsweep.advice.reads import Basis
from pgsweep.advice.rules_of_thumb import rules_of_thumb
from pgsweep.advice.shared_buffers import Decision
from pgsweep.advice.situation import Situation
from pgsweep.advice.summary import summarized
from pgsweep.advice.warming import advise_warming
from pgsweep.records.advice import AdviceResult, Kind, ReadsPoint
from pgsweep.records.cache import Missing
from pgsweep.records.prediction import ReadCosts
from pgsweep.units import format_bytes, format_count, format_plain


def decide(
    situation: Situation,
    decision: Decision,
    points: list[ReadsPoint],
    basis: Basis,
    *,
    server_version: str,
    database: str,
    evidence: str,
    missing: list[Missing],
) -> AdviceResult:
    """Return the advice.

    Args:
        situation: with huge pages and budget for the size that was decided.
        decision: the size.
        points: what reads cost at each size.
        basis: how disk reads are known.
        server_version, database, evidence: what it is about.
        missing: what could not be looked at.
    """
    settings = [
        decision.advice,
        *advise_huge_pages(situation, decision.size_bytes),
        advise_planner(situation, decision.size_bytes),
        advise_connections(situation),
    ]
    summary, choice = summarized(settings)
    restarts = any(one.takes_effect == "restart" for one in settings if one.action == "set")
    settings.append(advise_warming(situation, restarts=restarts))
    prediction = situation.prediction
    return AdviceResult(
        server_version=server_version,
        database=database,
        evidence=evidence,
        source=prediction.source,
        summary=summary,
        decision=choice,
        observed=prediction.observed,
        memory_bytes=situation.memory_bytes,
        disk_reads_from=basis,
        disk_read_seconds=situation.costs.disk_read_seconds,
        copy_seconds=situation.costs.copy_seconds,
        costs_kind=_kind(situation.costs),
        settings=settings,
        rules=rules_of_thumb(situation, points, basis),
        points=points,
        verdict=prediction.verdict,
        remarks=_remarks(situation, basis),
        missing=missing,
        relations=[] if prediction.memory is None else prediction.memory.relations,
        most_used_bytes=None if prediction.no_eviction is None else prediction.no_eviction.used_bytes,
    )


def _kind(costs: ReadCosts) -> Kind:
    """Return `measured` where both costs are."""
    return "assumed" if "assumed" in (costs.disk_read_kind, costs.copy_kind) else "measured"


def _remarks(situation: Situation, basis: Basis) -> list[str]:
    costs = situation.costs
    copy = format_plain(round(costs.copy_seconds * 1e6, 1))
    others = f"one from the page cache {copy} ({costs.copy_kind})"
    if costs.copy_kind == "mean":
        others = f"a miss today {copy} on average (measured)"
    remarks = [
        f"one read from disk takes {format_count(costs.disk_read_seconds * 1e6)} microseconds "
        f"({costs.disk_read_kind}), {others}"
    ]
    if basis == "bounded":
        remarks.append(
            "disk reads are bounded from the pool's misses and the memory: it is assumed that accesses are "
            "independent of each other, and that only the server uses the page cache"
        )
    if situation.memory_assumed and situation.prediction.memory is None:
        remarks.append(
            "how the memory is used was not measured: it is assumed that a tenth serves neither the pool nor "
            "the page cache"
        )
    if situation.prediction.memory is not None:
        remarks += situation.prediction.memory.reasons
        loop = situation.prediction.memory.throughput
        remarks += [] if loop is None else loop.reasons
        if loop is not None and loop.against_same_memory:
            remarks.append(
                "here the throughput is shown as a ratio to that of today's size with the same "
                f"{format_bytes(situation.prediction.memory.memory_bytes)} of memory"
            )
    elif situation.facts is not None:
        measured = situation.memory_bytes == situation.facts.memory_bytes and not situation.memory_assumed
        remarks += situation.facts.remarks(situation.today_bytes if measured else None)
    return remarks
