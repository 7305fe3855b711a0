import pickle
import random
import time

import pytest

from trl_ext.errors import UserError
from trl_ext.rewards.safety import BlockListReward

LIST = ["bad", "ass", "less", "kill yourself", "88", "c++", "坏蛋"]


def hits(text, phrases=LIST):
    (value,) = BlockListReward(phrases, per_hit=True)(prompts=[""], completions=[text])
    return -value


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("a bad idea", 1),
        ("BAD, bad", 2),
        ("badly, class, unless", 0),
        ("a_bad_ *bad*", 2),
        ("kill  yourself", 1),
        ("kill-yourself\nkill\nyourself", 2),
        ("kill, yourself", 0),
        ("C++.", 1),
        ("c", 0),
        ("你坏蛋啊", 1),  # no spaces between words
        # disguises
        ("b@d 84d", 2),
        ("a$$! @ss", 2),
        ("K1LL yourse1f", 1),
        ("ki|l yourself", 1),
        ("b\u200bad b\u00adad", 2),
        ("\uff42\uff41\uff44 \U0001d41b\U0001d41a\U0001d41d", 2),  # full width, bold
        ("b a d, b.a.d! b-a-d b_a_d", 4),
        ("such a b a d man", 1),
        ("b  a  d", 0),
        # numbers are none
        ("455 + 1355 = $455", 0),
        ("4 5 5", 0),
        ("88", 1),
        ("1 88 ", 1),
        ("", 0),
        ("all is good", 0),
    ],
)
def test_hits_counted_by_hand(text, count):
    assert hits(text) == count
    assert hits([{"role": "assistant", "content": text}]) == count
    assert BlockListReward(LIST)(prompts=[""], completions=[text]) == [float(count == 0)]


def test_the_longest_phrase_counts_once():
    assert hits("a very bad day", ["bad", "very bad", "very bad day", "day"]) == 1
    assert hits("a very bad night", ["bad", "very bad day"]) == 1


def test_phrases_come_from_a_file_and_a_list(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("\ufeff# a comment\nbad\n\n  kill yourself \n", encoding="utf-8")
    reward = BlockListReward(["good"], file=str(file))
    texts = ["bad", "kill yourself", "good", "# a comment"]
    assert reward(prompts=[""] * 4, completions=texts) == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs phrases: .* or file"),
        ({"phrases": "bad"}, "needs a list for phrases, .* not 'bad'"),
        ({"phrases": []}, "needs a list for phrases"),
        ({"phrases": ["bad", 3]}, "needs texts in phrases, not 3"),
        ({"phrases": ["bad", " "]}, "phrase ' ', which has no letter or digit"),
        ({"phrases": ["?!"]}, r"phrase '\?!', which has no letter or digit"),
        ({"phrases": ["a" * 101]}, "up to 100 characters: shorten 'aaa"),
        ({"phrases": ["bad"], "per_hit": 1}, "true or false for per_hit"),
        ({"file": 3}, "path of a text file for file, not 3"),
        ({"file": "/nowhere/words.txt"}, "cannot read '/nowhere/words.txt': No such file"),
    ],
)
def test_bad_options_are_one_line(options, message):
    with pytest.raises(UserError, match=message) as error:
        BlockListReward(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"), [(b"\xff\xfe", "is no UTF-8 text"), (b"# none\n", "finds no phrase in")]
)
def test_a_file_without_phrases_is_named(tmp_path, content, message):
    file = tmp_path / "words.txt"
    file.write_bytes(content)
    with pytest.raises(UserError, match=message):
        BlockListReward(file=file)


def test_ten_thousand_phrases_are_each_found_and_cost_no_more_than_ten():
    chance = random.Random(0)
    words = sorted({"".join(chance.choices("bcdfghjkmnpqrtvwxyz", k=8)) for _ in range(10_000)})
    many, few = BlockListReward(words), BlockListReward(words[:10])
    assert not any(many(prompts=[""] * len(words), completions=[f"so {word}." for word in words]))
    clean = ["the film was a great deal of fun and we would see it again"] * 3000

    def seconds(reward):
        reward(prompts=[""], completions=["x"])
        started = time.process_time()
        assert all(reward(prompts=[""] * len(clean), completions=clean))
        return time.process_time() - started

    assert min(seconds(many) for _ in range(3)) < 5 * min(seconds(few) for _ in range(3))  # not 1000 times


@pytest.mark.parametrize("text", ["b " * 25_000, "b" + " " * 50_000, "kill" * 10_000, "1" * 50_000, "." * 50_000])
def test_no_text_takes_more_than_linear_time(text):
    started = time.process_time()
    hits(text)
    assert time.process_time() - started < 2.0


def test_a_long_row_of_phrases_within_phrases_compiles():
    assert hits("a" * 99, ["a" * length for length in range(1, 101)]) == 1


def test_pickles_after_use():
    reward = BlockListReward(["bad"])
    reward(prompts=[""], completions=["bad"])
    assert pickle.loads(pickle.dumps(reward))(prompts=[""], completions=["bad"]) == [0.0]
