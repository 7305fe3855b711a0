"""Checked rewards inside TRL's own trainers."""

import json

import pytest
from datasets import Dataset

from trl_ext import PPOMonitoringCallback, tiny
from trl_ext.errors import UserError
from trl_ext.rewards import CheckedReward, load_reward_funcs


def grpo(tmp_path, reward_funcs, **kwargs):
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=4,
        max_steps=5,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        **kwargs,
    )
    return GRPOTrainer(
        model=tiny.random_policy(0),
        reward_funcs=reward_funcs,
        args=args,
        processing_class=tiny.byte_tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": ["hello", "go", "more", "why"] * 8}),
    )


def fails_at_step_3(result):
    def breaks(prompts, completions, trainer_state, **kwargs):
        good = [float(len(c)) for c in completions]
        return result(good) if trainer_state.global_step == 3 else good

    return breaks


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda good: good[:-1], "returned 3 rewards for 4 completions"),
        (lambda good: [*good[:-1], "good"], r"returned 'good' \(str\)"),
        (lambda good: 1 / 0, "raised ZeroDivisionError"),
    ],
)
def test_grpo_stops_at_the_step_of_the_mistake_and_names_it_where_that_is_asked_for(tmp_path, result, said):
    trainer = grpo(tmp_path, CheckedReward(fails_at_step_3(result), on_failure="raise"))
    with pytest.raises(UserError, match=f"^Reward function 'breaks' at step 3(, completion 3,)? {said}"):
        trainer.train()
    assert trainer.state.global_step == 3


def test_grpo_goes_on_the_completions_are_kept_and_the_monitor_says_so(tmp_path):
    def fails(prompts, completions, trainer_state, **kwargs):
        bad = trainer_state.global_step >= 2
        return ["bad" if bad and i % 2 else float(len(c)) for i, c in enumerate(completions)]

    trainer = grpo(tmp_path, CheckedReward(fails, "judge"))
    monitor = PPOMonitoringCallback(log_system_metrics=False)
    trainer.add_callback(monitor)
    trainer.train()
    assert trainer.state.global_step == 5
    shares = [row["reward_failures/judge"] for row in trainer.state.log_history if "reward" in row]
    assert shares == [0.0, 0.0, 0.5, 0.5, 0.5]
    kept = [json.loads(line) for line in (tmp_path / "trl_ext" / "reward_failures.jsonl").read_text().splitlines()]
    assert len(kept) == 6 and {line["step"] for line in kept} == {2, 3, 4}
    (alert,) = [alert for alert in monitor.alerts if alert.rule == "reward_failures"]
    assert (alert.severity, alert.opened) == ("error", 3)
    assert "judge failed on 0.5 of the completions" in alert.message


def test_grpo_logs_each_function_under_its_name_with_its_weight(tmp_path):
    async def awaited(prompts, completions, **kwargs):
        return [3.0] * len(completions)

    specs = ["repetition", {"name": "length", "weight": 0.5, "kwargs": {"minimum": 0, "maximum": 0, "edge": 40}}]
    funcs, weights = load_reward_funcs([*specs, "repetition"])
    trainer = grpo(tmp_path, [*funcs, CheckedReward(awaited)], reward_weights=[*weights, 2.0])
    trainer.train()
    logs = [row for row in trainer.state.log_history if "reward" in row]
    assert len(logs) == 5
    for row in logs:
        parts = [row[f"rewards/{name}/mean"] for name in ("repetition", "length", "repetition_2", "awaited")]
        assert parts[3] == 3.0
        total = parts[0] + 0.5 * parts[1] + parts[2] + 2.0 * parts[3]
        assert row["reward"] == pytest.approx(total, abs=1e-5)
    assert len(funcs[0].last_batch.completions) == 4
