"""Settings advised, with reasons."""

from __future__ import annotations

from typing import Literal

import msgspec

from pgsweep.records.cache import Missing
from pgsweep.records.common import Provenance
from pgsweep.records.place import Place
from pgsweep.records.prediction import Observed, RelationCurve, Verdict

Kind = Literal["measured", "predicted", "assumed"]
Action = Literal["set", "leave", "unknown"]
Where = Literal["server", "kernel", "cgroup", "command"]
TakesEffect = Literal["restart", "reload", "at once", ""]


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What a change is expected to save, with its interval; less than 0 where it costs.

    Attributes:
        of: what is saved: `time waiting for reads`, `memory`, `waiting for reads after the restart` (by all
            sessions together); or what is won: `throughput`.
        unit: `ratio`, of what it is today, `bytes` or `seconds`.
        value: predicted.
        low: the least of the 90% interval.
        high: the most.
    """

    of: str
    unit: Literal["ratio", "bytes", "seconds"]
    value: float
    low: float
    high: float


class AdvisedSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, and what to do with it.

    Attributes:
        name: as the server or the kernel names it; `warm-up` for what to do around a restart.
        where: it is set in the `server`, in the `kernel` or for a `cgroup` (by a pod's resources), or it is a
            `command` to run.
        today: its value now; null where that is not known.
        value: what it shall be; null unless `action` is `set`.
        action: `set`, `leave`, or `unknown` where nothing can be advised; `reason` says why.
        kind: what the reason rests on.
        gain: what the change saves; null where that is not predicted.
        purpose: where no gain in throughput is expected, what the setting is for; else empty.
        takes_effect: by a `restart` of the server, a `reload`, or `at once`; empty where nothing is changed.
        undo: what puts the former value back.
    """

    name: str
    where: Where
    today: str | None
    value: str | None
    action: Action
    kind: Kind
    reason: str
    gain: Gain | None = None
    purpose: str = ""
    takes_effect: TakesEffect = ""
    undo: str = ""


class ReadsPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What reads are expected to cost at one size of shared_buffers; `low` and `high` bound 90%.

    Attributes:
        misses_per_second: of the pool, at the load of the evidence.
        disk_reads_per_second: of these, those that wait for the disk; the middle where only bounds are known.
        wait_ratio: seconds that all sessions together wait for reads in one second.
        throughput_ratio: transactions per second, divided by those of today; null where not predicted.
    """

    shared_buffers_bytes: int
    misses_per_second: float
    misses_low: float
    misses_high: float
    disk_reads_per_second: float
    disk_reads_low: float
    disk_reads_high: float
    wait_ratio: float
    wait_low: float
    wait_high: float
    throughput_ratio: float | None = None
    throughput_low: float | None = None
    throughput_high: float | None = None


class RuleOfThumb(msgspec.Struct, frozen=True, kw_only=True):
    """What a widely quoted rule says, and what it would gain or cost here.

    Attributes:
        name: of the rule.
        shared_buffers_bytes: what it says; null where it says nothing here.
        says: the same in words.
        gain: against today, predicted; null where the size is today's, or nothing is known of it.
    """

    name: str
    shared_buffers_bytes: int | None
    says: str
    gain: Gain | None


class AppliedSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting that was written by ALTER SYSTEM, or would be.

    Attributes:
        before: what postgresql.auto.conf said; null where it said nothing.
        after: what it says now; null where it was taken away.
        statement: that does it.
        restart: it takes effect at a restart only.
    """

    name: str
    before: str | None
    after: str | None
    statement: str
    restart: bool


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What a container, a pod or an instance is given for the settings that are advised.

    Attributes:
        memory_bytes: its memory: request and limit. It is what the advice rests on; without huge pages, where
            these do not count against it. null where it is not known.
        memory_why: what it is made of, or why it is not known.
        huge_page_size_bytes: of the huge pages; null where they are not counted.
        huge_pages: the exact number that the server takes at its start: request and limit, no page more; null
            where it shall not have any, or they were not counted.
        huge_pages_why: what the number rests on, or why there is none.
        dev_shm_bytes: least size of /dev/shm; null where dynamic shared memory is not there.
        dev_shm_why: what takes it.
    """

    memory_bytes: int | None
    memory_why: str
    huge_page_size_bytes: int | None
    huge_pages: int | None
    huge_pages_why: str
    dev_shm_bytes: int | None
    dev_shm_why: str

    @property
    def huge_bytes(self) -> int | None:
        """What the huge pages take."""
        if self.huge_pages is None or self.huge_page_size_bytes is None:
            return None
        return self.huge_pages * self.huge_page_size_bytes


class LeastMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The least memory whose throughput is near today's; null where it is not known.

    Attributes:
        loss_ratio: by how much the throughput may be less than today's.
        today_bytes: memory of today, which pool, page cache and sessions share; huge pages included.
        memory_bytes: the least for which the low end of the 90% interval of the throughput is near enough.
        low_bytes: the least that the interval allows: for which the high end is.
        reclaim_bytes: today's less that.
        shared_buffers_bytes: with that memory.
        throughput_ratio, throughput_low, throughput_high: there, divided by today's.
        reason: what is expected, or why it is not known.
        assumed: sentences.
        by: `throughput`, or `waiting` where it is not predicted: what sessions wait more for the disk in a
            second is taken as lost by one session.
        pays_bytes: how much more memory would certainly raise the throughput by `loss_ratio`; null where none
            would.
        pays_ratio, pays_low, pays_high: the throughput with it, divided by today's.
    """

    loss_ratio: float
    today_bytes: int | None
    memory_bytes: int | None
    low_bytes: int | None
    reclaim_bytes: int | None
    shared_buffers_bytes: int | None
    throughput_ratio: float | None
    throughput_low: float | None
    throughput_high: float | None
    reason: str
    assumed: list[str]
    by: Literal["throughput", "waiting"] = "throughput"
    pays_bytes: int | None = None
    pays_ratio: float | None = None
    pays_low: float | None = None
    pays_high: float | None = None


