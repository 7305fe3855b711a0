"""`RewardReliabilityCallback` in real trainers of a second: what it hears, asks again, says and leaves behind."""

import json
import logging
import pickle
import random
import time

import numpy as np
import pytest
import torch
from rl_trainers import dataset, grpo, ppo, reinforce_loo, rloo, stock_ppo
from transformers import TrainerCallback, set_seed

from trl_ext import PPOMonitoringCallback, RewardReliabilityCallback
from trl_ext.errors import UserError
from trl_ext.rewards import CheckedReward


def vowels(prompts, completions, **kwargs):
    return [sum(char in "aeiou" for char in c) / max(len(c), 1) for c in completions]


def from_column(prompts, completions, bonus, **kwargs):
    return [0.1 * number for number in bonus]


async def awaited(prompts, completions, **kwargs):
    return [len(c) / 10 for c in completions]


BUILDERS = [grpo, rloo, reinforce_loo, ppo]


@pytest.mark.parametrize("build", BUILDERS)
def test_every_trainer_is_heard_and_trains_as_without_it(build, tmp_path):
    callback = RewardReliabilityCallback(evaluate_every=1, rescore_every=2)
    watched = build(tmp_path / "a", [vowels, from_column, awaited], callback)
    watched.train()
    plain = build(tmp_path / "b", [vowels, from_column, awaited], [])
    plain.train()

    report = callback.report
    assert [component.name for component in report.components] == ["vowels", "from_column", "awaited"]
    assert report.completions == 128
    assert report.parts["consistency"] == 1.0
    assert report.parts["robustness"] is not None
    rewards = [[row["reward"] for row in trainer.state.log_history if "reward" in row] for trainer in (watched, plain)]
    assert rewards[0] == rewards[1]
    lengths = [row["completions/mean_length"] for row in watched.state.log_history if "completions/mean_length" in row]
    assert len(lengths) == 4
    assert "_calculate_rewards" not in vars(watched), "the trainer is left as it was"


def test_scores_are_logged_and_the_monitor_does_not_judge_them(tmp_path):
    monitor = PPOMonitoringCallback(log_system_metrics=False)
    trainer = grpo(
        tmp_path, vowels, [monitor, RewardReliabilityCallback(evaluate_every=1, gold_reward=vowels, gold_every=1)]
    )
    trainer.train()
    lines = (tmp_path / "trl_ext" / "metrics.jsonl").read_text().splitlines()
    logs = [row for row in map(json.loads, lines) if "reward" in row]
    assert all(0 <= row["reward_reliability/score"] <= 1 for row in logs)
    assert "reward_reliability/gold" in logs[-1]
    assert [alert.rule for alert in monitor.alerts if "reward_reliability" in alert.metric] == []


def test_a_dead_function_is_named_with_its_alert_in_the_monitors_file(tmp_path, caplog):
    def never(prompts, completions, **kwargs):
        return [0.0] * len(completions)

    heard = []
    callback = RewardReliabilityCallback(evaluate_every=1, rescore_every=0, on_alert=heard.append)
    with caplog.at_level(logging.INFO, "trl_ext.rewards"):
        grpo(tmp_path, [vowels, never], callback, max_steps=18).train()
    (alert,) = [alert for alert in callback.alerts if alert.rule == "dead_reward_component"]
    assert alert.severity == "warning"
    assert "never gave exactly 0 to each of the last" in alert.message
    lines = [json.loads(line) for line in (tmp_path / "trl_ext" / "alerts.jsonl").read_text().splitlines()]
    events = [(line["rule"], line["event"]) for line in lines]
    assert ("dead_reward_component", "opened") in events and ("dead_reward_component", "raised") in events
    assert [a.rule for a in heard] == [rule for rule, _ in events]
    assert "[warning] dead_reward_component" in caplog.text


def test_a_reward_that_draws_numbers_is_found_within_the_first_looks(tmp_path):
    random = np.random.default_rng(0)

    def drawn(prompts, completions, **kwargs):
        return random.normal(size=len(completions)).tolist()

    callback = RewardReliabilityCallback(evaluate_every=1)
    grpo(tmp_path, [vowels, drawn], callback).train()
    (alert,) = [alert for alert in callback.alerts if alert.rule == "reward_inconsistent"]
    assert (alert.severity, alert.evidence["function"]) == ("error", "drawn")
    assert alert.opened <= 3
    assert callback.report.parts["consistency"] == 0.0


