import io
import json
import logging
import sys
from types import SimpleNamespace

import pytest
from datasets import Dataset
from transformers import ProgressCallback

from trl_ext import tiny
from trl_ext.callbacks.console import ConsoleCallback, log_line
from trl_ext.rewards import CheckedReward

OURS = {
    "reward": 0.123456,
    "objective/scores": 9.0,
    "kl": 0.9,
    "objective/kl": 6.789,
    "entropy": 2.345,
    "objective/entropy": 99.0,
    "completions/mean_length": 18.44,
    "value/explained_variance": -0.25,
    "learning_rate": 3e-4,
    "loss": 0.0,
}
STOCK = {
    "objective/scores": 0.5,
    "objective/kl": 1.0,
    "policy/entropy_avg": 3.0,
    "loss/policy_avg": 0.1,
    "lr": 1e-5,
    "episode": 16,
}


@pytest.mark.parametrize(
    ("logs", "line"),
    [
        (OURS, "step   7/150  reward  0.123  kl  6.79  entropy 2.35  length 18.4  expl.var -0.25  lr 3.0e-04"),
        (STOCK, "step   7/150  reward  0.500  kl  1.00  entropy 3.00  lr 1.0e-05"),
        ({"reward": None, "kl": float("nan")}, "step   7/150  kl   nan"),
        ({"loss": 2.5, "mean_token_accuracy": 0.5, "grad_norm": 1.0}, "step   7/150  loss  2.500  accuracy 0.500"),
        ({"eval_reward": 0.5, "eval_completions/mean_length": 4.0}, "eval step   7/150  reward  0.500  length 4.0"),
        ({"train_runtime": 12.0, "train_loss": 0.1, "total_flos": 0.0}, ""),
        ({}, ""),
    ],
)
def test_a_log_becomes_one_line(logs, line):
    assert log_line(7, 150, logs) == line


def test_steps_line_up_under_each_other():
    assert len(log_line(7, 150, STOCK)) == len(log_line(150, 150, STOCK))


def test_what_does_not_fit_the_terminal_is_left_out_from_the_right():
    parts = ["  kl  6.79", "  entropy 2.35", "  length 18.4", "  expl.var -0.25", "  lr 3.0e-04"]
    line = "step   7/150  reward  0.123"
    for part in parts:
        assert log_line(7, 150, OURS, len(line + part) - 1) == line
        line += part
        assert log_line(7, 150, OURS, len(line)) == line


def happy(prompts, completions, **kwargs):
    return [1.0, None, float("nan"), 0.5][: len(completions)]


class Console:
    """A console in a run of a trainer that does nothing."""

    def __init__(self, folder, main=True, tqdm_off=False, **kwargs):
        self.reward = CheckedReward(happy)
        self.reward(prompts=["p1", "p2", "p3", "p4"], completions=["c1", "c2", "c3", "c4"])
        self.callback = ConsoleCallback([self.reward], **kwargs)
        self.args = SimpleNamespace(output_dir=str(folder), disable_tqdm=tqdm_off)
        self.state = SimpleNamespace(global_step=0, max_steps=100, is_world_process_zero=main)
        self.samples = folder / "trl_ext" / "samples.jsonl"

    def run(self, steps, every=1):
        self.callback.on_train_begin(self.args, self.state, None)
        for _ in range(steps):
            self.state.global_step += 1
            self.callback.on_step_end(self.args, self.state, None)
            if self.state.global_step % every == 0:
                self.callback.on_log(self.args, self.state, None, logs=STOCK)
        self.callback.on_train_end(self.args, self.state, None)

    def rows(self):
        return [json.loads(line) for line in self.samples.read_text().splitlines()]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_samples_come_first_then_at_their_distance_and_at_the_end(tmp_path, capsys):
    console = Console(tmp_path, samples_every=20, num_samples=2)
    console.run(50, every=3)
    assert sorted({row["step"] for row in console.rows()}) == [3, 24, 45, 50]
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("Samples")] == [
        f"Samples at step {step}" for step in (3, 24, 45, 50)
    ]
    assert out.count("reward  0.500") == 50 // 3


def test_samples_file_is_strict_json_with_the_shown_rows(tmp_path):
    console = Console(tmp_path, num_samples=3)
    console.run(1)
    assert console.rows() == [
        {"step": 1, "prompt": "p1", "completion": "c1", "rewards": {"happy": 1.0}},
        {"step": 1, "prompt": "p2", "completion": "c2", "rewards": {"happy": None}},
        {"step": 1, "prompt": "p3", "completion": "c3", "rewards": {"happy": None}},
    ]


