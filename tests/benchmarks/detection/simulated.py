"""Simulated logs: 400 steps with TRL's keys, the fault from step 200 on.

Noise is as heavy, as correlated and as long-lived as in public logs (read off 12 real traces, not off our rules):
batch means of the reward keep no memory (lag-1 correlation about 0.1), KL and entropy a little (0.2 to 0.6), gradient
norms are log-normal with Student tails (25 times the median happens), KL is log-normal, sparse groups come and go, and
one hidden "difficulty" of a batch moves reward, length and entropy together.

A run is a world of curves (level of each quantity by step) plus that noise. `simulated_faults.py` replaces curves, or
changes the finished log.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

STEPS, START = 400, 200
Curve = Callable[[int], float]


@dataclass(frozen=True)
class Simulated:
    """`expected`: the rules that name it, empty for a healthy run. `starts`: row of the fault, from 0."""

    name: str
    kind: str
    rows: list[dict[str, Any]]
    expected: tuple[str, ...] = ()
    starts: int = START - 1
    facts: dict[str, Any] = field(default_factory=dict)
    resumed_at: int | None = None


class Noise:
    """Named streams of noise, each with the memory it was first asked for."""

    def __init__(self, seed: int):
        self._chance = random.Random(seed)
        self._state: dict[str, float] = {}

    def normal(self, name: str, memory: float = 0.0) -> float:
        """Standard normal, lag-1 correlation `memory`."""
        fresh = self._chance.gauss(0, 1)
        value = memory * self._state.get(name, fresh) + math.sqrt(1 - memory**2) * fresh
        self._state[name] = value
        return value

    def heavy(self, name: str, memory: float = 0.0) -> float:
        """Student's t with 4 degrees of freedom, scaled to about unit spread."""
        return self.normal(name, memory) / math.sqrt(self._chance.gammavariate(2, 0.5))

    def share(self, p: float, draws: int) -> float:
        """Of `draws` coins."""
        return sum(self._chance.random() < p for _ in range(draws)) / draws


def saturating(start: float, end: float, time: float) -> Curve:
    return lambda step: end + (start - end) * math.exp(-step / time)


def flat(level: float) -> Curve:
    return lambda step: level


def from_start(before: Curve, after: Callable[[float, int], float], start: int = START) -> Curve:
    """`before(step)`; from `start` on `after(level at the start, steps since)`."""
    return lambda step: before(step) if step < start else after(before(start), step - start)


def linear_decay(peak: float, warmup: int = 0) -> Curve:
    """As Trainer logs it: the rate of the step that comes."""
    return lambda step: peak * min(1.0, step / warmup if warmup else 1.0) * max(0.0, 1 - step / STEPS)


# Worlds: what a healthy run of each kind looks like ----------------------------------------------

WORLDS: dict[str, dict[str, Curve]] = {
    "grpo": {
        "reward": saturating(0.25, 0.7, 120), "spread": saturating(0.4, 0.3, 200), "kl": saturating(0, 0.08, 150),
        "entropy": saturating(0.55, 0.4, 150), "length": saturating(180, 210, 100), "limit": flat(512),
        "truncated": flat(0.03), "dead_groups": flat(0.12), "grad": flat(0.35), "lr": linear_decay(1e-6),
        "format": saturating(0.5, 0.97, 60), "time": flat(12),
    },
    "ppo": {
        "reward": saturating(0.3, 2.0, 130), "spread": flat(1.0), "kl": saturating(0, 5, 140),
        "entropy": saturating(1.2, 0.9, 150), "length": flat(53), "eos": flat(40), "grad": flat(1.0),
        "approx_kl": flat(0.004), "clipped": flat(0.02), "ratio": flat(1.0), "value_loss": saturating(1.5, 0.25, 60),
        "explained": saturating(0.0, 0.6, 80), "lr": linear_decay(3e-6),
    },
    "dpo": {
        "chosen": saturating(0, 0.6, 150), "rejected": saturating(0, -1.2, 150), "scale": saturating(0, 0.9, 120),
        "logps": flat(-150), "logps_drift": flat(0), "grad": flat(4.0), "lr": linear_decay(5e-7, 20), "loss_x": flat(1),
    },
    "sft": {
        "loss": saturating(1.7, 1.05, 80), "grad": saturating(1.5, 0.6, 40), "lr": linear_decay(2e-5, 20),
        "eval": saturating(1.7, 1.1, 100),
    },
}  # fmt: skip


