"""The key map: every key of every trainer has one canonical name, and units are never mixed."""

import json
import os
import re
from collections import Counter
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_ext.monitor.metrics import (
    BESIDE,
    KEY_MAP,
    METRICS,
    canonical_name,
    canonical_names,
    is_known,
    is_timing,
)

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("TRL_EXT_SHARED_DATA", ROOT.parent / "shared" / "data"))

# keys by trainer, as they stand in the sources of the releases named, or in logs that people published
KEYS = {
    "stock PPO 0.12 to 1.12, RLOO 0.10 to 0.21": """eps objective/kl objective/entropy objective/non_score_reward
        objective/rlhf_reward objective/scores policy/approxkl_avg policy/clipfrac_avg policy/entropy_avg
        loss/policy_avg loss/value_avg val/clipfrac_avg val/ratio val/ratio_var val/num_eos_tokens lr episode""",
    "PPO up to 0.11": """objective/kl objective/kl_coef objective/entropy ppo/mean_non_score_reward ppo/mean_scores
        ppo/std_scores ppo/loss/policy ppo/loss/value ppo/loss/total ppo/policy/entropy ppo/policy/approxkl
        ppo/policy/clipfrac ppo/policy/advantages_mean ppo/policy/ratio ppo/returns/mean ppo/returns/var ppo/val/vpred
        ppo/val/error ppo/val/clipfrac ppo/val/mean ppo/val/var ppo/val/var_explained ppo/learning_rate
        tokens/queries_len_mean tokens/responses_len_mean tokens/responses_len_std env/reward_mean env/reward_std""",
    "GRPO 0.14 to 0.16": "loss grad_norm learning_rate completion_length reward reward_std kl clip_ratio num_tokens",
    "GRPO and RLOO now": """loss grad_norm learning_rate num_tokens completions/mean_length completions/min_length
        completions/max_length completions/mean_terminated_length completions/min_terminated_length
        completions/max_terminated_length completions/clipped_ratio reward reward_std frac_reward_zero_std kl entropy
        clip_ratio/low_mean clip_ratio/low_min clip_ratio/high_mean clip_ratio/high_max clip_ratio/region_mean
        cispo_clip_ratio step_time aux_loss sampling/importance_sampling_ratio/min
        sampling/importance_sampling_ratio/mean sampling/importance_sampling_ratio/max
        sampling/sampling_logp_difference/mean sampling/sampling_logp_difference/max entropy_coef policy_loss""",
    "DPO, CPO, ORPO": """rewards/chosen rewards/rejected rewards/accuracies rewards/margins logps/chosen logps/rejected
        logits/chosen logits/rejected nll_loss log_odds_ratio log_odds_chosen entropy mean_token_accuracy""",
    "reward model": "accuracy margin min_reward mean_reward max_reward",
    "online DPO, XPO, Nash-MD": "objective/model_scores val/contain_eos_token val/model_contain_eos_token loss/kl",
    "ms-swift": "token_acc memory(GiB) entropy/mean",
    "LLaMA-Factory, Axolotl": "lr total_tokens sft_loss vram_reserved num_input_tokens_seen",
    "ours": "value/explained_variance value/mean advantages/mean advantages/std",
}
OWN_NAME = [
    "beta", "alpha", "mixture_coef", "delta", "loss/dpo", "loss/xpo", "loss/score", "objective/ref_scores",
    "objective/scores_margin", "rewards/probabilities", "val/ref_contain_eos_token", "tools/call_frequency",
    "vespo/phi_seq_mean", "perf/step_s", "ppo/policy/policykl", "global_step/max_steps", "percentage",
    "remaining_time", "elapsed_time", "train_speed(iter/s)", "train_speed(s/it)", "entropy/max", "current_steps",
    "throughput", "train_loss", "train_runtime", "total_flos", "eval_runtime", "system/rss_mb",
    "system/gpu_memory_mb", "time/ppo/total", "eval_samples_per_second",
]  # fmt: skip


@pytest.mark.parametrize("trainer", KEYS)
def test_every_key_has_a_canonical_name(trainer):
    assert [key for key in KEYS[trainer].split() if key not in KEY_MAP] == []


@pytest.mark.parametrize("key", [*OWN_NAME, "profiling/Time taken: GRPOTrainer._prepare_inputs"])
def test_what_no_rule_reads_is_known_and_keeps_its_name(key):
    assert is_known(key) and canonical_name(key).removeprefix("eval/") == key.removeprefix("eval_")


