"""The trainer samples what it sampled before, from a twin with a static cache; a CPU, where nothing compiles by itself,
stands for the card."""

import warnings

import pytest
import torch
from peft import LoraConfig
from trainer_builders import COMMON, absolute_policy, loo_trainer, policy, ppo_trainer, prompts, weights
from trainer_builders import stock_trainer as stock
from transformers import CompileConfig, GenerationConfig
from trl import RLOOConfig, RLOOTrainer, SFTConfig, SFTTrainer

from trl_ext.errors import UserError
from trl_ext.generation import FastGeneration, fast_generation
from trl_ext.generation.fast_generation import _static
from trl_ext.preflight import preflight
from trl_ext.tiny import byte_tokenizer


def with_lora(tmp_path, **options):
    return loo_trainer(tmp_path, trainer={"peft_config": LoraConfig(r=4, target_modules="all-linear")}, **options)


TRAINERS = {
    "grpo": stock,
    "rloo": lambda tmp_path, **options: stock(tmp_path, RLOOConfig, RLOOTrainer, **options),
    "loo": loo_trainer,
    "lora": with_lora,
    "value": lambda tmp_path, **options: loo_trainer(tmp_path, baseline="value", num_generations=1, **options),
    "greedy": lambda tmp_path, **options: loo_trainer(tmp_path, baseline="greedy", **options),
    "ppo": ppo_trainer,
}


def trained(trainer, fast=None):
    """What a run samples, and the weights it ends with."""
    sampled, inner = [], trainer._generate_single_turn

    def noting(*args, **kwargs):
        result = inner(*args, **kwargs)
        sampled.append(result[0] if isinstance(result, tuple) else result)
        return result

    trainer._generate_single_turn = noting
    if fast is not None:
        fast.start()
    torch.manual_seed(5)
    trainer.train()
    return sampled, weights(trainer.model)


@pytest.mark.parametrize("kind", TRAINERS)
def test_a_run_samples_and_learns_what_it_did_without(kind, tmp_path, on_cpu):
    sampled, learned = trained(TRAINERS[kind](tmp_path / "before"))
    trainer = TRAINERS[kind](tmp_path / "fast")
    generation = FastGeneration(trainer, dtype=torch.float32)
    again, weights_again = trained(trainer, generation)
    assert generation.refused is None and generation._twin is not None
    assert again == sampled and len(sampled) >= 2
    for name, value in learned.items():
        torch.testing.assert_close(weights_again[name], value, rtol=1e-4, atol=1e-5)


def test_when_the_context_ends_the_trainer_generates_as_before(tmp_path, on_cpu):
    trainer = stock(tmp_path)
    with FastGeneration(trainer, dtype=torch.float32, correct=True) as generation:
        trainer.train()
        assert generation._twin is not None and {"_generate", "_compute_loss"} < set(vars(trainer))
    assert generation._twin is None and not trainer.use_vllm
    assert not {"_generate", "_generate_single_turn", "_generate_and_score_completions", "_compute_loss"} & set(
        vars(trainer)
    )
    assert generation._record is None  # it holds the scores of a whole vocabulary
    assert "generate" not in vars(trainer.model)


def test_what_is_noted_is_the_log_probability_under_the_policy_that_sampled(tmp_path, on_cpu):
    """One number a token, at the temperature at which it was drawn."""
    trainer = stock(tmp_path, temperature=0.7)
    FastGeneration(trainer, dtype=torch.float32, correct=True).start()
    rows = next(iter(trainer.get_train_dataloader()))
    trainer.model.train()
    output = trainer._generate_and_score_completions(rows)
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)
    length = output["completion_ids"].size(1)
    with torch.no_grad():
        logits = trainer.model(input_ids=ids, attention_mask=mask).logits[:, -length - 1 : -1] / 0.7
    wanted = logits.log_softmax(-1).gather(2, output["completion_ids"].unsqueeze(2)).squeeze(2)
    own = output["completion_mask"].bool()
    torch.testing.assert_close(output["sampling_per_token_logps"][own], wanted[own], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["grpo", "loo"])
