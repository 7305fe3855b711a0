"""One YAML file of rewards for all five trainers that take reward functions."""

import pytest
import rl_trainers

from trl_ext.rewards import load_reward_funcs
from trl_ext.rewards.reward_config import read_reward_config

YAML = """
reward_funcs:
  - {name: repetition, weight: 1.0, kwargs: {n: 1}}
  - {name: rewards_of_a_user.py:vowels, weight: 0.5, on_failure: 0.0, timeout: 10}
  - name: gate
    weight: 2.0
    kwargs:
      reward: {name: length, kwargs: {minimum: 1, maximum: 4, unit: words}}
      condition: {name: regex, kwargs: {pattern: "."}}
      threshold: 1.0
"""
OWN = """
async def vowels(prompts, completions, **kwargs):
    return [sum(c in "aeiou" for c in text) / (len(text) or float("nan")) for text in completions]
"""


@pytest.mark.parametrize(
    "build", ["grpo", "rloo", "reinforce_loo", "ppo", pytest.param("stock_ppo", marks=pytest.mark.stock_ppo)]
)
def test_one_file_serves_every_trainer(build, tmp_path, monkeypatch):
    (tmp_path / "rewards.yaml").write_text(YAML)
    (tmp_path / "rewards_of_a_user.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    functions, weights = load_reward_funcs(read_reward_config("rewards.yaml").reward_funcs)
    trainer = getattr(rl_trainers, build)(tmp_path / "run", functions, [], reward_weights=weights)
    trainer.train()
    assert trainer.state.global_step == 4

    logs = trainer.state.log_history
    rewards = [row.get("reward", row.get("objective/scores")) for row in logs]
    last = [reward for reward in rewards if reward is not None][-1]
    given = [function.last_batch.rewards for function in functions]
    totals = [sum(w * (r or 0.0) for w, r in zip(weights, row, strict=True)) for row in zip(*given, strict=True)]
    assert len(totals) == 32
    assert last == pytest.approx(sum(totals) / 32, abs=1e-4)