@pytest.mark.parametrize("key", ["", "eval_", "reward_of_mine", "losses", "my/own", "kl_divergence", "eval_my_reward"])
def test_what_nobody_logs_is_unknown_and_keeps_its_name(key):
    assert not is_known(key) and canonical_name(key).replace("eval/", "eval_") == key


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no public logs in {DATA}")
def test_every_key_of_the_public_logs_is_known():
    rows = [json.loads(line)["logs"] for path in (DATA / "traces").glob("*.jsonl") for line in path.open()]
    reports = json.loads((DATA / "public_reports.json").read_text()).values()
    rows += [dict.fromkeys(case["columns"]) if "columns" in case else case["rows"][0]
             for case in reports if case.get("rows")]  # fmt: skip
    keys = {key for row in rows for key in row}
    assert len(keys) > 80 and sorted(key for key in keys if not is_known(key)) == []


def test_no_key_has_two_canonical_names():
    assert max(Counter(key for keys in METRICS.values() for key in keys).values()) == 1


@pytest.mark.parametrize(
    "keys",
    [
        ("kl", "objective/kl", "policy/approxkl_avg", "objective/kl_coef", "ppo/policy/policykl"),
        ("entropy", "objective/entropy", "entropy_coef"),
        ("objective/non_score_reward", "ppo/mean_non_score_reward"),
        ("val/num_eos_tokens", "val/contain_eos_token"),
        ("reward", "objective/rlhf_reward", "mean_reward", "reward_std"),
        ("loss", "loss/policy_avg", "loss/value_avg", "nll_loss", "aux_loss", "train_loss"),
        ("val/ratio", "sampling/importance_sampling_ratio/mean", "val/ratio_var"),
        ("accuracy", "mean_token_accuracy", "rewards/accuracies"),
        ("step_time", "train_speed(s/it)", "eps", "train_speed(iter/s)"),
        ("memory(GiB)", "system/rss_mb", "system/gpu_memory_mb"),
        ("completions/mean_length", "completions/mean_terminated_length", "tokens/queries_len_mean"),
    ],
)
def test_two_units_are_two_metrics(keys):
    assert len({canonical_name(key) for key in keys}) == len(keys)
    assert None not in canonical_names(keys)


def test_stock_entropy_per_token_and_grpo_entropy_are_one_metric():
    assert canonical_name("policy/entropy_avg") == canonical_name("entropy") == "entropy_per_token"


@pytest.mark.parametrize("keys", [("objective/scores", "reward"), ("reward", "objective/scores")])
def test_of_two_keys_for_one_metric_the_preferred_one_counts_in_any_order(keys):
    assert dict(zip(keys, canonical_names(keys), strict=True)) == {"reward": "reward", "objective/scores": None}


@pytest.mark.parametrize("prefix", ["", "eval_", "train/", "eval_set_"])
@pytest.mark.parametrize(
    "order", permutations(("clip_ratio/region_mean", "policy/clipfrac_avg", "ppo/policy/clipfrac"))
)
def test_three_keys_for_one_metric_leave_the_most_preferred(prefix, order):
    names = dict(zip(order, canonical_names(tuple(prefix + key for key in order)), strict=True))
    assert names.pop("clip_ratio/region_mean").endswith("clip_fraction") and set(names.values()) == {None}


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("rewards/accuracy/mean", "reward/accuracy/mean"),
        ("rewards/accuracy", "reward/accuracy/mean"),
        ("rewards/accuracy/std", "reward/accuracy/std"),
        ("rewards / format_fn / std", "reward/format_fn/std"),
        ("completions / mean_length", "completion_length"),
        ("self_distillation/rewards/f", "reward/f/mean"),
        ("rewards/chosen", "rewards/chosen"),
        ("rewards/margins", "rewards/margins"),
        ("rewards/chosen/mean", "reward/chosen/mean"),
        ("eval_kl", "eval/kl_per_token"),
        ("eval_rewards/f/mean", "eval/reward/f/mean"),
        ("eval_rewards/chosen", "eval/rewards/chosen"),
        ("eval_loss", "eval/loss"),
        ("eval_nll_loss", "eval/nll_loss"),
        ("eval_policy_loss", "eval/policy_loss"),
        ("eval_my_set_loss", "eval/my_set/loss"),
        ("eval_mismatched_loss", "eval/mismatched/loss"),
        ("eval_a_accuracy", "eval/a/accuracy"),
        ("eval_a_samples_per_second", "eval/a/samples_per_second"),
        ("eval_my_set_rewards/f/mean", "eval/my_set/reward/f/mean"),
        ("eval_my_set_clip_ratio/low_mean", "eval/my_set/clip_fraction_low"),
        ("eval_my_reward", "eval/my_reward"),
        ("eval_loss_of_mine", "eval/loss_of_mine"),
        ("train/loss", "loss"),
        ("train/rewards/f/mean", "reward/f/mean"),
        ("train/global_step", "global_step"),
        ("eval/loss", "eval/loss"),
        ("eval/kl", "eval/kl_per_token"),
        ("eval/my_set_loss", "eval/my_set/loss"),
        ("run-7 - train/objective/kl", "kl_per_sequence"),
        ("run - 7 - eval/loss", "eval/loss"),
        ("run-7 - train/loss__MIN", "loss__MIN"),
        ("Training Loss", "loss"),
        ("Validation Loss", "eval/loss"),
        ("my\nrun - train/loss", "loss"),
        ("eval_token_accuracy", "eval/token_accuracy"),
        ("a - b", "a - b"),
        ("my/own", "my/own"),
    ],
)
def test_patterns(key, name):
    assert canonical_name(key) == name
    assert canonical_names((key,)) == (name,)
    assert canonical_name(name) == name


