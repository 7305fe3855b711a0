"""For each rule a log with its fault, and one that comes close and is healthy. Written from the rules' docstrings."""

import math
import random
from typing import Any, NamedTuple

LN2 = math.log(2)


class Case(NamedTuple):
    """`begins` is the index of the first faulty row, `within` the rows after it in which the alert must open."""

    rule: str
    severity: str
    faulty: list[dict[str, Any]]
    begins: int
    within: int
    healthy: list[dict[str, Any]]
    facts: dict[str, Any] = {}  # noqa: RUF012
    resumed_at: int | None = None


def noise(seed: int, scale: float = 1.0):
    numbers = random.Random(seed)
    return lambda: numbers.gauss(0, scale)


def rows(count: int, **metrics: Any) -> list[dict[str, Any]]:
    """Each metric is a number, or a function of the index."""
    return [{key: value(i) if callable(value) else value for key, value in metrics.items()} for i in range(count)]


def around(level: float, spread: float, seed: int):
    draw = noise(seed, spread)
    return lambda i: level + draw()


def change(at: int, before: Any, after: Any):
    return lambda i: (before if i < at else after)(i) if callable(before) else (before if i < at else after)


def grpo(count: int, **metrics: Any) -> list[dict[str, Any]]:
    usual: dict[str, Any] = {"reward": around(0.5, 0.1, 1), "reward_std": around(0.3, 0.03, 2),
                             "frac_reward_zero_std": 0.1,
                             "grad_norm": around(0.5, 0.05, 3), "learning_rate": 1e-6}  # fmt: skip
    return rows(count, **(usual | metrics))


def lr(i: int, steps: int, peak: float = 1e-5, warmup: int = 10) -> float:
    return peak * i / warmup if i < warmup else peak * (steps - i) / (steps - warmup)


def words(seed: int, share: float):
    """A reward, a share of which is the length, and a length that grows."""
    draw = noise(seed, 4.0)
    lengths = [40 + 2 * max(0, i - 20) + draw() for i in range(80)]
    own = noise(seed + 1, 0.05)
    return [
        {"completions/mean_length": length, "reward": share * length / 100 + (1 - share) * (0.01 * i + own())}
        for i, length in enumerate(lengths)
    ]


