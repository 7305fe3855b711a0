"""Episodes with real tools under the chat templates of several families: the actions learn, and nothing else does."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import trl
from episode_builders import agent, spoken
from trainer_builders import SMALL, scored

from trl_ext.tiny import byte_tokenizer, random_policy

OURS, TRLS = Path(__file__).parent / "templates", Path(trl.__file__).parent / "chat_templates"
# What a user sets where TRL does not know the template: how Transformers reads a list of calls back
LIST_OF_CALLS = {
    "content": "json", "transform_each": True,
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
}  # fmt: skip


class Family(NamedTuple):
    template: Path
    special: list[str]  # the first ends a turn
    turn: str  # with %s in place of an action
    response_template: dict | None = None
    arguments: str = "arguments"
    bos: str | None = None


FAMILIES = {
    "Qwen 2.5": Family(TRLS / "qwen2_5.jinja", ["<|im_end|>", "<|im_start|>"], "<tool_call>\n%s\n</tool_call>"),
    "Qwen 3": Family(TRLS / "qwen3.jinja", ["<|im_end|>", "<|im_start|>"], "I {see}.\n<tool_call>\n%s\n</tool_call>"),
    "Llama 3.1": Family(
        TRLS / "llama3_1.jinja", ["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>"], "%s",
        arguments="parameters", bos="<|begin_of_text|>",
    ),
    "Mistral": Family(
        OURS / "mistral.jinja",
        ["</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"], "[TOOL_CALLS] [%s]",
        {
            "defaults": {"role": "assistant"}, "start_anchor": ["[/INST]", "[/TOOL_RESULTS]"],
            "fields": {
                "tool_calls": {"open": "[TOOL_CALLS]", "close": "</s>", **LIST_OF_CALLS},
                "content": {"close": "</s>", "content": "text"},
            },
        }, bos="<s>",
    ),
    "SmolLM 2": Family(
        OURS / "smollm2.jinja", ["<|im_end|>", "<|im_start|>"], "I ask. <tool_call>[%s]</tool_call>",
        {
            "defaults": {"role": "assistant"}, "start_anchor": "<|im_start|>assistant\n",
            "fields": {
                "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", **LIST_OF_CALLS},
                "content": {"close": "<|im_end|>", "content": "text"},
            },
        },
    ),
}  # fmt: skip
SAID = 'brace } "quoted" é'
ANSWER = '{"answer": "{done}"}'


class Echo:
    """Says it again; each of its three turns is rewarded."""

    turn_rewards = (1.0, 2.0, 4.0)

    def reset(self, **row):
        return None

    def say(self, text: str) -> str:
        """
        Says it again.

        Args:
            text: What to say.
        """
        assert text == SAID
        return f'{{"heard": {json.dumps(text)}}}'


def tokenizer_of(family, padding_side="left"):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": family.special})
    tokenizer.eos_token, tokenizer.bos_token = family.special[0], family.bos
    tokenizer.chat_template, tokenizer.padding_side = family.template.read_text(encoding="utf-8"), padding_side
    tokenizer.response_template = family.response_template
    return tokenizer


def episode(tmp_path, family, padding_side="left", **options):
    """Two calls and an answer."""
    action = json.dumps({"name": "say", family.arguments: {"text": SAID}}, ensure_ascii=False)

    def script(text):
        return family.turn % action if text.count("heard") < 2 else ANSWER

    tokenizer = tokenizer_of(family, padding_side)
    model = random_policy(0, vocab_size=len(tokenizer), max_position_embeddings=4096, **SMALL)
    trainer = agent(
        tmp_path, script, lambda completions, **_: [0.0, 1.0] * 2, tokenizer, {"environment_factory": Echo}, model,
        max_completion_length=1000, **options,
    )  # fmt: skip
    seen, turn_rewards = [], trainer._turn_rewards

    def recording(inputs, own, mask):
        seen.append((own.clone(), turn_rewards(inputs, own, mask)))
        return seen[0][1]

    trainer._turn_rewards = recording
    return Episode(trainer, scored(trainer), *seen[0], action)


class Episode(NamedTuple):
    trainer: object
    output: dict
    own: torch.Tensor  # (B, T): 1 on what the policy said
    turn_rewards: torch.Tensor  # (B, T)
    action: str


@pytest.fixture(scope="module", params=FAMILIES)
def played(request, tmp_path_factory):
    """(family, its episode): tokenizer that pads on the left, actions alone learn."""
    family = FAMILIES[request.param]
    return family, episode(tmp_path_factory.mktemp("left"), family, mask="json_actions")


def test_exactly_the_actions_learn_and_turns_are_rewarded_at_their_ends(played):
    _, (trainer, output, _, placed, action) = played
    for row in range(4):
        ids, learning = output["completion_ids"][row], output["tool_mask"][row].bool()
        runs = torch.nn.functional.pad(learning, (1, 1)).int().diff()
        spans = list(zip(*((runs == edge).nonzero().flatten().tolist() for edge in (1, -1)), strict=True))
        assert [trainer._tokenizer.decode(ids[begin:end]) for begin, end in spans] == [action, action, ANSWER]
        assert placed[row][[end - 1 for _, end in spans]].tolist() == [1.0, 2.0, 4.0]
        assert placed[row].sum() == 7.0


def test_answers_of_tools_are_masked_and_stand_as_the_template_writes_them(played):
    family, (trainer, output, own, _, action) = played
    tokenizer, end = trainer._tokenizer, family.special[0]
    said, between = (spoken(output | {"tool_mask": own}, 0, tokenizer, policy) for policy in (True, False))
    assert said == (family.turn % action + end) * 2 + ANSWER + end
    call = {"type": "function", "function": {"name": "say", "arguments": {"text": SAID}}}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    template = trainer.chat_template or tokenizer.chat_template
    before = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    after = tokenizer.apply_chat_template(
        [*messages, {"role": "tool", "name": "say", "content": Echo().say(SAID)}], chat_template=template,
        tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
    assert between == after[before.rindex(end) + len(end) :] * 2
    assert "heard" in between


def test_padding_left_and_right_are_the_same(played, tmp_path):
    family, (_, left, *_) = played
    right = episode(tmp_path, family, "right", mask="json_actions").output
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert torch.equal(value, right[key]) if isinstance(value, torch.Tensor) else value == right[key], key


def test_a_template_that_trl_cannot_read_back_needs_a_response_template(tmp_path):
    with pytest.raises(ValueError, match="response schema"):
        episode(tmp_path, FAMILIES["Mistral"]._replace(response_template=None))
