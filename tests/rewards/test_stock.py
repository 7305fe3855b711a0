"""The module by stock PPO's own protocol, then inside the stock trainer where TRL ships it."""

import pytest
import torch

from trl_ext import tiny
from trl_ext.errors import UserError
from trl_ext.rewards import CheckedReward, as_reward_model
from trl_ext.rewards.numeric import NumericReward

TOKENIZER = tiny.byte_tokenizer()
PAD, EOS = TOKENIZER.pad_token_id, TOKENIZER.eos_token_id


def vowels(prompts, completions, **kwargs):
    return [float(sum(char in "aeiou" for char in c)) for c in completions]


async def awaited(prompts, completions, **kwargs):
    return [7.0] * len(completions)


def prompt_length(prompts, completions, **kwargs):
    return [float(len(p)) for p in prompts]


def rows(*pairs, width=6, response=5):
    """Prompts padded on the left to `width`, completions (EOS written `$`) on the right: stock PPO's layout."""
    out = []
    for prompt, completion in pairs:
        left = TOKENIZER.encode(prompt)
        right = [EOS if char == "$" else TOKENIZER.encode(char)[0] for char in completion]
        out.append([PAD] * (width - len(left)) + left + right + [PAD] * (response - len(right)))
    return torch.tensor(out)


def get_reward(model, query_responses, context_length):
    """What TRL 1.12's `get_reward` does with a reward model, written from its description in the protocol."""
    mask = query_responses != PAD
    output = getattr(model, model.base_model_prefix)(
        input_ids=query_responses.masked_fill(~mask, 0),
        attention_mask=mask,
        position_ids=mask.cumsum(1) - mask.long(),
        return_dict=True,
        output_hidden_states=True,
        use_cache=False,
    )
    logits = model.score(output.hidden_states[-1])
    last = []
    for row in query_responses.tolist():
        tail = row[context_length:]
        last.append(context_length + (tail.index(PAD) if PAD in tail else len(tail)) - 1)
    return logits, logits[torch.arange(len(last)), last].squeeze(-1)


def test_every_position_of_a_row_carries_the_value_of_its_completion():
    model = as_reward_model([vowels], TOKENIZER, prompt_length=6)
    logits, scores = get_reward(model, rows(("aa", "oui$"), ("eeeeee", "xy"), ("a", "queue")), 6)
    assert scores.tolist() == [3.0, 0.0, 4.0]
    assert logits.shape == (3, 11, 1)
    assert torch.equal(logits, scores[:, None, None].expand(3, 11, 1))


def test_prompt_and_completion_are_told_apart_and_special_tokens_dropped():
    checked = CheckedReward(vowels)
    model = as_reward_model([checked], TOKENIZER, prompt_length=6)
    get_reward(model, rows(("ab", "oui$"), ("", "$"), ("abc", "")), 6)
    assert checked.last_batch.prompts == ["ab", "", "abc"]
    assert checked.last_batch.completions == ["oui", "", ""]


def test_completion_ids_are_the_sampled_tokens_with_the_end_token():
    seen = []

    def looks(prompts, completions, completion_ids, **kwargs):
        seen.extend(completion_ids)
        return [0.0] * len(completions)

    model = as_reward_model([looks], TOKENIZER, prompt_length=6)
    seen.clear()  # it is asked about a sample when the model is made
    get_reward(model, rows(("a", "xy$"), ("a", "xyxyx")), 6)
    x, y = TOKENIZER.encode("xy")
    assert seen == [[x, y, EOS], [x, y, x, y, x]]


def test_a_completion_ends_at_its_first_padding_token_as_the_trainer_has_it():
    """A policy can sample the padding token itself; what follows is outside of the sequence that the trainer scores."""
    ids = rows(("a", "oui"), response=5)
    ids[0, -1] = TOKENIZER.encode("a")[0]  # o u i <pad> a
    _, scores = get_reward(as_reward_model([vowels], TOKENIZER, prompt_length=6), ids, 6)
    assert scores.tolist() == [3.0]


def test_without_a_prompt_length_the_whole_text_is_the_completion():
    checked = CheckedReward(vowels)
    get_reward(as_reward_model([checked], TOKENIZER), rows(("ab", "oui$"), ("abcdef", "xy")), 6)
    assert checked.last_batch.prompts == ["", ""]
    assert checked.last_batch.completions == ["aboui", "abcdefxy"]


def test_the_score_is_the_weighted_sum_and_what_does_not_apply_adds_nothing():
    def sometimes(prompts, completions, **kwargs):
        return [None, None, 10.0]

    model = as_reward_model([vowels, prompt_length, sometimes], TOKENIZER, [2.0, -0.5, 1.0], prompt_length=6)
    _, scores = get_reward(model, rows(("ab", "oui"), ("abcd", "a"), ("", "x")), 6)
    assert scores.tolist() == [2 * 3 - 0.5 * 2, 2 * 1 - 0.5 * 4, 10.0]


