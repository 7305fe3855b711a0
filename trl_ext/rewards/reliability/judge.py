"""Observes rewards, and reports how far they can be trusted."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from trl_ext.errors import UserError
from trl_ext.rewards.reliability import components as of_components
from trl_ext.rewards.reliability.duplicates import LEAST, distinct_share, diversity, repeats_by_nature
from trl_ext.rewards.reliability.edits import LENGTH_PAYS, bounds_for
from trl_ext.rewards.reliability.features import features
from trl_ext.rewards.reliability.findings import Facts, findings_of
from trl_ext.rewards.reliability.gold import DISAGREES, GoldSeries
from trl_ext.rewards.reliability.numbers import ramp, spearman, spearman_of_pairs
from trl_ext.rewards.reliability.probes import Effect, Probes
from trl_ext.rewards.reliability.report import PARTS, ReliabilityReport
from trl_ext.rewards.reliability.stability import stability_of
from trl_ext.rewards.reliability.window import RewardWindow, totals_of
from trl_ext.rewards.text import Completion, completion_text, prompt_text

LOOKED_AT = 128  # completions of the window whose text is read for a report: bounds its time


class RewardReliability:
    """Feed it with `observe` (and `observe_gold`, `observe_probes`, `observe_probe_set` where there are such), ask for
    a `report`.

    Args:
        names: of the reward functions.
        weights: of each in the total that is trained on; 1 by default. A function of weight 0 is reported, not judged.
        window: completions that are remembered.
    Raises:
        UserError: arguments that do not fit.
    """

    def __init__(self, names: Sequence[str], weights: Sequence[float] | None = None, window: int = 1000) -> None:
        weights = [1.0] * len(names) if weights is None else list(weights)
        if not names or len(weights) != len(names):
            raise UserError(f"{len(names)} reward functions have {len(weights)} weights: give each function one weight")
        if isinstance(window, bool) or not isinstance(window, int) or window < LEAST:
            raise UserError(f"window must be a whole number of at least {LEAST}, not {window!r}")
        self.window = RewardWindow(names, weights, window)
        self.gold = GoldSeries()
        self._infinite: Counter[str] = Counter()  # since the last report
        self._lowest, self._highest = np.full(len(names), np.inf), np.full(len(names), -np.inf)
        self._start: dict[str, float] = {}  # distinct share, and medians of the first completions
        self._probes: Probes | None = None
        self._probe_set: float | None = None
        self._step = 0

    def observe(
        self, step: int, prompts: Sequence, completions: Sequence[Completion], rewards: Sequence | np.ndarray
    ) -> None:
        """A batch of training. Takes microseconds.

        Args:
            rewards: shape `(completions, functions)`; NaN or `None` where a function does not apply.
        """
        array = np.asarray(rewards, dtype=float)
        if array.shape != (len(completions), len(self.window.names)):
            raise UserError(f"rewards have the shape {array.shape}, not (completions, functions)")
        self._step = step
        infinite = np.isinf(array)
        if infinite.any():
            array = np.where(infinite, np.nan, array)
            self._infinite.update(dict(zip(self.window.names, infinite.sum(axis=0).tolist(), strict=True)))
        self.window.add(step, prompts, completions, array)
        if len(array):
            self._highest = np.fmax(self._highest, np.fmax.reduce(array, axis=0))
            self._lowest = np.fmin(self._lowest, np.fmin.reduce(array, axis=0))

    def observe_gold(self, step: int, prompts: list, completions: list, rewards: np.ndarray, gold: np.ndarray) -> None:
        """Completions that the held-back reward was asked about, too; `gold` of shape `(completions,)`."""
        self.gold.add(step, prompts, completions, totals_of(rewards, self.window.weights), gold, rewards)

    def observe_probes(self, probes: Probes) -> None:
        """What scoring again showed; the latest counts."""
        self._probes = probes

    def observe_probe_set(self, rewards: np.ndarray, truth: np.ndarray) -> None:
        """The rewards of a fixed set of completions whose worth is known, `truth` of shape `(completions,)`."""
        self._probe_set = spearman(totals_of(rewards, self.window.weights), truth)

    def report(self, samples: int = 3) -> ReliabilityReport:
        """As of the latest step.

        Args:
            samples: completions of each kind of evidence; 0 for none, which is quicker.
        """
        window = self.window
        rewards, completions = window.rewards(), window.completions()
        totals = totals_of(rewards, window.weights)
        facts = self._facts(rewards, totals, completions)
        found = findings_of(facts)
        return ReliabilityReport(
            self._step,
            len(window),
            self._parts(facts),
            facts.components,
            facts.measures,
            found,
            self.samples(samples),
        )

    def forget_infinities(self) -> None:
        """After they were told."""
        self._infinite.clear()

    def _facts(self, rewards: np.ndarray, totals: np.ndarray, completions: list[Completion]) -> Facts:
        window = self.window
        names, weights = window.names, window.weights
        components = of_components.components_of(names, weights, rewards, totals, self._lowest, self._highest)
        known = totals[~np.isnan(totals)]
        std = float(known.std()) if len(known) else 0.0
        measures = {"mean": float(known.mean()) if len(known) else float("nan"), "std": std}
        rows = _spread(len(completions))
        looked_at = [completions[i] for i in rows]
        read = features(looked_at)
        # neighbours often answer one prompt, so copies are looked for among the latest, not at even distances
        latest = completions[-LOOKED_AT:]
        start = self._start_of(read, latest, std)
        for name, values in read.items():
            measures[name] = float(np.median(values)) if len(values) else float("nan")
            if name + "_start" in start:
                measures[name + "_start"] = start[name + "_start"]
            _add(measures, f"correlation/{name}", spearman(totals[rows], values))
        measures |= {f"infinite/{name}": float(count) for name, count in self._infinite.items() if count}
        live = [i for i, component in enumerate(components) if component.std > 0]
        for (a, b), value in spearman_of_pairs(rewards[np.ix_(rows, live)]).items():
            measures[f"correlation/{names[live[a]]}/{names[live[b]]}"] = value
        if len(latest) >= LEAST:
            measures["distinct"], measures["distinct_start"] = distinct_share(latest), start["distinct_start"]
        stability = stability_of(window.steps, window.step_means, window.step_stds, window.start)
        if stability is not None:
            measures |= {f"stability/{name}": float(value) for name, value in stability._asdict().items()}
        scale = _scale(max(std, start.get("std_start", 0.0)), rewards)
        for kind, effects in self._effects().items():
            measures |= {f"{kind}/{name}": effect.total / scale for name, effect in effects.items()}
        if max((v for k, v in measures.items() if k.startswith("consistency/")), default=0.0) > 0.05:
            # it moves without a reason, so an edit may not be the reason
            measures = {k: v for k, v in measures.items() if not k.startswith(("sensitivity/", "reasoning/"))}
        gold = self.gold.trend()
        if gold is not None:
            measures |= {f"gold/{name}": float(v) for name, v in gold._asdict().items() if v is not None}
        _add(measures, "gold/correlation", self.gold.correlation())
        measures |= {"gold/compared": float(len(self.gold.latest)), "gold/silent": float(self.gold.silent)}
        _add(measures, "probe_set/correlation", self._probe_set)
        return Facts(
            names, components, measures, len(self.window), len(known), stability, gold,
            self._moved_most(), self.gold.examples(3) if gold is not None else [],
            self._probes.scored if self._probes else 0,
        )  # fmt: skip

    def _start_of(self, read: dict[str, np.ndarray], completions: list[Completion], std: float) -> dict[str, float]:
        """What the first completions were like; answers too short to differ are compared with those."""
        if self._start or len(completions) < LEAST:
            return self._start
        by_nature = repeats_by_nature(read["length"].tolist())
        self._start = {name + "_start": float(np.median(values)) for name, values in read.items()}
        self._start["std_start"] = std
        self._start["distinct_start"] = distinct_share(completions) if by_nature else 1.0
        return self._start

    def _effects(self) -> dict[str, dict[str, Effect]]:
        if self._probes is None:
            return {}
        _, consistency, sensitivity, reasoning = self._probes
        return {"consistency": consistency, "sensitivity": sensitivity, "reasoning": reasoning}

    def _moved_most(self) -> dict[str, str]:
        """For each probe the function that it moved most, by its weight in the total."""
        weights, names = np.abs(self.window.weights), self.window.names
        return {
            f"{kind}/{name}": names[int(np.argmax(np.abs(effect.functions) * weights))]
            for kind, effects in self._effects().items()
            for name, effect in effects.items()
        }

    def _parts(self, facts: Facts) -> dict[str, float | None]:
        m = facts.measures
        parts: dict[str, float | None] = dict.fromkeys(PARTS)
        if facts.stability is not None:
            parts["stability"] = facts.stability.part()
        if consistency := [v for k, v in m.items() if k.startswith("consistency/") and not np.isnan(v)]:
            parts["consistency"] = ramp(max(consistency), 0.02, 0.5)
        sensitivity = [m.get(f"sensitivity/{name}", np.nan) / bound for name, bound in bounds_for(m).items()]
        if not np.isnan(sensitivity).all():
            parts["robustness"] = ramp(float(np.nanmax(sensitivity)), 1.0, 3.0)
        if facts.completions >= LEAST:
            parts["signal"] = of_components.signal(
                facts.components, of_components.total_varies(m["std"], facts.components)
            )
            if any(name.startswith("infinite/") for name in m):
                parts["signal"] = 0.0
        if facts.counted >= LEAST:
            parts["balance"] = of_components.balance(facts.components)
            # a reward may well ask for brevity or for length, so only what is hardly anything else counts
            shortcuts = [abs(m.get("correlation/length", 0.0)), m.get("correlation/repetition", 0.0)]
            if m["std"] > 0:
                parts["independence"] = ramp(max(shortcuts), LENGTH_PAYS, 0.97)
        if "distinct" in m:
            parts["diversity"] = diversity(m["distinct"], m["distinct_start"])
        agreement = [facts.gold.part()] if facts.gold is not None else []
        if "gold/correlation" in m:
            agreement.append(ramp(m["gold/correlation"], DISAGREES / 2, 2 * DISAGREES))
        if self._probe_set is not None:
            agreement.append(ramp(self._probe_set, 0.2, -0.2))
        if agreement:
            parts["agreement"] = min(agreement)
        return parts

    def samples(self, count: int) -> list[dict[str, Any]]:
        """The evidence: `count` of the best, of the worst, and of each kind of suspicious completions."""
        if not count:
            return []
        rows, totals = self.window.rows(), totals_of(self.window.rewards(), self.window.weights)
        known = np.flatnonzero(~np.isnan(totals))
        if not len(known):
            return []
        ordered = known[np.argsort(totals[known], kind="stable")]
        picked = [("best", int(i), "highest reward") for i in _distinct(ordered[::-1], rows, count)]
        picked += [("worst", int(i), "lowest reward") for i in _distinct(ordered, rows, count)]
        picked += [("suspicious", i, why) for i, why in _suspicious(ordered[::-1], rows, count)]
        found = [
            {
                "kind": kind, "why": why, "step": rows[i][0], "prompt": prompt_text(rows[i][1])[-2000:],
                "completion": completion_text(rows[i][2])[:4000], "reward": float(totals[i]),
                "rewards": self._by_name(rows[i][3]),
            }
            for kind, i, why in picked
        ]  # fmt: skip
        for step, prompt, completion, proxy, gold, rewards in self.gold.examples(count):
            found.append(
                {
                    "kind": "suspicious", "why": f"held-back reward {gold:.3g} beside a reward of {proxy:.3g}",
                    "step": step, "prompt": prompt_text(prompt)[-2000:],
                    "completion": completion_text(completion)[:4000], "reward": proxy,
                    "rewards": self._by_name(rewards), "gold": gold,
                }
            )  # fmt: skip
        return found

    def _by_name(self, rewards: np.ndarray) -> dict[str, float | None]:
        named = zip(self.window.names, rewards, strict=True)
        return {name: None if np.isnan(value) else float(value) for name, value in named}

    def state_dict(self) -> dict[str, Any]:
        """JSON: what a resumed run cannot learn anew. The window is not in it; it fills within a few steps."""
        return {
            "names": self.window.names,
            "gold": self.gold.state_dict(),
            "start": dict(self._start),
            "first_steps": [list(step) for step in self.window.start],
            "highest": [value if np.isfinite(value) else None for value in self._highest.tolist()],
            "lowest": [value if np.isfinite(value) else None for value in self._lowest.tolist()],
            "seen": self.window.seen,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Of a run with other reward functions nothing is taken."""
        if state.get("names") != self.window.names:
            return
        self.gold.load_state_dict(state["gold"])
        self._start = {str(name): float(value) for name, value in state["start"].items()}
        self.window.start = [(int(step), float(mean), float(std)) for step, mean, std in state["first_steps"]]
        self._highest = np.array([-np.inf if value is None else float(value) for value in state["highest"]])
        self._lowest = np.array([np.inf if value is None else float(value) for value in state["lowest"]])
        self.window.seen = int(state["seen"])


