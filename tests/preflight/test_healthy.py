"""What is in order is not complained about, on both lanes of TRL."""

import pytest
import torch
from datasets import Dataset
from peft import AdaLoraConfig, LoHaConfig, LoKrConfig, LoraConfig, OFTConfig, PromptTuningConfig, VeraConfig
from subjects import HEALTHY, LORA, TEXTS, complaints, dpo, embedded, grpo, loo, looked_at, ppo, reward, sft
from tokenizers import processors
from torch.optim.lr_scheduler import LambdaLR
from trainer_builders import policy
from transformers import MixtralConfig, MixtralForCausalLM, PrinterCallback

from trl_ext.preflight import Status, preflight
from trl_ext.tiny import byte_tokenizer

PASS, SKIP = Status.PASS, Status.SKIP
current = pytest.mark.current_trl  # one lane is enough


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_set_up_has_nothing_to_complain_about(name, tmp_path):
    trainer = HEALTHY[name](tmp_path, **({} if name in ("SFT", "reward model", "DPO") else embedded()))
    trainer.remove_callback(PrinterCallback)
    report = preflight(trainer, quick=True)
    assert complaints(report) == []
    assert report.count(Status.PASS) > 12
    assert not list((tmp_path / "run").glob("**/*.jsonl"))  # nothing is left of it


@current
@pytest.mark.parametrize("build", [loo, ppo])
def test_the_side_on_which_the_tokenizer_pads_is_nothing_to_trainers_that_pad_prompts_themselves(build, tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.padding_side = "right"
    found = looked_at(build(tmp_path, tokenizer=tokenizer), "masks", "mini_run")
    assert (found["prompt"].status, found["monitor"].status) == (PASS, PASS), found["monitor"].message


@current
@pytest.mark.parametrize("build", [loo, grpo, sft])
def test_a_schedule_of_the_users_own_is_no_drift(build, tmp_path):
    trainer = build(tmp_path, learning_rate=5.0)  # of no consequence beside an optimizer
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=5e-4)
    trainer.lr_scheduler = LambdaLR(trainer.optimizer, lambda step: min(1.0, (step + 1) / 10))
    found = looked_at(trainer, "options", "mini_run")
    assert found["monitor"].status == PASS, found["monitor"].message
    assert (found["learning_rate"].status, found["learning_rate"].numbers["learning_rate"]) == (PASS, 5e-4)


