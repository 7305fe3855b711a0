"""What the loss pushes: log-probabilities by their advantage, masked tokens not at all; on average truly."""

import copy

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from trainer_builders import SMALL, absolute_policy, fixed_rollouts, loo_args, loo_trainer, ppo_trainer, scored
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from trl_ext.trainers import PPOTrainer, ReinforceLOOTrainer


def probing(trainer_class):
    class Probe(trainer_class):
        """Keeps the log-probabilities the loss was computed from, with their gradient."""

        def _get_per_token_logps_and_entropies(self, *args, **kwargs):
            result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            if result[0].requires_grad:
                result[0].retain_grad()
                self.probe = result[0]
            return result

    return Probe


def backward(trainer, output, accumulation=1):
    trainer.current_gradient_accumulation_steps = accumulation
    loss = trainer._compute_loss(trainer.model, output)
    loss.backward()
    return loss.detach()


def with_holes(prompts, trainer):
    """Completions with EOS inside and at the end, of several lengths, every third token written by an environment."""
    output = fixed_rollouts(eos_every=2)(prompts, trainer)
    output["completion_ids"][1][1] = trainer._tokenizer.eos_token_id
    output["env_mask"] = [[int(t % 3 != 1) for t in range(len(ids))] for ids in output["completion_ids"]]
    return output


def some_unscorable(completion_ids, **_):
    return [None if i % 4 == 3 else sum(ids) / 1000 for i, ids in enumerate(completion_ids)]


@pytest.mark.parametrize("baseline", ["loo", "value"])
def test_gradient_of_a_log_probability_is_minus_its_advantage_and_zero_where_masked(tmp_path, baseline):
    trainer = loo_trainer(
        tmp_path, probing(ReinforceLOOTrainer), rewards=some_unscorable, baseline=baseline, beta=0.1,
        trainer={"rollout_func": with_holes},
    )  # fmt: skip
    output = scored(trainer)
    backward(trainer, output, accumulation=2)
    advantages = output["advantages"].view(16, -1)
    lengths = output["completion_mask"].sum(1, keepdim=True)
    positions = torch.arange(output["completion_ids"].size(1))
    kept = (positions < lengths) & (positions % 3 != 1) & (torch.arange(16) % 4 != 3)[:, None]
    assert 0 < kept.sum() < output["completion_mask"].sum() < kept.numel()
    # dr_grpo: sum over rows * max_completion_length, and over the accumulation steps
    torch.testing.assert_close(trainer.probe.grad, -advantages * kept / (16 * 12 * 2), rtol=1e-4, atol=1e-8)
    assert not trainer.probe.grad[~kept].any() and (trainer.probe.grad[kept] != 0).float().mean() > 0.9


def test_ppo_divides_by_the_tokens_of_the_micro_batch(tmp_path):
    trainer = ppo_trainer(
        tmp_path, some_unscorable, per_device_train_batch_size=16, gradient_accumulation_steps=1, num_ppo_epochs=1,
        trainer={"rollout_func": with_holes},
    )  # fmt: skip
    trainer.__class__ = probing(PPOTrainer)
    output = scored(trainer)
    backward(trainer, output)
    positions = torch.arange(output["completion_ids"].size(1))
    kept = output["completion_mask"].bool() & (positions % 3 != 1) & (torch.arange(16) % 4 != 3)[:, None]
    torch.testing.assert_close(trainer.probe.grad, -output["advantages"] * kept / kept.sum(), rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("baseline", ["loo", "value"])
def test_padding_and_what_stands_in_it_change_neither_loss_nor_gradient(tmp_path, baseline):
    trainer = loo_trainer(tmp_path, baseline=baseline, beta=0.1, trainer={"rollout_func": with_holes})
    output = scored(trainer)
    losses, gradients = [], []
    for extra in (False, True):
        batch = copy.deepcopy(output)
        if extra:
            for key, value in output.items():
                if isinstance(value, torch.Tensor) and value.dim() == 2:
                    fill = 77 if key.endswith("ids") else 0
                    sides = (5, 0) if key.startswith("prompt") else (0, 4)
                    batch[key] = torch.nn.functional.pad(value, sides, value=fill)
                    if key.endswith("_ids"):
                        batch[key][batch[key] == trainer._tokenizer.pad_token_id] = 31
        trainer.model.zero_grad()
        losses.append(backward(trainer, batch))
        gradients.append({k: p.grad.clone() for k, p in trainer.model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-8)
    assert any(g.abs().max() > 1e-4 for g in gradients[0].values())
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("baseline", ["loo", "value"])
def test_a_completion_that_cannot_be_scored_gives_no_gradient_at_all(tmp_path, baseline):
    trainer = loo_trainer(
        tmp_path, rewards=lambda completion_ids, **_: [None] * len(completion_ids), baseline=baseline, beta=0.1
    )
    backward(trainer, scored(trainer))
    assert not any(p.grad.any() for p in trainer.model.parameters() if p.grad is not None)


def test_central_differences_of_the_loss(tmp_path):
    """Policy, value head, clipping and entropy bonus together: the loss as a function of a few weights."""
    trainer = loo_trainer(  # GPT-2: Qwen2 normalises in float32
        tmp_path, model=absolute_policy(), baseline="value", beta=0.1, entropy_coef=0.03, num_iterations=2, vf_coef=0.7,
        per_device_train_batch_size=8, trainer={"rollout_func": fixed_rollouts()},
    )  # fmt: skip
    trainer.model.double()
    head = trainer.model.value_function.head  # the trainer's values are float32: too coarse for a difference quotient
    trainer.model.value_function.forward = lambda hidden_states, **_: head(hidden_states).squeeze(-1)
    torch.nn.init.normal_(trainer.model.value_function.head.weight, std=0.3)
    output = scored(trainer)
    output = {k: v.double() if torch.is_floating_point(v) else v for k, v in output.items()}
    with torch.no_grad():  # away from ratio 1, where the clipped loss has a kink
        for p in trainer.model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=p.dtype))
    backward(trainer, output)
    spots = [("transformer.wte.weight", 97), ("transformer.h.0.mlp.c_fc.weight", 5),
             ("transformer.h.1.attn.c_attn.bias", 70),
             ("value_function.head.weight", 2), ("value_function.head.bias", 0)]  # fmt: skip
    parameters = dict(trainer.model.named_parameters())
    for name, index in spots:
        parameter = parameters[name]
        gradient, flat, around = parameter.grad.view(-1)[index].item(), parameter.data.view(-1), []
        for step in (1e-4, -2e-4):
            flat[index] += step
            with torch.no_grad():
                around.append(trainer._compute_loss(trainer.model, output).item())
        flat[index] += 1e-4
        assert gradient == pytest.approx((around[0] - around[1]) / 2e-4, rel=1e-4, abs=1e-9), name
        assert gradient != 0


