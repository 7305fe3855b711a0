"""PPO's steps, stop tokens, rewards, metrics and constructor."""

import math

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from torch import nn
from trainer_builders import (
    LETTERS,
    PROMPTS,
    fixed_rollouts,
    letter_share,
    plain_logps,
    policy,
    ppo_args,
    ppo_trainer,
    prompts,
    scored,
    scorer,
    weights,
    whole,
)
from transformers import GPT2Model, OPTConfig, OPTForCausalLM, OPTModel, Qwen2Model

from trl_ext.errors import UserError
from trl_ext.tiny import byte_tokenizer
from trl_ext.trainers import PPOTrainer
from trl_ext.trainers.reward_model import last_hidden_states

STOCK_METRICS = {
    "eps", "objective/kl", "objective/entropy", "objective/non_score_reward", "objective/rlhf_reward",
    "objective/scores", "policy/approxkl_avg", "policy/clipfrac_avg", "policy/entropy_avg", "loss/policy_avg",
    "loss/value_avg", "val/clipfrac_avg", "val/ratio", "val/ratio_var", "val/num_eos_tokens", "lr", "episode",
}  # fmt: skip
CUT = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1}  # mini-batches cut a micro-batch


def sampled(output):
    return [
        ids[mask.bool()].tolist() for ids, mask in zip(output["completion_ids"], output["completion_mask"], strict=True)
    ]


@pytest.mark.parametrize("layout", [{}, CUT], ids=["accumulation-divided", "micro-batch-cut"])
def test_optimizer_steps_are_updates_times_epochs_times_mini_batches(tmp_path, layout):
    rollouts, rows = [], []

    class Counting(PPOTrainer):
        def _compute_loss(self, model, inputs):
            rows.append(len(inputs["completion_ids"]))
            return super()._compute_loss(model, inputs)

    trainer = ppo_trainer(tmp_path, total_episodes=40, num_ppo_epochs=3, num_mini_batches=2, **layout)
    trainer.__class__ = Counting
    trainer.reward_funcs[0] = lambda **kwargs: rollouts.append(len(kwargs["prompts"])) or letter_share(**kwargs)
    trainer.train()
    assert rollouts == [16, 16, 16]  # ceil(40 / 16) updates
    assert trainer.state.global_step == trainer.state.max_steps == 3 * 3 * 2
    assert sum(rows) == 3 * 3 * 16 and set(rows) == {8 if layout else 4}


def test_each_pass_sees_each_rollout_once_and_the_old_policy_stays_that_of_the_rollout(tmp_path):
    seen = []

    class Seeing(PPOTrainer):
        def _compute_loss(self, model, inputs):
            seen.append({k: inputs[k].clone() for k in ("completion_ids", "old_per_token_logps", "returns")})
            return super()._compute_loss(model, inputs)

    trainer = ppo_trainer(
        tmp_path, total_episodes=16, num_ppo_epochs=2, num_mini_batches=2, learning_rate=0.05,
        trainer={"rollout_func": fixed_rollouts(least=10)},
    )  # fmt: skip
    trainer.__class__ = Seeing
    trainer.train()
    for key in ("completion_ids", "old_per_token_logps", "returns"):
        first, second = (torch.cat([batch[key] for batch in part]) for part in (seen[:4], seen[4:]))
        assert torch.equal(first[first[:, 0].argsort()], second[second[:, 0].argsort()]), key
    assert len({tuple(row) for batch in seen[:4] for row in batch["completion_ids"].tolist()}) == 16


def test_the_ratio_is_1_until_the_policy_moves(tmp_path):
    ratios = []

    class Recording(PPOTrainer):
        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            ratios.append(self._metrics["train"]["val/ratio"][-1])
            return loss

    trainer = ppo_trainer(tmp_path, total_episodes=16, num_ppo_epochs=2, num_mini_batches=2, learning_rate=0.05)
    trainer.__class__ = Recording
    trainer.train()
    assert len(ratios) == 8 and ratios[:2] == pytest.approx([1, 1], abs=1e-5)  # two micro-batches before the first step
    assert all(abs(ratio - 1) > 1e-4 for ratio in ratios[2:])


