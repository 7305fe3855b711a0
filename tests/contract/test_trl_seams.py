"""What trl_ext rests on in TRL and is no public API: each failure names the place that has to change.

A new TRL release that turns one of these red needs a look at that place, whatever the other tests say.
"""

import inspect
import re
from importlib import import_module
from importlib.util import find_spec
from typing import get_args, get_type_hints

import pytest
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

from trl_ext.trainers.reinforce_loo_config import LossType, ReinforceLOOConfig

CONFIG = "trl_ext/trainers/reinforce_loo_config.py"
REINFORCE = "trl_ext/trainers/reinforce_loo_trainer.py"
PPO = "trl_ext/trainers/ppo_trainer.py"
EPISODES = "trl_ext/trainers/episodes.py"
REFERENCE = "trl_ext/trainers/reference.py"
VALUE = "trl_ext/trainers/value_function.py"
REWARDS = "trl_ext/callbacks/_reward_source.py"

METHODS = {
    "_calculate_rewards": (
        ["self", "inputs", "prompts", "completions", "completion_ids_list"],
        f"{REINFORCE}, {REWARDS}",
    ),
    "_log_metric": (["self", "name", "value"], REWARDS),
    "_log_completion_extra": (["self", "column", "values"], REWARDS),
    "_generate_and_score_completions": (["self", "inputs"], f"{REINFORCE}, {PPO}"),
    "_compute_loss": (["self", "model", "inputs"], REINFORCE),
    "_tokenize_prompts": (["self", "prompts"], f"{EPISODES}, {PPO}"),
    "log": (["self", "logs", "start_time"], PPO),
    "_generate": (["self", "prompts"], EPISODES),
    "_tool_call_loop": (
        ["self", "prompts", "prompt_ids", "completion_ids", "completions", "logprobs", "images", "multimodal_fields"],
        EPISODES,
    ),
    "_get_tool_suffix_ids": (["self", "tool_messages"], EPISODES),
    "_save": (["self", "output_dir", "state_dict"], REINFORCE),
    "_load_best_model": (["self"], REINFORCE),
    "_load_from_checkpoint": (["self", "resume_from_checkpoint", "model"], REINFORCE),
    "_issue_warnings_after_load": (["self", "load_result"], REINFORCE),
}
FUNCTIONS = {
    ("trl.models", "prepare_deepspeed"): (["model", "accelerator"], REFERENCE),
    ("trl.models", "prepare_fsdp"): (["model", "accelerator"], REFERENCE),
    ("trl.trainer.utils", "disable_dropout_in_model"): (["model"], f"{REFERENCE}, {PPO}"),
    ("trl.trainer.utils", "pad"): (["tensors", "padding_value", "padding_side", "pad_to_multiple_of"],
                                  "trl_ext/trainers/reward_model.py"),
    ("trl.trainer.utils", "print_prompt_completions_sample"): (
        ["prompts", "completions", "rewards", "advantages", "step", "num_samples"], PPO),
}  # fmt: skip
# read or written by trl_ext, set by the constructor or the loop of GRPOTrainer: name as it stands in the source
ATTRIBUTES = {
    "self.beta = ": REINFORCE,
    "self.reward_weights = ": f"{REINFORCE}, {REWARDS}",
    "self.reward_func_names = ": REWARDS,
    "self.environments = ": REWARDS,
    'reward_kwargs["log_metric"] = self._log_metric': f"{REWARDS}, `_quietly`; trl_ext/rewards/checking.py",
    'reward_kwargs["log_extra"] = self._log_completion_extra': f"{REWARDS}, `_quietly`",
    "rewards_per_func = gather(rewards_per_func)": f"{REWARDS}, `_own`",
    "self._metrics = ": REINFORCE,
    "self._logs = ": REINFORCE,
    "self.num_generations = ": REINFORCE,
    "self.num_generations_eval = ": REINFORCE,
    "self.temperature = ": f"{REINFORCE}, {REFERENCE}",
    "self.epsilon_low = ": REINFORCE,
    "self.epsilon_high = ": REINFORCE,
    "self.loss_type = ": REINFORCE,
    "self.max_completion_length = ": REINFORCE,
    "self.ref_model = ": REINFORCE,
    "self.reward_funcs = ": PPO,
    "self.use_vllm = ": REINFORCE,
    "self.vllm_generation = ": f"{REINFORCE}, {VALUE}",
    "self.generation_config = ": PPO,
    "self._tokenizer = ": PPO,
    "self._is_vlm = ": REINFORCE,
    "self.current_gradient_accumulation_steps": REINFORCE,
    'self.args.steps_per_generation * self.num_iterations': f"{REINFORCE}, `misaligned`",
    'output["tool_mask"]': f"{REINFORCE}, `_drop_unscorable`",
    'output["ref_per_token_logps"]': f"{REINFORCE}, `_generate_and_score_completions`",
    'output["old_per_token_logps"]': f"{REINFORCE}, `_compute_loss`",
    '"num_items_in_batch"': f"{REINFORCE}, `_drop_unscorable`",
    '"frac_reward_zero_std"': f"{REINFORCE}, `_finish_advantages`",
    'self._logs["advantages"]': f"{REINFORCE}, `_finish_advantages`",
    "if advantages.dim() == 1:": f"{REINFORCE}: advantages of shape (B, T)",
    "self.rollout_func = ": EPISODES,
    "output = self.rollout_func(prompts, self)": f"{EPISODES}, `_generate`",
    'extra_fields.pop("env_mask", None)': "trl_ext/trainers/episode_limits.py",
    "return prompt_ids, completion_ids, tool_mask, completions, logprobs, extra_fields, images, tool_images":
        f"{EPISODES}, `_generate`",
    "return tool_mask, completions, completion_ids, logprobs, tool_call_count, tool_failure_count, tool_images":
        f"{EPISODES}, `_tool_call_loop`",
    "sync_tool_dict = self._sync_tool_dicts[idx_with_tool]": f"{EPISODES}, `_guarded_tools`",
    "async_tool_dict = self._async_tool_dicts[idx_with_tool]": f"{EPISODES}, `_guarded_tools`",
    "async_coros.append((name, async_tool_dict[name](**function[": "trl_ext/trainers/tool_guard.py, `coroutines`",
    "except Exception as e:": "trl_ext/trainers/tool_guard.py: what TRL tells the policy",
    "content = result if isinstance(result, list) else str(result)": "trl_ext/trainers/tool_guard.py, `EpisodeEnd`",
    "suffix_ids = self._get_tool_suffix_ids(tool_messages)": f"{EPISODES}, `_get_tool_suffix_ids`",
    "len(pct) - len(prompt_ids[i]) > self.max_completion_length or": f"{EPISODES}, `_limit_of_episode`",
    "excess_length = completion_tool_length + len(post_tool_ids[idx]) - self.max_completion_length":
        f"{EPISODES}, `_limit_of_episode`",
    "iteration_num < self.max_tool_calling_iterations": f"{EPISODES}, `_limit_reached`",
    "self.environment_factories = ": f"{EPISODES}, `_naming_reset`",
    "self._environment_pool = ": f"{EPISODES}, `_naming_reset`",
    "apply_coef = self.entropy_coef if self._last_world_entropy <= self.args.entropy_target else 0.0":
        f"{REINFORCE}, `_entropy_coef_that_applies`",
    "if self._entropy_bonus_enabled:": f"{REINFORCE}, `_entropy_coef_that_applies`",
    "(entropies * effective_mask).sum() / effective_mask.sum().clamp(min=1.0) / accumulation_factor":
        f"{REINFORCE}, `_to_mean_of_step`",
    "self.get_high_entropy_mask(entropies, mask, 1 - self.top_entropy_quantile)": f"{REINFORCE}, `_to_mean_of_step`",
    "if self.args.use_bias_correction_kl:": f"{REINFORCE}, `_compute_loss`",
    "environment.reset(**": f"{EPISODES}, `_name_reset`",
}  # fmt: skip


