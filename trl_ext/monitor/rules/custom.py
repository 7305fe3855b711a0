"""Rules of the user: a metric to watch, a comparison, a function."""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from trl_ext.errors import UserError
from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.metrics import canonical_name
from trl_ext.monitor.names import unknown_name
from trl_ext.monitor.rows import LARGEST, Layout, Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.statistics import Names, Streak, Window

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
DIRECTIONS = ("both", "up", "down")
WATCH_KEYS = ("z", "severity", "direction")
RULE_KEYS = ("name", "metric", "comparison", "value", "logs", "severity", "message")
MOST_MISSING = 32  # metrics that a function may ask for in vain
SMALLEST_SCALE = 1e-9  # of the median: below it a difference is rounding


class NamedMetric(Rule):
    """A rule on one metric that the user named, as it is logged or by its canonical name.

    Every log is shown to it: what a key means may depend on what stands beside it.
    """

    def __init__(self, name: str, metric: str, window: int = 64):
        super().__init__({}, window)
        self.name = name  # type: ignore[misc]  # one class, a name for each instance
        self.metric = metric
        self._canonical = canonical_name(metric)
        self._arrived = Streak()

    def value(self, row: Row) -> float | None:
        value = row.metrics.get(self._canonical)
        if value is None:
            logged: Any = row.logged.get(self.metric)
            plain = isinstance(logged, int | float) and not isinstance(logged, bool)
            value = logged if plain and math.isfinite(logged) else None
        if value is not None:
            self._arrived.count = 1
        return value

    def unseen(self) -> str | None:
        return None if self._arrived.count else self.metric


class Watch(NamedMetric):
    """An anomaly of any metric: its robust z-score against the last `window` logs.

    Default: 6 robust standard deviations is a warning. Twice as far raises the severity by one.
    """

    statistical = True
    close_after = 1

    def __init__(self, metric: str, z: float, severity: Severity, direction: str, window: int):
        super().__init__(f"watch:{metric}", metric, window)
        self._z, self._severity, self._direction = z, severity, direction
        self._history = Window(window)

    def check(self, row: Row) -> Finding | Verdict:
        value = self.value(row)
        if value is None:
            return Verdict.NO_DATA
        if len(self._history) < 8:
            self._history.push(value)
            return Verdict.NO_DATA
        usual = self._history.median()
        z = self._history.robust_z(value, SMALLEST_SCALE * abs(usual))
        self._history.push(value)
        size = {"both": abs(z), "up": z, "down": -z}[self._direction]
        if size < self._z:
            return Verdict.HEALTHY
        severity = list(Severity)[min(self._severity.rank + (size >= 2 * self._z), Severity.CRITICAL.rank)]
        return Finding(
            severity, self.metric, value,
            f"{self.metric} is {value:.4g}, {abs(z):.3g} robust standard deviations {'above' if z > 0 else 'below'} "
            f"its median ({usual:.4g}) of the last {len(self._history)} logs",
            f"You asked for it: watch={{'{self.metric}': {{'z': {self._z:g}}}}}. Raise z if this is normal here.",
            {"z": z, "median": usual},
        )  # fmt: skip


class Comparison(NamedMetric):
    """A metric compared with a number, for some logs in a row."""

    def __init__(
        self, name: str, metric: str, comparison: str, value: float, logs: int, severity: Severity, message: str | None
    ):
        super().__init__(name, metric)
        self._holds = COMPARISONS[comparison]
        self._limit, self._severity = value, severity
        self._what = message or f"{metric} {comparison} {value:g} for {logs} logs in a row"
        self._levels = Levels({severity: logs})

    def check(self, row: Row) -> Finding | Verdict:
        value = self.value(row)
        if value is None:
            return Verdict.NO_DATA
        verdict = self._levels.push(self._holds(value, self._limit))
        if isinstance(verdict, Verdict):
            return verdict
        message = f"{self._what} ({self.metric} is {value:.4g})"
        return Finding(verdict, self.metric, value, message, f"This is your own rule {self.name!r}.")


