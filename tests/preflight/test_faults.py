"""Each fault is put into a healthy set-up, and the check that is meant for it names it."""

import pytest
import torch
from datasets import Dataset
from episode_builders import agent
from peft import LoraConfig
from subjects import (
    LORA,
    PROMPTS,
    by_name,
    dpo,
    grpo,
    loo,
    loo_lora,
    loo_value,
    looked_at,
    ppo,
    prompts,
    reward,
    rloo,
    sft,
)
from tokenizers import processors
from trainer_builders import absolute_policy, fixed_rollouts, letter_share, policy
from transformers import PrinterCallback

from trl_ext.errors import UserError
from trl_ext.preflight import Status, preflight
from trl_ext.rewards.checking import CheckedReward
from trl_ext.tiny import byte_tokenizer

pytestmark = pytest.mark.current_trl  # one lane: test_healthy.py looks at both
PASS, WARN, FAIL, SKIP = Status.PASS, Status.WARN, Status.FAIL, Status.SKIP


# Alignment ---------------------------------------------------------------------------------------------------------


def shifted_by_one(trainer):
    original = trainer._get_per_token_logps_and_entropies

    def shifted(*args, **kwargs):
        result = original(*args, **kwargs)
        return result[0].roll(1, dims=1), *result[1:]

    trainer._get_per_token_logps_and_entropies = shifted


def test_log_probabilities_that_are_off_by_one_are_found(tmp_path):
    trainer = loo(tmp_path)
    shifted_by_one(trainer)
    found = looked_at(trainer, "alignment")
    assert (found["generation"].status, found["padding"].status) == (FAIL, FAIL)
    assert found["generation"].numbers["mean_abs_logp_difference"] > 0.05


def test_positions_that_padding_moves_are_found_in_stock_grpo_and_not_in_ours(tmp_path):
    """GPT-2 has learned absolute positions; stock GRPO's forward counts those of padding."""
    assert looked_at(grpo(tmp_path, model=absolute_policy()), "alignment")["padding"].status == FAIL
    assert looked_at(loo(tmp_path, model=absolute_policy(), beta=0.0), "alignment")["padding"].status == PASS


def test_dropout_is_found(tmp_path):
    model = policy()
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    found = looked_at(loo(tmp_path, model=model, beta=0.0), "alignment")
    assert found["dropout"].status in (WARN, FAIL) and "disable_dropout" in found["dropout"].advice
    assert found["padding"].status == PASS


def test_a_cut_distribution_and_another_temperature_are_found(tmp_path):
    assert looked_at(loo(tmp_path, top_k=5), "alignment")["sampling"].status == WARN
    for options in ({"no_repeat_ngram_size": 2}, {"min_new_tokens": 3}, {"suppress_tokens": [7]}):
        assert looked_at(loo(tmp_path, generation_kwargs=options), "alignment")["sampling"].status == WARN
    other = looked_at(loo(tmp_path, generation_kwargs={"temperature": 0.5}), "alignment")["sampling"]
    assert (other.status, "0.5" in other.message) == (FAIL, True)


# Masks -------------------------------------------------------------------------------------------------------------


def injured(trainer, change):
    """The scored batch, with `change(output)` on top."""
    original = trainer._generate_and_score_completions

    def generate_and_score(inputs):
        output = original(inputs)
        change(output)
        return output

    trainer._generate_and_score_completions = generate_and_score
    return trainer


def ending(tmp_path, **options):
    """Completions of several lengths, some of which end by themselves."""
    return loo(tmp_path, trainer={"rollout_func": fixed_rollouts(eos_every=2)}, **options)


def test_a_completion_mask_that_forgets_the_end_is_found(tmp_path):
    def forget(output):
        output["completion_mask"] = output["completion_mask"].clone()
        last = output["completion_mask"].sum(1, keepdim=True) - 1
        output["completion_mask"].scatter_(1, last, 0)

    assert looked_at(ending(tmp_path), "masks")["completion"].status == PASS
    assert looked_at(injured(ending(tmp_path), forget), "masks")["completion"].status == FAIL


def test_padding_that_is_trained_is_found(tmp_path):
    def all_of_it(output):
        output["completion_mask"] = torch.ones_like(output["completion_mask"])

    assert looked_at(injured(ending(tmp_path), all_of_it), "masks")["completion"].status == FAIL


def test_prompts_padded_on_the_right_or_masked_inside_are_found(tmp_path):
    def right(output):
        output["prompt_mask"] = output["prompt_mask"].flip(1)
        output["prompt_ids"] = output["prompt_ids"].flip(1)

    def inside(output):
        output["prompt_mask"] = output["prompt_mask"].clone()
        output["prompt_mask"][:, -2] = 0

    for change, told in ((right, "do not end where completions begin"), (inside, "masked in the middle")):
        found = looked_at(injured(loo(tmp_path), change), "masks")["prompt"]
        assert found.status == FAIL and told in found.message


def test_a_loss_on_other_tokens_than_those_of_the_mask_is_found(tmp_path):
    trainer = ending(tmp_path)
    original = trainer._compute_loss

    def shifted(model, inputs):
        return original(model, inputs | {"tool_mask": inputs["tool_mask"].roll(1, dims=1)})

    assert looked_at(ending(tmp_path), "masks")["learning"].status == PASS
    trainer._compute_loss = shifted
    found = looked_at(trainer, "masks")["learning"]
    assert found.status == FAIL and found.numbers["should_learn_and_do_not"] > 0


