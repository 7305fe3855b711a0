"""The tokens of JSON actions against the characters they hold, for tokenizers of several kinds."""

import json

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from trainer_builders import loo_trainer, prompts, scored
from transformers import PreTrainedTokenizerFast

from trl_ext.errors import UserError
from trl_ext.rewards.json_text import object_spans
from trl_ext.tiny import byte_tokenizer
from trl_ext.trainers.json_actions import JsonActions

ACTION = '{"name": "search", "arguments": {"query": "weather"}}'
TEXTS = {
    "alone": (ACTION, [ACTION]),
    "in a text": (f"I look it up. {ACTION} Then I wait.", [ACTION]),
    "two": (f'{ACTION}\n{{"name": "finish"}}!', [ACTION, '{"name": "finish"}']),
    "braces in strings": ('say {"a": "} {", "b": {"c": "\\"}"}} now', ['{"a": "} {", "b": {"c": "\\"}"}}']),
    "unicode": ('é {"wörter": "日本語 \U0001f600"} ü', ['{"wörter": "日本語 \U0001f600"}']),
    "fenced": (f"```json\n{ACTION}\n```\n", [ACTION]),
    "as Qwen calls tools": (f"<tool_call>\n{ACTION}\n</tool_call>", [ACTION]),
    "cut off": ('first {"a": 1} then {"b": {"c": 2}, "d": "x', ['{"a": 1}']),
    "broken": ('{"a": 1,} {b: 2} {"c": NaN}', []),
    "none": ("no action here", []),
    "empty object": ("{}", ["{}"]),
    "a list is none": ("[1, 2]", []),
}


