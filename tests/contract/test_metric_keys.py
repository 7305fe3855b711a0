"""The keys that TRL logs, captured from tiny real runs: `trl_ext.monitor.metrics` knows each of them.

A failure names the trainer and the key. Either TRL renamed a key (its canonical name is missing: add the new spelling
to METRICS) or logs a new one (map it, or list it in UNMAPPED).
"""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
import trl
from datasets import Dataset
from transformers import PrinterCallback

from trl_ext.monitor.metrics import METRICS, canonical_names, is_known
from trl_ext.tiny import byte_tokenizer, random_policy, random_scorer

sys.path.insert(0, str(Path(__file__).parents[1] / "trainers"))  # test folders are no packages
from trainer_builders import COMMON, PROMPTS, SMALL, letter_share, loo_trainer, ppo_trainer

LOOP = {"loss", "grad_norm", "learning_rate", "epoch"}
LENGTHS = {f"{of}{bound}" for of in ("completion_length", "terminated_length") for bound in ("", "_min", "_max")}
CLIPPING = {"clip_fraction", "clip_fraction_low", "clip_fraction_low_min", "clip_fraction_high",
            "clip_fraction_high_max"}  # fmt: skip
GROUPS = {"reward", "reward_std", "zero_std_fraction", "reward/letter_share/mean", "reward/letter_share/std",
          "kl_per_token", "entropy_per_token", "truncated_fraction", "num_tokens", *LENGTHS, *CLIPPING}  # fmt: skip
STOCK_PPO = {"reward", "reward_with_kl", "kl_penalty", "kl_per_sequence", "entropy_per_token", "entropy_per_sequence",
             "approx_kl", "clip_fraction", "policy_loss", "value_loss", "value_clip_fraction", "ratio_mean",
             "eos_count", "learning_rate", "episode", "episodes_per_second", "epoch"}  # fmt: skip
OURS = {"advantage_mean", "advantage_std", "kl_per_sequence", "kl_penalty", "reward_with_kl", "entropy_per_sequence",
        "approx_kl", "policy_loss", "ratio_mean", "eos_count"}  # fmt: skip
SIDES = {f"{of}/{side}" for of in ("rewards", "logps", "logits") for side in ("chosen", "rejected")}
PAIRS = {*SIDES, "rewards/accuracies", "rewards/margins"}
ONLINE = {*(PAIRS - {"logits/chosen", "logits/rejected"}), "kl_per_sequence", "entropy_per_sequence", "eos_fraction"}
EVALUATION = {"eval/loss", "eval/runtime", "eval/samples_per_second", "eval/steps_per_second", "epoch"}

# trainer: canonical names that each log of training must have, and what an evaluation has besides EVALUATION
EXPECTED = {
    "GRPO": ({*LOOP, *GROUPS, "step_time"}, GROUPS),
    "RLOO": ({*LOOP, *GROUPS, "step_time"}, GROUPS),
    "DPO": ({*LOOP, *PAIRS, "entropy_per_token", "token_accuracy", "num_tokens"}, {*PAIRS, "token_accuracy"}),
    "KTO": ({*LOOP, *SIDES, "rewards/margins", "kl_kto", "num_tokens"}, {*SIDES, "rewards/margins", "kl_kto"}),
    "SFT": ({*LOOP, "entropy_per_token", "token_accuracy", "num_tokens"}, {"entropy_per_token", "token_accuracy"}),
    "Reward": ({*LOOP, "accuracy", "margin", "mean_reward", "min_reward", "max_reward", "num_tokens"},
               {"accuracy", "margin", "mean_reward", "min_reward", "max_reward"}),
    "ORPO": ({*LOOP, *PAIRS, "nll_loss", "log_odds_ratio", "log_odds_chosen"}, {*PAIRS, "nll_loss"}),
    "CPO": ({*LOOP, *PAIRS, "nll_loss"}, {*PAIRS, "nll_loss"}),
    "BCO": ({*LOOP, *SIDES, "rewards/margins"}, {*SIDES, "rewards/margins"}),
    "OnlineDPO": ({*LOOP, *ONLINE, "reward", "reward_with_kl", "kl_penalty"}, None),
    "XPO": ({*LOOP, *ONLINE, "reward"}, None),
    "NashMD": ({*LOOP, *ONLINE}, None),
    "PRM": (LOOP, {"accuracy"}),
    "StockPPO": (STOCK_PPO, None),
    "OurPPO": ({*LOOP, *OURS, *STOCK_PPO, *(GROUPS - {"zero_std_fraction"}), "value_mean", "explained_variance"}, None),
    "ReinforceLOO": ({*LOOP, *OURS, *GROUPS, "step_time"}, GROUPS),
}  # fmt: skip
OLD_LANE = {"BCO", "XPO", "NashMD", "PRM", "StockPPO"}  # what TRL removed in 1.13
CURRENT_LANE = {"OurPPO"}