def with_answers(prompts, trainer):
    """Every third token is a tool's."""
    output = fixed_rollouts(eos_every=2)(prompts, trainer)
    output["env_mask"] = [[int(at % 3 != 1) for at in range(len(ids))] for ids in output["completion_ids"]]
    return output


def test_answers_of_tools_that_are_trained_are_found(tmp_path):
    assert looked_at(loo(tmp_path, trainer={"rollout_func": with_answers}), "masks")["learning"].status == PASS
    trainer = loo(tmp_path, trainer={"rollout_func": with_answers})
    original = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: original(
        model, inputs | {"tool_mask": torch.ones_like(inputs["tool_mask"])}
    )
    found = looked_at(trainer, "masks")["learning"]
    assert found.status == FAIL
    assert found.numbers["learn_and_should_not"] > 0 and found.numbers["should_learn_and_do_not"] == 0


def test_a_mask_of_json_actions_on_a_policy_that_writes_none_is_found(tmp_path):
    found = looked_at(loo(tmp_path, mask="json_actions"), "masks", "rewards")
    assert found["learning"].status == FAIL and "no token" in found["learning"].message
    assert found["json"].status == FAIL and found["json"].numbers["valid_share"] == 0


def test_labels_that_are_shifted_or_masked_are_found(tmp_path):
    def with_labels(change):
        trainer = sft(tmp_path)
        original = trainer.data_collator

        def collate(examples):
            batch = original(examples)
            change(batch)
            return batch

        trainer.data_collator = collate
        return looked_at(trainer, "masks")

    def shift(batch):
        batch["labels"] = batch["labels"].roll(-1, dims=1)

    def none(batch):
        batch["labels"] = torch.full_like(batch["labels"], -100)

    def no_end(batch):
        batch["labels"][batch["labels"] == byte_tokenizer().eos_token_id] = -100

    assert with_labels(shift)["labels"].status == FAIL
    assert with_labels(none)["labels"].status == FAIL
    found = with_labels(no_end)
    assert (found["labels"].status, found["eos_learned"].status) == (PASS, FAIL)


def test_pairs_of_equal_texts_are_found(tmp_path):
    same = {"chosen": [f"text {i}" for i in range(32)], "rejected": [f"text {i}" for i in range(32)]}
    assert looked_at(reward(tmp_path, same), "masks")["pairs"].status == FAIL


def test_the_sample_shows_every_token_once_with_what_it_is_to_training(tmp_path):
    trainer = ending(tmp_path)
    trainer.remove_callback(PrinterCallback)
    report = preflight(trainer, quick=True, families=["masks"])
    kinds = [kind for _, kind in report.sample]
    assert kinds[0] == "prompt" and {"learns", "end"} <= set(kinds)
    text = "".join(piece for piece, kind in report.sample if kind != "padding")
    assert text.startswith(tuple(PROMPTS)) and text.endswith("<eos>")


def test_a_mask_of_actions_that_is_moved_is_found(tmp_path):
    def moved(output):
        output["tool_mask"] = output["tool_mask"].roll(1, dims=1) * output["completion_mask"]

    def build():
        return loo(
            tmp_path, trainer={"rollout_func": actions_with_answers}, mask="json_actions", max_completion_length=40
        )

    assert looked_at(build(), "masks")["tools"].status == PASS
    found = looked_at(injured(build(), moved), "masks")["tools"]
    assert found.status == FAIL and found.numbers["wrong_tokens"] > 0


def actions_with_answers(prompts, trainer):
    ids = trainer._tokenizer('{"a": 1}tool says 5{"b": 2}')["input_ids"]
    mask = [1] * 8 + [0] * 11 + [1] * 8
    return {"prompt_ids": trainer._tokenizer(prompts)["input_ids"], "completion_ids": [list(ids) for _ in prompts],
            "logprobs": None, "env_mask": [list(mask) for _ in prompts]}  # fmt: skip


def test_an_answer_of_a_tool_that_is_taken_for_the_policys_own_is_found(tmp_path):
    """The loop of tools itself marks it wrongly: the messages tell."""
    trainer = agent(tmp_path, one_call, trainer={"tools": [shout]})
    assert looked_at(trainer, "masks")["tools"].status == PASS
    trainer = agent(tmp_path, one_call, trainer={"tools": [shout]})
    loop = trainer._tool_call_loop

    def unmasked(*args):
        mask, *rest = loop(*args)
        return [[1] * len(row) for row in mask], *rest

    trainer._tool_call_loop = unmasked
    found = looked_at(trainer, "masks")["tools"]
    assert found.status == FAIL and found.numbers["answers_not_masked"] > 0


def test_tools_that_fail_are_told(tmp_path):
    def broken(text: str) -> str:
        """
        Never says anything.

        Args:
            text: What to say.
        """
        raise OSError("no answer")

    script = lambda text: '{"broken": {"text": "hello"}}' if "hello" not in text else "said"  # noqa: E731
    found = looked_at(agent(tmp_path, script, trainer={"tools": [broken]}), "advantages")["tool_calls"]
    assert found.status == FAIL and "100% raised" in found.message
    assert looked_at(agent(tmp_path, one_call, trainer={"tools": [shout]}), "advantages")["tool_calls"].status == PASS
    silent = agent(tmp_path, lambda text: "nothing", trainer={"tools": [shout]})
    assert looked_at(silent, "advantages")["tool_calls"].status == WARN