def _scale(std: float, rewards: np.ndarray) -> float:
    """What one standard deviation is, at the start or now: once a reward is at its limit, the smallest edit is many of
    the present ones. Where all rewards are equal, the size of the reward itself."""
    if std > 0:
        return std
    known = np.abs(rewards[~np.isnan(rewards)])
    return max(float(known.mean()) if len(known) else 0.0, 1.0)


def _spread(count: int) -> list[int]:
    """At most 128 of the indices, at even distances."""
    taken = min(count, LOOKED_AT)
    return [i * count // taken for i in range(taken)]


def _add(measures: dict[str, float], name: str, value: float | None) -> None:
    if value is not None:
        measures[name] = value


def _distinct(order: np.ndarray, rows: list, count: int) -> list[int]:
    """The first `count` of `order` with different texts."""
    taken: dict[str, int] = {}
    for i in order:
        taken.setdefault(completion_text(rows[i][2]), int(i))
        if len(taken) == count:
            break
    return list(taken.values())


def _suspicious(best_first: np.ndarray, rows: list, count: int) -> list[tuple[int, str]]:
    """Of the best quarter those that repeat themselves or each other most."""
    best = best_first[: max(len(best_first) // 4, 1)][:LOOKED_AT]
    texts = [completion_text(rows[i][2]) for i in best]
    repetition = features(list(texts))["repetition"]
    copies = Counter(texts)
    shares = [max(repetition[k], 1 - 1 / copies[text]) for k, text in enumerate(texts)]
    found: dict[str, tuple[int, str]] = {}
    for k in np.argsort(-np.array(shares), kind="stable"):
        if shares[k] <= 0.2 or len(found) == count:
            break
        text = texts[k]
        copied = (
            f"given {copies[text]} times" if copies[text] > 1 else f"{repetition[k]:.0%} of its pairs of words repeat"
        )
        found.setdefault(text, (int(best[k]), f"among the best rewards, and {copied}"))
    return list(found.values())