@pytest.mark.parametrize("side", ["logps/chosen", "logps/rejected", "rewards/chosen", "rewards/rejected"])
def test_kl_of_kto_is_not_a_kl_per_token_whatever_the_batch_held(side):
    assert canonical_names(("kl", side)) == ("kl_kto", side)
    assert canonical_names((f"eval_{side}", "eval_kl")) == (f"eval/{side}", "eval/kl_kto")
    assert canonical_names((f"eval_{side}", "kl")) == (f"eval/{side}", "kl_per_token")


def test_a_bare_ratio_and_a_bare_accuracy_mean_something_only_in_company():
    assert canonical_names(("ratio", "kl")) == ("ratio", "kl_per_token")
    assert canonical_names(("ratio", "clip_ratio/region_mean")) == ("ratio_mean", "clip_fraction")
    assert canonical_names(("ratio", "logps/chosen")) == ("ratio", "logps/chosen")
    assert canonical_names(("kl", "current_steps")) == ("kl_per_token", "current_steps")
    assert canonical_names(("accuracy", "loss")) == ("accuracy", "loss")
    assert canonical_names(("current_steps", "accuracy")) == ("current_steps", "rewards/accuracies")


odd_keys = st.one_of(
    st.text(), st.sampled_from(["eval_", "train/", " - train/", "rewards/", "_loss", " / ", "\ud800", "\0", "[", "*"]),
    st.lists(st.sampled_from([*KEY_MAP, "eval_", "train/", "rewards/", "_", "/", "loss"]), max_size=6).map("".join),
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.one_of(odd_keys, st.none(), st.integers(), st.floats(), st.binary()), max_size=8))
def test_odd_keys_never_raise_and_no_name_comes_twice(keys):
    names = canonical_names(tuple(keys))
    assert len(names) == len(keys)
    assert all((name is None) or isinstance(key, str) for key, name in zip(keys, names, strict=True))
    assert max(Counter(name for name in names if name is not None).values(), default=1) == 1
    for key in keys:
        if isinstance(key, str):
            assert isinstance(canonical_name(key), str) and isinstance(is_known(key), bool)


@pytest.mark.timeout(20)  # quadratic time would be minutes
@pytest.mark.parametrize("piece", ["eval_", "_", "train/", "a - ", "rewards/", " / ", "_loss"])
def test_a_key_of_a_megabyte_is_quick_and_no_recursion(piece):
    assert isinstance(canonical_name("eval_" + piece * (2**20 // len(piece))), str)


def test_the_keys_of_a_log_are_looked_at_once():
    keys = ("loss", "kl", "a key for this test alone")
    before = canonical_names.cache_info()
    assert all(canonical_names(tuple(keys)) == ("loss", "kl_per_token", keys[-1]) for _ in range(100))
    after = canonical_names.cache_info()
    assert after.misses - before.misses == 1 and after.maxsize is not None


def test_time_and_memory_are_recognised_and_nothing_else():
    timing = ["eps", "step_time", "train_runtime", "train_samples_per_second", "eval_steps_per_second",
              "episodes_per_second", "system/rss_mb", "eval_step_time", "perf/fwd_s", "memory(GiB)", "memory_gb",
              "memory/max_active (GiB)", "train_speed(iter/s)", "elapsed_time", "remaining_time",
              "profiling/Time taken: x", "train_mem_gpu_peaked_delta", "eval/step_time"]  # fmt: skip
    assert [key for key in timing if not is_timing(key)] == []
    measured = {"eps", "step_time", "episodes_per_second", *METRICS["memory_gb"], "memory_gb"}
    assert {key for key in (*METRICS, *KEY_MAP) if is_timing(key)} == measured


# docs/metrics.md, the table for readers


def documented():
    """{canonical name: (unit, keys)} of the tables in docs/metrics.md."""
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| (.+) \|$", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    return {name: (unit.strip(), tuple(re.findall(r"`([^`]+)`", keys))) for name, unit, keys in rows}


def test_the_documentation_holds_the_table_key_by_key_in_order_of_preference():
    table = {name: keys for name, (_, keys) in documented().items()}
    assert {name: table.get(name) for name in METRICS} == METRICS
    assert set(table) - set(METRICS) == {name for _, _, name in BESIDE} - set(METRICS)


def test_every_documented_metric_has_a_unit():
    assert all(unit not in ("", "-") for unit, _ in documented().values())
