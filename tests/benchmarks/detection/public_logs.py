"""Public logs and reports with the verdicts of the two READMEs beside them; nothing where the folder is not there.

TRL_EXT_SHARED_DATA names the folder, `../shared/data` of the clone by default.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = Path(os.environ.get("TRL_EXT_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))

PREFERENCE = ("preference_displacement", "preference_magnitude", "preference_chance", "preference_no_movement",
              "preference_labels_masked")  # fmt: skip
KL = ("kl_high", "kl_spike", "kl_runaway", "kl_negative")
# kind of fault in traces/index.json: the rules that say it, as its README has it; others are the rule of that name
KINDS = {
    "kl_high": KL, "kl_spike": KL, "approx_kl_high": ("approx_kl_spike",), "nonfinite": ("nonfinite_metric",),
    "grad_spike": ("grad_norm_spike", "grad_norm_trend"), "overfit": ("overfitting",), "memorised": ("overfitting",),
    "chosen_likelihood_drop": PREFERENCE,
    # info, or the root cause that explains it
    "reward_flat": ("reward_flat", "reward_flat_kl_rising", "all_truncated", "zero_signal", "dead_reward_component",
                    "first_step_mismatch", "eos_missing", "nonfinite_metric"),
    "zero_signal": ("zero_signal", "all_truncated", "frozen_policy"),  # silenced by its cause
    "frozen_policy": ("frozen_policy", "preference_no_movement"),
    "all_truncated": ("all_truncated", "eos_missing"),  # PPO logs no length
}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What one public log must raise. `expected` is empty for a log that must stay silent (`info` aside).

    `resumed_at`: row from which the log goes on after a resume. `source`: "trace" or "report".
    """

    name: str
    source: str
    rows: list[dict[str, Any]]
    expected: tuple[str, ...] = ()
    starts: int = 0
    verdict: str = "troubled"
    facts: dict[str, Any] = field(default_factory=dict)
    resumed_at: int | None = None
    kind: str = ""


def available() -> bool:
    return (DATA / "public_reports.json").is_file() and (DATA / "traces" / "index.json").is_file()


def traces() -> Iterator[Verdict]:
    """One verdict a fault of a troubled log; healthy and unclear logs once."""
    for trace in json.loads((DATA / "traces" / "index.json").read_text()):
        rows = [json.loads(line) for line in (DATA / "traces" / trace["file"]).read_text().splitlines()]
        common: dict[str, Any] = {
            "source": "trace",
            "rows": rows,
            "verdict": trace["verdict"],
            "kind": trace["trainer"],
        }
        for fault in trace["faults"]:
            kind = fault["kind"]
            yield Verdict(f"{trace['name']}: {kind}", expected=KINDS.get(kind, (kind,)), starts=fault["row"], **common)
        if not trace["faults"]:
            yield Verdict(trace["name"], **common)


# report: what its README wants said ("" nothing), at which severity at least, and the row where it begins
REPORTS: dict[str, tuple[str, int]] = {
    "ppo_hongbomiao_no_eos": ("eos_missing kl_high reward_flat_kl_rising", 0),
    "ppo_negative_kl_then_ok": ("kl_negative approx_kl_spike", 0),
    "grpo_loss0_but_learning_FALSE_POSITIVE_GUARD": ("", 0),
    "grpo_all_truncated": ("all_truncated", 0),
    "grpo_frozen_policy_multinode": ("frozen_policy", 0),
    "grpo_kl_nan_reward_spread": ("nonfinite_metric", 0),
    "grpo_unsloth_negative_rewards": ("dead_reward_component", 0),
    "grpo_transient_kl_spike": ("kl_spike", 0),
    "grpo_is_ratio_mismatch": ("sampling_mismatch", 0),
    "grpo_is_ratio_ok": ("", 0),
    "dpo_nan_step2": ("nonfinite_metric", 1),
    "dpo_all_labels_masked": ("preference_labels_masked", 0),
    "dpo_unstable_big_lr_wrong_ref": ("preference_magnitude", 0),
    "dpo_both_down": ("preference_displacement", 0),
    "kto_nan": ("nonfinite_metric", 0),
    "sft_ga_scaling": ("loss_scale", 0),
}


