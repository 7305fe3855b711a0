"""The faults of the simulated logs, written from what each fault is."""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from detection.simulated import START, STEPS, WORLDS, Change, Curve, Noise, Simulated, flat, from_start, simulate
from detection.simulated_healthy import FACTS, LINEAR, SEEDS, gold

G, P, D, S = (WORLDS[kind] for kind in ("grpo", "ppo", "dpo", "sft"))


def ramp(end: float, logs: int) -> Any:
    """From the level at the start to `end` in that many logs."""
    return lambda level, since: level + (end - level) * min(1.0, (since + 1) / logs)


def grow(times: float, logs: int, most: float = math.inf) -> Any:
    return lambda level, since: min(most, level * times ** ((since + 1) / logs))


def after(**values: Any) -> Change:
    return lambda since, logs, noise: values if since >= 0 else {}


def first(**values: Any) -> Change:
    return lambda since, logs, noise: values if since == 1 - START else {}


def spike(key: str, values: list[float]) -> Change:
    return lambda since, logs, noise: {key: values[since]} if 0 <= since < len(values) else {}


def _spikes(since: int, logs: Mapping[str, Any], noise: Noise) -> dict[str, float]:
    return {"grad_norm": 80.0 * logs["grad_norm"]} if since >= 0 and noise.share(0.4, 1) else {}


def _length_pays(since: int, logs: Mapping[str, Any], noise: Noise) -> dict[str, float]:
    """A length component that was a tenth of the total grows until it is nearly all of it."""
    share = 0.1 if since < 0 else min(3.0, 0.1 + 0.15 * (since + 1))
    bonus = share * logs["completions/mean_length"] / 200
    return {"rewards/length/mean": bonus, "rewards/length/std": 0.1 * bonus, "reward": logs["reward"] + bonus}


def _memorised(since: int, logs: Mapping[str, Any], noise: Noise) -> dict[str, float]:
    """From the fourth of eight epochs on."""
    epoch = 8 * logs["epoch"]
    return {"epoch": epoch, "mean_token_accuracy": 0.999} if since >= 0 and "loss" in logs else {"epoch": epoch}


# name: (kind, curves, change, expected, more)
Case = tuple[str, dict[str, Curve], Change | None, tuple[str, ...], dict[str, Any]]


def _case(kind: str, expected: str, change: Change | None = None, curves: dict | None = None, **more: Any) -> Case:
    return kind, curves or {}, change, tuple(expected.split()), more