class AdviceResult(msgspec.Struct, frozen=True, kw_only=True):
    """Settings advised for a server, each with its reason.

    Attributes:
        evidence: the folder that it rests on.
        source: of the evidence.
        summary: the decision in one sentence.
        decision: on shared_buffers: `change`, `leave`, or `unknown` where what it should be is not known;
            other settings may be advised with each.
        memory_bytes: what pool and page cache share; null where it is not known.
        disk_reads_from: `simulated`, `bounded` from the misses and the memory, or `unknown`.
        disk_read_seconds: what one read from disk takes.
        copy_seconds: what one read from the page cache takes.
        costs_kind: of the two.
        settings: the advice.
        rules: what rules of thumb say.
        points: what reads cost at each size that was considered.
        verdict: of the prediction.
        remarks: what else must be known.
        missing: what could not be looked at.
        applied: what was written by --apply.
        relations: what each reads at each size; none where disk reads are not simulated.
        most_used_bytes: where nothing was evicted, the most of shared_buffers that held pages: the advice
            takes that for all that is used. Else null.
        place: where the server runs; null in older results, and where the evidence does not say it.
        set_elsewhere: where the server's settings are changed, if not by ALTER SYSTEM: the provider's or the
            operator's own way, for these values. Else null.
        form: the form in which settings are applied where the server runs, as `--format` names it.
        resources: what its container, pod or instance is given; null in older results.
        least: the least memory, for which the settings are then advised; null where it was not asked for.
    """

    schema: str = "pgsweep.advise/1"
    server_version: str
    database: str
    evidence: str
    source: str
    summary: str
    decision: Literal["change", "leave", "unknown"]
    observed: Observed
    memory_bytes: int | None
    disk_reads_from: Literal["simulated", "bounded", "unknown"]
    disk_read_seconds: float
    copy_seconds: float
    costs_kind: Kind
    settings: list[AdvisedSetting]
    rules: list[RuleOfThumb]
    points: list[ReadsPoint]
    verdict: Verdict
    remarks: list[str]
    missing: list[Missing] = []
    applied: list[AppliedSetting] = []
    relations: list[RelationCurve] = []
    most_used_bytes: int | None = None
    place: Place | None = None
    set_elsewhere: str | None = None
    form: str = "alter-system"
    resources: Resources | None = None
    least: LeastMemory | None = None
    provenance: Provenance | None = None
