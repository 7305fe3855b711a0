"""Losses on given text: SFT, reward models, and the loss of preference pairs."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Layout, Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.rules.reward_components import Functions
from trl_ext.monitor.rules.warmup import AfterWarmup
from trl_ext.monitor.statistics import Blocks, Largest, Noise, Recent, Start, Statistic, Streak, Window

OTHER_LOSSES = ("reward", "kl_per_sequence", "policy_loss")  # where one is logged, the loss is no measure of progress


class NoSupervisedTokens(Rule):
    """Every label is masked.

    Sees: SFT's loss, token accuracy and entropy, all exactly 0 (or the loss alone for ten logs where no other is
    logged: older Transformers rounds to four digits).
    Matters: there is nothing to learn from; the run ends with the model it began with.
    Source: TRL_FACTS. Default: two logs, an error.
    """

    name = "no_supervised_tokens"
    metrics = ("loss",)
    useless_with = OTHER_LOSSES
    explained_by = ("nonfinite_metric",)

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._streak = Streak()

    def check(self, row: Row) -> Finding | Verdict:
        loss = row.metrics.get("loss")
        if loss is None or "rewards/chosen" in row.metrics:
            return Verdict.NO_DATA
        others = [row.metrics[m] for m in ("token_accuracy", "entropy_per_token") if m in row.metrics]
        streak = self._streak.push(loss == 0 and not any(others))
        if streak < self.limits["logs" if others else "loss_only_logs"]:
            return Verdict.NO_DATA if streak else Verdict.HEALTHY
        return Finding(
            Severity.ERROR, "loss", loss,
            f"loss{' and token accuracy are' if others else ' is'} exactly 0 for {streak} logs: all labels are masked",
            "1. The response template or the assistant mask matches nothing: assistant_only_loss=True needs a chat "
            "template with {% generation %}. 2. completion_only_loss=True with completions cut off by max_length. 3. "
            "pad_token equals eos_token and a collator masks both: look at the labels of one batch.",
        )  # fmt: skip


class LossDivergence(Rule):
    """The loss climbs far above where it began.

    Sees: the median of the last eight logs against the lowest median of sixteen that the run has had and against its
    start, on a log scale, where the noise of a loss is about the same at any level; it is taken as it was eight logs
    ago.
    Matters: the model is being destroyed, most often by the learning rate.
    Source: no published range, so factors of the run's own level. Default: half as much again as at its best, and three
    standard deviations of a log above that and above the start, for five logs a warning; three times as much an error.
    It closes near the best again. Losses below 0.2 nats are left alone.
    """

    name = "loss_divergence"
    patient = True
    metrics = ("loss",)
    useless_with = OTHER_LOSSES
    statistical = True
    explained_by = ("nonfinite_metric", "preference_magnitude", "early_divergence")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._start, self._recent, self._longer = Start(int(limits["start_logs"])), Window(8), Window(16)
        self._noise, self._noises = Noise(4 * window), Recent(8)
        self._best = Largest(-math.inf)  # the lowest level, negated
        self._levels = Levels(dict.fromkeys((Severity.WARNING, Severity.ERROR), limits["logs"]))

    def check(self, row: Row) -> Finding | Verdict:
        loss = row.metrics.get("loss")
        if loss is None:
            return Verdict.NO_DATA
        height = math.log(max(loss, self.limits["smallest"]))
        for statistic in (self._start, self._recent, self._longer, self._noise):
            statistic.push(height)
        self._noises.push(self._noise.value)
        start = self._start.level
        if start is None:
            return Verdict.NO_DATA
        self._best.push(-self._longer.median())
        level, best = self._recent.median(), -self._best.value
        noise = max(self._noises.values()[0], self.limits["smallest_noise"])
        above = level - max(best, start) > self.limits["deviations"] * noise
        growth = math.exp(level - best)
        verdict = self._levels.push(*(above and growth > self.limits[f"{s}_growth"] for s in ("warning", "error")))
        if isinstance(verdict, Verdict):
            near = growth < (1 + self.limits["warning_growth"]) / 2
            return verdict if near else Verdict.NO_DATA
        return Finding(
            verdict, "loss", loss,
            f"loss rose to {math.exp(level):.3g} (median of 8 logs) from {math.exp(best):.3g} at its best, "
            f"{math.exp(start):.3g} at the start",
            "1. learning_rate is too high: a tenth of it, from the last good checkpoint. 2. No warm-up: set "
            "warmup_steps. 3. The data changed on the way (another file, broken rows). 4. fp16 overflows: use "
            "bf16=True.",
            {"best": math.exp(best), "start": math.exp(start), "noise": noise},
        )  # fmt: skip


class _Evaluations(Statistic):
    """Of one evaluation set: the lowest loss, the training loss of that time, and how often in a row it was
    exceeded."""

    def __init__(self) -> None:
        self.best = math.inf
        self.train: float | None = None
        self.rises = 0

    def push(self, loss: float, train: float | None, rise: float) -> int:
        if loss < self.best:
            self.best, self.train = loss, train
        fell = train is not None and self.train is not None and train < self.train
        self.rises = self.rises + 1 if fell and loss > (1 + rise) * self.best > 0 else 0
        return self.rises

    def state_dict(self) -> dict[str, Any]:
        return {"best": None if self.best == math.inf else self.best, "train": self.train, "rises": self.rises}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = math.inf if state["best"] is None else state["best"]
        self.train, self.rises = state["train"], int(state["rises"])


@lru_cache(maxsize=256)
def evaluation_losses(layout: Layout) -> tuple[str, ...]:
    """The losses of evaluation sets in a log that has none of training, where the loss is a measure of progress."""
    names = [name for name in layout.names if name is not None]
    if "loss" in names or any(n.startswith("eval/") and n.endswith("/reward") for n in names):
        return ()
    return tuple(n for n in names if n.startswith("eval/") and n.endswith("/loss"))


class Overfitting(Rule):
    """What was seen is learnt by heart, what was not gets worse.

    Sees: (1) the loss of an evaluation set above its minimum by 5% in two evaluations in a row, while the training loss
    is below what it was at that minimum; (2) from the third epoch on, for five logs, a training loss below a tenth of a
    nat, a fifth of its start, and half of what it was at the end of the first epoch, on new text (an easy task
    is low by then).
    Matters: the best checkpoint is behind; from here on the model gets worse where it counts.
    Source: two public logs (SFT over six epochs; DPO on noise). Default: warning.
    """

    name = "overfitting"
    patient = True
    metrics = ("loss", "eval/*")
    useless_with = OTHER_LOSSES
    explained_by = ("nonfinite_metric", "loss_divergence", "early_divergence", "no_supervised_tokens")
    close_after = 10

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._start, self._recent = Start(int(limits["start_logs"])), Window(8)
        self._once = Window(8)  # losses of the first epoch: text seen for the first time
        self._evaluations = Functions(_Evaluations)
        self._small = Streak()

    def check(self, row: Row) -> Finding | Verdict:
        if evaluations := evaluation_losses(row.layout):
            return self._evaluated(row, evaluations)
        loss = row.metrics.get("loss")
        if loss is None:
            return Verdict.NO_DATA
        self._start.push(loss)
        self._recent.push(loss)
        start = self._start.level
        if start is None or "rewards/chosen" in row.metrics:
            return Verdict.NO_DATA
        epoch = row.metrics.get("epoch", 0.0)
        if epoch <= 1:
            self._once.push(loss)
        seen_once = self._once.median() if len(self._once) else start
        low = 0 < loss < min(self.limits["loss"], self.limits["start_share"] * start, seen_once / 2)
        small = low and epoch > self.limits["epochs"]
        if self._small.push(small) < self.limits["logs"]:
            return Verdict.NO_DATA
        return Finding(
            Severity.WARNING, "loss", loss,
            f"training loss is {loss:.3g} in epoch {epoch:.2g}, {start:.3g} at the start: the data is being memorised",
            "1. Fewer epochs: num_train_epochs=1 or 2. 2. More or more varied data. 3. Less capacity: LoRA, or a "
            "smaller lora_r; weight_decay. Without an evaluation set (eval_strategy='steps') you cannot see the "
            "damage.",
            {"epoch": epoch},
        )  # fmt: skip

    def _evaluated(self, row: Row, names: tuple[str, ...]) -> Finding | Verdict:
        train = self._recent.median() if len(self._recent) else None
        verdict: Finding | Verdict = Verdict.HEALTHY
        for name in names:
            evaluations, loss = self._evaluations.get(name), row.metrics.get(name)
            if evaluations is None or loss is None:
                continue
            rises = evaluations.push(loss, train, self.limits["rise"])
            if rises >= self.limits["evaluations"] and not isinstance(verdict, Finding):
                verdict = self._rose(name, loss, train, evaluations)
            elif rises and verdict is Verdict.HEALTHY:
                verdict = Verdict.NO_DATA
        return verdict

    def _rose(self, name: str, loss: float, train: float | None, evaluations: _Evaluations) -> Finding:
        of = "" if name == "eval/loss" else f" ({name})"
        return Finding(
            Severity.WARNING, name, loss,
            f"evaluation loss{of} rose to {loss:.4g} from {evaluations.best:.4g} at its best, while the training loss "
            f"fell from {evaluations.train:.4g} to {train:.4g}",
            "1. Take the checkpoint of the minimum: BestCheckpointCallback or load_best_model_at_end=True. 2. Fewer "
            "epochs, a lower learning_rate. 3. More data; LoRA instead of full weights.",
            {"best": evaluations.best},
        )  # fmt: skip


class LossFlat(Rule):
    """The training loss shows no downward trend over a long stretch of the run.

    Sees: the means of up to 32 blocks of the whole run, since the learning rate stopped rising: Theil-Sen's line and
    the Mann-Kendall test, as `reward_flat`. Losses below 0.2 nats are left alone: there is little left to fall.
    Matters: nothing is being learnt; an optimizer that does not hold the weights looks just like that.
    Source: Mann 1945, Sen 1968. Default: at least 48 logs, and no fall at two standard deviations. An `info`, since a
    model that already knows the data looks the same.
    """

    name = "loss_flat"
    patient = True
    metrics = ("loss",)
    useless_with = OTHER_LOSSES
    statistical = True
    explained_by = (
        "nonfinite_metric",
        "frozen_policy",
        "loss_divergence",
        "early_divergence",
        "no_supervised_tokens",
        "preference_identical",
        "preference_no_movement",
        "preference_magnitude",
        "preference_chance",
    )

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._blocks = Blocks(32)
        self._judged = Largest()  # logs there were when it was last judged
        self._count = AfterWarmup()

    def check(self, row: Row) -> Finding | Verdict:
        loss = row.metrics.get("loss")
        if loss is None or self._count.push(row) == 0:
            return Verdict.NO_DATA
        self._blocks.push(loss)
        logs = len(self._blocks)
        if logs < self.limits["logs"] or logs < self._judged.value + self.limits["every"]:
            return Verdict.NO_DATA
        self._judged.push(logs)
        gain, z = self._blocks.trend()
        level = self._blocks.means[-1]
        if z < -self.limits["min_z"] or level < self.limits["smallest"]:
            return Verdict.HEALTHY
        return Finding(
            Severity.INFO, "loss", loss,
            f"loss shows no downward trend over {logs} logs: {gain:+.2g} in all, {z:+.1f} standard deviations of the "
            f"Mann-Kendall test, around {level:.3g}",
            "1. learning_rate is too low, or so high that nothing holds: try a tenth and ten times. 2. The optimizer "
            "does not hold the trainable weights: compare one before and after a step. 3. The labels say nothing: "
            "read one tokenized batch. 4. The model knows the data already: look at its answers.",
            {"gain": gain, "z": z},
        )  # fmt: skip