def shout(text: str) -> str:
    """
    Says it louder.

    Args:
        text: What to say.
    """
    return f"LOUD {text.upper()}"


def one_call(text):
    return '{"shout": {"text": "hello there"}}' if "LOUD" not in text else "said"


def with_prompts(tmp_path, **options):
    rows = {"prompt": [f"{text} " for text in PROMPTS], "completion": ["is what it says"] * len(PROMPTS)}
    return sft(tmp_path, dataset=Dataset.from_dict(rows), **options)


def test_prompts_that_are_trained_are_found(tmp_path):
    assert looked_at(with_prompts(tmp_path), "masks")["prompts"].status == PASS
    whole = looked_at(with_prompts(tmp_path, completion_only_loss=False), "masks")
    assert whole["prompts"].status == WARN
    trainer = with_prompts(tmp_path)
    original = trainer.data_collator
    trainer.data_collator = lambda rows: original(rows) | {"labels": original(rows)["input_ids"].clone()}
    found = looked_at(trainer, "masks")["prompts"]
    assert found.status == FAIL and found.numbers["trained_prompt_tokens"] > 0


def test_padding_that_is_attended_to_is_found(tmp_path):
    trainer = sft(tmp_path)
    original = trainer.data_collator

    def collate(rows):
        batch = original(rows)
        batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
        return batch

    trainer.data_collator = collate
    assert looked_at(trainer, "masks")["padding"].status == FAIL


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda mask, kept: torch.ones_like(mask), "padding"),
        (lambda mask, kept: kept, "the prompt is in the loss"),
        (lambda mask, kept: mask * (mask.cumsum(1) > 2), "differ"),
        (lambda mask, kept: mask | mask.roll(-1, dims=1), "the prompt is in the loss, 1"),
        (lambda mask, kept: mask * (mask.cumsum(1) < mask.sum(1, keepdim=True)), "the end"),
    ],
)
def test_a_mask_of_a_preference_that_is_wrong_is_found(change, told, tmp_path):
    trainer = dpo(tmp_path)
    original = trainer.data_collator

    def collate(rows):
        batch = original(rows)
        batch["completion_mask"] = change(batch["completion_mask"], batch["attention_mask"])
        return batch

    trainer.data_collator = collate
    found = looked_at(trainer, "masks")["pairs"]
    assert found.status == FAIL and told in found.message


@pytest.mark.parametrize("build", [dpo, reward])
def test_chosen_and_rejected_in_each_others_place_are_found(build, tmp_path):
    trainer = build(tmp_path)
    original = trainer.data_collator
    trainer.data_collator = lambda rows: {name: both.roll(len(rows), dims=0) for name, both in original(rows).items()}
    found = looked_at(trainer, "masks")["pairs"]
    assert found.status == FAIL and "changed places" in found.message


def test_tokens_of_a_completion_that_are_not_trained_are_found(tmp_path):
    """The first of a completion is its own; amid a text they may be masked on purpose, but hardly one or two."""

    def without(trainer, at):
        original = trainer.data_collator

        def collate(rows):
            batch = original(rows)
            learned = batch["labels"] != -100
            places = learned.int().argmax(1) if at == "first" else batch["attention_mask"].sum(1) - 2
            batch["labels"].scatter_(1, places[:, None], -100)
            return batch

        trainer.data_collator = collate
        return looked_at(trainer, "masks")["prompts"]

    assert without(with_prompts(tmp_path), "first").status == FAIL
    assert without(with_prompts(tmp_path), "last but one").status == FAIL
    assert without(sft(tmp_path), "last but one").status == WARN


def test_packed_texts_whose_positions_are_lost_are_found(tmp_path):
    assert looked_at(sft(tmp_path, packing=True), "masks")["positions"].status == PASS
    trainer = sft(tmp_path, packing=True)
    original = trainer.data_collator
    trainer.data_collator = lambda rows: original(rows) | {"position_ids": original(rows)["position_ids"] * 0}
    assert looked_at(trainer, "masks")["positions"].status == FAIL


def test_a_mask_of_tools_where_there_are_none_is_found(tmp_path):
    def moved(output):
        output["tool_mask"] = output["completion_mask"].roll(1, dims=1)

    assert looked_at(loo(tmp_path), "masks")["tools"].status == SKIP
    assert looked_at(injured(ending(tmp_path), moved), "masks")["tools"].status != PASS
    assert looked_at(injured(loo(tmp_path, max_completion_length=64), moved), "masks")["tools"].status == WARN


# Reference ---------------------------------------------------------------------------------------------------------


def test_another_model_as_reference_is_found(tmp_path):
    found = looked_at(loo(tmp_path, trainer={"ref_model": policy(seed=3)}), "reference")["equal_at_start"]
    assert found.status == FAIL and found.numbers["mean_abs_logp_difference"] > 0.01
    trainer = dpo(tmp_path)
    trainer.ref_model.load_state_dict(policy(seed=3).state_dict())
    assert looked_at(trainer, "reference")["equal_at_start"].status == FAIL


