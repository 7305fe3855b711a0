"""Preference pairs: DPO and its relatives."""

import math
from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.rules.warmup import AfterWarmup
from trl_ext.monitor.statistics import Blocks, Largest, Noise, Recent, Streak, Window

LN2 = math.log(2)
_OTHER_LOSSES = frozenset({"nll_loss", "log_odds_ratio", "log_odds_chosen", "kl_kto"})
_CAUSES = ("nonfinite_metric", "preference_labels_masked", "preference_identical")


class LabelsMasked(Rule):
    """No completion token enters the loss.

    Sees: `logps/chosen` and `logps/rejected` exactly 0, which the log-probability of any text is not.
    Matters: every pair ties, the loss is ln 2 for ever.
    Source: a public DPO log. Default: at once, an error.
    """

    name = "preference_labels_masked"
    metrics = ("logps/chosen",)

    def check(self, row: Row) -> Finding | Verdict:
        chosen, rejected = row.metrics.get("logps/chosen"), row.metrics.get("logps/rejected")
        if chosen is None or rejected is None:
            return Verdict.NO_DATA
        if chosen != 0 or rejected != 0:
            return Verdict.HEALTHY
        return Finding(
            Severity.ERROR, "logps/chosen", chosen,
            "log-probabilities of chosen and rejected are exactly 0: no completion token is left in the loss",
            "1. max_length leaves no room after the prompt: raise it, or shorten prompts. 2. The chat template puts "
            "the answer where the mask hides it: look at one tokenized example. 3. Completions are empty: check the "
            "columns chosen and rejected.",
        )  # fmt: skip


class IdenticalPairs(Rule):
    """Chosen and rejected are the same to the model, to the last digit.

    Sees: equal `logps/chosen` and `logps/rejected`, or a reward model's margin of exactly 0, three logs in a row.
    Matters: there is no difference to learn from, and the loss stays at ln 2.
    Source: pairs cut to the same text here; a batch of different texts never ties. Default: an error.
    """

    name = "preference_identical"
    metrics = ("logps/chosen", "margin")
    explained_by = ("nonfinite_metric", "preference_labels_masked")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._same = Streak()

    def check(self, row: Row) -> Finding | Verdict:
        m = row.metrics
        chosen = m.get("logps/chosen")
        if chosen is not None:
            same = chosen != 0 and chosen == m.get("logps/rejected") and m.get("rewards/margins", 0.0) == 0
            what = "log-probability"
        elif "mean_reward" in m and "margin" in m:
            same, what = m["margin"] == 0, "score"
        else:
            return Verdict.NO_DATA
        if self._same.push(same) < self.limits["logs"]:
            return Verdict.NO_DATA if same else Verdict.HEALTHY
        return Finding(
            Severity.ERROR, "margin" if chosen is None else "logps/chosen", 0.0 if chosen is None else chosen,
            f"chosen and rejected have exactly the same {what} for {self._same.count} logs: nothing differs",
            "1. The columns hold the same text, or are cut to the same by max_length: read one tokenized pair. 2. The "
            "difference is masked out of the loss (the prompt instead of the answer). 3. A reward model reads the "
            "score at a padding token: set pad_token_id in the model's config.",
        )  # fmt: skip