CASES = [
    Case(
        "nonfinite_metric",
        "critical",
        rows(20, loss=1.0, grad_norm=change(12, 1.0, math.nan)),
        12,
        0,
        rows(20, loss=0.0, grad_norm=1.0, kl=change(0, 0.0, 0.1)),
    ),
    Case(
        "loss_scale",
        "error",
        rows(9, loss=8 * LN2, **{"rewards/chosen": 0.0, "rewards/margins": 0.001}),
        0,
        0,
        rows(9, loss=LN2, **{"rewards/chosen": 0.0, "rewards/margins": 0.001}),
    ),
    Case(
        "loss_scale",
        "error",
        rows(9, loss=13.0, mean_token_accuracy=0.1),
        0,
        0,
        rows(9, loss=10.5),
        {"vocab_size": 32000},
    ),
    Case(
        "kl_high",
        "warning",
        rows(30, **{"objective/kl": change(10, 6.0, 12.0)}),
        10,
        2,
        rows(30, **{"objective/kl": 9.9}),
    ),
    Case("kl_high", "error", rows(30, kl=change(10, 0.1, 2.5)), 10, 2, rows(30, kl=change(10, 0.1, 0.45))),
    Case(
        "kl_spike",
        "warning",
        rows(30, kl=change(12, lambda i: 0.02, lambda i: 4.0 if i == 12 else 0.02)),
        12,
        0,
        rows(30, kl=change(12, lambda i: 0.0001, lambda i: 0.01 if i == 12 else 0.0001)),
    ),
    Case(
        "kl_runaway",
        "error",
        rows(60, **{"objective/kl": lambda i: 4 * 1.06 ** max(0, i - 20)}),
        36,
        12,
        rows(60, **{"objective/kl": lambda i: 9 * (1 - math.exp(-i / 10))}),
    ),
    Case(
        "kl_negative",
        "warning",
        rows(20, **{"objective/kl": change(10, 0.5, -0.3)}),
        10,
        2,
        rows(20, **{"objective/kl": lambda i: 0.01 * (-1) ** i}),
    ),
    Case(
        "kl_negative",
        "critical",
        rows(20, **{"objective/kl": change(10, 0.5, -60.0)}),
        10,
        0,
        rows(20, kl=lambda i: 1e-4 * (-1) ** i),
    ),
    Case(
        "approx_kl_spike",
        "warning",
        rows(20, **{"policy/approxkl_avg": change(10, 0.01, 0.12)}),
        10,
        2,
        rows(20, **{"policy/approxkl_avg": 0.09}),
    ),
    Case(
        "ratio_out_of_band",
        "error",
        rows(20, **{"val/ratio": change(10, 1.0, 2.5)}),
        10,
        1,
        rows(20, **{"val/ratio": 1.2}),
    ),
    Case(
        "clip_fraction_high",
        "warning",
        rows(20, **{"policy/clipfrac_avg": change(10, 0.05, 0.4)}),
        10,
        4,
        rows(20, **{"policy/clipfrac_avg": 0.25}),
    ),
    Case("first_step_mismatch", "error", [{"kl": 1.1}], 0, 0, [{"kl": 0.08}]),
    Case(
        "entropy_collapse",
        "warning",
        grpo(40, entropy=change(20, 1.0, 0.15)),
        20,
        4,
        grpo(40, entropy=change(20, 1.0, 0.3)),
    ),
    Case(
        "entropy_explosion",
        "error",
        grpo(40, entropy=change(20, 0.6, 2.5)),
        20,
        9,
        grpo(40, entropy=change(20, 0.05, 0.4)),
    ),
    Case(
        "reward_drop",
        "error",
        grpo(140, reward=change(70, around(1.0, 0.1, 5), around(-1.0, 0.1, 6))),
        70,
        20,
        grpo(140, reward=change(70, around(1.0, 0.1, 5), around(0.9, 0.1, 6))),
    ),
    Case(
        "reward_drop",
        "warning",
        grpo(200, reward=change(100, lambda i: 0.01 * i, lambda i: max(0.3, 1 - 0.02 * (i - 100)))),
        100,
        40,
        grpo(200, reward=change(100, lambda i: 0.01 * i, lambda i: 0.8)),
    ),
    Case(
        "reward_flat_kl_rising",
        "warning",
        grpo(30, reward=around(0.0, 0.1, 7), kl=lambda i: 0.2 + 0.05 * i),
        7,
        12,
        grpo(30, reward=lambda i: 0.05 * i, kl=lambda i: 0.2 + 0.05 * i),
    ),
    Case(
        "reward_saturated",
        "warning",
        grpo(60, reward=change(30, 0.2, 1.0), reward_std=change(30, 0.4, 0.001)),
        30,
        9,
        grpo(60, reward=change(30, 0.2, 1.0), reward_std=change(30, 0.4, 0.1)),
    ),
    Case("reward_flat", "info", grpo(130, reward=around(0.5, 0.1, 8)), 0, 115, grpo(130, reward=lambda i: 0.003 * i)),
    Case(
        "reward_failures",
        "critical",
        grpo(12, **{"reward_failures/judge": change(6, 0.0, 1.0), "reward_failures/length": 0.0}),
        6,
        2,
        grpo(12, **{"reward_failures/judge": 0.0, "reward_failures/length": 0.0}),
    ),
    Case(
        "reward_failures",
        "error",
        grpo(12, **{"reward_failures/judge": change(6, 0.0, 0.5)}),
        6,
        0,
        grpo(12, **{"reward_failures/judge": 0.0}),
    ),
    Case(
        "reward_failures",
        "info",
        grpo(12, **{"reward_failures/judge": lambda i: 0.015 if i == 6 else 0.0}),
        6,
        0,
        grpo(12, **{"reward_failures/judge": 0.0}),
    ),
    Case(
        "dead_reward_component",
        "warning",
        grpo(120, **{"rewards/format/mean": 0.0}),
        0,
        9,
        grpo(60, **{"rewards/format/mean": lambda i: 0.0 if i % 9 else 0.1}),
    ),
    Case(
        "dead_reward_component",
        "info",
        grpo(120, reward=lambda i: 0.01 * i, **{"rewards/format/mean": 0.0}),
        0,
        9,
        grpo(30, **{"rewards/format/mean": lambda i: 0.001 * i}),
    ),
    Case(
        "dead_reward_component",
        "warning",
        rows(30, **{"objective/scores": 1.0}),
        0,
        9,
        rows(30, **{"objective/scores": lambda i: 1.0 + 0.01 * (i % 2)}),
    ),
    Case(
        "component_dominance",
        "warning",
        grpo(
            60,
            **{
                "rewards/words/mean": lambda i: i / 60,
                "rewards/correct/mean": 0.0,
                "completions/mean_length": lambda i: 20 + i,
            },
        ),
        10,
        30,
        grpo(
            60, **{"rewards/words/mean": lambda i: i / 60, "rewards/correct/mean": 0.0, "completions/mean_length": 20}
        ),
    ),
    Case(
        "reward_hacking_suspected",
        "error",
        grpo(60, reward=lambda i: 1 + 0.02 * i, **{"rewards/gold/mean": lambda i: 0.8 - 0.01 * i}),
        10,
        20,
        grpo(60, reward=lambda i: 1 + 0.02 * i, **{"rewards/gold/mean": lambda i: 0.8 + 0.001 * i}),
    ),
    Case("reward_hacking_suspected", "warning", words(9, 1.0), 20, 45, words(9, 0.1)),
    Case(
        "reward_hacking_suspected",
        "error",
        grpo(40, reward=lambda i: 1 + 0.02 * i, **{"rewards/judge/mean": lambda i: 0.8 - 0.02 * i}),
        5,
        15,
        grpo(40, reward=lambda i: 1 + 0.02 * i, **{"rewards/other/mean": lambda i: 0.8 - 0.02 * i}),
        {"held_back_rewards": ["judge"]},
    ),
    Case(
        "zero_signal",
        "error",
        grpo(40, frac_reward_zero_std=change(20, lambda i: 0.125 * (i % 3), lambda i: 1.0)),
        20,
        3,
        grpo(40, frac_reward_zero_std=lambda i: 1.0 if i in (20, 21) else 0.125 * (i % 3)),
    ),
    Case(
        "zero_signal",
        "warning",
        grpo(60, frac_reward_zero_std=change(20, lambda i: 0.125, lambda i: 0.75)),
        20,
        20,
        grpo(60, frac_reward_zero_std=lambda i: 1.0 if i % 3 == 0 else 0.0),
    ),
    Case("frozen_policy", "error", grpo(9, grad_norm=0.0), 0, 1, grpo(9, grad_norm=0.0, reward_std=0.0)),
    Case("frozen_policy", "error", grpo(30, kl=0.0), 0, 9, grpo(30, kl=lambda i: 1e-6 * i), {"beta": 0.04}),
    Case("frozen_policy", "info", grpo(30, kl=0.0), 0, 9, grpo(30)),
    Case(
        "frozen_policy",
        "error",
        rows(9, loss=LN2, grad_norm=0.0, learning_rate=1e-6, **{"rewards/margins": 0.0, "rewards/chosen": 0.0}),
        0,
        2,
        rows(9, loss=LN2, grad_norm=0.1, learning_rate=0.0, **{"rewards/margins": 0.0, "rewards/chosen": 0.0}),
    ),
    Case("frozen_policy", "error", rows(5, eval_loss=1.234), 0, 2, rows(5, eval_loss=lambda i: 1.234 - 1e-6 * i)),
    Case(
        "all_truncated",
        "error",
        grpo(20, **{"completions/clipped_ratio": change(10, 0.2, 1.0)}),
        10,
        2,
        grpo(20, **{"completions/clipped_ratio": lambda i: 1.0 if i == 10 else 0.6}),
    ),
    Case(
        "all_truncated",
        "error",
        grpo(30, completion_length=256.0),
        0,
        9,
        grpo(30, completion_length=lambda i: 250 + i % 6),
    ),
    Case(
        "eos_missing",
        "error",
        rows(9, **{"val/num_eos_tokens": 0}),
        0,
        2,
        rows(9, **{"val/num_eos_tokens": lambda i: i % 2}),
    ),
    Case(
        "length_collapse",
        "error",
        grpo(30, completion_length=change(15, 80.0, 2.0)),
        15,
        2,
        grpo(30, completion_length=change(15, 6.0, 3.0)),
    ),
    Case(
        "length_drift",
        "warning",
        grpo(60, completion_length=change(30, around(50, 3, 1), around(200, 9, 2))),
        30,
        20,
        grpo(60, completion_length=change(30, around(50, 3, 1), around(120, 9, 2))),
    ),
    Case(
        "length_drift",
        "info",
        grpo(60, reward=change(30, around(0, 0.1, 1), around(2, 0.1, 1)), completion_length=change(30, 50.5, 200.5)),
        30,
        20,
        grpo(60, completion_length=50.5),
    ),
    Case(
        "value_loss_weight",
        "warning",
        rows(3, **{"loss/value_avg": 0.1}),
        0,
        0,
        rows(3, **{"objective/kl": 0.1}),
        {"vf_coef": 10.0},
    ),
    Case(
        "value_loss_divergence",
        "error",
        rows(60, **{"loss/value_avg": lambda i: 0.5 * 1.3 ** max(0, i - 20)}),
        20,
        25,
        rows(60, **{"loss/value_avg": lambda i: 5 * 0.95**i}),
    ),
    Case(
        "value_explained_variance",
        "warning",
        rows(60, **{"value/explained_variance": -0.5}),
        0,
        19,
        rows(60, **{"value/explained_variance": lambda i: -1.0 + 0.08 * i}),
    ),
    Case(
        "grad_norm_spike",
        "warning",
        rows(60, grad_norm=change(40, around(1, 0.2, 1), lambda i: 60.0 if i % 2 else 1.0)),
        40,
        7,
        rows(60, grad_norm=lambda i: 60.0 if i == 41 else 1.0 + 0.1 * (i % 3)),
    ),
    Case(
        "grad_norm_trend",
        "error",
        rows(120, grad_norm=lambda i: 0.5 * 1.1 ** max(0, i - 30)),
        60,
        55,
        rows(120, grad_norm=lambda i: 0.5 * (1 + i / 20)),
    ),
    Case(
        "lr_schedule_drift",
        "error",
        rows(60, learning_rate=lambda i: lr(min(2 * i, 100), 100)),
        2,
        10,
        rows(60, learning_rate=lambda i: lr(i, 100)),
        {"learning_rate": 1e-5, "warmup_steps": 10, "max_steps": 100, "lr_scheduler_type": "linear"},
    ),
    Case(
        "lr_zero_early",
        "warning",
        rows(16, learning_rate=change(8, 1e-5, 0.0)),
        8,
        2,
        rows(16, learning_rate=lambda i: lr(i, 16, warmup=4)),
    ),
    Case(
        "preference_labels_masked",
        "error",
        rows(5, loss=LN2, **{"logps/chosen": 0.0, "logps/rejected": 0.0}),
        0,
        0,
        rows(5, loss=LN2, **{"logps/chosen": -80.0, "logps/rejected": 0.0}),
    ),
    Case(
        "preference_displacement",
        "info",
        rows(9, **{"rewards/chosen": -2.0, "rewards/margins": 1.0}),
        0,
        1,
        rows(9, **{"rewards/chosen": -0.8, "rewards/margins": 1.0}),
    ),
    Case(
        "preference_magnitude",
        "warning",
        rows(9, loss=lambda i: 2.4 * (i % 2), **{"rewards/chosen": 9.0, "rewards/rejected": 8.0}),
        0,
        4,
        rows(9, loss=0.2, **{"rewards/chosen": -9.0, "rewards/rejected": -15.0}),
    ),
    Case(
        "preference_magnitude",
        "warning",
        rows(20, loss=0.9, **{"rewards/chosen": -1.5, "rewards/rejected": -1.4, "rewards/accuracies": 0.5}),
        0,
        9,
        rows(
            20, loss=0.9, nll_loss=0.8, **{"rewards/chosen": -1.5, "rewards/rejected": -1.4, "rewards/accuracies": 0.5}
        ),
    ),
    Case(
        "preference_no_movement",
        "warning",
        rows(160, loss=LN2, learning_rate=1e-6, **{"rewards/margins": 0.001}),
        0,
        110,
        rows(160, loss=LN2, learning_rate=lambda i: 1e-8 * i, **{"rewards/margins": 0.001}),
    ),
    Case(
        "preference_chance",
        "warning",
        rows(160, loss=0.7, **{"rewards/accuracies": around(0.5, 0.1, 4)}),
        0,
        110,
        rows(160, loss=0.7, **{"rewards/accuracies": around(0.6, 0.1, 4)}),
    ),
    Case(
        "no_supervised_tokens",
        "error",
        rows(5, loss=0.0, mean_token_accuracy=0.0, entropy=0.0),
        0,
        1,
        rows(5, loss=0.0, mean_token_accuracy=1.0, entropy=0.0),
    ),
    Case(
        "early_divergence",
        "error",
        rows(9, loss=lambda i: (1.5, 4.0, 7.0, 8.0, 8.5)[min(i, 4)]),
        1,
        4,
        rows(40, loss=lambda i: (0.9, 3.2, 2.8, 3.3, 2.6)[i % 5]),
    ),
    Case(
        "early_divergence",
        "error",
        rows(60, loss=change(40, 1.5, 6.2), entropy=change(40, 1.3, 2.1), mean_token_accuracy=change(40, 0.6, 0.05)),
        40,
        3,
        rows(60, loss=6.3, entropy=change(40, 6.2, 2.1), mean_token_accuracy=0.1),
    ),
    Case(
        "preference_identical",
        "error",
        rows(6, loss=0.6931, **{"logps/chosen": lambda i: -40.5 - i, "logps/rejected": lambda i: -40.5 - i}),
        0,
        2,
        rows(6, loss=0.6931, **{"logps/chosen": -40.5, "logps/rejected": -40.25}),
    ),
    Case(
        "preference_identical",
        "error",
        rows(6, loss=0.6931, accuracy=0.0, margin=0.0, mean_reward=0.3, min_reward=-0.5, max_reward=1.0),
        0,
        2,
        rows(6, loss=0.69, accuracy=0.5, margin=0.001, mean_reward=0.3, min_reward=-0.5, max_reward=1.0),
    ),
    Case(
        "preference_displacement",
        "error",
        rows(
            12,
            **{
                "rewards/chosen": lambda i: -4.0 * i,
                "rewards/margins": lambda i: 4.0 * i,
                "logps/chosen": lambda i: -25.0 - 40 * i,
                "logps/rejected": -30.0,
            },
        ),
        1,
        9,
        rows(
            12,
            **{
                "rewards/chosen": lambda i: -0.9,
                "rewards/margins": lambda i: 4.0 * i,
                "logps/chosen": lambda i: -25.0 - 40 * i,
                "logps/rejected": -30.0,
            },
        ),
        {"beta": 0.1},
    ),
    Case(
        "reward_model_scale",
        "error",
        rows(
            12,
            loss=change(2, 0.7, 5.0),
            accuracy=0.5,
            margin=-1.0,
            mean_reward=change(2, 0.2, 12.0),
            min_reward=change(2, -0.5, 2.0),
            max_reward=change(2, 0.5, 20.0),
        ),
        2,
        5,
        rows(
            12,
            loss=change(2, 0.7, 0.5),
            accuracy=0.8,
            margin=6.0,
            mean_reward=change(2, 0.2, 4.0),
            min_reward=change(2, -0.5, -20.0),
            max_reward=change(2, 0.5, 20.0),
        ),
    ),
    Case(
        "reward_model_scale",
        "warning",
        rows(
            30,
            loss=0.5,
            accuracy=0.8,
            margin=2.0,
            mean_reward=lambda i: 2.0 * min(i, 15),
            min_reward=lambda i: 2.0 * min(i, 15) - 3,
            max_reward=lambda i: 2.0 * min(i, 15) + 3,
        ),
        10,
        6,
        rows(
            30,
            loss=0.5,
            accuracy=0.8,
            margin=2.0,
            mean_reward=lambda i: 30.0 + 0.5 * i,
            min_reward=27.0,
            max_reward=48.0,
        ),
    ),
    Case(
        "frozen_policy",
        "error",
        rows(60, **{"policy/approxkl_avg": change(30, 0.02, 0.0), "lr": 1e-6, "objective/kl": 3.0}),
        30,
        9,
        rows(
            60,
            **{
                "policy/approxkl_avg": lambda i: 0.02 * lr(i, 60) ** 2 / 1e-10,
                "lr": lambda i: lr(i, 60),
                "objective/kl": 3.0,
            },
        ),
    ),
    Case(
        "grad_norm_spike",
        "warning",
        rows(80, loss=1.0, grad_norm=lambda i: 100.0 if i >= 40 and i % 6 == 0 else 0.5 + 0.05 * (i % 7)),
        40,
        24,
        rows(80, loss=1.0, grad_norm=lambda i: 40.0 if i >= 40 and i % 6 == 0 else 0.5 + 0.05 * (i % 7)),
    ),
    Case(
        "all_truncated",
        "warning",
        rows(60, **{"completions/clipped_ratio": lambda i: min(0.8, 0.1 + 0.03 * max(0, i - 10))}),
        10,
        40,
        rows(60, **{"completions/clipped_ratio": 0.8}),
    ),
    Case(
        "memory_growth",
        "warning",
        rows(200, **{"system/gpu_memory_mb": lambda i: 9000.0 + 20 * i}),
        0,
        160,
        rows(200, **{"system/gpu_memory_mb": lambda i: 9000.0 + 20 * min(i, 40)}),
    ),
    Case(
        "zero_signal",
        "error",
        rows(30, frac_reward_zero_std=0.0, reward=0.5, reward_std=0.0, kl=0.01),
        0,
        25,
        rows(30, frac_reward_zero_std=0.0, reward=0.5, reward_std=0.001, kl=0.01),
    ),
    Case(
        "lr_schedule_drift",
        "error",
        rows(40, loss=1.0, learning_rate=change(20, 1e-6, 1e-3)),
        20,
        1,
        rows(40, loss=1.0, learning_rate=lambda i: 1e-6 * min(i, 30)),
    ),
    Case(
        "preference_magnitude",
        "warning",
        rows(
            40,
            loss=0.0,
            **{
                "rewards/chosen": lambda i: 0.5 * i,
                "rewards/rejected": lambda i: -0.5 * i,
                "rewards/margins": lambda i: 1.0 * i,
                "rewards/accuracies": 1.0,
            },
        ),
        21,
        8,
        rows(
            40,
            loss=0.0,
            **{"rewards/chosen": 9.0, "rewards/rejected": -9.0, "rewards/margins": 18.0, "rewards/accuracies": 1.0},
        ),
    ),
    Case(
        "reward_model_scale",
        "warning",
        rows(
            20,
            loss=0.1,
            accuracy=0.9,
            margin=150.0,
            mean_reward=0.0,
            min_reward=change(5, -9.0, -200.0),
            max_reward=change(5, 9.0, 200.0),
        ),
        5,
        3,
        rows(
            20,
            loss=0.1,
            accuracy=0.9,
            margin=50.0,
            mean_reward=0.0,
            min_reward=change(5, -9.0, -90.0),
            max_reward=change(5, 9.0, 90.0),
        ),
    ),
    Case(
        "preference_chance",
        "warning",
        rows(160, loss=0.7, **{"rewards/accuracies": around(0.3, 0.1, 4)}),
        0,
        110,
        rows(160, loss=0.7, nll_loss=0.5, **{"rewards/accuracies": around(0.3, 0.1, 4)}),
    ),
    Case(
        "frozen_policy",
        "error",
        [row for i in range(4) for row in (*rows(3, loss=2.0 - i / 9, grad_norm=1.0), {"eval_loss": 1.234567})],
        11,
        1,
        [
            row
            for i in range(4)
            for row in (
                *rows(3, loss=2e-9, grad_norm=1.0, reward=i / 9),
                {"eval_loss": 1.234567, "eval_reward": 0.3 + i / 9},
            )
        ],
    ),
    Case(
        "memory_growth",
        "warning",
        rows(240, **{"system/gpu_memory_mb": lambda i: 9000.0 + 40 * max(0, i - 200) + i % 3}),
        200,
        32,
        rows(240, **{"system/gpu_memory_mb": lambda i: 9000.0 + 40 * min(max(0, i - 200), 10) + i % 3}),
    ),
    Case(
        "loss_divergence",
        "error",
        rows(60, loss=change(30, around(1.5, 0.2, 1), around(7, 0.5, 2))),
        30,
        12,
        rows(60, loss=around(1.0, 0.5, 3)),
    ),
    Case(
        "loss_flat",
        "info",
        rows(80, loss=around(1.5, 0.2, 5), learning_rate=lambda i: lr(i, 80)),
        10,
        60,
        rows(80, loss=lambda i: 2.0 - 0.01 * i + 0.1 * (-1) ** i, learning_rate=lambda i: lr(i, 80)),
    ),
    Case(
        "overfitting",
        "warning",
        [
            *rows(9, loss=1.0),
            {"eval_loss": 1.1},
            *rows(9, loss=0.6),
            {"eval_loss": 1.2},
            *rows(9, loss=0.4),
            {"eval_loss": 1.3},
        ],
        19,
        10,
        [
            *rows(9, loss=1.0),
            {"eval_loss": 1.1},
            *rows(9, loss=0.6),
            {"eval_loss": 1.12},
            *rows(9, loss=0.4),
            {"eval_loss": 1.1},
        ],
    ),
    Case(
        "overfitting",
        "warning",
        rows(40, loss=change(20, 2.0, 0.02), epoch=lambda i: i / 10),
        20,
        6,
        rows(30, loss=change(5, 2.0, 0.02), epoch=lambda i: i / 40),
    ),
    Case(
        "sampling_mismatch",
        "warning",
        rows(9, **{"sampling/importance_sampling_ratio/mean": 0.7}),
        0,
        1,
        rows(9, **{"sampling/importance_sampling_ratio/mean": 0.9}),
    ),
    Case(
        "sampling_mismatch",
        "warning",
        rows(60, **{"sampling/sampling_logp_difference/mean": lambda i: 0.01 + 0.004 * i}),
        10,
        35,
        rows(60, **{"sampling/sampling_logp_difference/mean": lambda i: 0.01 + 0.0004 * i}),
    ),
    Case(
        "resume_discontinuity",
        "error",
        rows(40, loss=change(30, around(0.8, 0.02, 1), around(8.7, 0.1, 1))),
        30,
        1,
        rows(40, loss=around(0.8, 0.05, 1)),
        resumed_at=30,
    ),
    Case(
        "resume_discontinuity",
        "warning",
        rows(40, loss=1.0),
        30,
        0,
        rows(40, loss=1.0),
        {"data": {"seed": 1}, "data_before": {"seed": 0}},
        resumed_at=30,
    ),
    Case(
        "memory_growth",
        "warning",
        rows(400, **{"system/rss_mb": lambda i: 1000 + i}),
        0,
        260,
        rows(400, **{"system/rss_mb": lambda i: 1000 + min(i, 60)}),
    ),
    Case(
        "step_time_drift",
        "warning",
        rows(80, step_time=change(40, around(1, 0.1, 1), around(4, 0.1, 2))),
        40,
        20,
        grpo(80, step_time=change(40, 1.0, 4.0), completion_length=change(40, 50.5, 210.5)),
    ),
    Case(
        "tokenizer_setup",
        "error",
        rows(3, **{"val/num_eos_tokens": 3}),
        0,
        0,
        rows(3, loss=1.0),
        {"padding_side": "right", "pad_is_eos": False},
    ),
]