def test_a_reference_that_learns_with_the_policy_is_found(tmp_path):
    trainer = loo(tmp_path)
    trainer.ref_model = trainer.model
    found = looked_at(trainer, "reference", "mini_run")
    assert (found["equal_at_start"].status, found["frozen"].status) == (PASS, FAIL)


def test_a_reference_of_preferences_that_moves_is_found(tmp_path):
    assert looked_at(dpo(tmp_path), "mini_run")["frozen"].status == PASS
    trainer = dpo(tmp_path)
    original = trainer.compute_loss

    def drifting(*args, **kwargs):
        with torch.no_grad():
            for kept, learned in zip(trainer.ref_model.parameters(), trainer.model.parameters(), strict=True):
                kept.lerp_(learned, 0.5)
        return original(*args, **kwargs)

    trainer.compute_loss = drifting
    assert looked_at(trainer, "mini_run")["frozen"].status == FAIL


def test_log_probabilities_of_the_reference_that_are_moved_are_found(tmp_path):
    def moved(output):
        output["ref_per_token_logps"] = output["ref_per_token_logps"].roll(1, dims=1)

    build = lambda: grpo(tmp_path, model=by_name(tmp_path, policy()), beta=0.04)  # noqa: E731
    assert "in_the_loss" not in looked_at(build(), "reference")
    assert looked_at(injured(build(), moved), "reference")["in_the_loss"].status == FAIL


def test_a_reference_that_is_meant_to_follow_may_move(tmp_path):
    found = looked_at(loo(tmp_path, reference="ema", ema_tau=0.5), "mini_run")["frozen"]
    assert found.status == PASS and "follows" in found.message


def test_a_reference_asked_for_with_beta_0_is_found(tmp_path):
    assert looked_at(grpo(tmp_path), "reference")["equal_at_start"].status == SKIP
    trainer = grpo(tmp_path)
    trainer.args.sync_ref_model = True
    assert looked_at(trainer, "reference")["asked_for"].status == WARN


# Advantages and rewards --------------------------------------------------------------------------------------------


def constant(completions, **_):
    return [1.0] * len(completions)


def test_padding_that_a_policy_attends_to_is_found(tmp_path):
    trainer = injured(loo(tmp_path), lambda output: output.update(prompt_mask=torch.ones_like(output["prompt_mask"])))
    found = looked_at(trainer, "masks")["prompt"]
    assert found.status == FAIL and "is attended to" in found.message


def test_a_prompt_that_begins_with_the_token_that_pads_is_no_padding(tmp_path):
    trainer = injured(loo(tmp_path), lambda output: output["prompt_ids"].scatter_(
        1, output["prompt_mask"].int().argmax(1, keepdim=True), trainer._tokenizer.pad_token_id))  # fmt: skip
    trainer.eos_token_ids = [trainer._tokenizer.pad_token_id]
    assert looked_at(trainer, "masks")["prompt"].status == PASS


def test_a_loss_whose_gradient_is_not_that_of_its_value_on_purpose_is_no_fault(tmp_path):
    assert looked_at(sft(tmp_path, loss_type="dft"), "gradient")["direction"].status == PASS


def test_a_template_that_does_not_write_the_messages_is_found(tmp_path):
    trainer = agent(tmp_path, lambda text: "{}")
    trainer.chat_template = trainer._tokenizer.chat_template = "{{ 'always the same' }}"
    found = looked_at(trainer, "tokenizer")["chat_template"]
    assert found.status == FAIL and "different prompts become the same tokens" in found.message


OF_SOME_ROLES = (
    "{% for m in messages %}{% if m['role'] in ROLES %}{{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}: {% endif %}"
)


def says(role, text):
    return {"role": role, "content": text}