def test_the_files_hold_the_evidence(tmp_path):
    callback = RewardReliabilityCallback(evaluate_every=2, rescore_every=2, output_dir=tmp_path / "evidence")
    grpo(tmp_path, [vowels, awaited], callback).train()
    report = json.loads((tmp_path / "evidence" / "reward_reliability.json").read_text())
    assert set(report["parts"]) >= {"stability", "consistency", "signal"}
    assert report["score"] == pytest.approx(callback.report.score)
    samples = [json.loads(line) for line in (tmp_path / "evidence" / "reward_samples.jsonl").read_text().splitlines()]
    assert {sample["kind"] for sample in samples} >= {"best", "worst"}
    best = [s["reward"] for s in samples if s["kind"] == "best"]
    worst = [s["reward"] for s in samples if s["kind"] == "worst"]
    assert min(best) >= max(worst)
    for sample in samples:
        assert sample["reward"] == pytest.approx(sum(sample["rewards"].values()))


def test_samples_reach_tensorboard_as_text(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = RewardReliabilityCallback(evaluate_every=2, rescore_every=2)
    grpo(tmp_path, [vowels], callback, report_to=["tensorboard"]).train()
    (folder,) = {path.parent for path in tmp_path.rglob("events.out*")}
    events = EventAccumulator(str(folder)).Reload()
    assert any("reward_reliability/samples" in tag for tag in events.Tags()["tensors"])
    assert any("reward_reliability/score" in tag for tag in events.Tags()["scalars"])


def test_a_gold_reward_that_falls_while_the_reward_rises_is_told_with_both_slopes(tmp_path):
    state = {"calls": 0}

    def rises(prompts, completions, trainer_state, **kwargs):
        return [0.1 * trainer_state.global_step + 0.01 * len(c) for c in completions]

    def truth(prompts, completions, trainer_state, **kwargs):
        state["calls"] += 1
        return [-0.1 * trainer_state.global_step + 0.01 * len(c) for c in completions]

    callback = RewardReliabilityCallback(gold_reward=truth, gold_every=1, evaluate_every=1, rescore_every=0)
    grpo(tmp_path, rises, callback, max_steps=12, learning_rate=0.0).train()
    (alert,) = [alert for alert in callback.alerts if alert.rule == "reward_hacking_suspected"]
    assert alert.severity == "error"
    assert alert.opened <= 9
    assert alert.evidence["proxy_slope"] == pytest.approx(0.1, abs=0.03)
    assert alert.evidence["gold_slope"] == pytest.approx(-0.1, abs=0.03)
    assert any(key.startswith("example_") for key in alert.evidence)
    assert state["calls"] == 12


def test_a_probe_set_is_ranked(tmp_path):
    rows = [{"prompt": "p", "completion": "a" * i + "b" * (8 - i), "score": float(i), "bonus": 0.0} for i in range(9)]
    good = RewardReliabilityCallback(probe_set=rows, evaluate_every=1)
    grpo(tmp_path / "good", [vowels, from_column], good).train()
    assert good.report.measures["probe_set/correlation"] == pytest.approx(1.0)
    file = tmp_path / "probes.jsonl"
    file.write_text("".join(json.dumps({**row, "score": -row["score"]}) + "\n" for row in rows))
    bad = RewardReliabilityCallback(probe_set=str(file), evaluate_every=1)
    grpo(tmp_path / "bad", [vowels, from_column], bad).train()
    assert bad.report.parts["agreement"] == 0.0
    assert [alert.rule for alert in bad.alerts if alert.severity == "error"] == ["reward_disagrees"]


def test_probes_leave_no_trace_in_the_functions_and_the_logs(tmp_path):
    checked = CheckedReward(vowels)
    extra = []

    def logs(prompts, completions, log_metric, log_extra, **kwargs):
        extra.append(len(completions))
        log_metric("seen", len(completions))
        log_extra("text", completions)
        return [0.0] * len(completions)

    callback = RewardReliabilityCallback(evaluate_every=1, rescore_every=1)
    trainer = grpo(tmp_path, [checked, logs], callback, log_completions=False)
    trainer.train()
    assert checked.calls == 4
    assert len(checked.last_batch.completions) == 32
    assert extra.count(32) == 4 and len(extra) > 40
    assert [row["seen"] for row in trainer.state.log_history if "seen" in row] == [32.0] * 4
    assert trainer.reward_funcs[0] is checked


class EvaluateAfter(TrainerCallback):
    """Evaluates within each step of training."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_step_end(self, *_, **__):
        self.trainer.evaluate(dataset())


def test_an_evaluation_is_not_heard(tmp_path):
    callback = RewardReliabilityCallback(evaluate_every=1, rescore_every=0)
    trainer = grpo(tmp_path, vowels, callback, per_device_eval_batch_size=32)
    trainer.callback_handler.add_callback(EvaluateAfter(trainer))
    trainer.train()
    assert callback.report.completions == 128


def test_a_trainer_without_reward_functions_is_told_once_and_left_alone(scripted, caplog):
    scripted(RewardReliabilityCallback()).train()
    assert caplog.text.count("hears no rewards") == 1


def test_an_error_in_it_is_logged_once_and_training_goes_on(tmp_path, monkeypatch, caplog):
    callback = RewardReliabilityCallback(evaluate_every=1)
    monkeypatch.setattr("trl_ext.callbacks.reward_reliability.RewardReliability.report", lambda *_, **__: 1 / 0)
    trainer = grpo(tmp_path, vowels, callback)
    trainer.train()
    assert trainer.state.global_step == 4
    assert caplog.text.count("RewardReliabilityCallback._hear failed; training goes on") == 1


def test_what_cannot_be_learnt_anew_survives_a_resume(tmp_path):
    def build():
        return RewardReliabilityCallback(gold_reward=vowels, gold_every=1, evaluate_every=1, rescore_every=0)

    first = build()
    grpo(tmp_path, vowels, first, save_strategy="steps", save_steps=2).train()
    second = build()
    trainer = grpo(tmp_path, vowels, second, save_strategy="steps", save_steps=2)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    (evaluation,) = second._reliability.gold.evaluations  # those of five steps are one
    assert (evaluation.first, evaluation.step, evaluation.completions) == (1, 2.5, 4 * 32)
    assert second._reliability.window.seen == first._reliability.window.seen == 128


def test_restored_by_transformers_it_still_holds_its_functions(tmp_path):
    def build():
        return RewardReliabilityCallback(gold_reward=vowels, gold_every=1, evaluate_every=1, rescore_every=0)

    changes = {"save_strategy": "steps", "save_steps": 2}
    grpo(tmp_path, vowels, build(), **changes).train()
    second = build()
    trainer = grpo(tmp_path, vowels, second, restore_callback_states_from_checkpoint=True, **changes)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    (evaluation,) = second._reliability.gold.evaluations  # those of five steps are one
    assert (evaluation.first, evaluation.step, evaluation.completions) == (1, 2.5, 4 * 32)


def test_it_can_be_pickled_before_and_after_a_run(tmp_path):
    callback = RewardReliabilityCallback(gold_reward="repetition", window=64)
    assert pickle.loads(pickle.dumps(callback))._numbers["window"] == 64


def test_functions_that_never_apply_or_are_dead_are_all_named(tmp_path):
    def never(prompts, completions, **kwargs):
        return [None] * len(completions)

    def ones(prompts, completions, **kwargs):
        return [1.0] * len(completions)

    callback = RewardReliabilityCallback(evaluate_every=1, rescore_every=0)
    grpo(tmp_path, [vowels, ones, never], callback, max_steps=18).train()
    (alert,) = [alert for alert in callback.alerts if alert.rule == "dead_reward_component"]
    assert alert.severity == "warning"
    assert "never gave no number to any of the last" in alert.message and "ones gave exactly 1 to each" in alert.message
    assert callback.report.parts["signal"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("build", [grpo, ppo])
def test_probes_do_not_change_the_random_numbers_of_the_run(build, tmp_path):
    def drawn(prompts, completions, **kwargs):
        return [random.random() + np.random.rand() + torch.rand(()).item() for _ in completions]

    rewards = []
    for name, callbacks in (
        ("with", [RewardReliabilityCallback(rescore_every=1, gold_reward=drawn, gold_every=1)]),
        ("without", []),
    ):
        trainer = build(tmp_path / name, drawn, callbacks)
        set_seed(3)
        trainer.train()
        rewards.append([row["reward"] for row in trainer.state.log_history if "reward" in row])
    assert rewards[0] == rewards[1]


def test_an_infinite_reward_is_an_error_and_blinds_nothing(tmp_path):
    def infinite(prompts, completions, trainer_state, **kwargs):
        values = [len(c) / 10 for c in completions]
        return [float("inf"), *values[1:]] if trainer_state.global_step == 2 else values

    callback = RewardReliabilityCallback(evaluate_every=1, rescore_every=0)
    grpo(tmp_path, [vowels, infinite], callback).train()
    (alert,) = [alert for alert in callback.alerts if alert.rule == "reward_infinite"]
    assert (alert.severity, alert.opened) == ("error", 3)
    assert callback.report.parts["signal"] == 1.0


def test_an_endpoint_that_is_down_is_not_asked_a_dozen_times_more(tmp_path):
    calls = []

    def hangs(prompts, completions, **kwargs):
        calls.append(len(completions))
        time.sleep(5)

    callback = RewardReliabilityCallback(evaluate_every=1, rescore_every=1)
    grpo(tmp_path, [vowels, CheckedReward(hangs, timeout=0.1)], callback).train()
    # three times it is asked who of them is at fault, and given up after four
    assert calls == [32, 1, 1, 1, 1] * 3 + [32]


def test_what_on_alert_raises_keeps_no_alert_from_the_file(tmp_path):
    def never(prompts, completions, **kwargs):
        return [0.0] * len(completions)

    def drawn(prompts, completions, **kwargs):
        return np.random.default_rng().normal(size=len(completions)).tolist()

    callback = RewardReliabilityCallback(evaluate_every=1, on_alert=lambda alert: 1 / 0)
    grpo(tmp_path, [vowels, never, drawn], callback).train()
    lines = [json.loads(line) for line in (tmp_path / "trl_ext" / "alerts.jsonl").read_text().splitlines()]
    assert {line["rule"] for line in lines} >= {"dead_reward_component", "reward_inconsistent"}


@pytest.mark.stock_ppo
def test_stock_ppo_is_heard_through_its_reward_module(tmp_path):
    callback = RewardReliabilityCallback(evaluate_every=1, rescore_every=1)
    stock_ppo(tmp_path, [vowels, awaited], callback, reward_weights=[1.0, 0.5]).train()
    assert callback.report.completions == 128
    assert [component.weight for component in callback.report.components] == [1.0, 0.5]
    assert callback.report.parts["consistency"] == 1.0
    assert (tmp_path / "trl_ext" / "reward_samples.jsonl").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"window": 8}, "window must be a whole number of at least 32, not 8"),
        ({"gold_every": 0}, "gold_every must be a whole number of at least 1"),
        ({"rescore_every": -1}, "rescore_every must be a whole number of at least 0"),
        ({"num_probes": True}, "num_probes must be a whole number"),
        ({"gold_reward": 3}, "gold_reward must be a function, or named as in reward_funcs"),
        ({"gold_reward": "sentimet"}, r"There is no reward 'sentimet' \(did you mean 'sentiment'\?\)"),
        ({"probe_set": "nowhere.jsonl"}, "cannot read nowhere.jsonl"),
        ({"probe_set": [{"completion": "a", "score": 1}] * 9}, "different scores"),
        ({"probe_set": [{"completion": "a"}] * 9}, "probe_set, row 1: write"),
        ({"probe_set": [{"completion": "a", "score": float("nan")}] * 9}, "probe_set, row 1: write"),
        ({"probe_set": 5}, "probe_set must be a JSON Lines file or a list"),
        ({"output_dir": 5}, "output_dir must be a path"),
        ({"on_alert": "mail"}, "on_alert must be a function"),
    ],
)
def test_arguments_that_make_no_sense_are_named(arguments, said):
    with pytest.raises(UserError, match=said):
        RewardReliabilityCallback(**arguments)