class LikelihoodDisplacement(Rule):
    """The likelihood of the chosen answers falls as well, only more slowly.

    Sees: `rewards/chosen` below -1, and the margin still positive, two logs in a row; worse, their log-probability a
    multiple of the reference's on the same answers (which follows from `beta`; where that is not known, of the lowest
    in the first three logs), four logs in a row.
    Matters: probability goes to answers that nobody chose; at several times the log-probability no text of use is left.
    Source: arXiv 2410.08847; eric-mitchell/direct-preference-optimization#36. Default: an `info`, since it is common in
    DPO and often harmless, never an error on the sign alone; at three times that log-probability a warning, at six an
    error.
    """

    name = "preference_displacement"
    metrics = ("rewards/chosen",)
    explained_by = (*_CAUSES, "preference_magnitude")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        worse = dict.fromkeys((Severity.WARNING, Severity.ERROR), limits["worse_logs"])
        self._levels = Levels({Severity.INFO: limits["logs"], **worse})
        self._logs, self._lowest = Streak(), Largest()

    def check(self, row: Row) -> Finding | Verdict:
        chosen, margin = row.metrics.get("rewards/chosen"), row.metrics.get("rewards/margins")
        if chosen is None or margin is None:
            return Verdict.NO_DATA
        log_probability, beta = row.metrics.get("logps/chosen", 0.0), self.facts.get("beta") or 0
        if self._logs.push(True) <= self.limits["first_logs"]:
            self._lowest.push(-log_probability)
        # of the reference on the very same answers; where beta is not known, of the longest among the first logs
        before = log_probability - chosen / beta if beta > 0 else -self._lowest.value
        first = before if before < 0 else -math.inf  # 0: no token counts, or it is not logged
        low, limits = chosen < -self.limits["reward"], self.limits
        verdict = self._levels.push(
            low and margin > 0,
            low and log_probability < limits["warning_times"] * first,
            low and log_probability < limits["error_times"] * first,
        )
        if isinstance(verdict, Verdict):
            return verdict
        if verdict is not Severity.INFO:
            return Finding(
                verdict, "logps/chosen", log_probability,
                f"the chosen answers have become improbable: log-probability {log_probability:.4g}, {first:.4g} at the "
                f"start (implicit reward {chosen:.3g}, margin {margin:+.3g})",
                "1. learning_rate is too high: DPO wants 5e-7 to 5e-6 for full weights, 1e-5 to 5e-5 for LoRA; start "
                "again from the model. 2. Add the likelihood of the chosen to the loss: loss_type=['sigmoid', 'sft']. "
                "3. Raise beta. Read generated answers before you keep this model.",
                {"margin": margin, "first": first},
            )  # fmt: skip
        return Finding(
            verdict, "rewards/chosen", chosen,
            f"chosen answers lose likelihood, too: implicit reward {chosen:.3g}, margin {margin:+.3g}",
            "Usual in DPO; read generated answers before you act. 1. Chosen and rejected are very alike: filter such "
            "pairs. 2. Add the likelihood of the chosen to the loss: loss_type=['sigmoid', 'sft']. 3. Raise beta, or "
            "lower learning_rate.",
            {"margin": margin},
        )  # fmt: skip


class PreferenceMagnitude(Rule):
    """The implicit rewards have moved, and the loss is worse than that of an untouched policy; or there is none left.

    Sees, any of: (1) over five logs a median of |rewards| above 3 and a mean loss above ln 2; (2) over ten logs a
    median above 0.3, a mean loss 15% above ln 2 and an accuracy below 0.6; (3) over ten logs a median margin above 20,
    where the loss is 0 to every digit and nothing holds the policy any more. Losses that are not DPO's (ORPO, CPO,
    several added up) are left alone: they log an `nll_loss` or odds, or lie above 3 ln 2 with small rewards.
    Matters: the policy is not where its reference is, and wrong on many pairs: updates too large, or another reference.
    Source: trl#1236 (rewards of 5 to 14, loss between 0 and 2.5); public logs that begin at a loss of 0.84 to 0.96.
    Default: a warning; an error when the rewards are large and the mean loss is above 4 ln 2.
    """

    name = "preference_magnitude"
    metrics = ("rewards/chosen",)
    explained_by = (*_CAUSES, "nonfinite_metric")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        logs, longer = int(limits["logs"]), int(limits["mismatch_logs"])
        self._losses, self._sizes = Window(logs), Window(logs)
        self._more_losses, self._more_sizes, self._accuracies = Recent(longer), Recent(longer), Recent(longer)
        self._margins = Recent(longer)

    def check(self, row: Row) -> Finding | Verdict:
        m = row.metrics
        if not {"loss", "rewards/chosen", "rewards/rejected"} <= m.keys() or not _OTHER_LOSSES.isdisjoint(m):
            return Verdict.NO_DATA
        size = max(abs(m["rewards/chosen"]), abs(m["rewards/rejected"]))
        for statistic, value in (
            (self._losses, m["loss"]), (self._more_losses, m["loss"]), (self._sizes, size), (self._more_sizes, size),
            (self._accuracies, m.get("rewards/accuracies", 0.0)), (self._margins, m.get("rewards/margins", 0.0)),
        ):  # fmt: skip
            statistic.push(value)
        if len(self._sizes) < self._sizes.size:
            return Verdict.NO_DATA
        size, loss = self._sizes.median(), self._losses.mean()
        if size > self.limits["reward"] and loss > LN2:
            error = loss > self.limits["error_loss"] * LN2
            return self._finding(Severity.ERROR if error else Severity.WARNING, m, size, loss, len(self._sizes))
        if len(self._more_sizes) < self._more_sizes.size:
            return Verdict.HEALTHY
        margin = self._margins.median()
        if margin > self.limits["margin"]:
            return self._nothing_left(m, margin)
        size, loss = self._more_sizes.median(), self._more_losses.mean()
        worse = self.limits["mismatch_loss"] * LN2 < loss < 3 * LN2
        if (
            worse
            and size > self.limits["mismatch_reward"]
            and self._accuracies.mean() < self.limits["mismatch_accuracy"]
        ):
            return self._finding(Severity.WARNING, m, size, loss, len(self._more_sizes))
        return Verdict.HEALTHY

    def _nothing_left(self, m: Mapping[str, float], margin: float) -> Finding:
        return Finding(
            Severity.WARNING, "rewards/margins", m["rewards/margins"],
            f"the margin is {margin:.3g} (median of {len(self._margins)} logs): the loss is {m['loss']:.2g}, all pairs "
            "are told apart for certain, and the policy only moves further from its reference",
            "Stop here, or earlier: evaluate an earlier checkpoint. 1. learning_rate is too high or num_train_epochs "
            "too many: DPO wants 5e-7 to 5e-6 for full weights, 1e-5 to 5e-5 for LoRA. 2. The pairs are too easy "
            "(length or format tells them apart). 3. Raise beta.",
            {"margin": margin},
        )  # fmt: skip

    def _finding(self, severity: Severity, m: Mapping[str, float], size: float, loss: float, logs: int) -> Finding:
        spread = self._losses.quantile(1) - self._losses.quantile(0)
        return Finding(
            severity, "rewards/chosen", m["rewards/chosen"],
            f"implicit rewards have a median size of {size:.3g} and the loss is worse than that of an untouched "
            f"policy: mean {loss:.3g} over {logs} logs (ln 2 = 0.693), lately varying by {spread:.3g}",
            "1. ref_model is not the policy's starting point (an adapter that was trained before, another "
            "checkpoint). 2. learning_rate is too high: DPO wants 5e-7 to 5e-6 for full weights, 1e-5 to 5e-5 for "
            "LoRA. 3. beta is too small: raise it. 4. The batch is tiny: raise gradient_accumulation_steps.",
            {"loss": loss, "size": size},
        )  # fmt: skip