@pytest.mark.parametrize(
    ("build", "rows", "roles", "status"),
    [
        (loo, {"prompt": [[says("user" if i % 2 else "human", f"say {i}")] for i in range(32)]}, "user", FAIL),
        (grpo, {"prompt": [[says("system", "be"), says("user", f"say {i}")] for i in range(32)]}, "user", WARN),
        (sft, {"messages": [[says("user", f"say {i}"), says("assistant", f"I {i}")] for i in range(32)]}, "user", FAIL),
        (dpo, {"prompt": [[says("human", f"say {i}")] for i in range(32)], "chosen": [[says("assistant", "yes")]] * 32,
               "rejected": [[says("assistant", "no")]] * 32}, "assistant", FAIL),
        (loo, {"prompt": [[says("system", "be"), says("user", f"<{i}>")] for i in range(32)]}, "system user", PASS),
    ],
)  # fmt: skip
def test_a_role_that_the_template_leaves_out_is_found(build, rows, roles, status, tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = OF_SOME_ROLES.replace("ROLES", str(roles.split()))
    options = {"per_device_train_batch_size": 32} if build is loo else {}
    if build in (loo, grpo):
        options["rewards"] = lambda completion_ids, **_: [float(len(set(ids))) for ids in completion_ids]
    found = looked_at(build(tmp_path, tokenizer=tokenizer, dataset=Dataset.from_dict(rows), **options), "tokenizer")
    assert found["chat_template"].status == status, found["chat_template"].message


def test_completions_of_ppo_that_nothing_ends_are_found(tmp_path):
    found = looked_at(ppo(tmp_path, stop_token=None), "tokenizer")["eos"]
    assert found.status == FAIL and "stop_token: eos" in found.advice


@pytest.mark.parametrize("build", [sft, reward, dpo])
def test_a_supervised_loss_of_the_wrong_sign_is_found(build, tmp_path):
    trainer = build(tmp_path)
    assert looked_at(trainer, "gradient")["direction"].status == PASS
    original = trainer.compute_loss
    trainer.compute_loss = lambda *args, **kwargs: -original(*args, **kwargs)
    found = looked_at(trainer, "gradient")["direction"]
    assert found.status == FAIL and "wrong sign" in found.advice


def test_a_rate_that_is_lost_in_16_bits_is_found(tmp_path):
    def rounding(dtype, rate):
        return looked_at(loo(tmp_path, model=policy().to(dtype), learning_rate=rate, beta=0.0), "options")["rounding"]

    assert rounding(torch.bfloat16, 1e-6).status == WARN
    assert rounding(torch.bfloat16, 1e-3).status == PASS == rounding(torch.float32, 1e-6).status


def test_a_weight_that_is_not_finite_is_named(tmp_path):
    model = policy()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    found = looked_at(loo(tmp_path, model=model, beta=0.0), "options")["weights"]
    assert found.status == FAIL and "layers.1.mlp.up_proj.weight" in found.message


@pytest.mark.parametrize("build", [reward, dpo])
def test_a_preference_for_an_empty_text_is_found(build, tmp_path):
    trainer = build(tmp_path)
    empty = [[trainer.processing_class.eos_token_id]] * len(trainer.train_dataset)
    name = next(name for name in ("chosen_ids", "chosen_input_ids") if name in trainer.train_dataset.column_names)
    trainer.train_dataset = trainer.train_dataset.remove_columns([name]).add_column(name, empty)
    assert looked_at(trainer, "dataset")["empty"].status == FAIL


def test_dpo_without_beta_is_found(tmp_path):
    assert looked_at(dpo(tmp_path, beta=0.0), "options")["beta"].status == FAIL


@pytest.mark.parametrize("build", [grpo, rloo, dpo])
def test_a_reference_that_one_is_paid_for_leaving_is_found(build, tmp_path):
    trainer = build(tmp_path)
    trainer.args.beta = -0.04
    found = looked_at(trainer, "options")["beta"]
    assert found.status == FAIL and "paid for leaving" in found.message


def test_empty_texts_are_found_behind_the_tokens_that_end_them(tmp_path):
    for nothing in ("", " \n\t "):
        empty = sft(tmp_path, texts=[nothing, "a text", "another"] * 20)
        assert looked_at(empty, "dataset")["empty"].status == FAIL


def test_rewards_without_spread_are_found(tmp_path):
    found = looked_at(loo(tmp_path, rewards=constant), "advantages", "rewards", "mini_run")
    assert found["groups"].status == FAIL and found["groups"].numbers["zero_variance_share"] == 1.0
    assert found["function constant"].status == WARN


def test_groups_of_which_half_are_flat_are_a_warning(tmp_path):
    def half(completions, prompts, **_):
        return [0.0 if prompt.endswith(("0", "2", "4", "6")) else len(c) + i for i, (prompt, c) in
                enumerate(zip(prompts, completions, strict=True))]  # fmt: skip

    # the first batch has four prompts; all prompts are seen with a generation of 32
    found = looked_at(
        loo(tmp_path, rewards=half, generation_batch_size=128), "advantages"
    )["groups"]  # fmt: skip
    assert 0.2 < found.numbers["zero_variance_share"] < 0.8


def test_completions_without_a_reward_are_found(tmp_path):
    def nothing(completions, **_):
        return [None] * len(completions)

    def now_and_then(completions, **_):
        return [None if i % 4 == 0 else float(i) for i in range(len(completions))]

    found = looked_at(loo(tmp_path, rewards=nothing), "advantages", "rewards")
    assert (found["scored"].status, found["function nothing"].status) == (FAIL, FAIL)
    some = looked_at(loo(tmp_path, rewards=now_and_then), "advantages")["scored"]
    assert (some.status, some.numbers["unscored"]) == (WARN, 0.25)


def test_advantages_that_are_not_leave_one_out_are_found(tmp_path):
    trainer = loo(tmp_path)
    trainer._group_advantages = lambda inputs, rewards, mode: rewards - rewards.mean()
    assert looked_at(trainer, "advantages")["baseline"].status == FAIL


def test_advantages_of_the_wrong_sign_are_found(tmp_path):
    for build in (grpo, ppo):
        trainer = injured(build(tmp_path), lambda output: output.update(advantages=-output["advantages"]))
        assert looked_at(trainer, "advantages")["baseline"].status == FAIL


def test_dropout_is_not_taken_for_a_wrong_baseline(tmp_path):
    model = policy()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    found = looked_at(loo(tmp_path, model=model, trainer={"ref_model": policy()}, beta=0.5), "advantages")
    assert found["baseline"].status == PASS


def test_completions_that_never_end_are_found_where_nothing_else_says_so(tmp_path):
    found = looked_at(loo(tmp_path, max_completion_length=2), "advantages")["truncated"]
    assert found.status == WARN and "max_completion_length" in found.advice
    masked = loo(tmp_path, max_completion_length=2, mask_truncated_completions=True, loss_type="dapo")
    assert looked_at(masked, "advantages")["truncated"].status == FAIL


def test_a_reward_that_pays_for_nonsense_is_found(tmp_path):
    def brevity(completions, **_):
        return [1.0 / (1 + len(c)) for c in completions]

    found = looked_at(loo(tmp_path, rewards=brevity), "rewards")["nonsense"]
    assert found.status == WARN and "an empty text" in found.advice


def test_a_reward_of_another_order_of_magnitude_is_found_where_nothing_divides_by_it(tmp_path):
    def large(completions, **_):
        return [1e6 * len(c) for c in completions]

    found = looked_at(loo(tmp_path, rewards=large), "advantages")["scale"]
    assert found.status == WARN and "KL" in found.advice
    assert looked_at(grpo(tmp_path, rewards=large), "advantages")["scale"].status == PASS  # scale_rewards="group"


@pytest.mark.parametrize("checked", [False, True])
def test_a_reward_that_changes_what_it_is_given_is_found(tmp_path, checked):
    """The functions behind it would see it; those of trl_ext get copies."""

    def strips(prompts, completions, **_):
        prompts[0] = "?"
        completions[:] = [c + "!" for c in completions]
        return [float(len(c)) for c in completions]

    found = looked_at(loo(tmp_path, rewards=CheckedReward(strips) if checked else strips), "rewards")["in place"]
    assert found.status == (PASS if checked else WARN)
    assert checked or "strips changes its prompts and completions in place" in found.message


def test_a_reward_that_draws_lots_is_found(tmp_path):
    def lots(completions, **_):
        return torch.rand(len(completions)).tolist()

    found = looked_at(loo(tmp_path, rewards=lots), "rewards")
    assert "probes" not in found and any(
        c.status != PASS for n, c in found.items() if "consist" in n or "unstable" in n
    )


def test_an_exception_of_a_reward_function_is_a_failure_and_the_rest_goes_on(tmp_path):
    def broken(completions, **_):
        raise KeyError("answer")

    trainer = loo(tmp_path, rewards=broken)
    trainer.remove_callback(PrinterCallback)
    report = preflight(trainer, quick=True)
    assert report.failed
    errors = {c.family: c for c in report.checks if c.name == "error"}
    assert errors.keys() >= {"advantages", "mini_run"} and report.find("rows").status == PASS
    (told,) = [c for c in errors.values() if c.status == FAIL]  # once, with the place
    assert "KeyError: 'answer' (in broken, " in told.message
    assert {c.message for c in errors.values() if c.status == SKIP} == {f"needs what failed in {told.family}"}


ANSWERS = {
    "texts": lambda n: ["good"] * n, "one too few": lambda n: [1.0] * (n - 1), "nothing": lambda n: None,
    "a number": lambda n: 1.0, "lists": lambda n: [[1.0]] * n,
}  # fmt: skip


@pytest.mark.parametrize("build", [loo, grpo, rloo, ppo])
@pytest.mark.parametrize("what", ANSWERS)
def test_a_reward_function_whose_answer_cannot_be_read_is_named_once(what, build, tmp_path):
    def good_or_bad(completions, **_):
        return ANSWERS[what](len(completions))

    trainer = build(tmp_path, rewards=[letter_share, good_or_bad])
    (told,) = failures(trainer, "alignment", "advantages", "mini_run")
    assert "when the reward function good_or_bad had answered" in told.message


def test_a_reward_function_that_fails_in_the_mini_run_alone_is_named_there(tmp_path):
    def later(completions, trainer_state, **_):
        return [1.0 + i for i in range(len(completions))] if not trainer_state.global_step else ["good"]

    (told,) = failures(loo(tmp_path, rewards=later), "advantages", "mini_run")
    assert told.family == "mini_run" and "when the reward function later had answered" in told.message


@pytest.mark.parametrize("build", [loo, grpo])
def test_rewards_that_are_all_missing_are_told_of_the_batch_and_of_the_function(build, tmp_path):
    def nothing(completions, **_):
        return [None] * len(completions)

    assert [c.name for c in failures(build(tmp_path, rewards=nothing))] == ["scored", "function nothing"]


def test_data_that_is_not_there_is_told_once(tmp_path):
    trainer = dpo(tmp_path)
    trainer.train_dataset = trainer.train_dataset.select([])  # as where all of it is longer than max_length
    assert [c.name for c in failures(trainer)] == ["rows"]
    assert [c.name for c in failures(loo(tmp_path, dataset=prompts([""] * 32)))] == ["empty"]


def failures(trainer, *families):
    trainer.remove_callback(PrinterCallback)
    report = preflight(trainer, quick=True, families=families or None)
    return [check for check in report.checks if check.status == FAIL]


# Gradient ----------------------------------------------------------------------------------------------------------


def test_weights_that_no_gradient_reaches_are_named(tmp_path):
    model = policy()
    layer = model.model.layers[1]
    layer.mlp.down_proj.register_forward_hook(lambda module, inputs, output: output.detach())
    found = looked_at(loo(tmp_path, model=model, beta=0.0), "gradient")["every_parameter"]
    assert found.status == FAIL and "layers.1.mlp" in found.message
    assert found.numbers["without_gradient"] == 4  # three matrices, and the norm before them


def test_a_loss_of_the_wrong_sign_is_found(tmp_path):
    for build in (loo, loo_value, ppo):
        trainer = build(tmp_path)
        original = trainer._compute_loss
        trainer._compute_loss = lambda model, inputs, original=original: -original(model, inputs)
        found = looked_at(trainer, "gradient")["direction"]
        assert found.status == FAIL and found.numbers["came"] <= 0


def test_the_direction_is_the_policys_whatever_else_is_in_the_loss(tmp_path):
    """A value loss on a shared body, a KL or an entropy bonus must not hide or feign it."""
    for options in ({"entropy_coef": 5.0, "beta": 0.0}, {"kl_in_reward": False, "kl_estimator": "k3", "beta": 10.0}):
        assert looked_at(loo(tmp_path, **options), "gradient")["direction"].status == PASS
    assert looked_at(loo_value(tmp_path, vf_coef=100.0), "gradient")["direction"].status == PASS


def test_a_gradient_that_is_not_finite_is_found(tmp_path):
    model = policy()
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] = float("nan")
    found = looked_at(sft_like(tmp_path, model), "gradient")["finite"]
    assert found.status == FAIL