GEMMA = (
    "{% for m in messages %}<turn>{{ m['role'] }}\n{{ m['content'] }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)
TURNS = [[{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f"I say {i}"}] for i in range(32)]


def of_gemmas_form():
    """A tokenizer whose turns end with another token than texts do."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>", "<end_of_turn>"]})
    tokenizer.chat_template = GEMMA
    return tokenizer


def conversations(tmp_path, tokenizer, **options):
    trainer = sft(tmp_path, tokenizer=tokenizer, dataset=Dataset.from_dict({"messages": TURNS}), **options)
    trainer.model.resize_token_embeddings(len(tokenizer))
    return trainer


@current
def test_a_turn_may_end_with_another_token_than_the_tokenizers_where_generation_stops_there(tmp_path):
    trainer = conversations(tmp_path, of_gemmas_form())
    ends = [trainer.processing_class.eos_token_id, trainer.processing_class.convert_tokens_to_ids("<end_of_turn>")]
    trainer.model.generation_config.eos_token_id = ends
    assert looked_at(trainer, "masks")["eos_learned"].status == PASS
    trainer.model.generation_config.eos_token_id = ends[0]
    found = looked_at(trainer, "masks")["eos_learned"]
    assert found.status == Status.WARN and "eos_token='<end_of_turn>'" in found.advice


@current
def test_an_eos_that_training_writes_into_the_model_itself_is_no_fault(tmp_path):
    tokenizer = of_gemmas_form()
    tokenizer.eos_token = "<end_of_turn>"
    trainer = conversations(tmp_path, tokenizer)
    found = looked_at(trainer, "tokenizer", "masks", "mini_run")
    assert (found["eos"].status, found["eos_learned"].status) == (PASS, PASS)
    assert tokenizer.eos_token_id in trainer.model.generation_config.eos_token_id  # by the mini-run


@current
def test_padding_with_the_token_that_begins_texts_is_no_fault(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = tokenizer.pad_token
    texts = [f"{tokenizer.pad_token}{text}" for text in TEXTS]
    assert looked_at(sft(tmp_path, texts=texts, tokenizer=tokenizer), "masks")["padding"].status == SKIP


@current
@pytest.mark.parametrize("strategy", ["wrapped", "bfd_split"])
def test_packed_texts_that_fill_a_batch_each_end_in_another(strategy, tmp_path):
    texts = [" ".join([text] * 40) for text in TEXTS]
    options = {"packing": True, "packing_strategy": strategy, "per_device_train_batch_size": 4}
    found = looked_at(sft(tmp_path, texts=texts, **options), "masks")["eos_learned"]
    assert found.status == PASS and 0 < found.numbers["rows_with_eos"] < 0.2


PROJECTIONS = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj"]}
ADAPTERS = {
    "LoRA on embeddings": lambda: LoraConfig(**(LORA | {"target_modules": ["q_proj", "embed_tokens"]})),
    "AdaLoRA": lambda: AdaLoraConfig(**PROJECTIONS, total_step=100, lora_dropout=0.0),
    "VeRA": lambda: VeraConfig(**PROJECTIONS), "LoHa": lambda: LoHaConfig(**PROJECTIONS),
    "LoKr": lambda: LoKrConfig(**PROJECTIONS), "OFT": lambda: OFTConfig(**PROJECTIONS, oft_block_size=8, r=0),
    "prompt tuning": lambda: PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
}  # fmt: skip


@current
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_adapters_of_which_one_factor_begins_at_zero_are_whole(adapter, tmp_path):
    found = looked_at(sft(tmp_path, peft_config=ADAPTERS[adapter]()), "gradient")
    assert (found["every_parameter"].status, found["direction"].status) == (PASS, PASS)


@current
@pytest.mark.parametrize("build", [sft, dpo])
def test_fewer_rows_than_a_batch_make_steps(build, tmp_path):
    trainer = build(tmp_path)
    trainer.train_dataset = trainer.train_dataset.select(range(10))
    found = looked_at(trainer, "options", "dataset", "mini_run")
    assert (found["rows"].status, found["steps"].status) == (PASS, PASS)
    assert found["learned"].numbers["relative_change"] > 0


@current
def test_a_model_that_knows_its_data_by_heart_has_no_direction_to_test(tmp_path):
    trainer = reward(tmp_path)
    trainer.model.score.weight.data.mul_(1000)
    found = looked_at(trainer, "gradient")["direction"]
    assert found.status == SKIP and found.numbers["loss"] < 1e-9


@current
def test_a_step_that_goes_too_far_where_a_policy_is_nearly_sure_is_made_smaller(tmp_path):
    model = policy()
    model.lm_head.weight.data.mul_(3000)
    found = looked_at(loo(tmp_path, model=model, beta=0.0), "gradient")["direction"]
    assert found.status == PASS and found.numbers["promised"] < 0.01


def mixture(tmp_path):
    """A policy of experts, with the loss of their router."""
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    return MixtralForCausalLM(MixtralConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, router_aux_loss_coef=0.02, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    ))  # fmt: skip


@current
def test_the_first_loss_of_preferences_is_ln_2_whatever_else_is_in_the_loss(tmp_path):
    for options in ({"model": mixture(tmp_path)}, {"use_weighting": True}, {"loss_weights": [0.5]}):
        found = looked_at(dpo(tmp_path, **options), "reference")["equal_at_start"]
        assert found.status == PASS, found.message


@current
def test_a_loss_that_begins_the_other_way_on_purpose_is_no_fault(tmp_path):
    assert looked_at(dpo(tmp_path, loss_type="discopop"), "gradient")["direction"].status == PASS


@current
def test_pairs_that_have_no_prompt_in_common_are_no_fault(tmp_path):
    rows = {"chosen": [f"good {i} yes" for i in range(32)], "rejected": [f"bad {i} no" for i in range(32)]}
    assert looked_at(dpo(tmp_path, dataset=Dataset.from_dict(rows)), "masks")["pairs"].status == PASS


@current
def test_tokens_that_are_left_out_by_their_entropy_promise_nothing(tmp_path):
    found = looked_at(grpo(tmp_path, top_entropy_quantile=0.2, max_completion_length=48), "masks", "gradient")
    assert (found["learning"].status, found["direction"].status) == (PASS, PASS)


@current
def test_packed_rows_that_begin_within_a_text_lack_no_bos(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = "^"
    bos = tokenizer.convert_tokens_to_ids("^")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="^:0 $A:0", special_tokens=[("^", bos)]
    )
    options = {"packing": True, "packing_strategy": "wrapped"}
    assert looked_at(sft(tmp_path, tokenizer=tokenizer, **options), "tokenizer")["bos"].status == PASS


@current
@pytest.mark.parametrize("build", [loo, grpo, ppo])
def test_completions_that_never_end_are_told_once_and_fail_nothing(build, tmp_path):
    found = looked_at(build(tmp_path, max_completion_length=2), "advantages", "mini_run")
    assert found["truncated"].numbers["truncated_share"] > 0.9 and found["truncated"].status != Status.FAIL
    assert found["monitor"].status == PASS, found["monitor"].message


@current
def test_a_collator_that_masks_on_purpose_is_no_fault(tmp_path):
    trainer = sft(tmp_path)  # all of a text is marked as learned
    original = trainer.data_collator

    def of_the_answer_alone(rows):
        batch = original(rows)
        batch["labels"][:, :12] = -100
        return batch

    trainer.data_collator = of_the_answer_alone
    assert looked_at(trainer, "masks")["prompts"].status == PASS
