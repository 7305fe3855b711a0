import pickle
import random

import pytest

from trl_ext.errors import UserError
from trl_ext.rewards import RepetitionReward
from trl_ext.rewards.repetition import LoopReward


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


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("", 1.0),
        ("alone", 1.0),
        ("no word comes again here", 1.0),
        ("very very good", 1.0),  # twice is no loop
        ("very very very good", 1 / 4),
        ("great fun great fun great fun", 0.0),
        ("Great fun, great fun. GREAT FUN!", 0.0),  # case and punctuation do not matter
        ("great fun great fun great fun great", 0.0),  # the last repeat breaks off
        ("oh great fun great fun great fun at last", 3 / 9),
        ("great fun great fun great times", 1.0),
        ("great fun and great fun and more great fun", 1.0),  # not back to back
        ("a a a b c c c d", 2 / 8),
        ("a a a b a a a b a a a b", 0.0),  # a loop of loops
        ("!!! !!! !!! ok", 1 / 4),
        ("! ? . ok", 1.0),
    ],
)
def test_words_outside_of_loops_counted_by_hand(text, score):
    assert LoopReward()(prompts=[""], completions=[text]) == [score]
    assert LoopReward()(prompts=[""], completions=[[{"role": "assistant", "content": text}]]) == [score]


def test_repeats_says_how_often_is_a_loop():
    text = "very very good good good good"
    scores = [LoopReward(repeats=repeats)(prompts=[""], completions=[text])[0] for repeats in (2, 3, 4, 5)]
    assert scores == [0.0, 2 / 6, 2 / 6, 1.0]


def test_longest_bounds_the_ngrams_looked_for():
    text = "a b c d " * 3
    assert LoopReward(longest=3)(prompts=[""], completions=[text]) == [1.0]
    assert LoopReward(longest=4)(prompts=[""], completions=[text]) == [0.0]


def literal_loops(words, repeats, longest):
    """The definition word by word: from every start, an n-gram followed by itself, and by the start of one more."""
    inside = set()
    for n in range(1, longest + 1):
        for start in range(len(words)):
            gram, end = words[start : start + n], start + n
            while end < len(words) and words[end] == gram[(end - start) % n]:
                end += 1
            if len(gram) == n and end - start >= repeats * n:
                inside |= set(range(start, end))
    return 1 - len(inside) / len(words)


@pytest.mark.parametrize("repeats", [2, 3, 4])
@pytest.mark.parametrize("longest", [1, 2, 5, 20])
def test_loops_agree_with_the_definition_on_random_words(repeats, longest):
    generator = random.Random(10 * repeats + longest)
    reward = LoopReward(repeats=repeats, longest=longest)
    for _ in range(300):
        words = generator.choices("ab" if generator.random() < 0.5 else "abc", k=generator.randint(1, 25))
        expected = literal_loops(words, repeats, longest)
        assert reward(prompts=[""], completions=[" ".join(words)]) == [pytest.approx(expected)], words


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"repeats": 1}, "a whole number of at least 2 for repeats, not 1"),
        ({"repeats": 2.5}, "at least 2 for repeats, not 2.5"),
        ({"longest": 0}, "at least 1 for longest, not 0"),
        ({"longest": True}, "at least 1 for longest, not True"),
        ({"longest": "5"}, "at least 1 for longest, not '5'"),
    ],
)
def test_loops_that_make_no_sense_are_named(kwargs, said):
    with pytest.raises(UserError, match=f"^loops needs .*{said}"):
        LoopReward(**kwargs)


def test_loops_pickle():
    copy = pickle.loads(pickle.dumps(LoopReward(repeats=2, longest=1)))
    assert copy(prompts=["", ""], completions=["a a b b", "a b a b"]) == [0.0, 1.0]
