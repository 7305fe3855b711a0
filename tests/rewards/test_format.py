import pickle
import time

import pytest

from trl_ext.errors import UserError
from trl_ext.rewards.format import RegexReward, TagsReward

GOOD = "<think>two and two</think>\n<answer>4</answer>"


def tags(text, **kwargs):
    (value,) = TagsReward(**kwargs)(prompts=[""], completions=[text])
    return value


def regex(text, *args, **kwargs):
    (value,) = RegexReward(*args, **kwargs)(prompts=[""], completions=[text])
    return value


@pytest.mark.parametrize(
    ("text", "value", "partial"),
    [
        # Conditions: think, answer, order; those that hold are counted by hand.
        (GOOD, 1, 3 / 3),
        (f"Well: {GOOD} so.", 1, 3 / 3),
        ("<think></think><answer></answer>", 1, 3 / 3),
        ("<answer>4</answer><think>two</think>", 0, 2 / 3),
        ("<think>so <answer>4</answer></think>", 0, 2 / 3),
        ("<think>so <answer>4</think></answer>", 0, 2 / 3),
        ("<think>so</think> 4", 0, 1 / 3),
        ("<think>so</think><answer>4", 0, 1 / 3),
        ("<think>so</think></answer>4<answer>", 0, 1 / 3),
        (f"{GOOD}<answer>5</answer>", 0, 1 / 3),  # twice
        (f"{GOOD}</answer>", 0, 1 / 3),
        ("<Think>so</Think><answer id='1'>4</answer>", 0, 0),
        ("4", 0, 0),
        ("", 0, 0),
    ],
)
def test_each_tag_once_and_in_order(text, value, partial):
    assert tags(text) == value
    assert tags(text, partial=True) == partial
    assert tags([{"role": "assistant", "content": text}]) == value


@pytest.mark.parametrize(
    ("text", "value", "partial"),
    [
        (f" {GOOD}\n", 1, 4 / 4),
        (f"Well: {GOOD}", 0, 3 / 4),
        (f"{GOOD} so", 0, 3 / 4),
        (GOOD.replace("\n", "then"), 0, 3 / 4),
        ("<answer>4</answer><think>two</think>", 0, 2 / 4),  # without the order, nothing outside does not count
        ("", 0, 0),
    ],
)
def test_nothing_outside_when_asked(text, value, partial):
    assert tags(text, only_tags=True) == value
    assert tags(text, only_tags=True, partial=True) == partial


def test_one_tag_has_no_order():
    assert tags("so <answer>4</answer>", tags=["answer"], partial=True) == 1.0
    assert tags("so <answer>4", tags=["answer"], partial=True) == 0.0
    assert tags("so <answer>4</answer>", tags=["answer"], partial=True, only_tags=True) == 0.5


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"tags": "think"}, r"needs a list for tags, e.g. \[think, answer\], not 'think'"),
        ({"tags": []}, "needs a list for tags"),
        ({"tags": ["think", "think"]}, "has 'think' twice in tags"),
        ({"tags": ["<think>"]}, "needs names without brackets, e.g. think for <think>, not '<think>'"),
        ({"tags": [3]}, "needs texts in tags, not 3"),
        ({"only_tags": "no"}, "needs true or false for only_tags"),
        ({"partial": 0.5}, "needs true or false for partial"),
    ],
)
def test_tags_that_make_no_sense_are_named(kwargs, said):
    with pytest.raises(UserError, match=f"^tags {said}"):
        TagsReward(**kwargs)


@pytest.mark.parametrize(
    ("pattern", "text", "search", "full"),
    [
        (r"\d+", "42", 1.0, 1.0),
        (r"\d+", "It is 42", 1.0, 0.0),
        (r"\d+", "none", 0.0, 0.0),
        (r"(?i)yes\.", "YES.", 1.0, 1.0),
        (r"a.b", "a\nb", 0.0, 0.0),
        (r"(?s)a.b", "a\nb", 1.0, 1.0),
        (r"a|ab", "ab", 1.0, 1.0),
        (r"\p{Script=Greek}+", "λόγος", 1.0, 1.0),
    ],
)
def test_a_pattern_is_searched_or_matches_all(pattern, text, search, full):
    assert regex(text, pattern) == search
    assert regex(text, pattern, full_match=True) == full
    assert regex([{"role": "assistant", "content": text}], pattern) == search


def test_the_two_values_can_be_chosen():
    reward = RegexReward("a", match=0.25, otherwise=-1)
    assert reward(prompts=["", ""], completions=["a", "b"]) == [0.25, -1.0]


CATASTROPHIC, FOR_EVER = "(a|aa)+$", "a" * 60 + "b"


def test_a_catastrophic_pattern_is_ended_and_named_with_the_completion():
    started = time.process_time()
    with pytest.raises(TimeoutError) as error:
        regex(FOR_EVER, CATASTROPHIC, timeout=0.05)
    assert time.process_time() - started < 2
    assert str(error.value) == (
        "regex: the pattern '(a|aa)+$' took longer than 0.05 s on the text that starts with '" + "a" * 56 + "..."
    )


@pytest.mark.parametrize(("on_timeout", "value"), [(-1, -1.0), (0.5, 0.5), ("none", None), (None, None)])
def test_a_value_in_place_of_the_time_out_is_for_that_completion_alone(on_timeout, value):
    reward = RegexReward(CATASTROPHIC, timeout=0.05, on_timeout=on_timeout)
    assert reward(prompts=[""] * 3, completions=["aaa", FOR_EVER, "bbb"]) == [1.0, value, 0.0]


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"pattern": "ab(c"}, r"cannot read the pattern 'ab\(c': missing \) at position 4"),
        ({"pattern": "*a"}, "cannot read the pattern .*: nothing to repeat at position 0"),
        ({"pattern": "(" * 20_000 + ")" * 20_000}, "cannot read the pattern .*: it is nested too deeply"),
        ({"pattern": ""}, "needs a regular expression for pattern, in quotes, not ''"),
        ({"pattern": 42}, "needs a regular expression for pattern, in quotes, not 42"),
        ({"full_match": "yes"}, "needs true or false for full_match"),
        ({"match": None}, "needs a number for match"),
        ({"otherwise": "0"}, "needs a number for otherwise"),
        ({"timeout": 0}, "needs timeout in seconds above 0, e.g. 1.0, not 0"),
        ({"timeout": None}, "needs timeout in seconds above 0"),
        ({"timeout": True}, "needs timeout in seconds above 0"),
        ({"on_timeout": "zero"}, "needs 'raise', 'none' or a number for on_timeout, not 'zero'"),
        ({"on_timeout": True}, "needs a number for on_timeout"),
    ],
)
def test_a_regex_that_makes_no_sense_is_named(kwargs, said):
    with pytest.raises(UserError, match=f"^regex {said}") as error:
        RegexReward(**{"pattern": "a"} | kwargs)
    assert "\n" not in str(error.value)


def test_both_pickle():
    copy = pickle.loads(pickle.dumps(TagsReward(["a"], only_tags=True)))
    assert copy(prompts=["", ""], completions=["<a>1</a>", "x<a>1</a>"]) == [1.0, 0.0]
    copy = pickle.loads(pickle.dumps(RegexReward(r"\d", full_match=True)))
    assert copy(prompts=["", ""], completions=["1", "12"]) == [1.0, 0.0]