def test_other_processes_print_draw_and_write_nothing(tmp_path, capsys, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    console = Console(tmp_path, main=False)
    console.run(3)
    assert capsys.readouterr().out == terminal.getvalue() == ""
    assert not console.samples.exists()


def test_a_log_file_gets_lines_and_no_bar(tmp_path, capsys):
    Console(tmp_path).run(5)
    out, err = capsys.readouterr()
    assert err == ""
    assert out.isascii()
    assert "\r" not in out


@pytest.mark.parametrize(("tqdm_off", "drawn"), [(False, True), (True, False)])
def test_a_terminal_gets_the_bar_unless_the_trainer_wants_none(tmp_path, monkeypatch, tqdm_off, drawn):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    Console(tmp_path, tqdm_off=tqdm_off).run(5)
    assert ("5/100" in terminal.getvalue()) is drawn


def test_an_error_in_it_never_ends_the_run_and_is_logged_once(tmp_path, capsys, caplog):
    (tmp_path / "trl_ext").write_text("a file where the folder should be")
    console = Console(tmp_path, samples_every=1)
    console.reward.last_batch = console.reward.last_batch._replace(rewards=[1.0])  # too few for the table
    with caplog.at_level(logging.WARNING):
        console.run(4)
    (record,) = [record for record in caplog.records if record.name.startswith("trl_ext.callbacks")]
    assert record.exc_info is not None
    assert capsys.readouterr().out.count("reward  0.500") == 4


def test_without_reward_functions_there_are_lines_alone(tmp_path, capsys):
    console = Console(tmp_path)
    console.callback.reward_funcs = []
    console.run(2)
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert not console.samples.exists()


def vowels(prompts, completions, **kwargs):
    return [float(sum(char in "aeiou" for char in c)) for c in completions]


def grpo(tmp_path, reward, callbacks=None):
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=4, num_generations=2, max_completion_length=4,
        max_steps=2, logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, bf16=False, disable_tqdm=False,
    )  # fmt: skip
    return GRPOTrainer(
        model=tiny.random_policy(0), reward_funcs=reward, args=args, processing_class=tiny.byte_tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": ["hello", "go"] * 8}), callbacks=callbacks,
    )  # fmt: skip


@pytest.mark.parametrize("added", ["before", "after"])
def test_in_grpo_it_replaces_the_raw_dictionaries_whenever_it_is_added(tmp_path, capsys, added):
    reward = CheckedReward(vowels)
    console = ConsoleCallback([reward], samples_every=10, num_samples=2)
    trainer = grpo(tmp_path, reward, callbacks=[console] if added == "before" else None)
    trainer.remove_callback(ProgressCallback)
    if added == "after":
        trainer.add_callback(console)
    trainer.train()
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("step")]
    logged = [row for row in trainer.state.log_history if "reward" in row]
    assert len(lines) == 2
    for line, row in zip(lines, logged, strict=True):
        assert f"reward {row['reward']:6.3f}" in line
        assert f"length {row['completions/mean_length']:.1f}" in line
    assert "{'" not in out
    rows = [json.loads(line) for line in (tmp_path / "trl_ext" / "samples.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 1, 2, 2]
    assert all(row["rewards"]["vowels"] == vowels([], [row["completion"]])[0] for row in rows)


@pytest.mark.stock_ppo
def test_in_stock_ppo_it_shows_lines_and_samples(tmp_path, capsys):
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    from trl_ext.rewards import as_reward_model

    tokenizer, reward = tiny.byte_tokenizer(), CheckedReward(vowels)
    encoded = tokenizer(["hello", "go", "a", "name"] * 2, padding="max_length", max_length=6, padding_side="left")
    args = PPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=4, gradient_accumulation_steps=1, num_mini_batches=1,
        num_ppo_epochs=1, total_episodes=8, response_length=5, num_sample_generations=0, report_to=[],
        save_strategy="no", use_cpu=True, bf16=False, stop_token="eos",
    )  # fmt: skip
    trainer = PPOTrainer(
        args, tokenizer, tiny.random_policy(0), tiny.random_policy(0),
        as_reward_model([reward], tokenizer, prompt_length=6),
        Dataset.from_dict({"input_ids": encoded["input_ids"]}), tiny.random_scorer(1),
    )  # fmt: skip
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(ConsoleCallback([reward], samples_every=10, num_samples=2))
    trainer.train()
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("step")]
    logged = [row for row in trainer.state.log_history if "objective/scores" in row]
    assert len(lines) == len(logged) == 2
    for line, row in zip(lines, logged, strict=True):
        assert f"reward {row['objective/scores']:6.3f}  kl {row['objective/kl']:5.2f}" in line
    assert "{'" not in out
    rows = [json.loads(line) for line in (tmp_path / "trl_ext" / "samples.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 1, 2, 2]
    assert all(row["prompt"] in {"hello", "go", "a", "name"} for row in rows)