def test_logs_saves_warmup_and_max_steps_count_updates(tmp_path):
    trainer = ppo_trainer(
        tmp_path, max_steps=4, num_ppo_epochs=3, num_mini_batches=2, logging_steps=2, save_strategy="steps",
        save_steps=2, warmup_steps=2, learning_rate=0.01,
    )  # fmt: skip
    trainer.train()
    assert trainer.state.global_step == 4 * 6
    logs = [row for row in trainer.state.log_history if "loss" in row]
    assert [row["step"] for row in logs] == [12, 24] and [row["episode"] for row in logs] == [32, 64]
    assert {p.name for p in tmp_path.glob("checkpoint-*")} == {"checkpoint-12", "checkpoint-24"}
    assert logs[0]["lr"] == pytest.approx(0.01 * 11 / 12, rel=0.1)  # the end of the warm-up: 2 updates of 6 steps
    assert trainer.args.num_total_batches == 4 and trainer.args.total_episodes == 64


def test_the_length_of_the_run_defaults_to_the_epochs_of_the_dataset(tmp_path):
    trainer = ppo_trainer(tmp_path, num_train_epochs=2, num_ppo_epochs=1, dataset=prompts(5))  # 2 * 40 / 16
    assert trainer.args.max_steps == 5


def test_a_config_can_build_two_trainers(tmp_path):
    args = ppo_args(tmp_path, max_steps=2, num_ppo_epochs=3, num_mini_batches=2)
    sizes = []
    for _ in range(2):
        trainer = PPOTrainer(args, byte_tokenizer(), policy(), None, letter_share, prompts())
        sizes.append(
            (trainer.args.max_steps, trainer.args.per_device_train_batch_size, trainer.args.steps_per_generation)
        )
    assert sizes[0] == sizes[1] == (12, 4, 4) and args.max_steps == 2


# Metrics -------------------------------------------------------------------------------------------


def test_the_metrics_of_stock_ppo_are_all_there_and_their_identities_hold(tmp_path):
    trainer = ppo_trainer(tmp_path, total_episodes=48, num_ppo_epochs=2, learning_rate=0.03, kl_coef=0.2)
    trainer.train()
    logs = [row for row in trainer.state.log_history if "loss" in row]
    assert set(logs[-1]) >= STOCK_METRICS and set(logs[0]) >= STOCK_METRICS - {"eps"}
    for row in logs:
        assert row["objective/rlhf_reward"] == pytest.approx(
            row["objective/scores"] + row["objective/non_score_reward"], abs=1e-5
        )
        assert row["objective/non_score_reward"] == pytest.approx(-0.2 * row["objective/kl"], abs=1e-6)
        assert row["lr"] == row["learning_rate"] and row["objective/scores"] == pytest.approx(row["reward"], abs=1e-6)
        assert row["policy/entropy_avg"] == pytest.approx(row["entropy"], abs=1e-4) and math.isfinite(
            row["val/ratio_var"]
        )
    assert abs(logs[-1]["objective/kl"]) > 1e-3 and [row["episode"] for row in logs] == [16, 32, 48]


def test_ratio_approximate_kl_and_clip_fraction_are_those_of_the_moved_policy(tmp_path):
    trainer = ppo_trainer(tmp_path, cliprange=0.05, trainer={"rollout_func": fixed_rollouts()})
    output = scored(trainer)
    before = plain_logps(trainer.model, output)
    with torch.no_grad():
        for p in trainer.model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    trainer.current_gradient_accumulation_steps = 1
    trainer._compute_loss(trainer.model, output)
    kept = output["completion_mask"].bool()
    log_ratio, advantages = (plain_logps(trainer.model, output) - before)[kept], output["advantages"][kept]
    ratio = log_ratio.exp()
    # clipped: where max(-A r, -A clip(r)) is the second
    clipped = -advantages * ratio.clamp(0.95, 1.05) > -advantages * ratio
    got = {k: v[-1] for k, v in trainer._metrics["train"].items()}
    assert got["val/ratio"] == pytest.approx(ratio.mean().item(), rel=1e-4)
    assert got["policy/approxkl_avg"] == pytest.approx(log_ratio.square().mean().item() / 2, rel=1e-3)
    assert got["policy/clipfrac_avg"] == pytest.approx(clipped.float().mean().item(), abs=1e-6)
    assert 0.05 < got["policy/clipfrac_avg"] < 0.95 and got["policy/approxkl_avg"] > 1e-4


