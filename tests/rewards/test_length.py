import pickle

import pytest

from trl_ext.errors import UserError
from trl_ext.rewards import LengthReward


@pytest.mark.parametrize(
    ("words", "score"),
    [
        *[(0, 0.0), (5, 0.0), (6, 0.0), (7, 0.25), (8, 0.5), (9, 0.75)],
        *[(10, 1.0), (15, 1.0), (20, 1.0)],
        *[(21, 0.75), (22, 0.5), (23, 0.25), (24, 0.0), (25, 0.0), (400, 0.0)],
    ],
)
def test_band_of_10_to_20_words_with_edges_of_4(words, score):
    reward = LengthReward(minimum=10, maximum=20, edge=4)
    assert reward(prompts=[""], completions=["word " * words]) == [score]


def test_the_defaults_want_10_to_60_words_with_edges_of_5():
    texts = ["word " * words for words in (5, 6, 10, 60, 64, 65)]
    assert LengthReward()(prompts=[""] * 6, completions=texts) == pytest.approx([0.0, 0.2, 1.0, 1.0, 0.2, 0.0])


def test_without_an_edge_the_band_is_hard():
    reward = LengthReward(minimum=2, maximum=3, edge=0)
    assert reward(prompts=[""] * 4, completions=["a", "a b", "a b c", "a b c d"]) == [0.0, 1.0, 1.0, 0.0]


def test_tokens_are_counted_as_sampled_and_not_in_the_text():
    reward = LengthReward(minimum=3, maximum=3, edge=2, unit="tokens")
    assert reward(prompts=["", ""], completions=["one", "a b c"], completion_ids=[[1, 2, 3], [1, 2]]) == [1.0, 0.5]


def test_tokens_without_ids_name_the_other_unit():
    with pytest.raises(UserError, match="unit='words'"):
        LengthReward(minimum=1, maximum=2, unit="tokens")(prompts=[""], completions=["a"])


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"minimum": 5, "maximum": 4}, "minimum=5, maximum=4"),
        ({"minimum": -1, "maximum": 4}, "at least 0 for minimum, not -1"),
        ({"minimum": 1, "maximum": 4, "edge": -2}, "edge >= 0, not -2"),
        ({"minimum": 1, "maximum": 4, "unit": "letters"}, "'words' and 'tokens', not 'letters'"),
    ],
)
def test_a_band_that_makes_no_sense_is_named(kwargs, said):
    with pytest.raises(UserError, match=said):
        LengthReward(**kwargs)


def test_pickles():
    copy = pickle.loads(pickle.dumps(LengthReward(minimum=2, maximum=3, edge=4)))
    assert copy(prompts=[""], completions=["a"]) == [0.75]