def cases() -> dict[str, Case]:
    dead = {"reward_std": 0.0, "grad_norm": 0.0}
    zero = {"loss": 0.0, "grad_norm": 0.0}
    return {
        "nan_gradient": _case("grpo", "nonfinite_metric", after(grad_norm=math.nan, kl=None, entropy=None, loss=0.0)),
        "nan_reward": _case("ppo", "nonfinite_metric",
                            after(**{"objective/scores": math.nan, "objective/rlhf_reward": math.nan})),
        "kl_high": _case("grpo", "kl_high kl_runaway kl_spike", None, {"kl": from_start(G["kl"], ramp(3, 15))}),
        "kl_high_ppo": _case("ppo", "kl_high kl_runaway kl_spike", None, {"kl": from_start(P["kl"], ramp(40, 15))}),
        "kl_spike": _case("grpo", "kl_spike", spike("kl", [9.0, 4.0, 1.5, 0.5, 0.2])),
        "kl_runaway": _case("ppo", "kl_runaway kl_high kl_spike", None, {"kl": from_start(P["kl"], grow(2, 8, 300))}),
        "kl_negative": _case("ppo", "kl_negative", None, {"kl": from_start(P["kl"], ramp(-8, 10))}),
        "approx_kl": _case("ppo", "approx_kl_spike clip_fraction_high", None,
                           {"approx_kl": from_start(P["approx_kl"], ramp(0.4, 5)),
                            "clipped": from_start(P["clipped"], ramp(0.35, 5))}),
        "ratio": _case("ppo", "ratio_out_of_band", None, {"ratio": from_start(P["ratio"], ramp(1.6, 5))}),
        "clip_fraction": _case("ppo", "clip_fraction_high", None, {"clipped": from_start(P["clipped"], ramp(0.6, 5))}),
        "first_step_grpo": _case("grpo", "first_step_mismatch", first(kl=0.35), starts=0),
        "first_step_ppo": _case("ppo", "first_step_mismatch", first(**{"objective/kl": 6.0}), starts=0),
        "entropy_collapse": _case("grpo", "entropy_collapse", None,
                                  {"entropy": from_start(G["entropy"], ramp(0.01, 15))}),
        "entropy_collapse_ppo": _case("ppo", "entropy_collapse", None,
                                      {"entropy": from_start(P["entropy"], ramp(0.03, 15))}),
        "entropy_explosion": _case("grpo", "entropy_explosion", None,
                                   {"entropy": from_start(G["entropy"], ramp(3, 12))}),
        "reward_drop": _case("grpo", "reward_drop", None, {"reward": from_start(G["reward"], ramp(0.2, 8))}),
        "reward_drop_ppo": _case("ppo", "reward_drop", None, {"reward": from_start(P["reward"], ramp(0.2, 8))}),
        "flat_kl_rising": _case("ppo", "reward_flat_kl_rising kl_high kl_runaway", None,
                                {"kl": from_start(P["kl"], ramp(25, 25)),
                                 "reward": from_start(P["reward"], ramp(1.6, 99))}),
        "saturated": _case("grpo", "reward_saturated zero_signal frozen_policy", after(**dead),
                           {"reward": from_start(G["reward"], ramp(1, 5)), "dead_groups": from_start(G["dead_groups"],
                                                                                                    ramp(1, 5))}),
        "hacking_held_back": _case("grpo", "reward_hacking_suspected", partial(gold, falls=True),
                                   {"reward": from_start(G["reward"], ramp(1.3, 25)),
                                    "kl": from_start(G["kl"], ramp(0.4, 25)),
                                    "length": from_start(G["length"], ramp(330, 25))},
                                   facts={**LINEAR, "held_back_rewards": ["gold"]}),
        "hacking_length": _case("grpo", "reward_hacking_suspected kl_high kl_runaway length_drift", None,
                                {"reward": from_start(G["reward"], ramp(1.3, 25)),
                                 "kl": from_start(G["kl"], ramp(1.0, 25)),
                                 "length": from_start(G["length"], ramp(480, 25))}),
        "dead_component": _case("grpo", "dead_reward_component",
                                after(**{"rewards/format/mean": 0.0, "rewards/format/std": 0.0})),
        "failing_reward": _case("grpo", "reward_failures", after(**{"reward_failures/format": 0.6})),
        "dominance": _case("grpo", "component_dominance reward_hacking_suspected", _length_pays,
                           {"length": from_start(G["length"], ramp(430, 25))}),
        "zero_signal": _case("grpo", "zero_signal", None, {"dead_groups": from_start(G["dead_groups"], ramp(0.99, 3)),
                                                           "grad": from_start(G["grad"], ramp(0.01, 3))}),
        "frozen_gradient": _case("grpo", "frozen_policy", after(grad_norm=0.0), facts=LINEAR),
        "frozen_from_start": _case("grpo", "frozen_policy", None, {"kl": flat(0.0), "reward": flat(0.3)}, starts=0),
        "all_truncated": _case("grpo", "all_truncated", None, {"truncated": from_start(G["truncated"], ramp(1, 5)),
                                                               "length": from_start(G["length"], ramp(600, 5))}),
        "eos_missing": _case("ppo", "eos_missing", None, {"eos": from_start(P["eos"], ramp(0, 3))}),
        "length_collapse": _case("grpo", "length_collapse", None, {"length": from_start(G["length"], ramp(2, 10))}),
        "length_drift": _case("grpo", "length_drift all_truncated", None,
                              {"length": from_start(G["length"], ramp(900, 12)), "limit": flat(2048)}),
        "value_loss": _case("ppo", "value_loss_divergence", None,
                            {"value_loss": from_start(P["value_loss"], grow(100, 15, 400))}),
        "explained_variance": _case("our_ppo", "value_explained_variance value_loss_divergence", None,
                                    {"explained": from_start(P["explained"], ramp(-3, 5))}),
        "grad_spikes": _case("grpo", "grad_norm_spike grad_norm_trend", _spikes),
        "grad_trend": _case("our_ppo", "grad_norm_trend grad_norm_spike", None,
                            {"grad": from_start(P["grad"], grow(300, 15, 1e6))}),
        "lr_restarts": _case("grpo", "lr_schedule_drift", None,
                             {"lr": from_start(G["lr"], lambda level, since: 1e-6 * (1 - since / STEPS))}),
        "lr_zero": _case("grpo", "lr_zero_early lr_schedule_drift", None, {"lr": from_start(G["lr"], ramp(0, 1))}),
        "loss_scale_dpo": _case("dpo", "loss_scale", None, {"loss_x": flat(4)}, starts=0),
        "loss_scale_sft": _case("sft", "loss_scale", None, {"loss": lambda step: 16 * S["loss"](step)}, starts=0),
        "preference_displacement": _case("dpo", "preference_displacement", None,
                                         {"chosen": from_start(D["chosen"], ramp(-12, 25)),
                                          "rejected": from_start(D["rejected"], ramp(-16, 25))}),
        "preference_magnitude": _case("dpo", "preference_magnitude preference_displacement", None,
                                      {"chosen": from_start(D["chosen"], ramp(-300, 15)),
                                       "rejected": from_start(D["rejected"], ramp(-310, 15)),
                                       "scale": from_start(D["scale"], ramp(100, 15))}),
        "preference_still": _case("dpo", "preference_no_movement frozen_policy", None,
                                  {"chosen": flat(0), "rejected": flat(0), "scale": flat(1e-4)}, starts=0),
        "preference_chance": _case("dpo", "preference_chance", None,
                                   {"chosen": from_start(D["chosen"], ramp(0, 4)),
                                    "rejected": from_start(D["rejected"], ramp(0, 4))}),
        "labels_masked_dpo": _case("dpo", "preference_labels_masked frozen_policy", after(
            **dict.fromkeys(["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies",
                             "logps/chosen", "logps/rejected", "logits/chosen", "logits/rejected", "grad_norm"], 0.0),
            loss=math.log(2))),
        "no_labels_sft": _case("sft", "no_supervised_tokens", lambda since, logs, noise: {
            **zero, "entropy": 0.0, "mean_token_accuracy": 0.0} if since >= 0 and "loss" in logs else {}),
        "loss_divergence": _case("sft", "loss_divergence", None, {"loss": from_start(S["loss"], ramp(9, 10))}),
        "loss_flat": _case("sft", "loss_flat frozen_policy", None, {"loss": flat(7.6), "eval": flat(7.6)}, starts=0),
        "overfitting": _case("sft", "overfitting", None, {"loss": from_start(S["loss"], ramp(0.2, 30)),
                                                          "eval": from_start(S["eval"], ramp(2.2, 60))}),
        "memorised": _case("sft", "overfitting", _memorised, {"loss": from_start(S["loss"], ramp(0.004, 10))}),
        "reward_flat": _case("grpo", "reward_flat", None, {"reward": flat(0.3), "format": flat(0.5)}, starts=0),
        "sampling": _case("grpo", "sampling_mismatch", lambda since, logs, noise: {
            "sampling/importance_sampling_ratio/mean": 0.98 if since < 0 else max(0.35, 0.98 - 0.06 * since),
            "sampling/sampling_logp_difference/mean": 0.01 if since < 0 else 0.01 + 0.02 * since}),
        "memory": _case("grpo", "memory_growth", lambda since, logs, noise: {
            "memory_gb": 36 + 0.006 * (since + START) + 0.05 * noise.normal("memory")}, starts=0),
        "step_time": _case("grpo", "step_time_drift", None, {"time": from_start(G["time"], ramp(60, 8))}),
        "resume": _case("sft", "resume_discontinuity loss_divergence", None,
                        {"loss": from_start(S["loss"], lambda level, since: 8.7 - 0.02 * since)}, resumed_at=START),
    }  # fmt: skip


def faulty() -> Iterator[Simulated]:
    for number, (name, (kind, curves, change, expected, more)) in enumerate(cases().items()):
        for seed in SEEDS:
            rows = simulate(kind, 1000 * number + seed, curves, change)
            yield Simulated(f"{name}_{seed}", kind, rows, expected, **{"facts": FACTS[kind], **more})
