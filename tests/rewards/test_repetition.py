import pickle

import pytest

from trl_ext.errors import UserError
from trl_ext.rewards import RepetitionReward


@pytest.mark.parametrize(
    ("n", "text", "score"),
    [
        (1, "a b c d", 1.0),
        (1, "a a a a", 0.25),
        (2, "a b a b a", 2 / 4),  # ab ba ab ba
        (2, "a b c a b d", 4 / 5),  # ab bc ca ab bd
        (3, "a b c a b c", 3 / 4),  # abc bca cab abc
        (2, "The the THE", 1 / 2),  # case does not count
        (2, "good good good good good", 1 / 4),
        (2, "alone", 1.0),
        (2, "", 1.0),
    ],
)
def test_distinct_n_counted_by_hand(n, text, score):
    assert RepetitionReward(n=n)(prompts=[""], completions=[text]) == [score]


def test_n_below_one_is_named():
    with pytest.raises(UserError, match="n >= 1, not 0"):
        RepetitionReward(n=0)


def test_pickles():
    copy = pickle.loads(pickle.dumps(RepetitionReward(n=1)))
    assert copy(prompts=[""], completions=["a a"]) == [0.5]