def test_a_completion_that_nothing_applies_to_gets_the_mean_of_the_others_and_that_is_said_once(caplog):
    def sometimes(prompts, completions, **kwargs):
        return [1.0, None, 4.0]

    model = as_reward_model([sometimes], TOKENIZER, prompt_length=6)
    for _ in range(2):
        scores = get_reward(model, rows(("a", "oui"), ("a", "xy"), ("a", "z")), 6)[1].tolist()
        assert scores == [1.0, 2.5, 4.0]
    (record,) = caplog.records
    assert "sometimes gave no number for the completion 'xy'" in record.getMessage()


@pytest.mark.parametrize(("others", "neutral"), [([1.0, 4.0], 2.5), ([float("nan")] * 2, 0.0)])
def test_a_completion_that_all_functions_failed_on_gets_the_mean_of_the_others(others, neutral):
    def fails(prompts, completions, **kwargs):
        return [float("nan"), *others]

    model = as_reward_model([fails], TOKENIZER, prompt_length=6)
    scores = get_reward(model, rows(("a", "oui"), ("a", "xy"), ("a", "z")), 6)[1].tolist()
    assert scores == [neutral, *(neutral if value != value else value for value in others)]


def test_a_wrong_result_raises_where_that_is_asked_for():
    func = CheckedReward(lambda prompts, completions, **kwargs: [1.0], on_failure="raise")
    model = as_reward_model([func], TOKENIZER, prompt_length=6)
    with pytest.raises(UserError, match="at call 1 returned 1 rewards for 2 completions"):
        get_reward(model, rows(("a", "b"), ("a", "b")), 6)


def test_a_coroutine_function_is_awaited():
    model = as_reward_model([awaited, vowels], TOKENIZER, prompt_length=6)
    assert get_reward(model, rows(("a", "oui")), 6)[1].tolist() == [10.0]


def test_it_moves_between_devices_and_dtypes_without_parameters():
    model = (
        as_reward_model([vowels], TOKENIZER, prompt_length=6).to("cpu").to(torch.bfloat16).eval().requires_grad_(False)
    )
    assert list(model.parameters()) == []
    assert get_reward(model, rows(("a", "oui")), 6)[1].tolist() == [3.0]


@pytest.mark.parametrize(
    ("funcs", "weights", "said"),
    [
        ([vowels], [1.0, 2.0], "1 reward functions have 2 weights"),
        ([], None, "0 reward functions"),
        ([torch.nn.Linear(1, 1)], None, "give a model to PPOTrainer itself"),
    ],
)
def test_arguments_that_do_not_fit_are_named(funcs, weights, said):
    with pytest.raises(UserError, match=said):
        as_reward_model(funcs, TOKENIZER, weights)


@pytest.mark.stock_ppo
def test_stock_ppo_trains_on_the_functions_value_of_the_decoded_completion(tmp_path, monkeypatch):
    from datasets import Dataset
    from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

    checked, mapped = CheckedReward(vowels), CheckedReward(prompt_length)
    model = as_reward_model([checked, mapped], TOKENIZER, [1.0, 0.25], prompt_length=8)
    original, seen = ppo_trainer.get_reward, []

    def record(reward_model, query_responses, pad_token_id, context_length):
        result = original(reward_model, query_responses, pad_token_id, context_length)
        if reward_model is model:
            seen.append((query_responses.clone(), context_length, result[1].clone()))
        return result

    monkeypatch.setattr(ppo_trainer, "get_reward", record)
    texts = ["hello", "go", "list it", "why not?", "a", "more", "name", "count up"]
    encoded = TOKENIZER(texts, padding="max_length", max_length=8, padding_side="left")
    args = PPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        num_mini_batches=1,
        num_ppo_epochs=1,
        total_episodes=16,
        response_length=6,
        stop_token="eos",
        local_rollout_forward_batch_size=4,
        num_sample_generations=0,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
    )
    trainer = PPOTrainer(
        args=args,
        processing_class=TOKENIZER,
        model=tiny.random_policy(0),
        ref_model=tiny.random_policy(0),
        reward_model=model,
        value_model=tiny.random_scorer(1),
        train_dataset=Dataset.from_dict({"input_ids": encoded["input_ids"]}),
    )
    trainer.train()

    assert len(seen) == 4  # two updates of two rollout chunks
    for query_responses, context_length, scores in seen:
        assert context_length == 8
        for row, score in zip(query_responses.tolist(), scores.tolist(), strict=True):
            prompt = "".join(TOKENIZER.decode([i]) for i in row[:8] if i != PAD)
            response = row[8:]
            response = response[: response.index(PAD)] if PAD in response else response
            text = TOKENIZER.decode([i for i in response if i != EOS])
            assert prompt in texts
            assert score == pytest.approx(sum(c in "aeiou" for c in text) + 0.25 * len(prompt))
    logged = [row["objective/scores"] for row in trainer.state.log_history if "objective/scores" in row]
    assert logged == pytest.approx([torch.cat([s for _, _, s in seen[i : i + 2]]).mean().item() for i in (0, 2)])


def test_a_function_that_needs_a_column_is_refused_at_once():
    def grades(prompts, completions, solution, **kwargs):
        return [0.0] * len(completions)

    for func in (NumericReward(), grades):
        with pytest.raises(UserError, match=r"column.*stock PPO passes prompts and completions alone"):
            as_reward_model([func], TOKENIZER, prompt_length=6)
