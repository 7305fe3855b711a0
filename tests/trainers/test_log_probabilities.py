"""The log-probabilities the loss is computed from are those of the distribution that sampled."""

from types import SimpleNamespace

import pytest
import torch
from trainer_builders import PROMPTS, absolute_policy, loo_trainer, plain_logps, policy

from trl_ext import ReinforceLOOTrainer

PATHS = ["plain", "base"]


def with_path(trainer, path, monkeypatch):
    """ "base" is TRL's own: the fused LM head since 1.15, logits before."""
    if path == "base":
        monkeypatch.setattr(trainer, "_use_plain_logits", lambda *args: False)
    else:
        assert trainer._use_plain_logits({}, False), "a CPU takes plain logits"
    return trainer


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("make", [policy, absolute_policy], ids=["rotary", "absolute-positions"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_they_are_those_of_generation_with_left_padding(tmp_path, monkeypatch, make, path, temperature):
    model = make()
    model.lm_head.weight.data.mul_(15)  # tied to the embeddings: a peaked distribution
    trainer = with_path(loo_trainer(tmp_path, model=model, temperature=temperature), path, monkeypatch)
    batch = trainer._tokenizer(PROMPTS, padding=True, return_tensors="pt")
    assert (batch["attention_mask"] == 0).any() and batch["attention_mask"][:, -1].all()
    with torch.no_grad():
        sampled = model.generate(
            **batch, generation_config=trainer.generation_config, return_dict_in_generate=True, output_scores=True
        )
    completion = sampled.sequences[:, batch["input_ids"].size(1) :]
    expected = torch.stack(sampled.scores, 1).float().log_softmax(-1).gather(-1, completion[..., None]).squeeze(-1)
    is_eos = completion == trainer._tokenizer.eos_token_id
    kept = is_eos.cumsum(1) - is_eos.long() == 0  # up to and with the first EOS
    mask = torch.cat([batch["attention_mask"], kept.long()], 1)
    with torch.no_grad():
        logps = trainer._get_per_token_logps_and_entropies(model, sampled.sequences, mask, completion.size(1))[0]
    assert expected[kept].std() > 0.3
    torch.testing.assert_close(logps[kept], expected[kept], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("make", [policy, absolute_policy], ids=["rotary", "absolute-positions"])
def test_scoring_in_chunks_equals_row_by_row_forwards_without_padding(tmp_path, monkeypatch, make, path):
    trainer = with_path(loo_trainer(tmp_path, model=make(), temperature=0.8), path, monkeypatch)
    generator = torch.Generator().manual_seed(0)
    output = {
        "prompt_ids": torch.randint(0, 256, (5, 6), generator=generator),
        "completion_ids": torch.randint(0, 256, (5, 7), generator=generator),
        "prompt_mask": (torch.arange(6) >= torch.tensor([0, 3, 5, 1, 2])[:, None]).long(),
        "completion_mask": (torch.arange(7) < torch.tensor([7, 1, 4, 7, 2])[:, None]).long(),
    }
    ids, mask = (torch.cat([output[f"prompt_{k}"], output[f"completion_{k}"]], 1) for k in ("ids", "mask"))
    with torch.no_grad():
        logps = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, 7, batch_size=2)[0]
    kept = output["completion_mask"].bool()
    torch.testing.assert_close(logps[kept], plain_logps(trainer.model, output, 0.8)[kept], rtol=1e-4, atol=1e-5)


def test_both_paths_have_the_same_gradient(tmp_path, monkeypatch):
    gradients = []
    for path in PATHS:
        trainer = with_path(loo_trainer(tmp_path, temperature=0.8, entropy_coef=0.01), path, monkeypatch)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, 256, (4, 9), generator=generator)
        weight = torch.randn(2, 4, 5, generator=generator)
        logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, torch.ones_like(ids), 5, compute_entropy=True
        )
        (weight[0] * logps + weight[1] * entropies).sum().backward()
        gradients.append({k: p.grad for k, p in trainer.model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("device", "sharded", "old", "plain"),
    [
        ("cpu", False, False, True),
        ("cuda", False, True, False),
        ("cuda", True, False, False),
        ("cuda", True, True, True),
    ],
)
def test_logits_are_made_where_the_fused_head_has_no_kernel_or_is_lost(monkeypatch, device, sharded, old, plain):
    monkeypatch.setattr("trl_ext.trainers.reinforce_loo_trainer._SKIPPED_HEAD_IS_LOST", old)
    accelerator = SimpleNamespace(device=torch.device(device))
    trainer = SimpleNamespace(accelerator=accelerator, is_fsdp_enabled=sharded, _takes_logits_to_keep=True)
    assert ReinforceLOOTrainer._use_plain_logits(trainer, {}, False) is plain
    assert not ReinforceLOOTrainer._use_plain_logits(trainer, {"pixel_values": torch.ones(1)}, False)