def test_the_scores_in_the_logs_carry_the_missing_eos_penalty(tmp_path):
    trainer = ppo_trainer(tmp_path, missing_eos_penalty=2.0, trainer={"rollout_func": fixed_rollouts(eos_every=4)})
    output = scored(trainer)
    completions = sampled(output)
    penalties = [2.0 * (byte_tokenizer().eos_token_id not in ids) for ids in completions]
    assert sum(penalties) == 24.0
    expected = sum(s - p for s, p in zip(letter_share(completions), penalties, strict=True)) / 16
    assert trainer._metrics["train"]["objective/scores"][-1] == pytest.approx(expected, abs=1e-6)


# Stop tokens ---------------------------------------------------------------------------------------


def eager_to_stop(stop_id):
    """A policy that samples `stop_id` about every third token."""
    model = policy()
    embeddings = model.get_input_embeddings().weight.data
    model.config.tie_word_embeddings = False
    model.lm_head = nn.Linear(embeddings.size(1), embeddings.size(0))
    nn.init.zeros_(model.lm_head.weight)
    nn.init.zeros_(model.lm_head.bias)
    model.lm_head.bias.data[stop_id] = math.log(128.0)
    return model


@pytest.mark.parametrize(
    ("options", "stop"),
    [
        ({"stop_token": "eos"}, "eos"),
        pytest.param({"stop_token": None, "stop_token_id": 5}, 5, marks=pytest.mark.current_trl),
        pytest.param({"stop_token": None, "stop_token_id": 0}, 0, marks=pytest.mark.current_trl),
        pytest.param({"stop_token": None}, None, marks=pytest.mark.current_trl),
    ],
)
@pytest.mark.parametrize("likely", ["eos", 5])
def test_exactly_the_stop_token_ends_a_completion(tmp_path, options, stop, likely):
    eos = byte_tokenizer().eos_token_id
    stop, likely = (eos if x == "eos" else x for x in (stop, likely))
    trainer = ppo_trainer(tmp_path, missing_eos_penalty=0.0, model=eager_to_stop(likely), **options)
    output = scored(trainer)
    completions = sampled(output)
    assert any(likely in ids for ids in completions)
    for ids in completions:
        assert stop not in ids[:-1] and (len(ids) == 12 or ids[-1] == stop)
    if likely == stop:
        assert min(len(ids) for ids in completions) < 12
    else:
        assert sum(len(ids) == 12 for ids in completions) > 8
    counted = trainer._metrics["train"]["val/num_eos_tokens"][-1]
    assert counted == sum(ids.count(stop) for ids in completions if stop is not None)


@pytest.mark.stock_ppo
@pytest.mark.parametrize("options", [{"stop_token": None}, {"stop_token": None, "stop_token_id": 5}])
def test_before_trl_1_14_another_stop_token_is_an_error(tmp_path, options):
    with pytest.raises(UserError, match="set stop_token='eos'"):
        ppo_trainer(tmp_path, **options)


# Rewards -------------------------------------------------------------------------------------------


def test_a_tokenised_padded_dataset_is_generated_from_as_it_is(tmp_path):
    tokenizer = byte_tokenizer()
    texts = ["hello", "go", "more x", "a" + tokenizer.eos_token + "b"]
    rows = tokenizer(texts * 8, padding=True)["input_ids"]
    output = scored(ppo_trainer(tmp_path, dataset=Dataset.from_dict({"input_ids": rows})))
    got = [p[m.bool()].tolist() for p, m in zip(output["prompt_ids"], output["prompt_mask"], strict=True)]
    expected = [tokenizer(text)["input_ids"] for text in texts]
    assert all(ids in expected for ids in got) and expected[3] in got and tokenizer.eos_token_id in expected[3]


class LetterReward(nn.Module):
    """The stock protocol and not a step more: `base_model_prefix`, a backbone with `hidden_states`, and `score`."""

    base_model_prefix = "backbone"

    class Output:
        def __init__(self, hidden_states):
            self.hidden_states = hidden_states

        @property
        def last_hidden_state(self):
            raise AssertionError("not part of the protocol")

    class Backbone(nn.Module):
        def __init__(self, calls):
            super().__init__()
            self.calls = calls
            self.embed = nn.Embedding(258, 1)
            self.embed.weight.data.zero_()
            self.embed.weight.data[sorted(LETTERS)] = 1.0

        def forward(self, input_ids, attention_mask, position_ids, return_dict, output_hidden_states, use_cache):
            assert return_dict and output_hidden_states and not use_cache
            self.calls.append((input_ids, attention_mask, position_ids))
            letters = self.embed(input_ids) * attention_mask.unsqueeze(-1)
            return LetterReward.Output((None, letters.cumsum(1)))

    def __init__(self):
        super().__init__()
        self.calls = []
        self.backbone = self.Backbone(self.calls)
        self.score = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.score.weight, 0.5)


