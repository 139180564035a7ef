"""Which of the rules that `--alerts` prints hold now, and since when.

There is one table of rules (rules.py), written for Prometheus. Here the same expressions are evaluated on
what /metrics would show, without a Prometheus: numbers, `time()`, metrics with at most one selector, `+`,
`-`, `*`, one comparison, and `and on (server)`. Vectors are matched by all their labels, as Prometheus does.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from prometheus_client.metrics_core import Metric

from pgsweep.records.serve import ServeAlert
from pgsweep.serve.rules import ALERTS, Alert
from pgsweep.ui.kit.numbers import count, format_bytes, percent

EVERY_SECONDS: Final = 10.0
"""From one evaluation to the next."""

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Samples = Mapping[str, Vector]
"""By the metric's name."""

_OPERATORS: Final[dict[type[ast.AST], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.Lt: operator.lt,
}
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400}
_TEMPLATE: Final = re.compile(r"\{\{ \$(value|labels\.(\w+))(?: \| (\w+))? \}\}")
_WORDS: Final[dict[str | None, Callable[[float], str]]] = {
    None: count,
    "humanize": count,
    "humanizePercentage": percent,
    "humanize1024": lambda value: format_bytes(value).removesuffix("B"),
}


class Alerts:
    """Remembers since when each alert holds."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, Labels], float] = {}

    def of(self, families: Iterable[Metric], now: float) -> list[ServeAlert]:
        """Return the alerts that hold, those that fire first, then the gravest.

        Args:
            families: what /metrics would show.
            now: in seconds since 1970.
        """
        samples = samples_of(families)
        found, since = [], {}
        # Of a pgsweep that is gone only Prometheus can tell.
        for alert in (one for one in ALERTS if "absent(" not in one.expression):
            for labels, value in holding(alert.expression, samples, now).items():
                began = self._since.get((alert.name, labels), now)
                since[alert.name, labels] = began
                found.append(_record(alert, dict(labels), value, began, now))
        self._since = since
        order = ("critical", "warning", "info")
        found.sort(key=lambda one: (one.state, order.index(one.severity), one.server, one.name))
        return found


def _record(alert: Alert, labels: dict[str, str], value: float, since: float, now: float) -> ServeAlert:
    pause = float(alert.pause[:-1]) * _SECONDS[alert.pause[-1]]

    def words(found: re.Match[str]) -> str:
        return labels.get(found[2], "") if found[2] else _WORDS[found[3]](value)

    return ServeAlert(
        name=alert.name,
        server=labels.get("server", ""),
        severity=alert.severity,
        state="firing" if now - since >= pause else "pending",
        since=since,
        fires_after_seconds=pause,
        summary=_TEMPLATE.sub(words, alert.summary),
        description=alert.description,
    )


def samples_of(families: Iterable[Metric]) -> Samples:
    """Return the samples of metrics, by name and labels."""
    found: dict[str, Vector] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def holding(expression: str, samples: Samples, now: float) -> Vector:
    """Return for which labels an expression holds, each with the value on its left.

    Args:
        expression: of the kind that the module describes.
        samples: of now.
        now: what `time()` is.

    Raises:
        ValueError: the expression is of another kind.
    """
    first, *others = (_compared(part, samples, now) for part in expression.split("and on (server)"))
    for other in others:
        servers = {dict(labels).get("server") for labels in other}
        first = {labels: value for labels, value in first.items() if dict(labels).get("server") in servers}
    return first


def _compared(text: str, samples: Samples, now: float) -> Vector:
    # With a selector as the argument of a call, it is an expression of Python too, of the same precedence.
    tree = ast.parse(re.sub(r"\{(.*?)\}", r"(\1)", text.strip()), mode="eval").body
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
        raise ValueError(f"not one comparison: {text}")
    left = _value(tree.left, samples, now)
    holds = _joined(left, _value(tree.comparators[0], samples, now), _OPERATORS[type(tree.ops[0])])
    if not isinstance(left, dict) or not isinstance(holds, dict):
        raise TypeError(f"compares no metric: {text}")
    return {labels: left[labels] for labels, held in holds.items() if held}


def _value(tree: ast.expr, samples: Samples, now: float) -> Vector | float:
    match tree:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Call(func=ast.Name(id="time"), args=[], keywords=[]):
            return now
        case ast.Name(id=name):
            return samples.get(name, {})
        case ast.Call(
            func=ast.Name(id=name),
            args=[],
            keywords=[ast.keyword(arg=str() as label, value=ast.Constant(value=value))],
        ):
            return {
                labels: held for labels, held in samples.get(name, {}).items() if (label, value) in labels
            }
        case ast.BinOp(left=left, op=op, right=right):
            return _joined(_value(left, samples, now), _value(right, samples, now), _OPERATORS[type(op)])
    raise ValueError(f"not in the expression of a rule: {ast.unparse(tree)}")


def _joined(left: Vector | float, right: Vector | float, by: Callable[[Any, Any], Any]) -> Vector | float:
    """Return what an operation gives, for the labels that both have where both are vectors."""
    if isinstance(left, dict) and isinstance(right, dict):
        return {labels: by(value, right[labels]) for labels, value in left.items() if labels in right}
    if isinstance(left, dict):
        return {labels: by(value, right) for labels, value in left.items()}
    if isinstance(right, dict):
        return {labels: by(left, value) for labels, value in right.items()}
    return float(by(left, right))