def parameters(function):
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", METHODS)
def test_method_keeps_its_signature(name):
    expected, place = METHODS[name]
    assert parameters(getattr(GRPOTrainer, name)) == expected, f"GRPOTrainer.{name} changed: see {place}"


def test_log_probabilities_keep_their_signature():
    expected = ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy",
                "compute_aux_loss"]  # fmt: skip
    got = parameters(GRPOTrainer._get_per_token_logps_and_entropies)
    assert got[:8] == expected, f"see {REINFORCE}, `_get_per_token_logps_and_entropies`"
    from trl_ext.trainers.reinforce_loo_trainer import MULTIMODAL

    assert set(got[8:]) == set(MULTIMODAL), f"the multimodal inputs changed: see MULTIMODAL in {REINFORCE}"
    returns = inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).return_annotation
    assert str(returns).count("torch.Tensor") == 3, f"three results are expected: see {REINFORCE}"


@pytest.mark.parametrize(("module", "name"), FUNCTIONS)
def test_function_keeps_its_place_and_signature(module, name):
    expected, place = FUNCTIONS[module, name]
    assert parameters(getattr(import_module(module), name))[: len(expected)] == expected, (
        f"{module}.{name} changed: see {place}"
    )


@pytest.mark.current_trl
def test_fused_head_keeps_its_signature():
    from trl.trainer.utils import add_fused_lm_head

    got = parameters(add_fused_lm_head)
    assert got[0] == "model" and {"temperature", "cast_lm_head_to_fp32"} <= set(got), f"see {REFERENCE}"


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_base_class_still_has_the_attribute(name):
    assert name in inspect.getsource(grpo_trainer), f"{name!r} is gone from GRPOTrainer: see {ATTRIBUTES[name]}"