def test_a_custom_reward_module_is_called_by_the_stock_protocol(tmp_path):
    reward = LetterReward()
    trainer = ppo_trainer(tmp_path, reward, trainer={"rollout_func": fixed_rollouts(eos_every=3)})
    output = scored(trainer)
    ids, mask = whole(output)
    expected = [0.5 * sum(int(i) in LETTERS for i in row[m.bool()]) for row, m in zip(ids, mask, strict=True)]
    assert list(trainer._logs["rewards"]["reward_model"]) == pytest.approx(expected) and len(set(expected)) > 2
    for input_ids, attention_mask, position_ids in reward.calls:
        assert len(input_ids) <= 4 and not input_ids[~attention_mask].any()
        for positions, kept in zip(position_ids, attention_mask, strict=True):
            assert positions[kept].tolist() == list(range(int(kept.sum())))
    assert not any(p.requires_grad for p in reward.parameters()) and not reward.training


def test_a_sequence_classifier_scores_as_it_does_row_by_row(tmp_path):
    model = scorer()
    trainer = ppo_trainer(tmp_path, model, trainer={"rollout_func": fixed_rollouts(eos_every=3)})
    output = scored(trainer)
    expected = []
    for ids, mask in zip(*whole(output), strict=True):
        with torch.no_grad():
            expected.append(model(input_ids=ids[mask.bool()][None]).logits.item())  # the model's own pooling
    assert list(trainer._logs["rewards"]["reward_model"]) == pytest.approx(expected, abs=1e-4)
    assert torch.tensor(expected).std() > 0.1


def test_reward_functions_by_either_name_and_weighted(tmp_path):
    def one(completions, **_):
        return [1.0] * len(completions)

    for extra in (
        {"reward_model": [letter_share, one]},
        {"reward_model": None, "trainer": {"reward_funcs": [letter_share, one]}},
    ):
        trainer = ppo_trainer(tmp_path, reward_weights=[1.0, 3.0], **extra)
        scored(trainer)
        share = sum(trainer._logs["rewards"]["letter_share"]) / 16
        assert trainer._metrics["train"]["objective/scores"][-1] == pytest.approx(share + 3.0, abs=1e-5)


@pytest.mark.parametrize("given", [False, True], ids=["head", "value-model"])
def test_policy_and_value_function_both_learn(tmp_path, given):
    value_model, model = scorer(3), policy()
    extra = {"value_model": value_model} if given else {}
    trainer = ppo_trainer(tmp_path, model=model, total_episodes=32, learning_rate=0.01, trainer=extra)
    function = weights(trainer._value_function)
    trainer.train()
    assert any(not torch.equal(v, function[k]) for k, v in weights(trainer._value_function).items())
    after = weights(model)
    assert all(not torch.equal(v, after[k]) for k, v in weights(policy()).items() if "mlp" in k)
    assert given == (trainer._value_function.value_model is value_model)


def test_values_start_at_0_with_the_default_head(tmp_path):
    output = scored(ppo_trainer(tmp_path))
    assert not output["old_values"].any()


@pytest.mark.parametrize("projected", [32, 16])
def test_the_head_reads_a_model_whose_decoder_is_called_past_its_base(tmp_path, projected):
    """OPT's language model calls `model.decoder`, not `model`; some project what it gives to another size."""
    torch.manual_seed(0)
    pad, eos = byte_tokenizer().pad_token_id, byte_tokenizer().eos_token_id
    config = OPTConfig(vocab_size=len(byte_tokenizer()), hidden_size=32, ffn_dim=64, num_hidden_layers=2,
                       num_attention_heads=2, word_embed_proj_dim=projected, max_position_embeddings=64, dropout=0.0,
                       pad_token_id=pad, eos_token_id=eos, bos_token_id=eos)  # fmt: skip
    trainer = ppo_trainer(tmp_path, model=OPTForCausalLM(config), total_episodes=16)
    head = trainer._value_function.head
    torch.nn.init.normal_(head.weight)
    model, ids = trainer.model.eval(), torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        values = model(input_ids=ids, with_values=True).state_values
        hidden = model.get_decoder()(input_ids=ids).last_hidden_state
        torch.testing.assert_close(values, head(hidden).squeeze(-1)[:, :-1])
    trainer.train()


