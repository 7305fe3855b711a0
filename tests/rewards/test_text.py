import pytest

from trl_ext.rewards.length import LengthReward
from trl_ext.rewards.reliability.features import features
from trl_ext.rewards.repetition import LoopReward, RepetitionReward
from trl_ext.rewards.text import completion_text, prompt_text, words_of


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("as it is", "as it is"),
        ([{"role": "assistant", "content": "one"}], "one"),
        ([{"content": "without a role"}], "without a role"),
        (
            [{"role": "assistant", "content": None, "tool_calls": []}, {"role": "assistant", "content": "after"}],
            "after",
        ),
        (
            [
                {"role": "assistant", "content": "asks"},
                {"role": "tool", "content": "result"},
                {"role": "assistant", "content": "tells"},
            ],
            "asks\ntells",
        ),
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}], "a"),
        ([], ""),
    ],
)
def test_completion_is_what_the_assistant_wrote(completion, text):
    assert completion_text(completion) == text


def test_prompt_is_the_last_message():
    conversation = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    assert prompt_text(conversation) == "hello"
    assert prompt_text("plain") == "plain"
    assert prompt_text([]) == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a quiet  film.\n", ["a", "quiet", "film."]),
        ("un été chaud", ["un", "été", "chaud"]),
        ("很好。very good", ["很", "好。", "very", "good"]),
        ("映画が", ["映", "画", "が"]),
        ("หนังดี", ["ห", "นั", "ง", "ดี"]),  # with their vowel signs
        ("좋은 영화", ["좋은", "영화"]),  # Korean has spaces
        ("", []),
    ],
)
def test_words_are_letters_where_a_script_has_no_spaces(text, words):
    assert words_of(text) == words


def test_length_and_repetition_are_seen_in_such_scripts():
    text = "很好" * 20
    assert LengthReward(minimum=40, maximum=40, edge=0)(prompts=[""], completions=[text]) == [1.0]
    assert RepetitionReward()(prompts=[""], completions=[text]) == [2 / 39]
    assert LoopReward()(prompts=[""], completions=[text]) == [0.0]
    seen = features([text, "很好" * 100])
    assert seen["length"].tolist() == [40, 200]
    assert seen["repetition"].min() > 0.9
