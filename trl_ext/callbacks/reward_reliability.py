"""Watches the rewards themselves: dead, dominated, inconsistent, gamed, or parting from the truth."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from trl_ext.callbacks._alert_log import log_alert
from trl_ext.callbacks._checkpoint_state import KeptInTrainerState, keep_one
from trl_ext.callbacks._frames import calling_handler, calling_trainer
from trl_ext.callbacks._guard import never_raises
from trl_ext.callbacks._monitored import MonitoredTraining
from trl_ext.callbacks._order import move_before_reporting
from trl_ext.callbacks._reward_evidence import (
    RewardAlerts,
    RewardFiles,
    monitors_of,
    session_of,
    show_samples,
    told_by,
)
from trl_ext.callbacks._reward_failures import checked_rewards, keep_failures
from trl_ext.callbacks._reward_source import StockRewards, TRLRewards, reward_source, undisturbed
from trl_ext.callbacks._run import is_training_log
from trl_ext.callbacks._slots import own_folder
from trl_ext.callbacks._trackers import Trackers
from trl_ext.errors import UserError
from trl_ext.monitor.alerts import Alert
from trl_ext.rewards.calls import Call, ask
from trl_ext.rewards.checking import CheckedReward
from trl_ext.rewards.loading import Spec, load_reward_funcs
from trl_ext.rewards.reliability import ReliabilityReport, RewardReliability
from trl_ext.rewards.reliability.duplicates import LEAST
from trl_ext.rewards.reliability.probe_set import ProbeSet, read_probe_set
from trl_ext.rewards.reliability.probes import probe

logger = logging.getLogger("trl_ext.rewards")


class RewardReliabilityCallback(KeptInTrainerState, TrainerCallback, ExportableState):
    """Judges the reward functions of a run while it trains; works on GRPO, RLOO, our trainers, and on stock PPO with
    `as_reward_model`.

    Looks at a window of completions every `evaluate_every` steps, and every `rescore_every` steps has a few scored
    again (unchanged, one by one, in another order, slightly edited, without their reasoning). What is wrong is said in
    the log, in `alerts.jsonl` and to `on_alert`; the score and its parts are logged as `reward_reliability/...`; the
    latest report is in `reward_reliability.json`, the best, worst and most suspicious completions in
    `reward_samples.jsonl` and in a table of the trackers. The main process alone looks, at its own completions.

    Args:
        gold_reward: a measure of the truth that is not trained on, as a function or as `load_reward_funcs` takes it;
            asked in the main process about `gold_samples` completions every `gold_every` steps.
        probe_set: completions whose worth is known, to be ranked by the reward every `rescore_every` steps: a JSON
            Lines file or a list of `{"prompt", "completion", "score", ...}`; further keys are columns.
        window: completions that are looked at.
        evaluate_every: steps between two looks, each of which takes about two milliseconds; the first ones come sooner.
        rescore_every: steps between two rounds of scoring again; 0 for none.
        num_probes: completions scored again, about 7 times each.
        num_samples: completions of each kind that are kept as evidence.
        output_dir: folder of the files; `<args.output_dir>/trl_ext` by default.
        on_alert: called with each `Alert` that opened, rose in severity or closed, in the main process.
    Raises:
        UserError: a value that makes no sense; a gold reward or a probe set that cannot be loaded.
    """

    def __init__(
        self,
        *,
        gold_reward: Spec | Callable | None = None,
        gold_every: int = 10,
        gold_samples: int = 32,
        probe_set: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None = None,
        window: int = 1000,
        evaluate_every: int = 20,
        rescore_every: int = 50,
        num_probes: int = 8,
        num_samples: int = 3,
        output_dir: str | os.PathLike[str] | None = None,
        on_alert: Callable[[Alert], Any] | None = None,
    ) -> None:
        for name, value, least in (
            ("gold_every", gold_every, 1), ("gold_samples", gold_samples, 8), ("evaluate_every", evaluate_every, 1),
            ("rescore_every", rescore_every, 0), ("num_probes", num_probes, 1), ("num_samples", num_samples, 0),
            ("window", window, LEAST),
        ):  # fmt: skip
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if on_alert is not None and not callable(on_alert):
            raise UserError(f"on_alert must be a function that takes an Alert, not {on_alert!r}")
        if output_dir is not None and not isinstance(output_dir, str | os.PathLike):
            raise UserError(f"output_dir must be a path, not {output_dir!r}")
        self._numbers = {
            "gold_every": gold_every, "gold_samples": gold_samples, "window": window, "evaluate_every": evaluate_every,
            "rescore_every": rescore_every, "num_probes": num_probes, "num_samples": num_samples,
        }  # fmt: skip
        self._gold = None if gold_reward is None else _gold_function(gold_reward)
        self._probe_set: ProbeSet | None = None if probe_set is None else read_probe_set(probe_set)
        self._output_dir = None if output_dir is None else Path(output_dir)
        self._on_alert = on_alert
        self._source: TRLRewards | StockRewards | None = None
        self._reliability: RewardReliability | None = None
        self._files: RewardFiles | None = None
        self._alerts = RewardAlerts()
        self._handler: Any = None
        self._trackers = Trackers()
        self._state: TrainerState | None = None
        self._main = False
        self._due: dict[str, int] = {}
        self._latest: dict[str, float] = {}
        self._report: ReliabilityReport | None = None

    @property
    def alerts(self) -> list[Alert]:
        """All alerts so far as they are now, oldest first; an open one has `closed is None`."""
        return self._alerts.alerts

    @property
    def report(self) -> ReliabilityReport | None:
        """The latest one, `None` before the first and in processes other than the main one."""
        return self._report

    @never_raises
    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        trainer = calling_trainer(self)
        self._detach()
        self._source = reward_source(trainer)
        if self._source is None:
            logger.warning(
                "RewardReliabilityCallback hears no rewards: %s has no reward_funcs that it knows how to hear "
                "(GRPO, RLOO, trl_ext's trainers, stock PPO with as_reward_model).", type(trainer).__name__
            )  # fmt: skip
            return
        self._handler = calling_handler(self)
        folder = self._folder(args)
        keep_failures([*checked_rewards(trainer), *([self._gold] if self._gold is not None else [])], folder)
        self._reliability = RewardReliability(self._source.names, self._source.weights, self._numbers["window"])
        self._alerts, self._latest, self._report = RewardAlerts(), {}, None
        self._state, self._main = state, bool(state.is_world_process_zero)
        # the first look comes as soon as there is something to look at, the first probes with the first batch
        self._due = {"evaluate": 1, "gold": 0, "rescore": 0}
        self._resume(state)
        keep_one(state, type(self).__name__, self.state())
        move_before_reporting(self, MonitoredTraining)  # whose metrics.jsonl then has the score, too
        if self._main:
            self._files = RewardFiles(folder, session_of(monitors_of(self._handler)))
            self._trackers = Trackers(self._handler.callbacks if self._handler is not None else ())
        self._source.attach(self._hear)

    def _folder(self, args: TrainingArguments) -> Path:
        """`trl_ext-2` for the second of two such callbacks that would write to one place."""
        wanted = self._output_dir or Path(str(args.output_dir)) / "trl_ext"
        all_of_them = self._handler.callbacks if self._handler is not None else [self]
        same = [other for other in all_of_them if isinstance(other, RewardReliabilityCallback)]
        taken = [other._files.folder for other in same if other is not self and other._files is not None]
        return own_folder(wanted, len(taken) + 1, taken)

    @never_raises
    def _hear(self, call: Call, rewards: np.ndarray) -> None:
        """One batch of training. Whatever asks the functions again must do so in every process alike."""
        source, reliability, state = self._source, self._reliability, self._state
        if source is None or reliability is None or state is None:
            return
        step = state.global_step + 1
        urgent = False
        if self._main:
            reliability.observe(step, call.prompts, call.completions, rewards)
            if self._gold is not None and self._is_due("gold", "gold_every", step):
                urgent = self._ask_gold(source, reliability, step, call, rewards)
        rescored = self._numbers["rescore_every"] > 0 and self._is_due("rescore", "rescore_every", step)
        if rescored and source.can_score:
            self._rescore(source, reliability, call, rewards)
        if self._main and len(reliability.window) >= LEAST:
            due = self._is_due("evaluate", "evaluate_every", step)
            if due or rescored or urgent:
                self._look(reliability, with_evidence=rescored)

    def _is_due(self, what: str, every: str, step: int) -> bool:
        if step < self._due[what]:
            return False
        # looks come sooner at the start, at steps 1, 5, 10 and 20: most faults of rewards are there from the beginning
        sooner = max(step, 4) if what == "evaluate" else self._numbers[every]
        self._due[what] = step + min(self._numbers[every], sooner)
        return True

    def _ask_gold(
        self, source: TRLRewards | StockRewards, reliability: RewardReliability, step: int, call: Call,
        rewards: np.ndarray,
    ) -> bool:  # fmt: skip
        """Whether the two rewards have parted, which is not to wait for the next look."""
        assert self._gold is not None
        rows = list(range(min(len(call.completions), self._numbers["gold_samples"])))
        asked = call.take(rows)
        with undisturbed():
            given = ask(self._gold, asked._replace(others={**source.columns(asked), "trainer_state": self._state}))
        reliability.observe_gold(step, asked.prompts, asked.completions, rewards[rows], np.array(given, dtype=float))
        if reliability.gold.level is not None:
            self._latest["reward_reliability/gold"] = reliability.gold.level
        trend = reliability.gold.trend()
        told = any(alert.rule == "reward_hacking_suspected" and alert.closed is None for alert in self._alerts.alerts)
        return trend is not None and trend.parted() and not told

    def _rescore(
        self, source: TRLRewards | StockRewards, reliability: RewardReliability, call: Call, rewards: np.ndarray
    ) -> None:
        rows = list(range(min(len(call.completions), self._numbers["num_probes"])))
        with undisturbed():
            reliability.observe_probes(probe(call.take(rows), reliability.window.weights, source.score, rewards[rows]))
            if self._probe_set is not None:
                reliability.observe_probe_set(self._probe_set.score(source.score), self._probe_set.truth)

    def _look(self, reliability: RewardReliability, with_evidence: bool) -> None:
        self._report = report = reliability.report(samples=0)
        known = {f"reward_reliability/{name}": value for name, value in report.parts.items() if value is not None}
        if report.score is not None:
            self._latest |= {"reward_reliability/score": report.score, **known}
        for name in ("distinct", "correlation/length", "correlation/repetition"):
            if name in report.measures:
                self._latest[f"reward_reliability/{name}"] = report.measures[name]
        reliability.forget_infinities()
        news = self._alerts.judge(report, told_by(monitors_of(self._handler)))
        for alert in news:
            self._tell(alert)
        serious = any(alert.closed is None and alert.severity >= "warning" for alert in news)
        if with_evidence or serious:
            self._write(reliability, report)

    def _tell(self, alert: Alert) -> None:
        if self._files is not None:
            self._files.alert(alert)
        log_alert(logger, alert)
        self._trackers.alert(alert)
        self._notify(alert)

    @never_raises
    def _notify(self, alert: Alert) -> None:
        """What the user's function does must not keep the other alerts from being told."""
        if self._on_alert is not None:
            self._on_alert(alert)

    @never_raises
    def _write(self, reliability: RewardReliability, report: ReliabilityReport) -> None:
        report.samples = reliability.samples(self._numbers["num_samples"])
        if self._files is not None:
            self._files.report(report)
            show_samples(self._trackers, report)

    @never_raises
    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> None:
        if isinstance(logs, dict) and is_training_log(tuple(logs)):
            for name, value in self._latest.items():
                logs.setdefault(name, value)

    @never_raises
    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._reliability is not None and len(self._reliability.window) >= LEAST and self._main:
            self._look(self._reliability, with_evidence=True)
        self._detach()

    def _detach(self) -> None:
        if self._source is not None:
            self._source.detach()
        if self._files is not None:
            self._files.close()
            self._files = None

    def state(self) -> dict[str, Any]:
        """For `trainer_state.json`: the arguments that JSON can hold, and what a resumed run cannot learn anew."""
        known = self._reliability.state_dict() if self._reliability is not None else None
        return {"args": dict(self._numbers), "attributes": {"kept": known}}

    def _resume(self, state: TrainerState) -> None:
        stored = self.stored(state)
        if state.global_step > 0 and stored and self._reliability is not None:
            try:
                self._reliability.load_state_dict(stored)
            except (KeyError, TypeError, ValueError) as error:  # damaged, or of another version
                logger.warning(
                    "The stored state of RewardReliabilityCallback does not fit, it starts afresh: %r", error
                )


def _gold_function(gold_reward: Spec | Callable) -> CheckedReward:
    if isinstance(gold_reward, str | Mapping):
        (function,), _ = load_reward_funcs([gold_reward])
    elif callable(gold_reward):
        function = CheckedReward(gold_reward)
    else:
        raise UserError(f"gold_reward must be a function, or named as in reward_funcs, not {gold_reward!r}")
    if not isinstance(function, CheckedReward):
        raise UserError("gold_reward must be a function: name a model by its folder or hub id instead")
    return function