@pytest.mark.parametrize("model_class", [Qwen2Model, GPT2Model, OPTModel])
def test_a_backbone_gives_the_states_that_the_stock_call_gives(model_class):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
    more = {
        Qwen2Model: {"intermediate_size": 64, "num_key_value_heads": 2},
        OPTModel: {"ffn_dim": 64, "word_embed_proj_dim": 32},
    }
    model = model_class(model_class.config_class(**sizes, **more.get(model_class, {}))).eval()
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]])}
    states = model(**inputs, output_hidden_states=True, use_cache=False).hidden_states[-1]
    assert torch.equal(last_hidden_states(model, **inputs), states)


def test_lora_trains(tmp_path):
    trainer = ppo_trainer(tmp_path, total_episodes=32, num_ppo_epochs=1, trainer={"peft_config": LoraConfig(r=4)})
    trainer.train()
    assert trainer.state.global_step == 2 and trainer.ref_model is None


# Constructor ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "fix"),
    [
        ({"train_dataset": None}, "train_dataset"),
        ({"reward_model": None}, "reward_funcs"),
        ({"reward_funcs": letter_share}, "one of .*reward_funcs|reward_funcs.*one of"),
        ({"ref_model": "model"}, "a copy of it, or None"),
    ],
)
def test_constructor_errors_name_the_fix(tmp_path, kwargs, fix):
    model = policy()
    arguments = {"reward_model": letter_share, "train_dataset": prompts()} | kwargs
    if arguments.get("ref_model"):
        arguments["ref_model"] = model
    with pytest.raises(UserError, match=fix):
        PPOTrainer(ppo_args(tmp_path), byte_tokenizer(), model, **arguments)


def test_the_positional_order_is_that_of_stock_ppo(tmp_path):
    reference = policy(5)
    trainer = PPOTrainer(
        ppo_args(tmp_path), byte_tokenizer(), policy(), reference, scorer(), prompts(), scorer(3), None, prompts(1)
    )
    assert trainer.ref_model is reference and trainer._value_function.value_model is not None
    assert len(trainer.eval_dataset) == len(PROMPTS)


def test_a_data_collator_is_ignored_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="data_collator"):
        ppo_trainer(tmp_path, trainer={"data_collator": lambda rows: rows})


def test_the_samples_table_is_printed_now_and_then(tmp_path, capsys):
    trainer = ppo_trainer(tmp_path, total_episodes=64, num_ppo_epochs=1, num_sample_generations=2)
    trainer.train()
    printed = capsys.readouterr().out
    assert [printed.count(f"Step {step} ") for step in (1, 2, 3, 4)] == [0, 1, 0, 1]


def test_scripts_that_end_with_generate_completions_see_the_evaluation_set(tmp_path, capsys):
    trainer = ppo_trainer(
        tmp_path,
        total_episodes=16,
        num_ppo_epochs=1,
        per_device_eval_batch_size=4,
        trainer={"eval_dataset": prompts(1)},
    )
    trainer.train()
    before = weights(trainer.model)
    capsys.readouterr()
    trainer.generate_completions(sampling=True)
    printed = capsys.readouterr().out
    assert any(prompt in printed for prompt in PROMPTS) and "letter_share" in printed
    assert trainer.generation_config.temperature == trainer.generation_kwargs["temperature"] == 1.0
    assert trainer.model.training and all(torch.equal(v, before[k]) for k, v in weights(trainer.model).items())
    assert trainer.state.episode == 16


def test_generate_completions_without_an_evaluation_set_does_nothing(tmp_path, capsys):
    ppo_trainer(tmp_path).generate_completions()
    assert capsys.readouterr().out == ""


def test_a_pad_token_that_the_model_does_not_embed_is_refused_with_the_mend(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    with pytest.raises(UserError, match=r"id 258, the model embeds 258 tokens: call model\.resize_token_embeddings"):
        PPOTrainer(ppo_args(tmp_path), tokenizer, policy(), None, letter_share, prompts())
