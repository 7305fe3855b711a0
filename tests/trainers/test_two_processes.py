"""Two gloo processes take the steps and log the numbers that one takes and logs."""

import json
from pathlib import Path

import ddp_run
import pytest
from torchrun import output_of
from trainer_builders import environment

SCRIPT = str(Path(__file__).parent / "ddp_run.py")
KEYS = ["reward", "objective/scores", "objective/rlhf_reward", "objective/kl", "objective/entropy", "kl",
        "advantages/mean", "advantages/std", "val/ratio", "val/num_eos_tokens", "policy/approxkl_avg",
        "policy/clipfrac_avg", "loss/policy_avg", "grad_norm", "loss"]  # fmt: skip
EPISODE_KEYS = ["episodes/tokens", "episodes/cut_ratio/tokens"]  # of tools and of a rollout_func
VALUE_KEYS = ["loss/value_avg", "value/explained_variance", "value/mean", "val/clipfrac_avg"]


def train(folder, processes):
    out = str(folder / f"{processes}.json")
    output_of(SCRIPT, out, processes=processes, env=environment(), cwd=folder, timeout=240)
    with open(out) as file:
        return json.load(file)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    return train(folder, 1), train(folder, 2)


@pytest.mark.parametrize("case", ddp_run.CASES)
def test_two_processes_follow_one(runs, case):
    one, two = (run[case] for run in runs)
    assert (one["processes"], two["processes"]) == (1, 2)
    assert one["norms"] == pytest.approx(two["norms"], rel=1e-5, abs=1e-6)
    assert one["probes"] == pytest.approx(two["probes"], rel=1e-3, abs=1e-4)
    keys = KEYS + (VALUE_KEYS if case.startswith("value") else []) + (EPISODE_KEYS if case != "greedy" else [])
    for a, b in zip(one["logs"][:-1], two["logs"][:-1], strict=True):
        seen = [k for k in keys if k in a]  # the numbers of a rollout come with a new rollout alone
        assert {k: a[k] for k in seen} == pytest.approx({k: b[k] for k in seen}, rel=1e-3, abs=2e-5)
    assert {k for row in one["logs"] for k in row} >= set(keys)
    if case == "loo-stop":  # both at the same step, long before the last of 12
        assert one["logs"][-1]["step"] == two["logs"][-1]["step"] < 10
    else:
        assert sum("reward" in row for row in one["logs"]) == (4 if "accumulate" in case else 2)