class PreferenceNoMovement(Rule):
    """The pairs are not being told apart, long after the warm-up.

    Sees: at a learning rate above 0, every margin of the last eight logs below 0.001 after ten logs past the warm-up;
    or a median margin of the last `window` logs below 0.02 with a loss within 1% of ln 2 after 100 logs.
    Matters: the run looks calm and learns nothing.
    Source: DESIGN ("never moves"); healthy public logs are past 0.005 by then. Default: a warning.
    """

    name = "preference_no_movement"
    patient = True
    metrics = ("rewards/margins",)
    explained_by = (*_CAUSES, "frozen_policy")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._margins, self._losses = Window(window), Window(window)
        self._sizes = Recent(8)
        self._count = AfterWarmup()

    def check(self, row: Row) -> Finding | Verdict:
        m = row.metrics
        if "loss" not in m or "rewards/margins" not in m or m.get("learning_rate", 1.0) == 0:
            return Verdict.NO_DATA
        self._margins.push(m["rewards/margins"])
        self._losses.push(m["loss"])
        # ORPO and CPO have no reference, so that their rewards are small but never near 0
        self._sizes.push(max(abs(m["rewards/margins"]), abs(m.get("rewards/chosen", 0.0))))
        logs = self._count.push(row)
        if logs < self.limits["still_logs"] or len(self._sizes) < self._sizes.size:
            return Verdict.NO_DATA
        margin, loss = self._margins.median(), self._losses.median()
        slow = abs(margin) <= self.limits["margin"] and abs(loss - LN2) <= self.limits["loss_share"] * LN2
        still = max(self._sizes.values()) <= self.limits["still_margin"]
        if not (still or (slow and logs >= self.limits["logs"])):
            return Verdict.NO_DATA if slow else Verdict.HEALTHY
        return Finding(
            Severity.WARNING, "rewards/margins", m["rewards/margins"],
            f"{self._count.count} logs after the warm-up the margin is {margin:.2g} and the loss {loss:.4g}, still "
            "that of an untouched policy (ln 2 = 0.6931)",
            "1. learning_rate is too low (DPO's default of 1e-6 is for full weights; LoRA wants 10 times that). 2. "
            "beta is tiny. 3. Chosen and rejected are the same text, or cut to the same by max_length.",
            {"margin": margin, "loss": loss},
        )  # fmt: skip