# The policy gradient itself: all completions of two tokens over a vocabulary of three --------------------------------

REWARD = torch.tensor([[0.3, -1.0, 2.0], [0.0, 0.7, -0.4], [1.5, 0.1, -2.0]])  # of (first token, second token)
PAIRS = [(a, b) for a in range(9) for b in range(9)]


def three_word_tokenizer():
    words = models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="a")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def three_word_policy(seed):
    config = Qwen2Config(
        vocab_size=3, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, initializer_range=0.4,
        pad_token_id=0, eos_token_id=1, bos_token_id=None, **{**SMALL, "hidden_size": 8, "intermediate_size": 8},
    )  # fmt: skip
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(config)


def all_pairs(prompts, trainer):
    """Every ordered pair of completions is a group of two."""
    completions = [[c // 3, c % 3] for pair in PAIRS for c in pair]
    assert len(prompts) == len(completions)
    return {"prompt_ids": [[2]] * len(prompts), "completion_ids": completions, "logprobs": None}


def completion_log_probs(model):
    """(9, 2) log-probabilities of all completions after the prompt "a"."""
    ids = torch.tensor([[2, c // 3, c % 3] for c in range(9)])
    return model(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


@pytest.mark.parametrize("kwargs", [{"baseline": "loo"}, {"baseline": "value", "lam": 1.0}], ids=["loo", "value"])
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_averaged_over_all_completions_it_is_the_gradient_of_the_expected_reward(tmp_path, kwargs, beta):
    """E over groups of the trainer's gradient = -grad of sum_y p(y) (R(y) - beta log(p(y) / ref(y)))."""
    model, reference = three_word_policy(0), three_word_policy(1)

    def reward(completion_ids, **_):
        return [REWARD[first, second].item() for first, second in completion_ids]

    args = loo_args(
        tmp_path, per_device_train_batch_size=len(PAIRS) * 2, num_generations=2, max_completion_length=2, beta=beta,
        kl_estimator="k1", **kwargs,
    )  # fmt: skip
    trainer = ReinforceLOOTrainer(
        model, reward, args, train_dataset=Dataset.from_dict({"prompt": ["a"] * len(PAIRS)}),
        processing_class=three_word_tokenizer(), rollout_func=all_pairs, ref_model=reference if beta else None,
    )  # fmt: skip
    trainer.args.vf_coef = 0.0
    if kwargs["baseline"] == "value":  # a baseline of any values leaves the expectation where it is
        torch.nn.init.normal_(model.value_function.head.weight, std=1.0)

    log_p = completion_log_probs(model)
    log_ratio = log_p.sum(1) - completion_log_probs(reference).detach().sum(1)
    probability = log_p.sum(1).exp()
    assert probability.sum().item() == pytest.approx(1, abs=1e-5)
    (probability * (REWARD.flatten() - beta * log_ratio)).sum().backward()
    expected = {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    output = scored(trainer)
    trainer.current_gradient_accumulation_steps = 1
    probability = probability.detach()
    for k, (first, second) in enumerate(PAIRS):
        group = {
            key: value[2 * k : 2 * k + 2] if torch.is_tensor(value) and value.dim() > 0 else value
            for key, value in output.items()
        }
        loss = trainer._compute_loss(model, group)
        (loss * probability[first] * probability[second]).backward()
    assert max(g.abs().max() for g in expected.values()) > 0.05
    for name, parameter in model.named_parameters():
        if "value_function" not in name:  # the loss divides by max_completion_length = 2
            torch.testing.assert_close(-2 * parameter.grad, expected[name], rtol=1e-3, atol=1e-6)
