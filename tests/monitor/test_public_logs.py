"""Real logs of others, with verdicts: what is healthy stays silent, what is troubled is named.

The data is not in the repository: set TRL_EXT_SHARED_DATA, or put the folder at ../shared/data.
"""

import json
import os
from pathlib import Path

import pytest

from trl_ext.monitor import Engine

DATA = Path(os.environ.get("TRL_EXT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
pytestmark = pytest.mark.skipif(not (DATA / "public_reports.json").is_file(), reason=f"no public logs in {DATA}")

# what may name each kind of fault of the traces' README: the rule of that name, or the root cause that explains it
RULES_OF = {
    "all_truncated": {"all_truncated", "eos_missing"},  # PPO logs no lengths, only the number of EOS
    "dead_reward_component": {"dead_reward_component"},
    "ratio_out_of_band": {"ratio_out_of_band"},
    "entropy_collapse": {"entropy_collapse"},
    "reward_drop": {"reward_drop"},
    "frozen_policy": {"frozen_policy"},
    "zero_signal": {"zero_signal", "all_truncated", "frozen_policy"},
    "first_step_mismatch": {"first_step_mismatch"},
    "kl_high": {"kl_high", "kl_runaway", "kl_spike"},
    "kl_spike": {"kl_high", "kl_runaway", "kl_spike"},
    "approx_kl_high": {"approx_kl_spike"},
    "nonfinite": {"nonfinite_metric"},
    "grad_spike": {"grad_norm_spike", "grad_norm_trend"},
    "overfit": {"overfitting"},
    "memorised": {"overfitting"},
    "reward_flat": {"reward_flat", "all_truncated", "eos_missing", "zero_signal"},
}
# what each public report should raise, worst severity each; what is not listed must stay silent
REPORTS = {
    "ppo_hongbomiao_no_eos": {"eos_missing": "error", "kl_high": "warning", "reward_flat_kl_rising": "warning"},
    "ppo_negative_kl_then_ok": {"kl_negative": "info", "approx_kl_spike": "warning"},
    "grpo_all_truncated": {"all_truncated": "error"},
    "grpo_frozen_policy_multinode": {"frozen_policy": "error"},
    "grpo_kl_nan_reward_spread": {"nonfinite_metric": "critical"},
    "grpo_unsloth_negative_rewards": {"dead_reward_component": "info"},
    "grpo_transient_kl_spike": {"kl_spike": "warning"},
    "grpo_is_ratio_mismatch": {"sampling_mismatch": "error"},
    "dpo_nan_step2": {"nonfinite_metric": "critical"},
    "dpo_all_labels_masked": {"preference_labels_masked": "error"},
    "dpo_unstable_big_lr_wrong_ref": {"preference_magnitude": "warning", "first_step_mismatch": "warning"},
    "dpo_both_down": {"preference_displacement": "info"},
    "kto_nan": {"nonfinite_metric": "critical"},
    "sft_ga_scaling": {"loss_scale": "error"},
}


def index():
    path = DATA / "traces" / "index.json"
    return json.loads(path.read_text()) if path.is_file() else []


def reports():
    path = DATA / "public_reports.json"
    cases = json.loads(path.read_text()) if path.is_file() else {}
    return {name: case for name, case in cases.items() if case.get("rows")}


def replay(rows):
    engine = Engine()
    for step, logs in rows:
        engine.observe(step, logs)
    return engine


def trace_rows(trace):
    lines = (DATA / "traces" / trace["file"]).read_text().splitlines()
    return [(record["step"], record["logs"]) for record in map(json.loads, lines)]


def report_rows(case):
    rows = [dict(zip(case["columns"], row, strict=True)) if "columns" in case else row for row in case["rows"]]
    constant = {case["always_zero"]: 0.0} if "always_zero" in case else {}
    return [(row.get("step", i + 1), row | constant) for i, row in enumerate(rows)]


@pytest.mark.parametrize("trace", index(), ids=lambda trace: trace["name"])
def test_every_fault_of_a_trace_is_named(trace):
    raised = {alert.rule for alert in replay(trace_rows(trace)).alerts}
    for fault in trace["faults"]:
        assert RULES_OF[fault["kind"]] & raised, fault


def test_healthy_traces_get_no_error_and_hardly_a_warning():
    rows = warnings = 0
    for trace in index():
        if trace["verdict"] == "healthy":
            log = trace_rows(trace)
            severities = [alert.severity for alert in replay(log).alerts]
            assert all(severity <= "warning" for severity in severities), trace["name"]
            rows += len(log)
            warnings += severities.count("warning")
    assert rows > 2000
    assert warnings <= rows / 1000


@pytest.mark.parametrize("name", reports())
def test_report(name):
    engine = replay(report_rows(reports()[name]))
    assert {alert.rule: str(alert.severity) for alert in engine.alerts} == REPORTS.get(name, {})


def test_reports_are_named_at_the_log_that_shows_them():
    def opened(name):
        return {alert.rule: (alert.opened, alert.closed) for alert in replay(report_rows(reports()[name])).alerts}

    assert opened("ppo_hongbomiao_no_eos")["eos_missing"] == (3, None)
    assert opened("ppo_negative_kl_then_ok") == {"kl_negative": (1, 2), "approx_kl_spike": (1, 2)}
    assert opened("grpo_unsloth_negative_rewards") == {"dead_reward_component": (10, None)}
    assert opened("grpo_transient_kl_spike") == {"kl_spike": (10, 15)}


def test_the_first_nan_is_named_at_its_row():
    for name in ("grpo_kl_nan_reward_spread", "dpo_nan_step2", "kto_nan"):
        rows = reports()[name]["rows"]
        engine = replay(enumerate(rows, 1))
        assert engine.alerts[0].opened == (1 if name.startswith("grpo") else 2)
        assert ("rejected side" in engine.alerts[0].advice) == (name == "kto_nan")


def test_older_reports_of_the_ratio():
    cases = json.loads((DATA / "public_reports.json").read_text())
    wild = replay((i, {"val/ratio": ratio}) for i, ratio in enumerate(cases["ppo_ratio_warnings"]["avg_ratio"]))
    assert [(a.rule, a.severity, a.opened) for a in wild.alerts] == [("ratio_out_of_band", "critical", 0)]
    tame = cases["ppo_ratio_mean_first_updates"]
    assert not replay((i, {"val/ratio": ratio}) for key in ("ratio_mean_from_minibatch_6", "epoch0", "epoch1_first6")
                      for i, ratio in enumerate(tame[key])).alerts  # fmt: skip


def test_the_adam_report_is_healthy_in_both_columns():
    case = json.loads((DATA / "public_reports.json").read_text())["ppo_adam_reference_vs_aggressive"]
    for column in range(3):
        row = {
            "policy/approxkl_avg": case["policy/approxkl"][column],
            "policy/clipfrac_avg": case["policy/clipfrac"][column],
            "val/ratio": case["ratio_mean"][column], "val/ratio_var": case["ratio_var"][column],
        }  # fmt: skip
        assert not replay((i, row) for i in range(20)).alerts


def test_a_measured_truth_that_falls_while_the_proxy_rises_is_hacking():
    windows = json.loads((DATA / "public_reports.json").read_text())["reward_hack_soup"]["windows"]
    engine = replay((i, {"reward": w["proxy_rm"], "strict_acc": w["strict_acc"]}) for i, w in enumerate(windows, 1))
    assert [(a.rule, a.severity, a.opened) for a in engine.alerts] == [("reward_hacking_suspected", "error", 2)]


def test_the_constructed_length_bonus_dominates():
    case = json.loads((DATA / "public_reports.json").read_text())["reward_component_dominance"]
    engine = Engine(["component_dominance"])

    def between(pair, share):
        return pair[0] + share * (pair[1] - pair[0])

    for i in range(45):
        share = min(1.0, i / 30)
        length = between(case["length_component"], share)
        engine.observe(i + 1, {
            "reward": between(case["total"], share), "rewards/length/mean": length, "rewards/correctness/mean": 0.0,
            "completions/mean_length": between(case["output_length"], share),
        })  # fmt: skip
    (alert,) = engine.alerts
    assert alert.opened <= case["detector_fired_at_step"]


def test_a_loss_that_jumps_at_a_resume_is_a_discontinuity():
    case = json.loads((DATA / "public_reports.json").read_text())["resume_loss_jump"]
    engine = replay((i, {"loss": case["loss_before"] + 0.02 * (-1) ** i}) for i in range(1, 30))
    engine.resumed()
    engine.observe(30, {"loss": case["loss_after_resume"]})
    engine.observe(31, {"loss": case["loss_after_resume"]})
    engine.flush()
    assert [(a.rule, a.opened, a.severity) for a in engine.alerts] == [("resume_discontinuity", 31, "error")]


def test_no_run_is_discontinuous_when_it_goes_on_exactly():
    """Wherever it is resumed (every fifth log here; every log, loss and KL apart: none of 5,588 either)."""
    found = []
    for path in sorted((DATA / "traces").glob("*.jsonl")):
        logs = [json.loads(line) for line in path.read_text().splitlines()]
        logs = [row["logs"] for row in logs if {"loss", "kl", "objective/kl"} & row["logs"].keys()]
        for cut in range(3, len(logs) - 3, 5):
            engine = Engine(["resume_discontinuity"])
            for step in range(max(cut - 16, 0), cut + 3):
                if step == cut:
                    engine.resumed()
                engine.observe(step, {key: value for key, value in logs[step].items() if key != "epoch"})
            engine.flush()
            found += [(path.name, cut, alert.message) for alert in engine.alerts]
    assert found == []


def test_six_megabytes_a_step_are_a_growth_of_memory():
    case = json.loads((DATA / "public_reports.json").read_text())["vram_growth"]
    first, last, steps = case["gb_first_10_steps"] * 1024, case["gb_at_crash"] * 1024, case["crash_steps"][0]
    pace = (last - first) / steps
    noise = (0.0, 40.0, -30.0, 10.0, -20.0)
    engine = replay((i, {"system/gpu_memory_mb": first + pace * i + noise[i % 5]}) for i in range(steps))
    assert [(alert.rule, alert.severity) for alert in engine.alerts] == [("memory_growth", "warning")]
