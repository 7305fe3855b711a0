"""Options: errors name the fix, and every name of stock PPO is taken."""

import math
import warnings
from dataclasses import fields

import numpy as np
import pytest
from trainer_builders import loo_args, ppo_args

from trl_ext.errors import UserError
from trl_ext.trainers import PPOConfig, ReinforceLOOConfig

# `trl.experimental.ppo.PPOConfig` of TRL 1.12.0, without what it inherits; another value than the default if it may be
STOCK_OPTIONS = {
    "learning_rate": 1e-5, "dataset_num_proc": 2, "num_mini_batches": 2, "total_episodes": 64,
    "local_rollout_forward_batch_size": 8, "num_sample_generations": 3, "response_length": 7, "stop_token": "eos",
    "stop_token_id": 3, "temperature": 0.6, "missing_eos_penalty": 1.0, "sft_model_path": "a", "world_size": 1,
    "num_total_batches": 4, "micro_batch_size": 4, "local_batch_size": 16, "batch_size": 16, "local_mini_batch_size": 8,
    "mini_batch_size": 8, "push_to_hub": False, "reward_model_path": "b", "model_adapter_name": "default",
    "ref_adapter_name": "ref", "num_ppo_epochs": 3, "whiten_rewards": True, "kl_coef": 0.2, "kl_estimator": "k3",
    "cliprange": 0.1, "vf_coef": 0.3, "cliprange_value": 0.4, "gamma": 0.9, "lam": 0.8,
    "ds3_gather_for_generation": False,
}  # fmt: skip
STOCK_DEFAULTS = {
    "learning_rate": 3e-6, "num_mini_batches": 1, "total_episodes": None, "num_sample_generations": 10,
    "response_length": 53, "stop_token": None, "stop_token_id": None, "temperature": 0.7, "missing_eos_penalty": None,
    "num_ppo_epochs": 4, "whiten_rewards": False, "kl_coef": 0.05, "kl_estimator": "k1", "cliprange": 0.2,
    "vf_coef": 0.1, "cliprange_value": 0.2, "gamma": 1.0, "lam": 0.95, "ds3_gather_for_generation": True,
}  # fmt: skip
SILENT = {"local_rollout_forward_batch_size", "num_total_batches", "micro_batch_size", "local_batch_size", "batch_size",
          "local_mini_batch_size", "mini_batch_size"}  # fmt: skip


