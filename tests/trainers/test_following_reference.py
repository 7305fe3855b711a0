"""References that follow the policy, and a KL coefficient that follows a target."""

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from trainer_builders import fixed_rollouts, log_rows, loo_trainer, plain_logps, policy, scored, weights
from transformers import Trainer

from trl_ext.errors import UserError
from trl_ext.trainers.kl_controller import KLController


@pytest.fixture
def each_step():
    """The policy's weights after every optimizer step, as `each_step(trainer)` returns them."""
    from transformers import TrainerCallback

    class Keep(TrainerCallback):
        def __init__(self):
            self.kept = []

        def on_step_end(self, args, state, control, model=None, **_):
            self.kept.append(weights(model))

    return Keep()


def reference_after(tmp_path, keep, **options):
    trainer = loo_trainer(tmp_path, learning_rate=0.05, beta=0.1, **options)
    before = weights(trainer.model)
    trainer.callback_handler.callbacks.insert(0, keep)
    trainer.train()
    return trainer, before, keep.kept


def test_a_periodic_reference_is_the_policy_of_its_last_update(tmp_path, each_step):
    trainer, _, kept = reference_after(tmp_path, each_step, reference="periodic", ref_update_interval=2, max_steps=5)
    for name, value in weights(trainer.ref_model).items():
        assert torch.equal(value, kept[3][name]), name  # after the fourth step
    kls = [row["objective/kl"] for row in log_rows(trainer) if "objective/kl" in row]
    assert kls[0] == pytest.approx(0, abs=1e-6) == kls[2] == kls[4] and abs(kls[1]) > 1e-4 < abs(kls[3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_averaged_reference_is_the_moving_average_of_the_policy(tmp_path, each_step, dtype):
    model = policy().to(dtype)
    trainer, before, kept = reference_after(tmp_path, each_step, model=model, reference="ema", ema_tau=0.9, max_steps=3)
    for name, value in weights(trainer.ref_model).items():
        assert value.dtype == torch.float32
        expected = before[name].float()
        for policy_weights in kept:
            expected = 0.9 * expected + 0.1 * policy_weights[name].float()
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    assert not any(parameter.requires_grad for parameter in trainer.ref_model.parameters())


@pytest.mark.parametrize("given", [False, True], ids=["peft_config", "peft model"])
@pytest.mark.parametrize("kind", ["periodic", "ema"])
def test_with_lora_a_frozen_copy_of_the_adapter_follows(tmp_path, each_step, kind, given):
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    options = {"model": get_peft_model(policy(), lora)} if given else {"trainer": {"peft_config": lora}}
    trainer, before, kept = reference_after(
        tmp_path, each_step, reference=kind, ref_update_interval=2, ema_tau=0.5, max_steps=3, **options
    )
    assert trainer.ref_model is None
    seen = 0
    for name, value in weights(trainer.model).items():
        if ".ref." not in name:
            continue
        own, seen = name.replace(".ref.", ".default."), seen + 1
        expected = kept[1][own]
        if kind == "ema":
            expected = before[own]
            for policy_weights in kept:
                expected = 0.5 * expected + 0.5 * policy_weights[own]
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    assert seen > 0
    trained = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert not trained & {id(p) for name, p in trainer.model.named_parameters() if ".ref." in name}


@pytest.mark.parametrize("kind", ["frozen", "periodic", "ema"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "LoRA"])
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path, kind, lora):
    def build(folder):
        extra = {"peft_config": LoraConfig(r=4, target_modules="all-linear")} if lora else {}
        return loo_trainer(
            folder, reference=kind, ref_update_interval=2, ema_tau=0.7, beta=0.1, kl_target=0.5, kl_horizon=100,
            baseline="ema", num_generations=1, learning_rate=0.02, max_steps=6, save_strategy="steps", save_steps=3,
            trainer=extra,
        )  # fmt: skip

    uninterrupted = build(tmp_path)
    uninterrupted.train()
    resumed = build(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    needed = {"reinforce_loo_state.json"} | ({"reference/model.safetensors"} if kind != "frozen" else set())
    assert set(resumed.checkpoint_files) == needed
    assert all((tmp_path / "checkpoint-3" / name).is_file() for name in needed)
    assert log_rows(uninterrupted)[:-1] == log_rows(resumed)[:-1]
    assert len({row["kl_coef"] for row in log_rows(resumed) if "kl_coef" in row}) > 2
    for key, value in weights(uninterrupted.model).items():
        assert torch.equal(value, weights(resumed.model)[key]), key


def test_a_checkpoint_without_the_reference_is_one_line(tmp_path):
    loo_trainer(tmp_path, max_steps=1, save_strategy="steps", save_steps=1).train()
    resumed = loo_trainer(tmp_path / "resumed", reference="ema", max_steps=2)
    with pytest.raises(UserError, match="set reference='frozen'"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


@pytest.mark.parametrize("content", [None, "", '{"kl": {}}', '{"kl": {"value": NaN}, "baseline": {}}', "[]"])
def test_a_checkpoint_without_the_coefficient_is_one_line(tmp_path, content):
    options = {"beta": 0.1, "kl_target": 0.5, "save_strategy": "steps", "save_steps": 1}
    loo_trainer(tmp_path, max_steps=1, **options).train()
    path = tmp_path / "checkpoint-1" / "reinforce_loo_state.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(UserError, match="without a sound"):
        loo_trainer(tmp_path / "resumed", max_steps=2, **options).train(resume_from_checkpoint=str(path.parent))


def test_a_checkpoint_of_an_adapter_without_its_weights_is_one_line(tmp_path):
    lora = {"peft_config": LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")}
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "reference": "ema"}
    loo_trainer(tmp_path, trainer=lora, **options).train()
    (tmp_path / "checkpoint-1" / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no adapter_model\.safetensors in .*checkpoint-1"):
        loo_trainer(tmp_path, trainer=lora, **options).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_a_checkpoint_without_a_value_function_is_one_line(tmp_path):
    loo_trainer(tmp_path, max_steps=1, save_strategy="steps", save_steps=1).train()
    resumed = loo_trainer(tmp_path / "resumed", baseline="value", max_steps=2)
    assert resumed.checkpoint_files == ["value_function.safetensors"]
    with pytest.raises(UserError, match="resume from a checkpoint of a run with baseline='value'"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_what_trl_does_not_save_is_there_before_the_checkpoint_counts(tmp_path, monkeypatch):
    """A run killed before `trainer_state.json` is written still has the checkpoint before: it goes after that."""
    seen = []
    original = Trainer._save_checkpoint

    def killed(self, *args):
        seen.append({path.name for path in (tmp_path / f"checkpoint-{self.state.global_step}").rglob("*.*")})
        original(self, *args)

    monkeypatch.setattr(Trainer, "_save_checkpoint", killed)
    loo_trainer(tmp_path, beta=0.1, reference="ema", max_steps=1, save_strategy="steps", save_steps=1).train()
    assert seen == [{"model.safetensors", "reinforce_loo_state.json"}]


def test_what_cannot_follow_is_one_line(tmp_path):
    biased = {"peft_config": LoraConfig(r=4, target_modules="all-linear", bias="all")}
    with pytest.raises(UserError, match="or bias='none' in the LoraConfig"):
        loo_trainer(tmp_path, beta=0.1, reference="ema", trainer=biased)
    named = get_peft_model(policy(), LoraConfig(r=4, target_modules="all-linear"), adapter_name="mine")
    with pytest.raises(UserError, match="must be called 'default', not 'mine'"):
        loo_trainer(tmp_path, beta=0.1, model=named)
    with pytest.raises(UserError, match="set sync_ref_model=False"):
        loo_trainer(tmp_path, beta=0.1, reference="ema", kl_in_reward=False, kl_estimator="k2", sync_ref_model=True)


def test_a_module_that_is_called_like_the_references_adapter_follows_too(tmp_path):
    model = policy()
    model.model.add_module("ref", torch.nn.Linear(2, 2, bias=False))
    trainer = loo_trainer(tmp_path, model=model, beta=0.1, reference="periodic", ref_update_interval=1, max_steps=1)
    with torch.no_grad():
        trainer.model.model.ref.weight.fill_(3.0)
    trainer.train()
    assert (trainer.ref_model.model.ref.weight == 3.0).all()


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_kl_in_the_loss_is_the_estimators_mean_and_its_gradient_leads_to_the_reference(tmp_path, estimator):
    extra = {"ref_model": policy(seed=5), "rollout_func": fixed_rollouts()}
    trainer = loo_trainer(
        tmp_path, beta=0.5, kl_in_reward=False, kl_estimator=estimator, rewards=lambda completions, **_: [1.0] * 16,
        trainer=extra,
    )  # fmt: skip
    output = scored(trainer)
    trainer.current_gradient_accumulation_steps = 1
    mask = output["completion_mask"]
    difference = plain_logps(policy(seed=5), output) - plain_logps(trainer.model, output)
    per_token = {"k2": difference**2 / 2, "k3": difference.exp() - 1 - difference}[estimator]
    loss = trainer._compute_loss(trainer.model, output)
    assert loss.item() == pytest.approx(0.5 * (per_token * mask).sum().item() / (16 * 12), rel=1e-3)
    assert trainer._metrics["train"]["kl"][-1] == pytest.approx(
        (per_token * mask).sum().item() / mask.sum().item(), rel=1e-3
    )
    loss.backward()
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            if parameter.grad is not None:
                parameter -= 0.05 * parameter.grad
    after = plain_logps(policy(seed=5), output) - plain_logps(trainer.model, output)
    assert (after**2 * mask).sum() < (difference**2 * mask).sum()


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("corrected", [True, False])
def test_the_kl_in_the_loss_of_tokens_that_another_policy_sampled_is_weighed_by_the_ratio(
    tmp_path, estimator, corrected
):
    trainer = loo_trainer(
        tmp_path, beta=0.5, kl_in_reward=False, kl_estimator=estimator, rewards=lambda completions, **_: [1.0] * 16,
        trainer={"ref_model": policy(seed=5), "rollout_func": fixed_rollouts()}, use_bias_correction_kl=corrected,
    )  # fmt: skip
    output = scored(trainer)
    trainer.current_gradient_accumulation_steps = 1
    plain = trainer._compute_loss(trainer.model, output).item()
    output["old_per_token_logps"] = plain_logps(trainer.model, output).detach() - 0.3
    expected = plain * (math.exp(0.3) if corrected else 1.0)
    assert trainer._compute_loss(trainer.model, output).item() == pytest.approx(expected, rel=1e-3)


def test_the_controller_is_the_papers():
    controller = KLController(0.2, target=6.0, horizon=10_000)
    controller.update(7.2, 64)  # 20% above
    assert controller.value == pytest.approx(0.2 * (1 + 0.2 * 64 / 10_000))
    controller.update(60.0, 64)  # clipped
    assert controller.value == pytest.approx(0.2 * (1 + 0.2 * 64 / 10_000) ** 2)
    before = controller.value
    controller.update(5.7, 64)
    assert controller.value == pytest.approx(before * (1 - 0.05 * 64 / 10_000))
    controller.update(float("nan"), 64)
    small = KLController(0.2, target=6.0, horizon=1)  # less than a batch: as much as its error, never below zero
    small.update(0.0, completions=512)
    assert small.value == pytest.approx(0.2 * 0.8)
    held = KLController(0.2, None, 10_000)
    held.update(60.0, 64)
    assert held.value == 0.2


@pytest.mark.parametrize("in_reward", [True, False])
def test_beta_grows_while_the_kl_is_above_its_target(tmp_path, in_reward):
    trainer = loo_trainer(
        tmp_path, beta=0.1, kl_target=0.001, kl_horizon=100, kl_in_reward=in_reward, kl_estimator="k3",
        learning_rate=0.02, max_steps=5,
    )  # fmt: skip
    trainer.train()
    coefficients = [row["kl_coef"] for row in log_rows(trainer) if "kl_coef" in row]
    assert coefficients[0] == 0.1 and coefficients[-1] > coefficients[2]
    assert trainer._kl.value > coefficients[-1] and trainer.args.beta == 0.1


@pytest.mark.parametrize(
    ("kwargs", "fix"),
    [
        ({"reference": "ema", "beta": 0.0}, "set beta above 0"),
        ({"kl_target": 6.0, "beta": 0.0}, "set beta above 0"),
        ({"kl_target": -1.0}, "kl_target"),
        ({"reference": "moving"}, "'periodic' or 'ema'"),
        ({"reference": "periodic", "ref_update_interval": 0}, "ref_update_interval=0"),
        ({"reference": "ema", "ema_tau": 1.1}, "ema_tau=1.1"),
        ({"kl_in_reward": False, "kl_estimator": "k1"}, "zero on average"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_fix(tmp_path, kwargs, fix):
    with pytest.raises(UserError, match=fix) as error:
        loo_trainer(tmp_path, **kwargs)
    assert "\n" not in str(error.value)


def test_the_entropy_coefficient_decays_to_its_floor_and_goes_on_where_a_resumed_run_left_it(tmp_path):
    options = {"entropy_coef": 0.1, "entropy_decay": 0.5, "min_entropy_coef": 0.02, "save_strategy": "steps",
               "save_steps": 2, "max_steps": 5}  # fmt: skip
    trainer = loo_trainer(tmp_path, **options)
    trainer.train()
    seen = [row["entropy_coef"] for row in log_rows(trainer) if "entropy_coef" in row]
    assert seen == pytest.approx([0.1, 0.05, 0.025, 0.02, 0.02])
    resumed = loo_trainer(tmp_path / "resumed", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert log_rows(resumed)[:-1] == log_rows(trainer)[:-1]


@pytest.mark.parametrize(
    ("kwargs", "fix"),
    [({"entropy_decay": 0.9}, "set entropy_coef above 0"), ({"min_entropy_coef": 0.1}, "from 0 to entropy_coef"),
     ({"entropy_decay": 1.2, "entropy_coef": 0.1}, "from 0 to 1")],
)  # fmt: skip
def test_a_schedule_that_cannot_be_is_one_line(tmp_path, kwargs, fix):
    with pytest.raises(UserError, match=fix):
        loo_trainer(tmp_path, **kwargs)
