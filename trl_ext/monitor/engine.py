"""Feeds the rules, log by log."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from trl_ext.errors import UserError
from trl_ext.monitor.alert_book import AlertBook
from trl_ext.monitor.alerts import Alert, Severity
from trl_ext.monitor.names import unknown_name
from trl_ext.monitor.presets import resolve_preset
from trl_ext.monitor.rows import Layout, Row, read_row
from trl_ext.monitor.rules import RULES, Finding, Rule, Verdict
from trl_ext.monitor.rules.base import plain
from trl_ext.monitor.rules.custom import custom_rule, watched
from trl_ext.monitor.rules.reward_series import RewardSeries
from trl_ext.monitor.thresholds import resolve_thresholds

logger = logging.getLogger(__name__)


_KEY_SETS = 256  # sets of logged keys for which the rules that read them are remembered
_START = 20  # logs after which rules that judge the start of a run are not asked any more
_PATIENCE = 4  # logs about which the patient rules are asked at once
_Asked = tuple[Rule, Callable[[Row], Finding | Verdict], str]


class _Readers(NamedTuple):
    """Of one set of keys: the rules that read it, and whether it is a log of training."""

    urgent: list[_Asked]
    patient: list[_Asked]
    counts: bool


class Engine:
    """The rules over one run.

    Args:
        rules: names or `Rule` instances; by default those of `preset`, or all.
        thresholds: changes to the defaults (or to those of `preset`), see `thresholds.resolve_thresholds`.
        preset: `"ppo_safe"`, `"grpo_safe"`, `"dpo_safe"` or `"sft_safe"`, see `presets.py`.
        watch: metrics of the user to judge by robust z-score, see `rules.custom.watched`.
        custom_rules: functions or declarative rules of the user, see `rules.custom.custom_rule`.
        facts: what is known of the run besides its logs, under the names of the trainer's options (`max_steps`,
            `learning_rate`, `beta`, ...). A rule that needs a fact it does not have stays quiet.
        warmup_steps: logs during which rules that judge against the run's own history stay quiet (they learn).
        window: logs a rolling statistic remembers.
        max_alerts: beyond this many (more than there are rules) the oldest closed one is forgotten: constant memory.
    Raises:
        UserError: an unknown name (the message has the nearest), or a number that makes no sense.

    Attributes:
        row: the latest log as the rules saw it.
    """

    def __init__(
        self,
        rules: Iterable[str | Rule] | None = None,
        thresholds: Mapping[str, Any] | None = None,
        *,
        preset: str | None = None,
        watch: Mapping[str, Any] | None = None,
        custom_rules: Iterable[Any] | None = None,
        facts: Mapping[str, Any] | None = None,
        warmup_steps: int = 10,
        window: int = 64,
        max_alerts: int = 1000,
    ):
        for name, number, least in (("window", window, 8), ("warmup_steps", warmup_steps, 0)):
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise UserError(f"{name} must be a whole number of at least {least}, not {number!r}")
        preset_rules, preset_thresholds = resolve_preset(preset)
        limits = resolve_thresholds(preset_thresholds, thresholds)
        chosen = preset_rules if rules is None else [rules] if isinstance(rules, str) else rules
        own = [*watched(watch or {}, window), *map(custom_rule, custom_rules or ())]
        self._rules: dict[str, Rule] = {}
        self.facts: dict[str, Any] = {}
        self._shared: dict[str, RewardSeries] = {}
        for rule in [*chosen, *own]:
            instance = rule if isinstance(rule, Rule) else _build(rule, limits, window)
            if instance.name in self._rules and instance.name == "<lambda>":
                instance.name = f"<lambda> {len(self._rules)}"  # type: ignore[misc]
            if instance.name in self._rules:
                raise UserError(f"two rules are named {instance.name!r}: rename one")
            instance.facts = self.facts
            instance.shared = self._shared
            self._rules[instance.name] = instance
        self.set_facts(facts or {})
        self._warmup_steps, self._window = warmup_steps, window
        self._book = AlertBook(list(self._rules), max_alerts)
        self._logs = 0
        self._disabled: set[str] = set()
        self._readers: dict[Layout, _Readers] = {}
        self._seen: set[str] = set()
        self._waiting: list[tuple[Row, int, list[_Asked]]] = []  # logs about which the patient rules will be asked
        self._untold: list[Alert] = []  # news that no caller has heard yet
        self.row: Row | None = None

    def adopt(self, alert: Alert) -> Alert | None:
        """Opens an alert that another process of the run found, or raises an open one; None where that is no news."""
        return self._book.adopt(alert)

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """More facts, or newer ones."""
        self.facts.update(facts)

    def resumed(self) -> None:
        """Says that the next log is the first one after the run was resumed."""
        self._untold += self._judge_waiting()
        for rule in self._rules.values():
            rule.resumed()

    @property
    def alerts(self) -> list[Alert]:
        """Oldest first; open ones have `closed is None`. Asks the patient rules first."""
        self._untold += self._judge_waiting()
        return self._book.to_list()

    @property
    def open_alerts(self) -> list[Alert]:
        """As of now, without asking anybody."""
        return list(self._book.open.values())

    @property
    def severity(self) -> Severity | None:
        """The worst verdict on the latest log itself, `None` when nothing is wrong now."""
        return self._book.severity

    def observe(self, step: int, logs: Mapping[str, Any]) -> list[Alert]:
        """Judges one log, without changing it. Returns the alerts that opened, rose in severity or closed, those of
        patient rules up to three logs late."""
        self._book.severity = None
        self.row = row = read_row(step, logs)
        readers = self._readers.get(row.layout) or self._find_readers(row.layout)
        self._logs += readers.counts
        if self._logs == _START and readers.counts:
            self._readers.clear()  # those of the start have had their say
        changed = self._judge(readers.urgent, row, self._logs)
        self._waiting.append((row, self._logs, readers.patient))
        if len(self._waiting) >= _PATIENCE:
            changed += self._judge_waiting()
        if self._untold:
            changed, self._untold = self._untold + changed, []
        return changed

    def flush(self) -> list[Alert]:
        """Asks the patient rules about the logs that still wait; before a checkpoint, and at the end. As `observe`."""
        news, self._untold = self._untold + self._judge_waiting(), []
        return news

    def _judge_waiting(self) -> list[Alert]:
        waiting, self._waiting = self._waiting, []
        # copies: what opens and closes within these logs is news twice
        return [
            replace(alert, evidence=dict(alert.evidence))
            for row, logs, rules in waiting
            for alert in self._judge(rules, row, logs)
        ]

    def _judge(self, rules: list[_Asked], row: Row, logs: int) -> list[Alert]:
        """What `rules` say of a row, which is the training log number `logs`."""
        warming_up = logs <= self._warmup_steps
        healthy, no_data, opened, disabled = Verdict.HEALTHY, Verdict.NO_DATA, self._book.open, self._disabled
        changed = []
        for rule, check, name in rules:
            if disabled and name in disabled:
                continue
            try:
                verdict = check(row)
                if verdict is not no_data and verdict is not healthy and not isinstance(verdict, Finding):
                    raise TypeError(f"check must return a Finding or a Verdict, not {verdict!r}")
            except Exception:
                self._disable(name)
                continue
            if verdict is no_data or (verdict is healthy and not (opened and name in opened)):
                continue
            if warming_up and rule.statistical:
                continue
            alert = self._book.apply(rule, row.step, logs, verdict)
            if alert is not None:
                changed.append(alert)
        return changed

    def finish(self) -> list[str]:
        """Notes for the end of a run: metrics that the user named and that never arrived, rules that failed."""
        self._untold += self._judge_waiting()
        unseen = {rule.name: name for rule in self._rules.values() if (name := rule.unseen()) is not None}
        keys = ", ".join(sorted(self._seen)) or "none"
        return [
            *(f"{rule}: {name!r} was never logged. The keys that were: {keys}" for rule, name in unseen.items()),
            *(
                f"{rule}: failed and was off from then on; its traceback is in the log"
                for rule in sorted(self._disabled)
            ),
        ]

    def _find_readers(self, layout: Layout) -> _Readers:
        """The rules that read these keys, and whether they make a log of training. Remembered, since a trainer logs the
        same few sets thousands of times."""
        names = {name for name in layout.names if name is not None}
        if len(self._readers) >= _KEY_SETS:
            self._readers.clear()
        if len(self._seen) < _KEY_SETS:
            self._seen.update(key for key in layout.keys if isinstance(key, str))
        over = {name for name, rule in self._rules.items() if rule.at_start and self._logs >= _START}
        skipped = self._disabled | (over - set(self._book.open))
        active = [rule for name, rule in self._rules.items() if name not in skipped]
        active = [rule for rule in active if names.isdisjoint(rule.useless_with)]
        rules = [rule for rule in active if not rule.metrics or any(_among(m, names) for m in rule.metrics)]
        asked: list[_Asked] = [(rule, rule.check, rule.name) for rule in rules]
        self._readers[layout] = readers = _Readers(
            urgent=[one for one in asked if not one[0].patient],
            patient=[one for one in asked if one[0].patient],
            counts=bool(names - {"epoch"}) and not any(name.startswith("eval/") for name in names),
        )
        return readers

    def _disable(self, name: str) -> None:
        self._disabled.add(name)
        self._readers.clear()
        logger.exception("Rule %s failed and is off for the rest of this run; training goes on.", name)

    def state_dict(self) -> dict[str, Any]:
        """JSON (an alert's value may be NaN: write it with `to_strict_json`). Asks the patient rules first."""
        self._untold += self._judge_waiting()
        return {
            "logs": self._logs,
            **self._book.state_dict(),
            "rules": {name: state for name, rule in self._rules.items() if (state := self._state(rule)) is not None},
            "shared": {name: series.state_dict() for name, series in self._shared.items()},
        }

    def _state(self, rule: Rule) -> dict[str, Any] | None:
        """Of a user's rule, as JSON can hold it; `None` where it has none to give."""
        if rule.name in RULES:
            return rule.state_dict()
        try:
            return plain(rule.state_dict())
        except Exception:
            self._disable(rule.name)
            return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A rule whose state does not fit (its options changed meanwhile) starts afresh, and the log says so."""
        self._logs = int(state["logs"])
        self._book.load_state_dict(state)
        self._waiting, self._untold = [], []
        self._readers.clear()
        self._shared.clear()
        for name, series in state.get("shared", {}).items():
            self._shared[name] = RewardSeries(self._window)
            self._shared[name].load_state_dict(series)
        for name, rule in self._rules.items():
            if name not in state["rules"]:
                continue
            fresh = self._state(rule)
            if fresh is None:
                continue
            try:
                rule.load_state_dict(state["rules"][name])
            except Exception:  # whatever a rule of the user raises
                rule.load_state_dict(fresh)
                logger.warning("The stored state of rule %s does not fit; it starts afresh.", name)


def _build(name: str, limits: Mapping[str, Mapping[str, float]], window: int) -> Rule:
    if not isinstance(name, str) or name not in RULES:
        raise unknown_name("rule", name, RULES)
    return RULES[name](limits.get(name, {}), window)


def _among(metric: str, names: set[str]) -> bool:
    return any(name.startswith(metric[:-1]) for name in names) if metric.endswith("*") else metric in names