@pytest.mark.current_trl
@pytest.mark.parametrize("name", ["self.eos_token_ids", '"eos_token_id": self.eos_token_ids', "generation_kwargs"])
def test_stop_tokens_are_where_ppo_sets_them(name):
    assert name in inspect.getsource(grpo_trainer), f"{name!r} is gone from GRPOTrainer: see {PPO}, `_set_stop_tokens`"


def test_reference_is_loaded_by_name_unless_beta_is_0():
    source = inspect.getsource(GRPOTrainer.__init__)
    assert "if self.beta == 0.0:" in source, f"see {REFERENCE}, `no_reference_by_name`"


def test_reference_is_scored_after_the_policy():
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    policy, reference = source.index("old_per_token_logps, _, _ ="), source.index("ref_per_token_logps, _, _ =")
    assert policy < reference, f"the first forward of a batch is taken for the policy's: see {REINFORCE}, `policy_next`"
    assert source.count("self._get_per_token_logps_and_entropies(") == 3, (
        f"another forward: see {REINFORCE}, `policy_next`"
    )


def test_a_turn_is_generated_without_the_length_that_an_episode_has():
    source = inspect.getsource(GRPOTrainer._generate_single_turn)
    assert "max_completion_length" not in source, (
        f"an episode's length would be a turn's: see {EPISODES}, `_limit_of_episode`"
    )


def test_loss_makes_one_forward():
    source = inspect.getsource(GRPOTrainer._compute_loss)
    assert source.count("self._get_per_token_logps_and_entropies(") == 1, f"see {REINFORCE}, `_last_forward`"


def test_losses_are_those_that_the_options_allow():
    """Of both places that choose by `loss_type`, the terms and their mean."""
    source = inspect.getsource(GRPOTrainer._compute_loss)
    chosen = re.findall(r"self\.loss_type (?:==|in) (\[[^]]*\]|\"[^\"]*\")", source)
    assert set(re.findall(r"\"(\w+)\"", " ".join(chosen))) == set(get_args(LossType)), f"see {CONFIG}, `LossType`"
    levels = re.findall(r"self\.importance_sampling_level == \"(\w+)\"", source)
    hint = get_type_hints(ReinforceLOOConfig)["importance_sampling_level"]
    assert set(levels) == set(get_args(hint)), f"see {CONFIG}"


@pytest.mark.parametrize(
    "name",
    ["beta", "loss_type", "scale_rewards", "num_generations", "num_generations_eval", "steps_per_generation",
     "generation_batch_size", "num_iterations", "epsilon", "max_completion_length", "sync_ref_model",
     "multi_objective_aggregation", "disable_dropout", "cast_lm_head_to_fp32", "reward_weights",
     "vllm_importance_sampling_correction", "temperature", "gradient_accumulation_steps", "shuffle_dataset",
     "max_tool_calling_iterations"],
)  # fmt: skip
def test_option_is_still_there(name):
    assert name in GRPOConfig.__dataclass_fields__, f"GRPOConfig.{name} is gone: see trl_ext/trainers/*_config.py"


def test_vllm_weights_pass_through_one_method():
    from trl.generation.vllm_generation import VLLMGeneration

    assert hasattr(VLLMGeneration, "_iter_named_params"), f"see {VALUE}, `hide_from_vllm`"


@pytest.mark.parametrize(
    "keeps_logits",
    [pytest.param(False, marks=pytest.mark.current_trl), pytest.param(True, marks=pytest.mark.stock_ppo)],
)
def test_the_estimate_of_memory_knows_which_trl_keeps_logits(keeps_logits):
    """trl_ext/configuration/memory.py counts them where TRL has no fused head."""
    assert (find_spec("trl.kernels") is None) == keeps_logits
    fused = [name for name in dir(grpo_trainer) if "chunked" in name.lower()]
    source = inspect.getsource(GRPOTrainer._get_per_token_logps_and_entropies)
    assert ("selective_log_softmax" in source) == keeps_logits, fused


@pytest.mark.current_trl
def test_dpo_lays_its_reference_over_all_gpus_under_fsdp():
    """Why `init_kwargs` in trl_ext/configuration/models.py sets `device_map`; once FSDP is in the list it need not."""
    from trl.trainer import dpo_trainer

    assert 'distributed_type in ["MULTI_GPU", "DEEPSPEED"]' in inspect.getsource(dpo_trainer.DPOTrainer.__init__)


def test_fsdp2_finishes_a_group_whose_head_was_not_called_from_the_torch_on_that_is_assumed():
    """`_SKIPPED_HEAD_IS_LOST`: before it TRL's fused LM head leaves embeddings divided in the next forward."""
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    from trl_ext.trainers.reinforce_loo_trainer import _SKIPPED_HEAD_IS_LOST

    assert hasattr(FSDPState, "_force_complete_incomplete_states") is not _SKIPPED_HEAD_IS_LOST