def _grad(at: dict[str, float], noise: Noise) -> float:
    return at["grad"] * math.exp(0.3 * noise.heavy("grad", 0.2))


def _grpo(step: int, at: dict[str, float], noise: Noise) -> dict[str, Any]:
    hard = noise.normal("difficulty", 0.1)
    length = min(at["limit"], at["length"] * math.exp(0.06 * hard + 0.08 * noise.normal("length", 0.1)))
    truncated = noise.share(at["truncated"], 64)
    form = min(1.0, max(0.0, at["format"] + 0.03 * noise.normal("format")))
    answer = at["reward"] - 0.05 * hard + 0.04 * noise.normal("reward", 0.1)
    spread = max(0.0, at["spread"] * math.exp(0.15 * noise.normal("spread", 0.1)))
    return {
        "loss": 0.02 * noise.normal("loss"), "grad_norm": _grad(at, noise), "learning_rate": at["lr"],
        "num_tokens": 64.0 * 300 * step, "completions/mean_length": length, "completions/min_length": 0.3 * length,
        "completions/max_length": at["limit"] if truncated else min(at["limit"], 2.0 * length),
        "completions/clipped_ratio": truncated, "completions/mean_terminated_length": 0.0 if truncated == 1 else length,
        "rewards/answer/mean": answer, "rewards/answer/std": spread, "rewards/format/mean": form,
        "rewards/format/std": math.sqrt(max(form * (1 - form), 0.0)), "reward": answer + form, "reward_std": spread,
        "frac_reward_zero_std": noise.share(at["dead_groups"], 16),
        "kl": at["kl"] * math.exp(0.35 * noise.normal("kl", 0.5)),
        "entropy": at["entropy"] * math.exp(0.04 * hard + 0.08 * noise.normal("entropy", 0.2)),
        "clip_ratio/low_mean": 0.0, "clip_ratio/high_mean": 0.0, "clip_ratio/region_mean": 0.0,
        "step_time": at["time"] * math.exp(0.08 * noise.heavy("time")), "epoch": step / STEPS,
    }  # fmt: skip


def _ppo(step: int, at: dict[str, float], noise: Noise) -> dict[str, Any]:
    hard = noise.normal("difficulty", 0.1)
    score = at["reward"] + at["spread"] * (0.1 * noise.normal("reward", 0.1) - 0.1 * hard)
    kl = at["kl"] * math.exp(0.3 * noise.normal("kl", 0.2)) + 0.1 * noise.normal("kl floor")
    entropy = at["entropy"] * math.exp(0.04 * hard + 0.08 * noise.normal("entropy", 0.2))
    ratio = at["ratio"] + 0.005 * noise.normal("ratio")
    return {
        "eps": 2, "objective/kl": kl, "objective/entropy": entropy * at["length"],
        "objective/non_score_reward": -0.05 * kl, "objective/rlhf_reward": score - 0.05 * kl, "objective/scores": score,
        "policy/approxkl_avg": at["approx_kl"] * math.exp(0.5 * noise.normal("approx", 0.2)),
        "policy/clipfrac_avg": min(1.0, at["clipped"] * math.exp(0.4 * noise.normal("clip", 0.2))),
        "loss/policy_avg": 0.01 * noise.normal("policy loss"),
        "loss/value_avg": at["value_loss"] * math.exp(0.15 * noise.heavy("value", 0.1)), "val/clipfrac_avg": 0.01,
        "policy/entropy_avg": entropy, "val/ratio": ratio, "val/ratio_var": (ratio - 1) ** 2 + 1e-5,
        "val/num_eos_tokens": round(64 * noise.share(at["eos"] / 64, 64)), "lr": at["lr"], "episode": 64 * step,
        "epoch": step / STEPS,
    }  # fmt: skip