def test_importance_sampling_weighs_what_another_precision_sampled(kind, tmp_path, on_cpu):
    trainer = TRAINERS[kind](tmp_path, logging_steps=1)
    with FastGeneration(trainer, dtype=torch.bfloat16, correct=True):
        trainer.train()
    rows = [row for row in trainer.state.log_history if "sampling/importance_sampling_ratio/mean" in row]
    assert rows and all(0.9 < row["sampling/importance_sampling_ratio/mean"] < 1.1 for row in rows)
    assert all(0 < row["sampling/sampling_logp_difference/mean"] < 0.1 for row in rows)


def test_a_batch_of_fewer_rows_is_filled_up_and_the_rest_is_idle(tmp_path, on_cpu):
    trainer = stock(tmp_path)
    generation = FastGeneration(trainer, dtype=torch.float32).start()
    tokenizer = byte_tokenizer()
    many = tokenizer(["one", "two, three", "four", "five"] * 4)["input_ids"]
    trainer.generation_config.do_sample = False
    whole, _ = trainer._generate_single_turn(many, None, {}, 1)
    for rows in (16, 11, 4, 3, 1):
        few, _ = trainer._generate_single_turn(many[:rows], None, {}, 1)
        assert few == whole[:rows]
    assert generation._most_rows == 16


def compiling(config, backend="eager"):
    config.compile_config = CompileConfig(backend=backend, mode=None, fullgraph=False)
    config.compile_config._compile_all_devices = True


def test_nothing_is_compiled_again_after_the_first_batch(tmp_path, on_cpu):
    """Prompts of other lengths, and fewer of them: the caches are of one size."""
    torch._dynamo.reset()
    trainer = stock(tmp_path)
    compiling(trainer.generation_config)
    generation = FastGeneration(trainer, dtype=torch.float32).start()
    tokenizer = byte_tokenizer()
    seen = []
    for texts in (["one"] * 16, ["four, five"] * 16, ["a", "much longer prompt than these"] * 8, ["six"] * 9):
        trainer._generate_single_turn(tokenizer(texts)["input_ids"], None, {}, 1)
        seen.append(generation.compilations)
    assert seen[0] > 0 and seen == seen[:1] * 4
    trainer._generate_single_turn(tokenizer(["long " * 30] * 16)["input_ids"], None, {}, 1)
    assert generation.compilations > seen[0]  # another bucket


def test_the_cache_is_as_long_as_the_bucket_of_prompt_and_completion():
    config = GenerationConfig(max_new_tokens=100, do_sample=True, disable_compile=True)
    static = _static(config, 221)
    assert (static.max_cache_len, static.cache_implementation, static.disable_compile) == (384, "static", False)
    assert config.cache_implementation is None and config.disable_compile


# Refused ------------------------------------------------------------------------------------------------------------


def refused(trainer, **options):
    generation = FastGeneration(trainer, **({"dtype": torch.float32} | options)).start()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer.train()
    named = [str(each.message) for each in told if "generation goes on as" in str(each.message)]
    assert len(named) == 1 and generation.refused in named[0] and generation._twin is None
    assert trainer.state.global_step == 3
    return generation.refused


def test_on_a_cpu_generation_goes_on_as_before(tmp_path):
    assert "the model is on cpu" in refused(stock(tmp_path))


def test_beams_are_not_for_it(tmp_path, on_cpu):
    assert refused(stock(tmp_path, generation_kwargs={"num_beams": 2, "do_sample": False})) == "num_beams=2"


def test_a_cache_that_was_asked_for_stays(tmp_path, on_cpu):
    trainer = stock(tmp_path)
    trainer.generation_config.cache_implementation = "offloaded"
    inputs = {"input_ids": torch.ones(1, 1), "generation_config": trainer.generation_config}
    assert "'offloaded' was asked for" in FastGeneration(trainer)._cannot(trainer.model, inputs)


