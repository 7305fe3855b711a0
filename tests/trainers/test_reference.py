"""The reference is the policy as it was given; nothing trains or reloads it."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from trainer_builders import (
    absolute_policy,
    fixed_rollouts,
    loo_trainer,
    plain_logps,
    policy,
    ppo_trainer,
    scored,
    weights,
    whole,
)


@pytest.mark.parametrize("given", [False, True], ids=["copy", "given"])
def test_it_never_drops_out(tmp_path, given):
    """`disable_dropout` is off by default in GRPO: the policy may drop out, its reference may not."""
    model = absolute_policy()
    model.transformer.drop.p = 0.5
    model.train()
    extra = {"ref_model": copy.deepcopy(model)} if given else {}
    trainer = loo_trainer(
        tmp_path, model=model, disable_dropout=False, trainer=extra | {"rollout_func": fixed_rollouts()}
    )
    output = scored(trainer)
    ids, mask = whole(output)
    first, second = (
        trainer._get_per_token_logps_and_entropies(trainer.ref_model, ids, mask, output["completion_ids"].size(1))[0]
        for _ in range(2)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize("build", [loo_trainer, ppo_trainer], ids=["loo", "ppo"])
def test_training_leaves_it_bitwise_as_it_was(tmp_path, build):
    model = policy()
    before = weights(model)
    trainer = build(
        tmp_path, model=model, learning_rate=0.05, **({"total_episodes": 16} if build is ppo_trainer else {})
    )
    trainer.train()
    assert all(torch.equal(v, before[k]) for k, v in weights(trainer.ref_model).items())
    assert max((weights(model)[k] - before[k]).abs().max() for k in before) > 0.01
    assert not any(p.requires_grad for p in trainer.ref_model.parameters())
    trained = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert not trained & {id(p) for p in trainer.ref_model.parameters()}


def test_it_is_a_copy_of_the_model_and_not_what_its_name_loads(tmp_path):
    policy(seed=9).save_pretrained(tmp_path / "other")
    model = policy()
    model.config._name_or_path = model.name_or_path = str(tmp_path / "other")
    trainer = loo_trainer(tmp_path, model=model)
    assert trainer.ref_model is not model
    assert all(torch.equal(v, weights(model)[k]) for k, v in weights(trainer.ref_model).items())
    assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in trainer.ref_model.parameters()}


def test_a_policy_given_by_name_has_the_reference_of_that_name(tmp_path):
    policy(seed=9).save_pretrained(tmp_path / "policy")
    trainer = loo_trainer(tmp_path, model=str(tmp_path / "policy"), model_init_kwargs={"dtype": "float32"})
    trainer.train()
    assert all(torch.equal(v, weights(policy(seed=9))[k]) for k, v in weights(trainer.ref_model).items())
    assert not any(p.requires_grad and p.grad is not None for p in trainer.ref_model.parameters())


def test_a_given_reference_is_the_one_that_counts(tmp_path):
    reference = policy(seed=5)
    trainer = loo_trainer(tmp_path, trainer={"ref_model": reference, "rollout_func": fixed_rollouts()})
    output = scored(trainer)
    kl = (plain_logps(trainer.model, output) - plain_logps(policy(seed=5), output)).sum(1).mean().item()
    assert trainer._metrics["train"]["objective/kl"][-1] == pytest.approx(kl, rel=1e-3) and abs(kl) > 1e-3


def test_without_a_kl_there_is_no_reference(tmp_path):
    trainer = loo_trainer(tmp_path, beta=0.0)
    trainer.train()
    assert trainer.ref_model is None and all("objective/kl" not in row for row in trainer.state.log_history)


def adapters(model):
    return {k: v for k, v in weights(model).items() if "lora_" in k}


def give_adapters_weight(trainer):
    with torch.no_grad():
        for name, p in trainer.model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("baseline", ["loo", "value"])
def test_with_lora_it_is_the_policy_without_adapters(tmp_path, baseline):
    lora = LoraConfig(r=4, target_modules="all-linear")
    trainer = loo_trainer(tmp_path, baseline=baseline, trainer={"peft_config": lora, "rollout_func": fixed_rollouts()})
    assert trainer.ref_model is None
    give_adapters_weight(trainer)
    output = scored(trainer)
    kl = (plain_logps(trainer.model, output) - plain_logps(policy(), output)).sum(1).mean().item()
    assert trainer._metrics["train"]["objective/kl"][-1] == pytest.approx(kl, rel=1e-3) and abs(kl) > 0.01


@pytest.mark.parametrize("baseline", ["loo", "value"])
def test_with_lora_only_adapters_and_the_value_head_train(tmp_path, baseline):
    lora = LoraConfig(r=4, target_modules="all-linear")
    trainer = loo_trainer(tmp_path, baseline=baseline, learning_rate=0.05, trainer={"peft_config": lora})
    before = weights(trainer.model)
    trainer.train()
    changed = {k for k, v in weights(trainer.model).items() if not torch.equal(v, before[k])}
    assert changed and all("lora_" in k or "value_function" in k for k in changed)
    assert any("value_function" in k for k in changed) == (baseline == "value")
    kls = [row["kl"] for row in trainer.state.log_history if "kl" in row]
    assert kls[0] == pytest.approx(0, abs=1e-6) and abs(kls[-1]) > 1e-4


def test_a_second_training_of_an_adapter_starts_from_that_adapter_as_reference(tmp_path):
    model = get_peft_model(policy(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    before = adapters(model)
    trainer = loo_trainer(tmp_path, model=model, learning_rate=0.05)
    trainer.train()
    kls = [row["kl"] for row in trainer.state.log_history if "kl" in row]
    assert kls[0] == pytest.approx(0, abs=1e-6) and abs(kls[-1]) > 1e-4
    for name, value in adapters(trainer.model).items():
        if ".ref." in name:
            assert torch.equal(value, before[name.replace(".ref.", ".default.")])
