"""TRL's own reward functions under the registry's roof: the same values, on conversations and on plain strings."""

import pickle
import subprocess
import sys

import pytest

from trl_ext.errors import UserError
from trl_ext.rewards import load_reward_funcs

THOUGHT, BARE = "<think>\nso\n</think>\n4", "4"


def test_think_format_agrees_with_trl_on_conversations_and_strings():
    from trl.rewards import think_format_reward

    (reward,), _ = load_reward_funcs("think_format_reward")
    conversations = [[{"role": "assistant", "content": THOUGHT}], [{"role": "assistant", "content": BARE}]]
    assert think_format_reward(conversations) == [1.0, 0.0]
    assert reward(prompts=["", ""], completions=conversations) == [1.0, 0.0]
    assert reward(prompts=["", ""], completions=[THOUGHT, BARE]) == [1.0, 0.0]
    assert reward.__name__ == "think_format_reward"


def test_soft_overlong_gets_its_kwargs_and_keeps_the_name_trl_logs():
    spec = {
        "name": "get_soft_overlong_punishment",
        "kwargs": {"max_completion_len": 100, "soft_punish_cache": 20},
    }
    (reward,), _ = load_reward_funcs([spec])
    ids = [[1] * 80, [1] * 90, [1] * 101]
    # Equation 13 of the DAPO paper: 0 up to 80, then (80 - length) / 20, -1 beyond 100.
    assert reward(prompts=[""] * 3, completions=[""] * 3, completion_ids=ids) == [0.0, -0.5, -1.0]
    assert reward.__name__ == "soft_overlong_punishment_reward"


def test_accuracy_without_math_verify_names_the_installation(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(UserError, match="pip install math-verify"):
        load_reward_funcs("accuracy_reward")


def test_they_pickle():
    (reward,), _ = load_reward_funcs("think_format_reward")
    assert pickle.loads(pickle.dumps(reward))(prompts=[""], completions=[THOUGHT]) == [1.0]


def test_naming_rewards_imports_neither_torch_nor_trl():
    program = (
        "import sys; from trl_ext.rewards import REWARDS, load_reward_funcs;"
        "load_reward_funcs(['repetition', {'name': 'length', 'kwargs': {'minimum': 1, 'maximum': 2}}]);"
        "sys.exit(bool({'torch', 'trl', 'transformers', 'vaderSentiment'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