WORDS = [*PROMPTS, *(text.upper() for text in PROMPTS)]
PAIR_ROWS = Dataset.from_dict({"prompt": WORDS, "chosen": [f" yes {w}" for w in WORDS], "rejected": [" no"] * 16})
SINGLE_ROWS = Dataset.from_dict(
    {"prompt": WORDS, "completion": [f" yes {w}" for w in WORDS], "label": [True, False] * 8}
)
PROMPT_ROWS = Dataset.from_dict({"prompt": WORDS})
STEP_ROWS = Dataset.from_dict({"prompt": WORDS, "completions": [["a", "b"]] * 16, "labels": [[True, False]] * 16})
GENERATING = {"max_completion_length": 8, "num_generations": 2, "beta": 0.1}
# trainer: (module, data, options)
STOCK = {
    "GRPO": ("trl", PROMPT_ROWS, GENERATING),
    "RLOO": ("trl", PROMPT_ROWS, GENERATING),
    "DPO": ("trl", PAIR_ROWS, {}),
    "KTO": ("trl", SINGLE_ROWS, {}),
    "SFT": ("trl", Dataset.from_dict({"text": WORDS}), {}),
    "Reward": ("trl", PAIR_ROWS, {}),
    "ORPO": ("trl.experimental.orpo", PAIR_ROWS, {"max_length": 64}),
    "CPO": ("trl.experimental.cpo", PAIR_ROWS, {"max_length": 64}),
    "BCO": ("trl.experimental.bco", SINGLE_ROWS, {"max_length": 64}),
    "OnlineDPO": ("trl.experimental.online_dpo", PROMPT_ROWS, {"max_new_tokens": 8}),
    "XPO": ("trl.experimental.xpo", PROMPT_ROWS, {"max_new_tokens": 8}),
    "NashMD": ("trl.experimental.nash_md", PROMPT_ROWS, {"max_new_tokens": 8}),
    "PRM": ("trl.experimental.prm", STEP_ROWS, {"max_length": 64}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A policy that trainers load themselves, as model and as reference."""
    path = tmp_path_factory.mktemp("policy")
    random_policy(**SMALL).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return str(path)


def stock_trainer(name, tmp_path, folder, evaluation_rows=None):
    module, data, options = STOCK[name]
    module = import_module(module)
    evaluates = {"eval_strategy": "steps", "eval_steps": 2} if EXPECTED[name][1] else {}
    config = getattr(module, f"{name}Config")(
        str(tmp_path), **{**COMMON, "max_steps": 2, "per_device_train_batch_size": 4, **evaluates, **options}
    )
    arguments = {"reward_funcs": letter_share} if name in ("GRPO", "RLOO", "OnlineDPO") else {}
    if name in ("XPO", "NashMD"):
        arguments = {"reward_funcs": random_scorer(**SMALL)}
    if name == "XPO":
        arguments["reward_processing_classes"] = byte_tokenizer()
    if name == "PRM":
        from transformers import Qwen2ForTokenClassification

        model = Qwen2ForTokenClassification(random_policy(**SMALL).config)
    else:
        model = random_scorer(**SMALL) if name == "Reward" else folder
    return getattr(module, f"{name}Trainer")(
        model=model, args=config, train_dataset=data,
        eval_dataset=(evaluation_rows or data.select(range(4))) if evaluates else None,
        processing_class=byte_tokenizer(), **arguments,
    )  # fmt: skip


def stock_ppo(tmp_path):
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    rows = Dataset.from_dict({"input_ids": [byte_tokenizer()(text)["input_ids"] for text in WORDS]})
    options = {**COMMON, "max_steps": -1, "per_device_train_batch_size": 4, "total_episodes": 8, "response_length": 8,
               "num_sample_generations": 0}  # fmt: skip
    return PPOTrainer(
        PPOConfig(str(tmp_path), **options), byte_tokenizer(), random_policy(**SMALL), random_policy(**SMALL),
        random_scorer(**SMALL), rows, value_model=random_scorer(2, **SMALL),
    )  # fmt: skip


def build(name, tmp_path, folder):
    if name == "StockPPO":
        return stock_ppo(tmp_path)
    if name == "OurPPO":
        return ppo_trainer(tmp_path, total_episodes=32)
    if name == "ReinforceLOO":
        rows = PROMPT_ROWS.select(range(4))
        return loo_trainer(tmp_path, model=folder, max_steps=2, beta=0.1, eval_strategy="steps", eval_steps=2,
                           per_device_eval_batch_size=4, trainer={"eval_dataset": rows})  # fmt: skip
    return stock_trainer(name, tmp_path, folder)


def complaints(trainer, row, expected):
    """What is wrong with the keys of one log, a line each."""
    keys = tuple(key for key in row if key != "step")
    missing = sorted(expected - set(canonical_names(keys)))
    lines = [f"{trainer}: nothing logged says {name!r} any more; TRL renamed a key, it logs {keys}" for name in missing]
    return lines + [f"{trainer}: unknown key {key!r}" for key in keys if not is_known(key)]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[getattr(pytest.mark, lane) for lane, members in
                               (("stock_ppo", OLD_LANE), ("current_trl", CURRENT_LANE)) if name in members])
     for name in EXPECTED],
)  # fmt: skip
def test_keys_of(name, tmp_path, folder):
    torch.set_num_threads(1)
    trainer = build(name, tmp_path, folder)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    training, evaluation = EXPECTED[name]
    history = trainer.state.log_history
    logs = [row for row in history if "loss" in row or "eps" in row]
    evaluations = [row for row in history if "eval_loss" in row]
    assert len(logs) >= 2 and bool(evaluations) == (evaluation is not None)
    found = [line for row in logs for line in complaints(name, row, training)]
    for row in evaluations:
        found += complaints(name, row, EVALUATION | {f"eval/{metric}" for metric in evaluation})
    for row in history:
        found += complaints(name, row, set())
    assert not found, "\n".join(sorted(set(found)))


def test_several_evaluation_sets_have_a_loss_each(tmp_path, folder):
    """Transformers names the set, TRL's own metrics do not: the last set's stand under the plain prefix."""
    sets = {"one_set": PAIR_ROWS.select(range(4)), "b": PAIR_ROWS.select(range(4, 8))}
    trainer = stock_trainer("DPO", tmp_path, folder, sets)
    trainer.remove_callback(PrinterCallback)
    trainer.evaluate()
    names = [set(canonical_names(tuple(row))) for row in trainer.state.log_history]
    for name, found in zip(sets, names, strict=True):
        assert {f"eval/{name}/loss", f"eval/{name}/runtime", "eval/rewards/margins"} <= found
    assert not [line for row in trainer.state.log_history for line in complaints("DPO", row, set())]


TRL = Path(trl.__file__).parent
SOURCES = {path.relative_to(TRL).as_posix(): path.read_text() for path in TRL.rglob("*_trainer.py")}
LOGGED = re.compile(r"""(?:_metrics\[(?:mode|"train"|"eval")\]|self\.stats)\[\s*"([^"]+)"\s*\]""")


@pytest.mark.parametrize("name", [name for name, text in SOURCES.items() if LOGGED.search(text)])
def test_every_key_that_stands_in_the_source_is_known(name):
    """Also what no run on a CPU logs: vLLM, tools, asynchronous trainers."""
    unknown = {key for key in LOGGED.findall(SOURCES[name]) if not is_known(key)}
    assert not unknown, f"{name} logs what trl_ext/monitor/metrics.py does not know: {sorted(unknown)}"


@pytest.mark.parametrize("metric", [name for name in METRICS if name.startswith(("importance_ratio", "sampling_"))])
def test_what_vllm_adds_is_still_in_the_source(metric):
    assert set(LOGGED.findall(SOURCES["trainer/grpo_trainer.py"])) & set(METRICS[metric]), (
        f"TRL renamed {METRICS[metric]}"
    )


def test_a_renamed_and_a_new_key_are_named():
    row = {"step": 1, "loss": 0.1, "kl_divergence": 0.2}
    lines = complaints("GRPO", row, {"loss", "kl_per_token"})
    assert len(lines) == 2 and all(line.startswith("GRPO: ") for line in lines)
    assert "'kl_per_token'" in lines[0] and "'kl_divergence'" in lines[1]