def test_a_twin_that_says_something_else_does_not_sample(tmp_path, on_cpu):
    trainer = stock(tmp_path)
    inner = trainer.model.forward

    def scaled(*args, **kwargs):
        output = inner(*args, **kwargs)
        if getattr(output, "logits", None) is not None:
            output.logits = output.logits * 3
        return output

    trainer.model.forward = scaled
    assert "nats a token from it" in refused(trainer)


def test_what_the_compiler_cannot_take_goes_on_as_before(tmp_path, on_cpu, monkeypatch):
    trainer = stock(tmp_path, model=absolute_policy())

    def cannot(*args, **kwargs):
        raise RuntimeError("an operator\nthat is not known")

    monkeypatch.setattr(fast_generation, "_static", cannot)
    assert refused(trainer) == "RuntimeError: an operator that is not known"


def test_no_room_on_the_card_goes_on_as_before(tmp_path, on_cpu, monkeypatch):
    def no_room(*args, **kwargs):
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(fast_generation, "Twin", no_room)
    assert "no room" in refused(stock(tmp_path), correct=True)


def test_amid_a_batch_that_is_corrected_what_another_way_samples_is_weighed_with_1(tmp_path, on_cpu, monkeypatch):
    """Two turns in one batch, the second without the twin: TRL joins their log-probabilities."""
    trainer = stock(tmp_path)
    generation = FastGeneration(trainer, dtype=torch.float32, correct=True).start()
    ids, seen = byte_tokenizer()(["one", "two"])["input_ids"], []

    def two_turns(prompts):
        seen.append(trainer._generate_single_turn(ids, None, {}, 1))
        monkeypatch.setattr(generation, "_sample", lambda *args, **kwargs: 1 / 0)
        seen.append(trainer._generate_single_turn(ids, None, {}, 1))
        return [None] * 4 + ["known"]

    generation._replaced["_generate"] = two_turns
    with generation._weighing(True):
        assert trainer._generate(["one", "two"]) == [None] * 4 + ["known"]
        assert trainer.use_vllm  # TRL weighs this batch; the next one is none of it
    assert "ZeroDivisionError" in generation.refused
    (first, known), (second, unknown) = ([row[:2] for row in (turn[0], turn[1])] for turn in seen)
    assert [len(row) for row in known] == [len(row) for row in first] and all(x < 0 for row in known for x in row)
    assert [len(row) for row in unknown] == [len(row) for row in second] and all(x != x for row in unknown for x in row)
    monkeypatch.setitem(generation._replaced, "_generate_and_score_completions", lambda: trainer.use_vllm)
    assert trainer._generate_and_score_completions() is False


@pytest.mark.parametrize("refused_in", [None, 0, 1])
def test_a_batch_that_waits_is_learned_as_it_was_generated(tmp_path, on_cpu, monkeypatch, refused_in):
    """Each batch serves two steps and an evaluation comes between; what is left of one that was generated before
    `start` or after a refusal is not weighed."""
    options = {"num_iterations": 2, "max_steps": 3, "eval_strategy": "steps", "eval_steps": 1}
    trainer = stock(tmp_path, num_generations_eval=4, per_device_eval_batch_size=8, **options)
    weighed, inner = [], trainer._compute_loss

    def noting(model, inputs):
        if model.training:
            weighed.append((trainer.use_vllm, "importance_sampling_ratio" in inputs))
        return inner(model, inputs)

    trainer._compute_loss = noting
    trainer.train()  # its second batch serves one step here and one below
    generation = FastGeneration(trainer, dtype=torch.float32, correct=True)
    sample, calls = generation._sample, []

    def failing(*args, **kwargs):
        calls.append(None)
        if len(calls) - 1 == refused_in:
            raise torch.cuda.OutOfMemoryError
        return sample(*args, **kwargs)

    generation._sample = failing
    with generation:
        trainer.train()
    assert len(weighed) == 6 and all(used == has for used, has in weighed)
    assert not any(has for _, has in weighed[:4]) and (generation.refused is None) == (refused_in is None)
    if refused_in is None:
        assert all(has for _, has in weighed[4:])