def _our_ppo(step: int, at: dict[str, float], noise: Noise) -> dict[str, Any]:
    explained = at["explained"] + 0.08 * noise.normal("explained", 0.2)
    return {
        **_ppo(step, at, noise), "loss": 0.02 * noise.normal("loss"), "grad_norm": _grad(at, noise),
        "learning_rate": at["lr"], "value/explained_variance": min(0.99, explained), "value/mean": at["reward"],
        "advantages/std": at["spread"] * math.exp(0.1 * noise.normal("advantages")),
    }  # fmt: skip


def _dpo(step: int, at: dict[str, float], noise: Noise) -> dict[str, Any]:
    moved = 0.0 if step == 1 else 1.0  # the first log is of the untouched policy: all margins are exactly 0
    chosen, rejected = (moved * (at[k] + 0.25 * at["scale"] * noise.heavy(k, 0.1)) for k in ("chosen", "rejected"))
    margin = chosen - rejected
    loss = at["loss_x"] * math.log1p(math.exp(-max(min(margin, 50), -50)))
    sigma = max(at["scale"], 1e-9)
    correct = 0.5 * (1 + math.erf((at["chosen"] - at["rejected"]) / (1.6 * sigma)))
    logps = at["logps"] * math.exp(0.08 * noise.normal("batch"))
    return {
        "loss": loss * math.exp(0.05 * moved * noise.normal("loss")), "grad_norm": _grad(at, noise),
        "learning_rate": at["lr"], "rewards/chosen": chosen,
        "rewards/rejected": rejected, "rewards/accuracies": moved * noise.share(correct, 32), "rewards/margins": margin,
        "logps/chosen": logps + 10 * chosen + at["logps_drift"],
        "logps/rejected": logps + 10 * rejected + at["logps_drift"], "logits/chosen": -1.7 + 0.05 * noise.normal("a"),
        "logits/rejected": -1.7 + 0.05 * noise.normal("b"), "epoch": step / STEPS,
    }  # fmt: skip


def _sft(step: int, at: dict[str, float], noise: Noise) -> dict[str, Any]:
    if step % 20 == 10:
        return {"eval_loss": at["eval"] * math.exp(0.01 * noise.normal("eval")), "epoch": step / STEPS}
    loss = at["loss"] * math.exp(0.03 * noise.normal("loss"))
    return {
        "loss": loss, "grad_norm": _grad(at, noise), "learning_rate": at["lr"], "entropy": 1.02 * loss,
        "mean_token_accuracy": math.exp(-0.5 * loss), "num_tokens": 8192.0 * step, "epoch": step / STEPS,
    }  # fmt: skip


LOGS = {"grpo": _grpo, "ppo": _ppo, "our_ppo": _our_ppo, "dpo": _dpo, "sft": _sft}
WORLDS["our_ppo"] = WORLDS["ppo"]
Change = Callable[[int, dict[str, Any], Noise], Mapping[str, Any]]


def simulate(kind: str, seed: int, curves: Mapping[str, Curve] | None = None, change: Change | None = None) -> list:
    """Rows of `{"step", "logs"}`. `change(steps since START, logs, noise)`: what replaces parts of a log."""
    noise, world = Noise(seed), {**WORLDS[kind], **(curves or {})}
    rows = []
    for step in range(1, STEPS + 1):
        logs = LOGS[kind](step, {name: curve(step) for name, curve in world.items()}, noise)
        if change is not None:
            logs |= change(step - START, logs, noise)
        rows.append({"step": step, "logs": logs})
    return rows