def sft_like(tmp_path, model):
    """Sampling would end with an exception before a gradient is taken."""
    trainer = sft(tmp_path)
    trainer.model.load_state_dict(model.state_dict())
    return trainer


def test_a_policy_without_weights_that_train_is_found(tmp_path):
    for build in (loo, sft):
        trainer = build(tmp_path)
        trainer.model.requires_grad_(False)
        (told,) = failures(trainer)
        assert "no parameter trains" in told.message
    found = looked_at(loo_lora(tmp_path), "gradient")["every_parameter"]
    assert found.status == PASS and found.numbers["trainable"] > 10  # A has no gradient while B is zero


def test_a_policy_of_which_little_trains_and_a_head_that_does_not_are_found(tmp_path):
    trainer = loo(tmp_path)
    trainer.model.requires_grad_(False)
    trainer.model.model.norm.weight.requires_grad_(True)
    assert looked_at(trainer, "gradient")["every_parameter"].status == WARN
    trainer = reward(tmp_path)
    trainer.model.score.requires_grad_(False)
    found = looked_at(trainer, "gradient")["every_parameter"]
    assert found.status == FAIL and "score" in found.message


def test_the_weights_are_as_they_were_after_the_gradient_is_looked_at(tmp_path):
    trainer = loo(tmp_path)
    before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    looked_at(trainer, "alignment", "masks", "reference", "gradient")
    assert all(torch.equal(v, before[k]) for k, v in trainer.model.state_dict().items())