class Function(Rule):
    """A function of the user: takes the metrics of one log, under their logged and their canonical names; returns
    nothing (`None`, `False`, an empty message) when all is well, a message or `True` (a warning), or a `Finding`.

    It sees evaluations, too; where a metric is not in a log and the function raises `KeyError` for it, it says nothing
    of that log. What it found in a log of training is not over because it finds nothing in one of those.
    """

    def __init__(self, function: Callable[[Mapping[str, float]], Any]):
        super().__init__({})
        self.name = getattr(function, "__name__", type(function).__name__)  # type: ignore[misc]
        self._function = function
        self._missing, self._came = Names(), Names()
        self._layout: Layout | None = None  # whose names have come
        self._evaluation = False  # whether the latest finding was in one

    def check(self, row: Row) -> Finding | Verdict:
        numbers = {k: v for k, v in row.logged.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        metrics, missing = {**numbers, **row.metrics}, self._missing.names
        if row.layout is not self._layout:
            self._layout = row.layout
            self._came.names.update(metrics)
        try:
            found = self._function(metrics)
        except KeyError as error:
            (key,) = error.args if len(error.args) == 1 else (None,)
            if not isinstance(key, str) or key in metrics or len(missing) >= MOST_MISSING:
                raise
            missing.add(key)  # as in a log of an evaluation; named at the end if it never came
            return Verdict.NO_DATA
        evaluation = any(name.startswith("eval/") for name in row.metrics)
        if not isinstance(found, Finding) and not found:  # None, False, NumPy's False, an empty message
            return Verdict.HEALTHY if evaluation == self._evaluation else Verdict.NO_DATA
        self._evaluation = evaluation
        if isinstance(found, Finding):
            return found
        message = found if isinstance(found, str) else f"{self.name} holds"
        return Finding(Severity.WARNING, self.name, float("nan"), message, f"This is your own rule {self.name!r}.")

    def unseen(self) -> str | None:
        return min(self._missing.names - self._came.names, default=None)


def watched(watch: Mapping[str, Any], window: int) -> list[Rule]:
    """A rule for each metric of `watch`.

    Args:
        watch: metric, as logged or canonical, to `None` (6 robust standard deviations), a number of them, or
            `{"z": 6, "severity": "warning", "direction": "both" | "up" | "down"}`.
    Raises:
        UserError: names what is wrong.
    """
    if not isinstance(watch, Mapping):
        raise UserError(f"watch must be a mapping such as {{'my_metric': {{'z': 6}}}}, not {watch!r}")
    rules: list[Rule] = []
    for metric, options in watch.items():
        if not isinstance(metric, str):
            raise UserError(f"watch must name metrics, not {metric!r}")
        options = dict(options) if isinstance(options, Mapping) else {} if options is None else {"z": options}
        for key in options:
            if key not in WATCH_KEYS:
                raise unknown_name(f"option of watch[{metric!r}]", key, WATCH_KEYS)
        z = _number(f"z of watch[{metric!r}]", options.get("z", 6))
        if z <= 0:
            raise UserError(f"z of watch[{metric!r}] must be above 0, not {z:g}")
        direction = options.get("direction", "both")
        if direction not in DIRECTIONS:
            raise unknown_name(f"direction of watch[{metric!r}]", direction, DIRECTIONS)
        rules.append(Watch(metric, z, _severity(options.get("severity", "warning")), direction, window))
    return rules


def custom_rule(spec: Any) -> Rule:
    """A rule of the user.

    Args:
        spec: a `Rule`, a function (see `Function`), or `{"metric":, "comparison":, "value":, "logs": 3,
            "severity": "warning", "name":, "message":}`.
    Raises:
        UserError: names what is wrong.
    """
    if isinstance(spec, Rule):
        return spec
    if callable(spec):
        return Function(spec)
    if not isinstance(spec, Mapping):
        raise UserError(f"a custom rule is a function or a mapping with metric, comparison and value, not {spec!r}")
    for key in spec:
        if key not in RULE_KEYS:
            raise unknown_name("key of a custom rule", key, RULE_KEYS)
    missing = [key for key in ("metric", "comparison", "value") if key not in spec]
    if missing:
        raise UserError(f"the custom rule {dict(spec)!r} lacks {', '.join(missing)}")
    metric, comparison, message = spec["metric"], spec["comparison"], spec.get("message")
    for key in ("metric", "name", "message"):
        if key in spec and not (isinstance(spec[key], str) and spec[key]):
            raise UserError(f"{key} of a custom rule must be text, not {spec[key]!r}")
    if not isinstance(comparison, str) or comparison not in COMPARISONS:
        raise unknown_name("comparison", str(comparison), COMPARISONS)
    name = spec.get("name", f"{metric} {comparison} {spec['value']}")
    logs = spec.get("logs", 3)
    if isinstance(logs, bool) or not isinstance(logs, int) or logs < 1:
        raise UserError(f"logs of the custom rule {name!r} must be a whole number of at least 1, not {logs!r}")
    value = _number(f"value of the custom rule {name!r}", spec["value"])
    return Comparison(name, metric, comparison, value, logs, _severity(spec.get("severity", "warning")), message)


def _number(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST < value < LARGEST:
        raise UserError(f"{what} must be a finite number, not {value!r:.60}")
    return value


def _severity(name: Any) -> Severity:
    if not isinstance(name, str) or name not in tuple(Severity):
        raise unknown_name("severity", str(name), [severity.value for severity in Severity])
    return Severity(name)
