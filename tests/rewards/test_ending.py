import pickle

import pytest

from trl_ext.errors import UserError
from trl_ext.rewards.ending import EndingReward

CATASTROPHIC = "(a|aa)+b"


def score(text, *args, **kwargs):
    (value,) = EndingReward(*args, **kwargs)(prompts=[""], completions=[text])
    return value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("It ends.", 1.0),
        ("Does it?", 1.0),
        ("It does!", 1.0),
        ("It does! \n\n", 1.0),
        ('She said "Yes."', 1.0),
        ("(He left.)", 1.0),
        ("Sie sagte: „Ja.“", 1.0),
        ("Il a dit : « Oui. »", 1.0),
        ("他说。", 1.0),
        ("and then...", 1.0),
        ("and then…", 1.0),
        ("It was cut off in the", 0.0),
        ("It was cut off,", 0.0),
        ('She said "Yes"', 0.0),
        ("A full stop. In the middle", 0.0),
        ("", 0.0),
        ("  ", 0.0),
        ('"', 0.0),
    ],
)
def test_a_sentence_ends_with_a_mark_behind_which_quotes_may_close(text, value):
    assert score(text) == value
    assert score([{"role": "assistant", "content": text}]) == value


def test_a_list_of_endings():
    endings = ["Thank you.", "Bye!  "]
    texts = ["Take it. Thank you.\n", "Bye!", "Bye! Or not", "thank you.", ""]
    assert [score(text, endings) for text in texts] == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert score("THANK YOU.", endings, case_sensitive=False) == 1.0


def test_a_pattern_must_reach_the_end():
    pattern = {"pattern": "[0-9]+|none"}
    texts = ["It is 42", "It is 42 \n", "It is 42.", "none", "none of 3 x"]
    assert [score(text, pattern) for text in texts] == [1.0, 1.0, 0.0, 1.0, 0.0]


def test_the_two_values_can_be_chosen():
    reward = EndingReward(match=0.5, otherwise=-1.0)
    assert reward(prompts=["", ""], completions=["Yes.", "No"]) == [0.5, -1.0]


def test_a_pattern_that_takes_too_long_is_named():
    with pytest.raises(TimeoutError, match=r"ending: .*'\(a\|aa\)\+b' took longer than 0.05 s .* starts with 'aaa"):
        score("a" * 60, {"pattern": CATASTROPHIC}, timeout=0.05)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"endings": "Thank you."}, r'needs for endings "sentence", a list such as .*, not \'Thank you.\''),
        ({"endings": None}, "needs for endings .* not None"),
        ({"endings": {"patern": "a"}}, "needs for endings .* not {'patern'"),
        ({"endings": []}, "needs a list for endings"),
        ({"endings": ["a", " "]}, "needs texts in endings, not ' '"),
        ({"endings": ["a", 1]}, "needs texts in endings, not 1: quote"),
        ({"endings": ["a", "a"]}, "has 'a' twice in endings"),
        ({"endings": {"pattern": "(a"}}, r"cannot read the pattern '\(a': missing \) at position 2"),
        ({"endings": {"pattern": ""}}, "needs a regular expression for pattern"),
        ({"endings": {"pattern": "a"}, "timeout": 0}, "needs timeout in seconds above 0"),
        ({"match": "1"}, "needs a number for match"),
        ({"otherwise": False}, "needs a number for otherwise"),
        ({"case_sensitive": 0}, "needs true or false for case_sensitive"),
    ],
)
def test_options_that_make_no_sense_are_named(kwargs, said):
    with pytest.raises(UserError, match=f"^ending {said}") as error:
        EndingReward(**kwargs)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("endings", ["sentence", ["ok."], {"pattern": r"k\."}])
def test_pickles(endings):
    copy = pickle.loads(pickle.dumps(EndingReward(endings)))
    assert copy(prompts=["", ""], completions=["ok.", "ok"]) == [1.0, 0.0]