def learned(pieces, decoder, normalizer=None):
    """A tokenizer of merges learned from the texts."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pieces, decoder
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet() if isinstance(pieces, pre_tokenizers.ByteLevel) else []
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>", "<pad>", "<eos>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([text for text, _ in TEXTS.values()] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


TOKENIZERS = {
    "bytes": byte_tokenizer(),
    "merges of bytes (Qwen, SmolLM, Llama 3)": learned(
        pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    ),
    "pieces with a mark for spaces (Llama 2, Mistral)": learned(
        pre_tokenizers.Metaspace(prepend_scheme="never"), decoders.Metaspace(prepend_scheme="never")
    ),
}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]


def marked(tokenizer, ids, policy=None):
    ids = torch.tensor([ids])
    return JsonActions(tokenizer).find(ids, torch.ones_like(ids) if policy is None else torch.tensor([policy]))


@pytest.mark.parametrize("name", TEXTS)
def test_the_tokens_are_those_that_hold_a_character_of_an_action(tokenizer, name):
    text, actions = TEXTS[name]
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if tokenizer.decode(encoded["input_ids"]) != text:
        pytest.skip("a character that this tokenizer does not know")
    found = marked(tokenizer, encoded["input_ids"])
    spans, at = [], 0
    for action in actions:
        start = text.index(action, at)
        spans.append((start, start + len(action)))
        at = start + len(action)
    expected = [int(any(a < end and b > start for start, end in spans)) for a, b in encoded["offset_mapping"]]
    assert found.mask[0].tolist() == expected
    assert (found.per_completion.item(), found.valid.item()) == (len(actions), bool(actions))
    assert all(json.loads(action) is not None for action in actions)


def test_tokens_that_the_tokenizer_would_not_have_chosen_are_marked_exactly():
    """A policy samples any segmentation; here one byte a token, whose tokenizer would merge them."""
    tokenizer = TOKENIZERS["merges of bytes (Qwen, SmolLM, Llama 3)"]
    text, (action,) = TEXTS["unicode"]
    single = dict(zip(pre_tokenizers.ByteLevel.alphabet(), [None] * 256, strict=True))
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]
    assert set(letters) <= set(single)
    ids = [tokenizer.convert_tokens_to_ids(letter) for letter in letters]
    assert tokenizer.decode(ids) == text and len(ids) == len(text.encode())
    begin = len(text[: text.index(action)].encode())
    found = marked(tokenizer, ids).mask[0].tolist()
    assert found == [int(begin <= i < begin + len(action.encode())) for i in range(len(ids))]


def test_a_long_text_of_other_tokens_is_decoded_in_one_pass(tokenizer):
    text = "so " * 200 + ACTION + " and " * 100 + "{} " + ACTION
    chosen = tokenizer(text, add_special_tokens=False)["input_ids"]
    letters = [tokenizer(letter, add_special_tokens=False)["input_ids"] for letter in " so"]
    ids = [*(token for letter in letters for token in letter), *chosen]  # its start in other tokens than its own
    decoded, decode = [], tokenizer.decode
    searched = JsonActions(tokenizer)
    searched._tokenizer = type("Counting", (), {
        "is_fast": True, "backend_tokenizer": tokenizer.backend_tokenizer,
        "__call__": tokenizer.__call__,
        "decode": lambda self, ids, **options: decoded.append(len(ids)) or decode(ids, **options),
    })()  # fmt: skip
    whole, count = torch.tensor([ids]), len(ids)
    found = searched.find(whole, torch.ones_like(whole)).mask[0]
    lengths = [len(decode(ids[:i])) for i in range(count + 1)]
    spans = object_spans(decode(ids))
    assert len(spans) == 3 and len(decoded) <= 3
    assert found.tolist() == [
        int(any(lengths[i] < stop and lengths[i + 1] > start for start, stop in spans)) for i in range(count)
    ]


def test_the_mark_of_a_space_that_no_text_has_is_no_part_of_an_action():
    tokenizer = learned(pre_tokenizers.Metaspace(), decoders.Metaspace())
    ids = tokenizer.convert_tokens_to_ids(["\u2581", *ACTION.replace(" ", "\u2581")])
    assert tokenizer.decode(ids) == ACTION
    assert marked(tokenizer, ids).mask[0].tolist() == [0] + [1] * len(ACTION)


def test_bytes_that_are_no_character_end_no_run():
    """Tokenizers with bytes to fall back on, as those of Llama 2 and Mistral: what is streamed may be taken back."""
    vocabulary = {token: i for i, token in enumerate(["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *'{"x: 1}h'])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    action = list('{"x": 1}')
    ids = fast.convert_tokens_to_ids([*action, "<0x0A>", "<0xFF>", "h", *action])
    assert marked(fast, ids).mask[0].tolist() == [1] * 8 + [0] * 3 + [1] * 8


def test_what_a_tool_answers_is_no_action_and_each_turn_must_act():
    tokenizer = byte_tokenizer()
    first, answer, second = '{"a": 1}', '{"b": 2}', "done"
    ids = tokenizer(first + answer + second)["input_ids"]
    policy = [1] * 8 + [0] * 8 + [1] * 4
    found = marked(tokenizer, ids, policy)
    assert found.mask[0].tolist() == [1] * 8 + [0] * 12
    assert (found.per_completion.item(), found.valid.item()) == (1, False)
    assert marked(tokenizer, ids, [1] * 8 + [0] * 12).valid.item()


@pytest.mark.parametrize(
    ("turns", "valid"),
    [(['{"a": 1}', "it is 2"], True), (["hm", "it is 2"], False), (["it is 2"], False),
     (['{"a": 1}', '{"cut": "of'], False), (['{"a": 1}', '{"done": true}'], True)],
)  # fmt: skip
def test_with_tools_the_last_of_several_turns_may_be_the_answer(turns, valid):
    tokenizer = byte_tokenizer()
    pieces = [tokenizer(text)["input_ids"] for turn in turns for text in (turn, "tool")][:-1]
    ids = torch.tensor([[token for piece in pieces for token in piece]])
    own = torch.tensor([[1 - i % 2 for i, piece in enumerate(pieces) for _ in piece]])
    assert JsonActions(tokenizer, answers=True).find(ids, own).valid.item() == valid


def test_an_object_does_not_reach_from_one_turn_into_the_next():
    tokenizer = byte_tokenizer()
    ids = tokenizer('{"a": ' + "xx" + "1}")["input_ids"]
    assert not marked(tokenizer, ids, [1] * 6 + [0] * 2 + [1] * 2).mask.any()


def test_every_action_must_agree_with_the_schema(tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "object", "required": ["name"]}))
    actions, tokenizer = JsonActions(byte_tokenizer(), str(schema)), byte_tokenizer()
    for text, valid in (('{"name": 1}', True), ('{"other": 1}', False), ('{"name": 1} {"x": 2}', False)):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        assert actions.find(ids, torch.ones_like(ids)).valid.item() is valid
    with pytest.raises(UserError, match="schema"):
        JsonActions(byte_tokenizer(), str(tmp_path / "nowhere.json"))


def test_spans_are_read_as_strictly_as_the_rewards_read():
    assert object_spans('x {"a": {"b": 1}} {"c": 1, "c": 2} {"d": 3}') == [(2, 17), (35, 43)]
    assert object_spans("{" * 3000) == [] and object_spans('{"a":' * 900 + "1" + "}" * 900) in ([], [(0, 6301 - 900)])


WRITTEN = ['{"a": 1}', 'say {"a": 2} now', "no action", '{"cut": "of']


def written(prompts, trainer):
    """Four completions a prompt: an action, one in a text, none, one that is cut off."""
    tokenizer = trainer._tokenizer
    completions = [tokenizer(WRITTEN[i % 4])["input_ids"] for i in range(len(prompts))]
    return {"prompt_ids": tokenizer(prompts)["input_ids"], "completion_ids": completions, "logprobs": None}


def ended(prompts, trainer):
    output = written(prompts, trainer)
    return output | {"completion_ids": [[*ids, trainer._tokenizer.eos_token_id] for ids in output["completion_ids"]]}


def by_place(completions, **_):
    return [float(i % 4) for i in range(len(completions))]


def build(tmp_path, **options):
    return loo_trainer(
        tmp_path, beta=0.0, rewards=by_place, max_completion_length=20, dataset=prompts(),
        trainer={"rollout_func": written}, **options,
    )  # fmt: skip


def test_only_actions_learn(tmp_path):
    trainer = build(tmp_path, mask="json_actions")
    output = scored(trainer)
    expected = [[1] * 8 + [0] * 8, [0] * 4 + [1] * 8 + [0] * 4, [0] * 16, [0] * 16]
    assert output["tool_mask"][:4].tolist() == expected
    metrics = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    assert metrics["actions/valid_ratio"] == 0.5 == metrics["actions/per_completion"]
    assert metrics["actions/token_ratio"] == pytest.approx(16 / sum(map(len, WRITTEN)))
    before = torch.tensor([0.0, 1, 2, 3]).repeat(4)
    torch.testing.assert_close(output["advantages"], before - (6 - before) / 3)


def test_ends_are_counted_whether_they_learn_or_not(tmp_path):
    counts = []
    for mask in ("completion", "json_actions"):
        trainer = loo_trainer(tmp_path, beta=0.05, max_completion_length=20, dataset=prompts(), mask=mask,
                              trainer={"rollout_func": ended})  # fmt: skip
        scored(trainer)
        counts.append(trainer._metrics["train"]["val/num_eos_tokens"])
    assert counts == [[16], [16]]


def test_the_gradient_is_that_of_the_actions_tokens_alone(tmp_path):
    """Written out: minus the advantage times the log-probabilities of these tokens."""
    trainer = build(tmp_path, mask="json_actions")
    output = scored(trainer)
    trainer.current_gradient_accumulation_steps = 1
    trainer._compute_loss(trainer.model, output).backward()
    got = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
    trainer.model.zero_grad()
    loss = 0.0
    for row in range(16):
        whole = [output[f"{name}_ids"][row][output[f"{name}_mask"][row].bool()] for name in ("prompt", "completion")]
        prompt, completion = whole
        logps = trainer.model(input_ids=torch.cat([prompt, completion])[None]).logits[0].log_softmax(-1)
        picked = logps[len(prompt) - 1 : -1].gather(-1, completion[:, None]).squeeze(-1)
        text, value = WRITTEN[row % 4], output["advantages"][row]
        for start, end in object_spans(text):
            loss = loss - value * picked[start:end].sum()
    (loss / (16 * 20)).backward()
    for name, parameter in trainer.model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(got[name], parameter.grad, rtol=1e-3, atol=1e-6)


def test_invalid_completions_leave_their_group(tmp_path):
    output = scored(build(tmp_path, invalid_json="drop"))
    torch.testing.assert_close(output["advantages"], torch.tensor([-1.0, 1.0, 0.0, 0.0]).repeat(4))
    assert output["tool_mask"][:4].any(1).tolist() == [True, True, False, False]


@pytest.mark.parametrize("mask", ["completion", "json_actions"])
def test_invalid_completions_are_penalised_in_all_their_tokens(tmp_path, mask):
    output = scored(build(tmp_path, invalid_json="penalise", invalid_json_penalty=5.0, mask=mask))
    rewards = torch.tensor([0.0, 1.0, -3.0, -2.0])
    torch.testing.assert_close(output["advantages"], (rewards - (rewards.sum() - rewards) / 3).repeat(4))
    assert output["tool_mask"][:4].sum(1).tolist() == [8, 16 if mask == "completion" else 8, 9, 11]


def test_options_that_cannot_be_are_one_line(tmp_path):
    for options, fix in (
        ({"mask": "json"}, "'completion' or 'json_actions'"), ({"invalid_json": "no"}, "'drop' or 'penalise'"),
        ({"invalid_json_penalty": -1.0}, "0 or more"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=fix):
            build(tmp_path, **options)