# Mini-run ----------------------------------------------------------------------------------------------------------


def test_a_rate_of_zero_is_found_in_the_options_and_in_the_weights(tmp_path):
    found = looked_at(loo(tmp_path, learning_rate=0.0), "options", "mini_run")
    assert (found["learning_rate"].status, found["learned"].status) == (FAIL, FAIL)


def test_a_run_that_diverges_at_once_is_found(tmp_path):
    found = looked_at(loo(tmp_path, learning_rate=300.0, optim="sgd", max_grad_norm=0.0, beta=0.0), "mini_run")
    assert found["learned"].status == WARN and found["learned"].numbers["relative_change"] > 1


def test_the_whole_run_is_extrapolated_from_the_steps_after_the_first(tmp_path):
    numbers = looked_at(loo(tmp_path, max_steps=1000), "mini_run")["cost"].numbers
    assert numbers["optimizer_steps"] == 1000
    assert numbers["hours"] == pytest.approx(numbers["seconds_a_step"] * 1000 / 3600)
    assert numbers["peak_gb"] > 0.1


def test_three_updates_are_made_however_many_steps_each_takes(tmp_path):
    assert looked_at(loo(tmp_path), "mini_run")["steps"].numbers["optimizer_steps"] == 3
    assert looked_at(ppo(tmp_path), "mini_run")["steps"].numbers["optimizer_steps"] == 6


# Tokenizer ---------------------------------------------------------------------------------------------------------


def test_a_pad_token_that_ends_texts_is_found(tmp_path):
    for build in (loo, ppo):
        trainer = build(tmp_path)
        trainer.processing_class.pad_token = trainer.processing_class.eos_token
        found = looked_at(trainer, "tokenizer", "mini_run")
        assert (found["pad"].status, found["monitor"].status) == (WARN, PASS)  # told once


def test_a_reward_model_that_pads_with_another_token_is_found(tmp_path):
    trainer = reward(tmp_path)
    trainer.model.config.pad_token_id = 5
    assert looked_at(trainer, "tokenizer")["pad"].status == FAIL


def test_tokens_beyond_the_embeddings_are_found(tmp_path):
    trainer = loo(tmp_path)
    trainer.processing_class.add_tokens(["<new>"])
    assert looked_at(trainer, "tokenizer")["vocabulary"].status == FAIL


