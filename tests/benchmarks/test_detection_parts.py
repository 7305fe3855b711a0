"""The detection benchmark judges others: its own arithmetic and its simulated logs, tested.

pytest tests/benchmarks/test_detection_parts.py
"""

import math
import statistics
import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from detection.faults import FAULTS
from detection.judging import Case, false_alarms, outcome
from detection.simulated import START, STEPS, WORLDS, simulate
from detection.simulated_faults import cases, faulty
from detection.simulated_healthy import healthy

from trl_ext.monitor import RULES

# told by the tokenizer and the options, not by a log
NOT_IN_LOGS = {"tokenizer_setup", "value_loss_weight"}
# a real run with the fault in its training shows them, and better than a simulated log
IN_REAL_RUNS = {"early_divergence", "preference_identical", "reward_model_scale"}


def case(rows=10, starts=5, group="real", verdict="troubled", expected=("kl_high",)):
    logs = [{"step": 10 * (i + 1), "logs": {}} for i in range(rows)]
    return Case("name", group, "title", "grpo", logs, expected, starts, verdict)


def test_every_rule_a_log_can_show_has_a_fault():
    expected = {rule for _, _, _, rules, _ in cases().values() for rule in rules}
    assert expected == set(RULES) - NOT_IN_LOGS - IN_REAL_RUNS
    assert {rule for fault in FAULTS for rule in fault.expected} >= IN_REAL_RUNS


def test_a_fault_changes_nothing_before_it_begins():
    for kind, curves, change, _, more in cases().values():
        if "starts" in more:
            continue
        for name, curve in curves.items():
            if name != "limit":  # room for longer completions
                assert [curve(step) for step in range(1, START)] == [
                    WORLDS[kind][name](step) for step in range(1, START)
                ]
        if change is None and "limit" not in curves:
            assert simulate(kind, 7, curves)[: START - 1] == simulate(kind, 7)[: START - 1]


def test_a_seed_is_a_log_and_another_seed_another():
    for kind in WORLDS:
        assert simulate(kind, 3) == simulate(kind, 3) != simulate(kind, 4)


def test_faults_have_rules_and_healthy_logs_have_none():
    assert all(run.expected and len(run.rows) == STEPS for run in faulty())
    assert not any(run.expected for run in healthy())


def test_healthy_identities_hold():
    for row in simulate("ppo", 1):
        logs = row["logs"]
        assert logs["objective/rlhf_reward"] == pytest.approx(
            logs["objective/scores"] + logs["objective/non_score_reward"]
        )
    assert simulate("dpo", 1)[0]["logs"]["loss"] == pytest.approx(math.log(2), abs=1e-9)


def test_noise_is_as_long_lived_as_asked_for():
    kl = [math.log(row["logs"]["kl"]) for row in simulate("grpo", 5, {"kl": lambda step: 1.0})]
    mean, spread = statistics.fmean(kl), statistics.pvariance(kl)
    lag = statistics.fmean((a - mean) * (b - mean) for a, b in pairwise(kl)) / spread
    assert lag == pytest.approx(0.5, abs=0.12) and math.sqrt(spread) == pytest.approx(0.35, rel=0.2)


def test_what_is_said_before_the_fault_does_not_name_it():
    early, late = (30, "error", "kl_high", None), (80, "warning", "kl_high", None)
    assert outcome(case(), [early]).named is None
    assert outcome(case(), [early, late]).named == 2
    assert outcome(case(group="public"), [early]).named == 0  # still open, as one root cause
    assert outcome(case(group="public"), [(30, "error", "kl_high", 50)]).named is None


def test_a_peer_names_a_fault_in_its_own_words_and_info_is_not_loud():
    assert outcome(case(), [(60, "error", "kl_drift", None)]).named == 0
    other = outcome(case(), [(60, "info", "reward_flat", None), (70, "warning", "plateau", None)])
    assert other.named is None and other.anything == 1
    assert outcome(case(), [(60, "crash", "ValueError", None)]).anything is None


def test_false_alarms_are_counted_on_healthy_rows_alone():
    said = {"name": [(20, "warning", "a", None), (30, "critical", "b", None), (90, "error", "c", None)]}
    assert false_alarms([case(verdict="healthy")], said) == (10, 1, 2)
    assert false_alarms([case(group="simulated")], said) == (5, 1, 1)
    assert false_alarms([case(), case(verdict="unclear")], said) == (0, 0, 0)
