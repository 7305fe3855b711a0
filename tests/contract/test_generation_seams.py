"""What trl_ext/generation rests on in Transformers, PEFT and TRL and is no public API."""

import inspect

import pytest
from peft.tuners.lora.layer import LoraLayer
from transformers import GenerationConfig, GenerationMixin, Qwen2ForCausalLM
from transformers.generation import utils
from trl import GRPOTrainer, RLOOTrainer

FAST = "trl_ext/generation/fast_generation.py"
TWIN = "trl_ext/generation/twin.py"


@pytest.mark.parametrize("trainer", [GRPOTrainer, RLOOTrainer])
def test_the_trainer_calls_the_generate_of_the_unwrapped_model(trainer):
    source = inspect.getsource(trainer._generate_single_turn)
    assert source.count("unwrapped_model.generate(") == 1, f"see {FAST}, `_turn`"
    assert "generation_config=self.generation_config" in source, f"see {FAST}, `_generate`"


def test_importance_sampling_is_asked_for_by_use_vllm_alone():
    for method in ("_generate_and_score_completions", "_compute_loss"):
        source = inspect.getsource(getattr(GRPOTrainer, method))
        assert "self.use_vllm and self.vllm_importance_sampling_correction" in source, f"see {FAST}, `start`"
    assert "vllm_generation" not in inspect.getsource(GRPOTrainer._compute_loss), f"see {FAST}, `start`"


@pytest.mark.parametrize("trainer", [GRPOTrainer, RLOOTrainer])
def test_a_batch_is_generated_in_one_call(trainer):
    source = inspect.getsource(trainer._generate_and_score_completions)
    assert source.count("self._generate(") == 1, f"see {FAST}, `_generate_all`"
    turns = inspect.getsource(trainer._generate)
    assert turns.count("self._generate_single_turn(") == 1, f"see {FAST}, `_turn`"
    of_loop = max(turns.find(call) for call in ("self._generate_single_turn(", "self._tool_call_loop("))
    assert of_loop < turns.index("self.accelerator.gather("), f"{FAST}: all processes come to the end of `_generate`"


def test_a_log_probability_that_is_nan_is_not_known_and_weighed_with_1():
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    assert "torch.nan_to_num(per_token_logps_diff, nan=0.0)" in source, f"see {FAST}, `_turn`"


def test_the_stop_check_that_does_not_wait_is_still_chosen_by_that_method():
    names = list(inspect.signature(utils.DeferredStopCheck.is_supported).parameters)
    assert names == ["device", "cache", "cache_is_returned", "is_assistant"], f"see {FAST}, `_deferred_stop`"
    assert "DeferredStopCheck.is_supported(" in inspect.getsource(GenerationMixin._sample), f"see {FAST}"


def test_a_static_cache_takes_its_length_from_the_generation_config():
    assert GenerationConfig().max_cache_len is None, f"see {FAST}, `_static`"
    assert "generation_config.max_cache_len" in inspect.getsource(GenerationMixin._prepare_cache_for_generation)


def test_a_model_is_built_from_its_config_alone():
    assert "config" in inspect.signature(Qwen2ForCausalLM._from_config).parameters, f"see {TWIN}, `Twin`"


@pytest.mark.parametrize("name", ["get_base_layer", "merged", "active_adapters", "disable_adapters"])
def test_lora_layers_have(name):
    assert hasattr(LoraLayer, name), f"see {TWIN}, `_of_adapter`"