def test_started_again_it_tries_again_and_what_stood_in_the_trainer_stays(tmp_path, on_cpu, monkeypatch):
    trainer = stock(tmp_path)
    inner = trainer._generate
    trainer._generate = own = lambda prompts: inner(prompts)
    generation = FastGeneration(trainer, dtype=torch.float32)
    with monkeypatch.context() as patch:
        patch.setattr(fast_generation, "DEVICES", ())
        with generation:
            trainer.train()
    assert generation.refused and trainer._generate is own
    with generation:
        trainer.train()
        assert generation._twin is not None
    assert generation.refused is None and trainer._generate is own


def test_preflight_looks_at_a_trainer_that_generates_fast_and_leaves_it_so(tmp_path, on_cpu):
    trainer = loo_trainer(tmp_path, fast_generation=True, sampling_correction=True)
    before = {name for name in vars(trainer) if name.startswith("_generate")}
    report = preflight(trainer, quick=True)
    assert {name for name in vars(trainer) if name.startswith("_generate")} == before != set()
    assert "AttributeError" not in str(report)


@pytest.mark.parametrize("way", ["greedy", "rollout_func"])
def test_tokens_whose_log_probability_nothing_tells_weigh_1(tmp_path, on_cpu, way):
    def rollout(prompts, trainer):
        ids = byte_tokenizer()([str(prompt) for prompt in prompts])["input_ids"]
        return {"prompt_ids": ids, "completion_ids": [[40, 41, 42] for _ in ids], "logprobs": None}

    trainer = stock(tmp_path, **({"generation_kwargs": {"do_sample": False}} if way == "greedy" else {}))
    trainer.rollout_func = rollout if way == "rollout_func" else None
    generation = FastGeneration(trainer, dtype=torch.float32, correct=True)
    with warnings.catch_warnings(record=True) as told, generation:
        warnings.simplefilter("always")
        trainer.train()
    named = [each for each in told if "the rollout_func does it in its own way" in str(each.message)]
    assert len(named) == (way == "rollout_func") and generation.refused is None
    ratios = [row.get("sampling/importance_sampling_ratio/mean") for row in trainer.state.log_history][:-1]
    assert ratios == [1.0, 1.0, 1.0]


def test_weights_that_are_kept_elsewhere_are_not_for_it(tmp_path, on_cpu, monkeypatch):
    trainer = stock(tmp_path)
    generation = FastGeneration(trainer)
    inputs = {"input_ids": torch.ones(1, 1, device="meta"), "generation_config": trainer.generation_config}
    monkeypatch.setattr(fast_generation, "DEVICES", ("meta",))
    assert "kept on cpu (fsdp_offload_params, say)" in generation._cannot(trainer.model, inputs)


def test_a_trainer_that_does_not_generate_and_one_that_generates_otherwise_are_errors(tmp_path):
    args = SFTConfig(str(tmp_path), **COMMON)
    sft = SFTTrainer(policy(), args, train_dataset=prompts().rename_column("prompt", "text"),
                     processing_class=byte_tokenizer())  # fmt: skip
    with pytest.raises(UserError, match="SFTTrainer does not generate"):
        FastGeneration(sft)
    trainer = stock(tmp_path)
    trainer.use_vllm = True
    with pytest.raises(UserError, match="use_vllm=True generates in its own way"):
        FastGeneration(trainer)
    trainer.use_vllm = False
    for correct in (False, True):
        with FastGeneration(trainer, correct=correct), pytest.raises(UserError, match="generates fast already"):
            FastGeneration(trainer)
        unstarted = FastGeneration(trainer)
        with FastGeneration(trainer, correct=correct), pytest.raises(UserError, match="generates fast already"):
            unstarted.start()
    vespo = stock(tmp_path, loss_type="vespo", vllm_importance_sampling_mode="sequence_mask")
    with pytest.raises(UserError, match="'vespo' takes no vllm_importance_sampling_mode='sequence_mask'"):
        FastGeneration(vespo, correct=True)
    with pytest.raises(UserError, match="RLOOTrainer has no importance sampling"):
        FastGeneration(stock(tmp_path, RLOOConfig, RLOOTrainer), correct=True)
