import pytest

from trl_ext.rewards.text import completion_text, prompt_text


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
