"""Simulated healthy logs: honest developments of which there is nothing to say (`info` aside)."""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from detection.simulated import START, STEPS, Curve, Noise, Simulated, flat, linear_decay, saturating, simulate

SEEDS = (11, 12, 13)
# what the callback would read of the trainers' arguments
LINEAR = {"lr_scheduler_type": "linear", "max_steps": STEPS, "warmup_steps": 0, "learning_rate": 1e-6,
          "gradient_accumulation_steps": 4, "beta": 0.04, "vocab_size": 151936}  # fmt: skip
DPO_FACTS = {**LINEAR, "learning_rate": 5e-7, "warmup_steps": 20, "beta": 0.1, "loss_type": ["sigmoid"]}
SFT_FACTS = {**LINEAR, "learning_rate": 2e-5, "warmup_steps": 20}
PPO_FACTS = {**LINEAR, "learning_rate": 3e-6, "kl_coef": 0.05}
FACTS = {"grpo": LINEAR, "dpo": DPO_FACTS, "sft": SFT_FACTS, "ppo": PPO_FACTS, "our_ppo": PPO_FACTS}


def gold(since: int, logs: Mapping[str, Any], noise: Noise, falls: bool) -> dict[str, float]:
    """A held-back reward, logged with weight 0."""
    step = since + START
    level = 0.3 + 0.3 * (1 - math.exp(-step / 120)) - (min(0.45, 0.02 * (since + 1)) if falls and since >= 0 else 0)
    return {"rewards/gold/mean": level + 0.03 * noise.normal("gold"), "rewards/gold/std": 0.3}


def healthy() -> Iterator[Simulated]:
    """The worlds as they are, and rewards, KL, entropy, length, groups and learning rates that go their honest way."""
    cosine = lambda step: 0.5e-6 * (1 + math.cos(math.pi * step / STEPS))  # noqa: E731
    lr = {"cosine": cosine, "warmup": linear_decay(1e-6, 40), "constant": flat(1e-6)}
    asked = {"cosine": ("cosine", 0), "warmup": ("linear", 40), "constant": ("constant", 0)}
    worlds: list[tuple[str, str, dict[str, Curve], dict[str, Any]]] = [(kind, kind, {}, {}) for kind in FACTS]
    worlds += [
        ("grpo_longer", "grpo", {"length": saturating(150, 320, 150), "limit": flat(1024)}, {}),
        ("grpo_sparse", "grpo", {"dead_groups": flat(0.35), "spread": flat(0.15), "reward": flat(0.3)}, {}),
        ("grpo_solved", "grpo", {"reward": saturating(0.2, 0.95, 60), "dead_groups": saturating(0, 0.45, 90)}, {}),
        ("grpo_entropy_halves", "grpo", {"entropy": saturating(0.6, 0.28, 100)}, {}),
        ("ppo_kl_6", "ppo", {"kl": saturating(0, 6, 100)}, {}),
        ("ppo_unlearned", "ppo", {"reward": flat(0.3), "kl": saturating(0, 1, 200)}, {}),
        ("dpo_likelihoods_fall", "dpo", {"chosen": saturating(0, -0.8, 150), "rejected": saturating(0, -2.5, 150)}, {}),
        ("sft_epochs", "sft", {"loss": lambda step: [1.4, 1.1, 0.9, 0.8][(step - 1) // 100]}, {}),
    ]
    for name, curve in lr.items():
        kind, warmup = asked[name]
        worlds.append((f"grpo_lr_{name}", "grpo", {"lr": curve},
                       {"facts": {**LINEAR, "lr_scheduler_type": kind, "warmup_steps": warmup}}))  # fmt: skip
    for number, (name, kind, curves, more) in enumerate(worlds):
        for seed in SEEDS:
            rows = simulate(kind, 90_000 + 1000 * number + seed, curves)
            yield Simulated(f"{name}_{seed}", kind, rows, **{"facts": FACTS[kind], **more})
    for seed in SEEDS:
        rows = simulate("grpo", 80_000 + seed, None, partial(gold, falls=False))
        yield Simulated(f"grpo_gold_{seed}", "grpo", rows, facts={**LINEAR, "held_back_rewards": ["gold"]})
