"""Whether a prediction was right, and whether the load is still the one that it was made for."""

from __future__ import annotations

from typing import Literal

import msgspec

from pgsweep.records.common import Provenance

VerifyVerdict = Literal["as predicted", "not as predicted", "workload changed", "not known"]


class VerifiedValue(msgspec.Struct, frozen=True, kw_only=True):
    """One predicted value beside what was measured after the change.

    Attributes:
        name: what it is.
        unit: `ratio`, `reads per access`, `bytes per access` or `of before`.
        before: measured when the prediction's evidence was recorded; null where it was not.
        predicted: for the size of shared_buffers after the change, with its 90% interval.
        measured: after the change.
        measured_error: standard error of that; 0 where it is not known.
        within: whether it lies in the interval, widened by what the measurement may be off.
        verdict: on this value alone, as on the whole; null in older results.
    """

    name: str
    unit: str
    before: float | None
    predicted: float
    low: float
    high: float
    measured: float
    measured_error: float
    within: bool
    verdict: VerifyVerdict | None = None


class WorkloadChange(msgspec.Struct, frozen=True, kw_only=True):
    """How much one property of the load differs between the two recordings; all of it measured.

    Attributes:
        name: what it is.
        before: in the first recording; null for the mix of relations, which is not a single number.
        after: in the second.
        difference: between them, from 0, as a share of the larger one; of the mix, the share of the accesses
            that went elsewhere.
        usual: what counts as the same load.
        changed: it is more than that.
        detail: what differs most, in words.
    """

    name: str
    before: float | None
    after: float | None
    difference: float
    usual: float
    changed: bool
    detail: str = ""


class VerifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a prediction was right.

    Attributes:
        before: the evidence that the prediction is made from.
        after: the evidence recorded after the change.
        shared_buffers_before: when the first was recorded.
        shared_buffers_after: when the second was.
        verdict: `as predicted`; `not as predicted`, of one value at least; `workload changed`, where the
            load has changed, so that the prediction cannot be judged; `not known`, where nothing can be
            compared.
        reasons: sentences.
        values: predicted beside measured.
        workload: how much the load differs.
    """

    schema: str = "pgsweep.verify/1"
    server_version: str
    database: str
    before: str
    after: str
    shared_buffers_before: int
    shared_buffers_after: int
    verdict: VerifyVerdict
    reasons: list[str]
    values: list[VerifiedValue]
    workload: list[WorkloadChange]
    provenance: Provenance | None = None
