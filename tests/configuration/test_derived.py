"""The numbers of a run, against what the trainers themselves count, and against numbers worked out by hand."""

import sys
from pathlib import Path

import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from trl_ext import PPOConfig, ReinforceLOOConfig
from trl_ext.configuration.derived import derived_numbers
from trl_ext.configuration.schedule import schedule_in_words
from trl_ext.tiny import byte_tokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "trainers"))
from trainer_builders import COMMON, letter_share, loo_trainer, policy, ppo_trainer

BARE = {key: value for key, value in COMMON.items() if key not in ("per_device_train_batch_size", "max_steps")}


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (32, {}),
        (37, {"num_generations": 4, "gradient_accumulation_steps": 2}),
        (37, {"num_generations": 2, "num_iterations": 3}),
        (50, {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "num_train_epochs": 2.5}),
        (33, {"steps_per_generation": 2, "gradient_accumulation_steps": 4}),
        (40, {"num_generations": 1, "baseline": "ema"}),
        (9, {"max_steps": 7}),
    ],
)
def test_groups_are_counted_as_the_trainer_counts(rows, options, tmp_path):
    dataset = Dataset.from_dict({"prompt": [f"row {i}" for i in range(rows)]})
    options = {"per_device_train_batch_size": 8, "max_steps": -1, **options}
    trainer = loo_trainer(tmp_path, dataset=dataset, **options)
    numbers = derived_numbers(trainer.args, rows, prompt_length=10)
    counted = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    assert numbers.total_steps == counted[-1]
    assert numbers.steps_per_epoch == counted[1]
    assert numbers.tokens_per_step == numbers.samples_per_step * (12 + 10)


def test_stock_grpo_is_counted_alike(tmp_path):
    dataset = Dataset.from_dict({"prompt": [f"row {i}" for i in range(21)]})
    args = GRPOConfig(str(tmp_path), **BARE, per_device_train_batch_size=8, num_generations=4, num_iterations=2)
    trainer = GRPOTrainer(policy(), letter_share, args, dataset, processing_class=byte_tokenizer())
    counted = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    assert derived_numbers(args, 21).total_steps == counted[-1]


@pytest.mark.parametrize(("batch", "accumulation", "epochs"), [(4, 1, 1), (4, 3, 2), (5, 2, 0.5)])
def test_rows_are_counted_as_the_trainer_counts(batch, accumulation, epochs, tmp_path):
    dataset = Dataset.from_dict({"text": [f"row {i}" for i in range(37)]})
    args = SFTConfig(str(tmp_path), **BARE, per_device_train_batch_size=batch, max_length=32,
                     gradient_accumulation_steps=accumulation, num_train_epochs=epochs)  # fmt: skip
    trainer = SFTTrainer(policy(), args, train_dataset=dataset, processing_class=byte_tokenizer())
    counted = trainer.set_initial_training_values(args, trainer.get_train_dataloader())
    numbers = derived_numbers(args, 37)
    assert (numbers.total_steps, numbers.steps_per_epoch) == (counted[-1], counted[1])
    assert numbers.tokens_per_step == batch * accumulation * 32


@pytest.mark.parametrize("options", [{"total_episodes": 100}, {"num_train_epochs": 2}, {"max_steps": 3}])
def test_ppo_is_counted_as_the_trainer_counts(options, tmp_path):
    options = {"num_ppo_epochs": 3, "num_mini_batches": 2, **options}
    trainer = ppo_trainer(tmp_path, **options)
    given = PPOConfig(str(tmp_path), **{**BARE, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4},
                      **options)  # fmt: skip
    numbers = derived_numbers(given, 32)
    assert numbers.total_steps == trainer.args.max_steps
    assert numbers.steps_per_generation == 6 and numbers.samples_per_step == 8


def test_by_hand_over_eight_processes(tmp_path, monkeypatch):
    """64 completions a process and step, 8 processes: 512 completions of 64 prompts; two steps on what is sampled."""
    monkeypatch.setattr(ReinforceLOOConfig, "world_size", 8)
    args = ReinforceLOOConfig(
        str(tmp_path), use_cpu=True, bf16=False, per_device_train_batch_size=4, gradient_accumulation_steps=16,
        steps_per_generation=32, num_generations=8, max_completion_length=100,
    )  # fmt: skip
    assert derived_numbers(args, 1280, 28) == (
        "groups", 8, 512, 64.0, 1024, 2.0, 512 * 128, True, 20, 60, 30 * 1024, 3.0,
    )  # fmt: skip


def test_what_is_not_known_is_none(tmp_path):
    numbers = derived_numbers(ReinforceLOOConfig(str(tmp_path), use_cpu=True, bf16=False))
    assert numbers.total_steps is numbers.steps_per_epoch is numbers.total_samples is None
    assert not numbers.prompts_counted and numbers.tokens_per_step == 8 * 512


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"lr_scheduler_type": "linear"}, "1e-05: falls in a line to 0"),
        ({"lr_scheduler_type": "cosine", "warmup_steps": 0.05},
         "1e-05: rises over 10 of 200 optimizer steps, then falls along a cosine to 0"),
        ({"lr_scheduler_type": "constant", "warmup_steps": 5}, "1e-05: stays"),
        ({"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6}},
         "1e-05: follows cosine_with_min_lr (min_lr 1e-06)"),
        ({"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 7},
         "1e-05: rises over 7 of 200 optimizer steps, then stays"),
    ],
)  # fmt: skip
def test_the_schedule_in_words(options, expected, tmp_path):
    args = SFTConfig(str(tmp_path), use_cpu=True, bf16=False, learning_rate=1e-5, **options)
    assert schedule_in_words(args, 200) == expected