def with_bos(times):
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = "A"
    bos = tokenizer.convert_tokens_to_ids("A")
    pieces = ["A:0"] * times + ["$A:0"]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join(pieces), special_tokens=[("A", bos)]
    )
    return tokenizer


def test_a_double_and_a_missing_bos_are_found(tmp_path):
    for times, status in ((1, PASS), (2, FAIL)):
        trainer = loo(tmp_path)
        trainer.processing_class = trainer._tokenizer = with_bos(times)
        assert looked_at(trainer, "tokenizer")["bos"].status == status
    trainer = loo(tmp_path)
    trainer._tokenize_prompts = lambda texts: ([byte_tokenizer()(t)["input_ids"] for t in texts], None, {})
    trainer.processing_class = trainer._tokenizer = with_bos(1)
    if hasattr(type(trainer), "_tokenize_prompts"):
        assert looked_at(trainer, "tokenizer")["bos"].status == WARN


def test_a_model_that_ends_texts_otherwise_is_found(tmp_path):
    trainer = loo(tmp_path)
    trainer.model.generation_config.eos_token_id = 65
    assert looked_at(trainer, "tokenizer")["eos"].status == FAIL


@pytest.mark.parametrize("build", [loo, grpo, ppo, sft])
def test_an_end_that_is_a_piece_of_ordinary_text_is_found(build, tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = "a"
    found = looked_at(build(tmp_path, tokenizer=tokenizer), "tokenizer")["eos"]
    assert found.status == FAIL and "stands inside" in found.message


def test_messages_without_a_template_are_found(tmp_path):
    trainer = loo(tmp_path)
    trainer.train_dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": p}] for p in PROMPTS]})
    trainer.remove_callback(PrinterCallback)
    report = preflight(trainer, quick=True, families=["tokenizer", "alignment"])
    failed = [check.name for check in report.checks if check.status == FAIL]
    assert failed == ["chat_template"]  # told once: TRL itself cannot tokenise them either
    assert report.find("error").message == "needs what failed in tokenizer"


# Dataset -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "name", "status"),
    [
        ([*PROMPTS[:-1], ""], "empty", FAIL),
        (["the same"] * 16 + PROMPTS, "duplicates", WARN),
        ([p + " " for p in PROMPTS], "white_space", WARN),
        ([*PROMPTS, "long " * 200], "length", WARN),
        (["long " * 200 + p for p in PROMPTS], "length", FAIL),
    ],
)
def test_faults_of_prompts_are_found(texts, name, status, tmp_path):
    assert looked_at(loo(tmp_path, dataset=prompts(texts)), "dataset")[name].status == status


def test_too_few_prompts_for_one_batch_are_found(tmp_path):
    found = looked_at(loo(tmp_path, dataset=prompts(PROMPTS[:2])), "dataset", "options")
    assert found["rows"].status == FAIL


def test_texts_that_are_cut_off_and_doubled_are_found(tmp_path):
    found = looked_at(sft(tmp_path, max_length=8), "dataset", "masks")
    assert (found["length"].status, found["eos_learned"].status) == (FAIL, FAIL)
    assert looked_at(sft(tmp_path, texts=["once more"] * 40), "dataset")["duplicates"].status == WARN


# Options -----------------------------------------------------------------------------------------------------------


def test_rates_of_learning_are_judged_by_size_method_and_adapter():
    from trl_ext.preflight.check import above
    from trl_ext.preflight.limits import learning_rate_limit

    usual = [("rl", 7e9, False, 1e-6), ("rl", 7e9, True, 2e-5), ("sft", 7e9, False, 2e-5), ("sft", 7e9, True, 2e-4),
             ("dpo", 8e9, False, 5e-7), ("rl", 1e6, False, 3e-4), ("sft", 1e6, False, 2e-3), ("rl", 6e8, True, 1e-4),
             ("reward", 1e6, False, 5e-4)]  # fmt: skip
    for kind, size, adapter, rate in usual:
        assert above(rate, *learning_rate_limit(kind, int(size), adapter)) == PASS
        assert above(1e4 * rate, *learning_rate_limit(kind, int(size), adapter)) == FAIL
    assert above(1e-4, *learning_rate_limit("rl", int(7e9), False)) == WARN  # a LoRA rate for all weights


def test_options_that_waste_a_run_are_found(tmp_path):
    assert looked_at(loo(tmp_path, learning_rate=0.5), "options")["learning_rate"].status == FAIL
    assert looked_at(loo(tmp_path, warmup_steps=50), "options")["warmup"].status == WARN
    assert looked_at(loo(tmp_path, num_generations=16), "options")["batches"].status == WARN
    assert looked_at(grpo(tmp_path, loss_type="grpo"), "options")["loss_type"].status == WARN
    adapter = looked_at(loo_lora(tmp_path), "options")
    assert (adapter["learning_rate"].status, adapter["adapter_dropout"].status) == (PASS, PASS)
    dropped = loo(tmp_path, trainer={"peft_config": LoraConfig(**(LORA | {"lora_dropout": 0.2}))})
    assert looked_at(dropped, "options")["adapter_dropout"].status == WARN


def test_another_trainer_is_refused_by_name():
    with pytest.raises(UserError, match="preflight knows"):
        preflight(type("OtherTrainer", (), {"args": None})())
