import pickle
import subprocess
import sys
import unicodedata

import pytest

from trl_ext.errors import UserError
from trl_ext.rewards.keywords import KeywordReward

WEIGHTS = {"good": 1.0, "not good": -2.0, "great fun": 0.5, "C++": 4.0, "art": 8.0, "don't": 16.0}


def score(text, weights=WEIGHTS, **kwargs):
    (value,) = KeywordReward(weights, **kwargs)(prompts=[""], completions=[text])
    return value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0.0),
        ("nothing of the kind", 0.0),
        ("good", 1.0),
        ("It was GOOD!", 1.0),
        ("good, good and good", 1.0),  # once
        ("goods and a goodbye", 0.0),  # whole words
        ("a party", 0.0),
        ("state-of-the-art", 8.0),
        ("not good", -2.0),  # the phrase alone
        ("not good, but good", -1.0),  # each once
        ("not very good", 1.0),
        ("great  \n fun", 0.5),  # any white space
        ("great. Fun!", 0.0),  # punctuation between
        ("in C++.", 4.0),
        ("in C", 0.0),
        ("I don't", 16.0),
        ("good great fun", 1.5),
    ],
)
def test_whole_words_and_phrases_count_once_by_hand(text, value):
    assert score(text) == value
    assert score([{"role": "assistant", "content": text}]) == value


def test_every_mention_counts_when_asked():
    assert score("good, good and not good", every_mention=True) == 1 + 1 - 2


def test_where_keywords_overlap_the_first_counts_and_then_the_longest():
    weights = {"a b": 1.0, "b c d": 10.0, "a": 100.0, "a b c": 1000.0}
    assert score("a b c d", weights) == 1000.0
    assert score("a b d", weights) == 1.0
    assert score("a c", weights) == 100.0
    assert score("x b c d", weights) == 10.0


def test_case_counts_when_asked():
    assert score("good Good", {"Good": 1.0, "good": 2.0}, case_sensitive=True) == 3.0
    assert score("GOOD", {"Good": 1.0}, case_sensitive=True) == 0.0


@pytest.mark.parametrize(("value", "clipped"), [("good", 1.0), ("C++ art", 1.5), ("not good", -0.5), ("x", 0.0)])
def test_clip_bounds_the_sum(value, clipped):
    assert score(value, clip=[-0.5, 1.5]) == clipped


def test_both_ways_to_write_an_accent_and_all_of_its_cases_are_one_word():
    weights = {"café": 1.0, "STRASSE": 10.0}
    assert score(unicodedata.normalize("NFD", "Das CAFÉ"), weights) == 1.0
    assert score("cafe", weights) == 0.0
    assert score(unicodedata.normalize("NFD", "café"), {"cafe": 1.0}) == 0.0
    assert score("Straße", weights) == 10.0


def test_vowel_signs_belong_to_the_word():
    assert score("हिन्दी", {"हिन्दी": 1.0}) == 1.0
    assert score("हिन्दी", {"ह": 1.0}) == 0.0


def test_the_sum_does_not_depend_on_the_order_of_the_words_or_the_hash_seed():
    weights = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 1e15, "e": -1e15}
    assert score("a b c d e", weights) == score("d c b a e", weights) == pytest.approx(0.6)
    program = (
        "from trl_ext.rewards.keywords import KeywordReward;"
        f"print(KeywordReward({weights!r})([''], ['e d c b a', 'c a b']))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        (
            {"weights": ["good"]},
            r"needs a mapping for weights, e.g. \{great: 1.0, boring: -1.0\}, not \['good'\]",
        ),
        ({"weights": {}}, "needs a mapping for weights"),
        ({"weights": {False: 1.0}}, "has in weights the key False, no text: quote"),
        ({"weights": {"  ": 1.0}}, "has in weights the key ' '"),
        ({"weights": {"good": "high"}}, "needs a number for the weight of 'good', e.g. 1.0, not 'high'"),
        ({"weights": {"good": True}}, "needs a number for the weight of 'good', e.g. 1.0, not True"),
        ({"weights": {"good": float("nan")}}, "needs a number for the weight of 'good', e.g. 1.0, not nan"),
        ({"weights": {"Good": 1, "good": 2}}, "has 'good' twice, written in two ways"),
        ({"case_sensitive": "yes"}, "needs true or false for case_sensitive, not 'yes'"),
        ({"every_mention": 1}, "needs true or false for every_mention, not 1"),
        ({"clip": 1.0}, r"needs two numbers for clip, e.g. clip: \[-1.0, 1.0\], not 1.0"),
        ({"clip": [1.0, -1.0]}, "needs the lower end of clip first"),
        ({"clip": [0, "1"]}, "needs a number for the ends of clip"),
    ],
)
def test_options_that_make_no_sense_are_named(kwargs, said):
    with pytest.raises(UserError, match=f"^keywords {said}") as error:
        KeywordReward(**{"weights": {"good": 1.0}} | kwargs)
    assert "\n" not in str(error.value)


def test_pickles():
    copy = pickle.loads(pickle.dumps(KeywordReward(WEIGHTS, every_mention=True, clip=[0, 3])))
    assert copy(prompts=[""], completions=["good good art"]) == [3.0]
