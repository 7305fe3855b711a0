import json
import os
from pathlib import Path

import pytest

from trl_ext.monitor.trainer_kind import trainer_kind

DATA = Path(os.environ.get("TRL_EXT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data")) / "traces"
PPO = "objective/kl objective/scores policy/approxkl_avg loss/policy_avg val/ratio lr"
GROUP = "loss reward reward_std frac_reward_zero_std completions/mean_length rewards/f/mean kl"
PAIRS = "loss rewards/chosen rewards/rejected rewards/margins logps/chosen"


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        (f"{PPO} loss/value_avg", "PPO"),
        (PPO, "RLOO"),  # up to TRL 0.21
        (f"{GROUP} {PPO} advantages/mean", "ReinforceLOO"),
        (f"{GROUP} {PPO} advantages/mean loss/value_avg value/explained_variance", "PPO"),  # of trl_ext
        (GROUP, "GRPO/RLOO"),
        (f"{GROUP} tools/call_frequency", "GRPO"),
        (f"{GROUP} sampling/importance_sampling_ratio/mean", "GRPO"),
        ("loss reward reward_std completion_length rewards/f", "GRPO"),  # up to TRL 0.15
        (f"{PAIRS} rewards/accuracies", "DPO"),
        (f"{PAIRS} rewards/accuracies mean_token_accuracy entropy", "DPO"),
        (f"{PAIRS} rewards/accuracies nll_loss", "CPO"),
        (f"{PAIRS} rewards/accuracies nll_loss log_odds_ratio", "ORPO"),
        (f"{PAIRS} kl", "KTO"),
        (f"{PAIRS} rewards/accuracies objective/kl objective/scores beta", "OnlineDPO"),
        ("loss accuracy margin min_reward mean_reward max_reward", "Reward"),
        ("loss mean_token_accuracy num_tokens entropy", "SFT"),
        ("loss grad_norm learning_rate epoch", "SFT"),
        ("train/loss train/rewards/chosen train/rewards/accuracies", "DPO"),
        ("eval_rewards/chosen eval_rewards/accuracies", "DPO"),
        ("epoch temperature", None),
    ],
)
def test_the_keys_tell_the_trainer(keys, kind):
    assert trainer_kind(keys.split()) == kind


@pytest.mark.skipif(not (DATA / "index.json").is_file(), reason=f"no public logs in {DATA}")
def test_the_trainer_of_real_logs_is_told():
    for trace in json.loads((DATA / "index.json").read_text()):
        keys = {key for line in (DATA / trace["file"]).read_text().splitlines() for key in json.loads(line)["logs"]}
        expected = "SFT" if trace["name"] == "rm_huanhuan" else trace["trainer"].split()[0]  # loss alone
        assert expected in trainer_kind(keys).split("/"), trace["name"]