@pytest.mark.parametrize("name", STOCK_OPTIONS)
def test_each_option_of_stock_ppo_is_accepted_and_warns_where_it_has_no_effect(tmp_path, name):
    value = STOCK_OPTIONS[name]
    options = {name: value} | ({"stop_token": None} if name == "stop_token_id" else {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = ppo_args(tmp_path, **options)
    told = [w for w in caught if f"{name} has no effect" in str(w.message)]
    assert len(told) == (name in SILENT)
    if name not in SILENT:
        assert getattr(config, name) == value


@pytest.mark.stock_ppo
def test_the_list_of_stock_options_is_that_of_the_stock_class(tmp_path):
    from trl.experimental.ppo import PPOConfig as Stock
    from trl.trainer.base_config import _BaseConfig

    own = {f.name for f in fields(Stock)} - {f.name for f in fields(_BaseConfig)}
    changed = {f.name for f in fields(Stock) if f.name in _BaseConfig.__dataclass_fields__
               and f.default != _BaseConfig.__dataclass_fields__[f.name].default}  # fmt: skip
    assert own | changed | {"push_to_hub"} == set(STOCK_OPTIONS) | {"push_to_hub"}
    stock = {f.name: f.default for f in fields(Stock)}
    assert {name: stock[name] for name in STOCK_DEFAULTS} == STOCK_DEFAULTS


def test_defaults_are_those_of_stock_ppo(tmp_path):
    config = PPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    assert {name: getattr(config, name) for name in STOCK_DEFAULTS} == STOCK_DEFAULTS


def test_stock_names_reach_the_options_that_work(tmp_path):
    config = ppo_args(tmp_path, kl_coef=0.3, cliprange=0.1, num_ppo_epochs=2, response_length=7)
    assert (config.beta, config.epsilon, config.num_iterations, config.max_completion_length) == (0.3, 0.1, 2, 7)


@pytest.mark.parametrize(
    ("kwargs", "fix"),
    [
        ({"beta": 0.3}, "set that one"),
        ({"beta": 0.3, "kl_coef": 0.2}, "kl_coef"),
        ({"epsilon": 0.4}, "cliprange"),
        ({"num_iterations": 2}, "num_ppo_epochs"),
        ({"max_completion_length": 40}, "response_length"),
        ({"stop_token_id": 5}, "drop one"),
        ({"stop_token_id": 0}, "drop one"),
        ({"stop_token": "period"}, "'eos', or stop_token_id"),
        ({"missing_eos_penalty": -1.0}, "make it positive"),
        ({"missing_eos_penalty": math.nan}, "make it positive"),
        ({"model_adapter_name": "mine"}, "'default'"),
        ({"ref_adapter_name": "mine"}, "'ref'"),
        ({"generation_batch_size": 8}, "per_device_train_batch_size"),
        ({"steps_per_generation": 2}, "gradient_accumulation_steps"),
        ({"kl_coef": float("nan")}, "at least 0"),
        ({"gamma": -1.0}, "from 0 to 1"),
        ({"lam": 1.5}, "from 0 to 1"),
        ({"cliprange": -1.0}, "cliprange=-1.0"),
        ({"temperature": 0.0}, "above 0"),
        ({"num_mini_batches": 0}, "at least 1"),
        ({"num_ppo_epochs": 0}, "at least 1"),
        ({"kl_coef": -1.0}, "at least 0"),
        ({"response_length": 0}, "at least 1"),
        ({"total_episodes": 0}, "at least 1"),
        ({"total_episodes": 16, "max_steps": 3}, "total_episodes=48 alone"),
        ({"num_mini_batches": 3}, "one of 1, 2, 4, or gradient_accumulation_steps to 3 or 6"),
        (
            {"num_mini_batches": 3, "gradient_accumulation_steps": 1},
            "one of 1, 2, 4, or per_device_train_batch_size to 3 or 6",
        ),
        ({"kl_estimator": "k4"}, "'k1', 'k2' or 'k3'"),
    ],
)
def test_what_would_change_the_result_silently_is_an_error(tmp_path, kwargs, fix):
    with pytest.raises(UserError, match=fix) as error:
        ppo_args(tmp_path, **kwargs)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kwargs", "fix"),
    [
        ({"num_generations": 1}, "baseline='value'"),
        ({"num_generations": 3}, "set num_generations to one of 2, 4, 8, 16, or make the product 15 or 18"),
        ({"num_generations": 3, "generation_batch_size": 16}, "generation_batch_size = 16"),
        ({"gamma": 0.9}, "gamma=1.0"),
        ({"whiten_rewards": True}, "advantage_normalize='batch'"),
        ({"kl_in_reward": False}, "set kl_estimator='k2' or 'k3'"),
        ({"sync_ref_model": True, "beta": 0.1}, "sync_ref_model=False"),
        ({"baseline": "critic"}, "'greedy' or 'value'"),
        ({"kl_estimator": "k4"}, "'k1', 'k2' or 'k3'"),
        ({"max_completion_length": None}, "set the most tokens"),
        ({"per_device_eval_batch_size": 0}, "from 1"),
        ({"epsilon_high": -1}, "from 0"),
        ({"delta": -1.0}, "from 0"),
        ({"weight_decay": "x"}, "expects a number"),
        ({"mask_truncated_completions": "x"}, "expects true or false"),
        ({"top_entropy_quantile": 2}, "from 0 to 1"),
        ({"top_p": 0}, "above 0"),
        ({"sapo_temperature_pos": 0}, "above 0"),
        ({"beta": math.inf}, "from 0"),
        ({"kl_target": math.inf}, "from 0"),
        ({"entropy_coef": math.inf}, "from 0"),
        ({"reward_weights": [math.nan]}, "finite"),
        ({"reward_weights": "x"}, "a list"),
        ({"num_generations_eval": 0}, "from 1"),
        ({"steps_per_generation": -1}, "from 1"),
        ({"sampling_correction": True}, "set fast_generation=True"),
        ({"loss_type": "foo"}, "use 'grpo', 'bnpo', .* or 'vespo'"),
        ({"importance_sampling_level": "word"}, "'token' or 'sequence'"),
        ({"tool_errors": "hide"}, "'end' or 'tell'"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "'sum_then_normalize'"),
    ],
)
def test_errors_of_reinforce_loo_name_the_fix(tmp_path, kwargs, fix):
    with pytest.raises(UserError, match=fix) as error:
        loo_args(tmp_path, **kwargs)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("processes", [1, 2])
def test_batches_are_counted_over_all_processes(tmp_path, monkeypatch, processes):
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    from trl_ext.trainers.reinforce_loo_config import launched_processes

    assert launched_processes() == processes
    with pytest.raises(UserError, match=rf"4 x {processes} x 1\) = {4 * processes}"):
        loo_args(tmp_path, per_device_train_batch_size=4, num_generations=3)


def test_one_generation_a_prompt_is_what_a_learned_baseline_needs(tmp_path):
    config = loo_args(tmp_path, baseline="value", num_generations=1)
    assert config.num_generations == 1 and config.generation_batch_size == 16


def test_a_config_survives_its_own_dictionary(tmp_path):
    config = ppo_args(tmp_path, kl_coef=0.3, world_size=1)
    assert config.world_size == 1 and config.to_dict()["kl_coef"] == 0.3


def test_numbers_of_numpy_and_paths_are_options(tmp_path):
    args = ReinforceLOOConfig(tmp_path / "run", use_cpu=True, bf16=False, num_generations=np.int64(4),
                              learning_rate=np.float32(0.5), max_episode_turns="3", mask="json_actions",
                              action_schema=tmp_path / "schema.json")  # fmt: skip
    assert (args.num_generations, args.learning_rate, args.max_episode_turns) == (4, 0.5, 3)
    assert type(args.num_generations) is int and args.action_schema == str(tmp_path / "schema.json")