def reports() -> Iterator[Verdict]:
    """The reports that have rows, one verdict a rule, and the few whose numbers are a log in another shape."""
    cases = json.loads((DATA / "public_reports.json").read_text())
    for name, (rules, starts) in REPORTS.items():
        rows = _rows(cases[name])
        common: dict[str, Any] = {"source": "report", "rows": rows, "kind": str(cases[name].get("trainer", ""))}
        for rule in rules.split():
            yield Verdict(f"{name}: {rule}", expected=(rule,), starts=starts, **common)
        if not rules:
            yield Verdict(name, verdict="healthy", **common)
    yield from _other_shapes(cases)


def _rows(case: dict[str, Any]) -> list[dict[str, Any]]:
    rows = case["rows"]
    if "columns" in case:
        rows = [dict(zip(case["columns"], row, strict=True)) for row in rows]
    if zero := case.get("always_zero"):
        rows = [{**row, zero: 0.0} for row in rows]
    return [{"step": int(row.get("step", i)), "logs": row} for i, row in enumerate(rows, 1)]


def _log(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"step": step, "logs": row} for step, row in enumerate(rows, 1)]


def _other_shapes(cases: dict[str, Any]) -> Iterator[Verdict]:
    wild = _log([{"val/ratio": ratio} for ratio in cases["ppo_ratio_warnings"]["avg_ratio"]])
    yield Verdict("ppo_ratio_warnings", "report", wild, ("ratio_out_of_band",))
    tame = cases["ppo_ratio_mean_first_updates"]
    calm = _log([{"val/ratio": ratio} for ratio in tame["ratio_mean_from_minibatch_6"]])
    yield Verdict("ppo_ratio_mean_first_updates", "report", calm, verdict="healthy")
    adam = cases["ppo_adam_reference_vs_aggressive"]
    for i, title in enumerate(adam["columns"]):
        values = {"policy/approxkl_avg": adam["policy/approxkl"][i], "policy/clipfrac_avg": adam["policy/clipfrac"][i],
                  "val/ratio": adam["ratio_mean"][i], "val/ratio_var": adam["ratio_var"][i]}  # fmt: skip
        yield Verdict(f"ppo_adam: {title}", "report", _log([values] * 4), verdict="healthy")
    dominance = cases["reward_component_dominance"]
    grows = {"rewards/length/mean": "length_component", "reward": "total", "completions/mean_length": "output_length"}
    rows = _log([
        {"rewards/correctness/mean": 0.0, **{
            key: dominance[part][0] + (dominance[part][1] - dominance[part][0]) * min(1, i / 30)
            for key, part in grows.items()}}
        for i in range(60)
    ])  # fmt: skip
    yield Verdict("reward_component_dominance", "report", rows, ("component_dominance", "reward_hacking_suspected"))
    soup = [
        {"reward": window["proxy_rm"], "rewards/strict_accuracy/mean": window["strict_acc"],
         "completions/mean_length": window["words"]}
        for window in cases["reward_hack_soup"]["windows"] for _ in range(15)
    ]  # fmt: skip
    yield Verdict("reward_hack_soup", "report", _log(soup), ("reward_hacking_suspected",), starts=15,
                  facts={"held_back_rewards": ["strict_accuracy"]})  # fmt: skip
    jump = cases["resume_loss_jump"]
    after = [jump["loss_after_resume"] + (jump["loss_60_steps_later"] - jump["loss_after_resume"]) * i / 60
             for i in range(60)]  # fmt: skip
    rows = _log([{"loss": loss} for loss in [jump["loss_before"]] * 40 + after])
    rules = ("resume_discontinuity", "loss_divergence")
    yield Verdict("resume_loss_jump", "report", rows, rules, starts=40, resumed_at=rows[40]["step"])
    memory = cases["vram_growth"]
    pace = (memory["gb_at_crash"] - memory["gb_first_10_steps"]) / max(memory["crash_steps"])
    rows = _log([{"loss": 0.0, "memory_gb": memory["gb_first_10_steps"] + pace * i} for i in range(600)])
    yield Verdict("vram_growth", "report", rows, ("memory_growth",))


def verdicts() -> list[Verdict]:
    return [*traces(), *reports()] if available() else []