class PreferenceChance(Rule):
    """The accuracy stays at chance although the policy has moved.

    Sees: the mean of `rewards/accuracies` (or of a reward model's `accuracy`) within 4% of one half, or below that
    where there is no other loss that could pull it there (ORPO, CPO): over the last
    `window` logs, after 100 logs past the warm-up; or over the last 20 when it had been clearly above before. Quiet
    where a log has so few pairs that such a mean is uncertain by more than 4% itself, and while it rises. A reward
    model whose mean loss over 40 logs past the warm-up is still within 3% of ln 2 is an `info`.
    Matters: the labels are noise, or chosen and rejected are mixed up in half of the pairs.
    Source: DESIGN. Default: a warning.
    """

    name = "preference_chance"
    patient = True
    metrics = ("rewards/accuracies", "accuracy")
    explained_by = (
        *_CAUSES,
        "preference_magnitude",
        "preference_no_movement",
        "reward_model_scale",
        "frozen_policy",
        "overfitting",
    )

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._recent, self._latest = Recent(window), Recent(int(limits["lost_logs"]))
        self._best = Largest()
        self._noise = Noise(window)
        self._losses = Recent(int(limits["coin_logs"]))
        self._blocks = Blocks(32)
        self._count = AfterWarmup()

    def check(self, row: Row) -> Finding | Verdict:
        metric = "rewards/accuracies" if "rewards/accuracies" in row.metrics else "accuracy"
        value = row.metrics.get(metric)
        if value is None:
            return Verdict.NO_DATA
        self._recent.push(value)
        self._latest.push(value)
        self._noise.push(value)
        self._blocks.push(value)
        logs = self._count.push(row)
        if len(self._latest) < self._latest.size:
            return Verdict.NO_DATA
        latest = self._latest.mean()
        self._best.push(latest)
        coin = self._is_coin(row, logs) if metric == "accuracy" else None
        if coin:
            return self._no_better_than_a_coin(value)
        lost = self._best.value > 0.5 + self.limits["lost_distance"]
        if not lost and logs < self.limits["logs"]:
            return Verdict.NO_DATA
        mean, count, error = self._recent.mean(), len(self._recent), self.limits["error_of_mean"]
        if lost:
            error = self.limits["lost_error"]
            if self._noise.value / math.sqrt(self._latest.size) <= error:
                mean, count = latest, len(self._latest)
        if self._noise.value / math.sqrt(count) > error:
            return Verdict.NO_DATA  # a few pairs a log: chance and skill look alike
        below = mean < 0.5 - self.limits["distance"]
        if mean > 0.5 + self.limits["distance"] or (below and not _OTHER_LOSSES.isdisjoint(row.metrics)):
            return Verdict.HEALTHY
        if not lost and (coin is False or self._blocks.trend()[1] > self.limits["min_z"]):
            return Verdict.NO_DATA  # slowly, but it learns
        before = f", after {self._best.value:.3f} at its best" if lost else ""
        return Finding(
            Severity.WARNING, metric, value,
            f"accuracy is {'below' if below else 'at'} chance: {mean:.3f} on average over the last {count} logs"
            f"{before}",
            "1. The labels: read twenty pairs and decide yourself which is better. 2. Chosen and rejected are swapped "
            "in a part of the data. 3. Exact ties count as wrong: are answers cut to the same text by max_length?",
            {"mean": mean},
        )  # fmt: skip

    def _is_coin(self, row: Row, logs: int) -> bool | None:
        """Whether a reward model's loss is still that of a coin; `None` where the loss cannot tell."""
        loss = row.metrics.get("loss")
        if loss is None:
            return None
        self._losses.push(loss)
        return None if logs <= self._losses.size else self._losses.mean() >= self.limits["coin_loss"] * LN2

    def _no_better_than_a_coin(self, accuracy: float) -> Finding:
        return Finding(
            Severity.INFO, "accuracy", accuracy,
            f"the reward model is no better than a coin: its loss is {self._losses.mean():.3g} on average over the "
            f"last {self._losses.size} logs (ln 2 = 0.693)",
            "1. learning_rate: ten times lower if the loss ever jumped, ten times higher if it never moved. 2. The "
            "labels: read twenty pairs. 3. chosen and rejected are cut to the same text by max_length.",
            {"loss": self._losses.mean()},
        )  # fmt: skip
