"""No value and no judgement depends on the order of sets, which changes from process to process."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json
import numpy as np
from trl_ext.data import degenerate_pairs
from trl_ext.rewards import load_reward_funcs
from trl_ext.rewards.calls import Call, ask
from trl_ext.rewards.reliability import RewardReliability
from trl_ext.rewards.reliability.probes import probe

words = {f"word{i}": 0.1 * i for i in range(40)}
specs = [
    "sentiment", "ending", "length", "repetition", "loops", "json_valid", "numeric",
    {"name": "keywords", "kwargs": {"weights": words}},
    {"name": "tags", "kwargs": {"tags": ["think", "answer"], "partial": True}},
    {"name": "regex", "kwargs": {"pattern": "w.*d"}},
    {"name": "json_schema", "kwargs": {"schema": {"type": "object", "required": ["a", "b"]}, "partial": True}},
    {"name": "json_fields", "kwargs": {"fields": ["a", "b.c"]}},
    {"name": "json_actions", "kwargs": {"actions": {"go": ["x"], "stop": []}}},
    {"name": "script", "kwargs": {"scripts": ["Latin", "Greek"]}},
    {"name": "block_list", "kwargs": {"phrases": sorted(words)[:20]}},
    {"name": "weighted_sum", "kwargs": {"rewards": ["sentiment", "length"], "weights": [0.3, 0.7]}},
]
functions, weights = load_reward_funcs(specs)
texts = [" ".join(f"word{(i * j) % 40}" for j in range(12)) + f" great {i}" for i in range(90)]
texts += ['{"a": 1, "b": {"c": 2}}', '{"name": "go", "arguments": {"x": 1}}', "<think>a</think><answer>4</answer>"] * 2
call = Call([""] * 96, texts, None, {"solution": ["4"] * 96})
rewards = np.array([ask(function, call) for function in functions], dtype=float).T
reliability = RewardReliability([function.__name__ for function in functions], weights)
for step in range(20):
    reliability.observe(step, [""] * 96, texts, rewards + 0.01 * step)
score = lambda call: np.array([ask(function, call) for function in functions], dtype=float).T
reliability.observe_probes(probe(call.take(range(8)), np.array(weights), score))
print(json.dumps([rewards.tolist(), reliability.report().to_dict(), list(degenerate_pairs(50)["rejected"])]))
"""


def said(seed):
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_three_hash_seeds_give_the_same_to_the_last_digit():
    first, second, third = map(said, ("0", "1", "4242"))
    assert len(first) > 1000
    assert first == second == third
