"""The arguments of a monitor, checked."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from inspect import signature
from pathlib import Path
from typing import Any

from trl_ext.callbacks._threshold_file import read_thresholds
from trl_ext.errors import UserError
from trl_ext.monitor.alerts import Alert
from trl_ext.monitor.engine import Engine
from trl_ext.monitor.names import unknown_name
from trl_ext.monitor.replay import REPLAYABLE


@dataclass
class MonitorOptions:
    """As in `MonitoringCallback`, in its order. `rules` and `custom_rules` become lists, `thresholds` a dictionary."""

    output_dir: Any
    rules: Any
    thresholds: Any
    preset: str | None
    watch: Mapping[str, Any] | None
    custom_rules: Any
    on_critical: str
    on_alert: Callable[[Alert], Any] | None
    window: int
    warmup_steps: int
    log_system_metrics: bool
    history_size: int

    def __post_init__(self) -> None:
        if self.on_critical not in ("warn", "stop"):
            raise unknown_name("on_critical", self.on_critical, ("warn", "stop"))
        if self.on_alert is not None and not callable(self.on_alert):
            raise UserError(f"on_alert must be a function that takes an Alert, not {self.on_alert!r}")
        if self.output_dir is not None and not isinstance(self.output_dir, str | os.PathLike):
            raise UserError(f"output_dir must be a path, not {self.output_dir!r}")
        if isinstance(self.history_size, bool) or not isinstance(self.history_size, int) or self.history_size < 1:
            raise UserError(f"history_size must be a whole number of at least 1, not {self.history_size!r}")
        if not isinstance(self.log_system_metrics, bool):
            raise UserError(f"log_system_metrics must be True or False, not {self.log_system_metrics!r}")
        self.output_dir = None if self.output_dir is None else Path(self.output_dir)
        self.rules = _as_list("rules", self.rules)
        self.thresholds = read_thresholds(self.thresholds)
        if isinstance(self.custom_rules, str | os.PathLike):
            from trl_ext.callbacks._rule_file import read_rules  # jsonschema, for those who have such a file

            self.custom_rules = read_rules(self.custom_rules)
        self.custom_rules = _as_list("custom_rules", self.custom_rules)

    def engine(self, facts: Mapping[str, Any]) -> Engine:
        """A new engine."""
        return Engine(
            self.rules, self.thresholds, preset=self.preset, watch=self.watch,
            custom_rules=self.custom_rules, facts=facts, warmup_steps=self.warmup_steps, window=self.window,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Those that JSON can hold, as keyword arguments."""
        options = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "on_alert"}
        options["output_dir"] = None if self.output_dir is None else str(self.output_dir)
        if self.rules is not None:
            options["rules"] = [rule for rule in self.rules if isinstance(rule, str)]
        if self.custom_rules is not None:
            options["custom_rules"] = [dict(rule) for rule in self.custom_rules if isinstance(rule, Mapping)]
        options["watch"] = None if self.watch is None else dict(self.watch)
        return options

    def replayable(self) -> dict[str, Any]:
        """What `trl-ext replay` needs to judge alike: the keyword arguments of `Engine` that JSON can hold, without
        those at their default, and under `not_stored` the names of the rules that it cannot hold."""
        defaults = {parameter.name: parameter.default for parameter in signature(Engine).parameters.values()}
        options = {name: value for name, value in self.to_json().items() if name in REPLAYABLE}
        functions = [rule for rule in self.custom_rules or () if not isinstance(rule, Mapping)]
        named = [rule.name for rule in self.rules or () if not isinstance(rule, str)]
        named += [getattr(rule, "name", None) or getattr(rule, "__name__", type(rule).__name__) for rule in functions]
        changed = {name: value for name, value in options.items() if value not in (defaults[name], {})}
        return {**changed, **({"not_stored": named} if named else {})}


def _as_list(name: str, value: Any) -> list[Any] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise UserError(f"{name} must be a list, not {value!r}")
    return list(value)
