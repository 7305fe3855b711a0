"""What `trl_ext.preflight` rests on in TRL's trainers and is no public API: each failure names the place to look at."""

import inspect

import pytest
from transformers import Trainer
from trl import DPOTrainer, GRPOTrainer, RewardTrainer, RLOOTrainer, SFTTrainer
from trl.trainer import grpo_trainer, rloo_trainer
from trl.trainer.utils import use_adapter

SUBJECT, GRADIENT, ALIGNMENT = (f"trl_ext/preflight/{name}.py" for name in ("subject", "gradient", "alignment"))
SAMPLERS = {GRPOTrainer: grpo_trainer, RLOOTrainer: rloo_trainer}
METHODS = {
    "_generate_and_score_completions": (["self", "inputs"], SUBJECT),
    "_calculate_rewards": (["self", "inputs", "prompts", "completions", "completion_ids_list"], SUBJECT),
    "_get_per_token_logps_and_entropies": (
        ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"], f"{SUBJECT}, {GRADIENT}",
    ),
    "_generate_single_turn": (["self", "prompt_ids", "images", "multimodal_fields"], ALIGNMENT),
}  # fmt: skip
OUTPUT = ["prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages"]
ATTRIBUTES = ["self._tokenizer = ", "self.generation_config = ", "self.num_generations = ", "self.num_iterations = ",
              "self.max_completion_length = ", "self.reward_weights = ", "self.beta = ", "self.ref_model = ",
              "self._metrics = "]  # fmt: skip


@pytest.mark.parametrize("trainer", SAMPLERS)
@pytest.mark.parametrize("name", METHODS)
def test_method_keeps_its_signature(trainer, name):
    expected, place = METHODS[name]
    got = list(inspect.signature(getattr(trainer, name)).parameters)
    assert got[: len(expected)] == expected, f"{trainer.__name__}.{name} changed: see {place}"


@pytest.mark.parametrize("trainer", SAMPLERS)
def test_the_scored_batch_holds_what_is_looked_at(trainer):
    source = inspect.getsource(trainer._generate_and_score_completions)
    for name in OUTPUT:
        assert f'"{name}": ' in source, f"{name} is gone from the output of {trainer.__name__}: see {SUBJECT}"


@pytest.mark.parametrize("trainer", SAMPLERS)
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_trainer_still_has_the_attribute(trainer, name):
    assert name in inspect.getsource(SAMPLERS[trainer]), f"{name!r} is gone from {trainer.__name__}: see preflight"


def test_the_reference_of_an_adapter_is_asked_for_in_the_same_way():
    assert list(inspect.signature(use_adapter).parameters) == ["model", "adapter_name"], "see preflight/reference.py"


@pytest.mark.parametrize("trainer", [SFTTrainer, RewardTrainer, DPOTrainer, GRPOTrainer, RLOOTrainer])
def test_trainers_train_by_the_method_that_is_caught(trainer):
    assert trainer.train is Trainer.train, f"{trainer.__name__} has a train of its own: see preflight/capture.py"
