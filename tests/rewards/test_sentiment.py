import pickle
import sys

import pytest

from trl_ext.errors import UserError
from trl_ext.rewards import SentimentReward, sentiment
from trl_ext.rewards.sentiment import compound

pytest.importorskip("vaderSentiment")

# The compound scores that the package's README publishes (its line with emoji is older than the package's emoji list).
PUBLISHED = [
    ("VADER is smart, handsome, and funny.", 0.8316),
    ("VADER is smart, handsome, and funny!", 0.8439),
    ("VADER is very smart, handsome, and funny.", 0.8545),
    ("VADER is VERY SMART, handsome, and FUNNY.", 0.9227),
    ("VADER is VERY SMART, handsome, and FUNNY!!!", 0.9342),
    ("VADER is VERY SMART, uber handsome, and FRIGGIN FUNNY!!!", 0.9469),
    ("VADER is not smart, handsome, nor funny.", -0.7424),
    ("The book was good.", 0.4404),
    ("At least it isn't a horrible book.", 0.431),
    ("The book was only kind of good.", 0.3832),
    ("The plot was good, but the characters are uncompelling and the dialog is not great.", -0.7042),
    ("Today SUX!", -0.5461),
    ("Today only kinda sux! But I'll get by, lol", 0.5249),
    ("Make sure you :) or :D today!", 0.8633),
    ("Not bad at all", 0.431),
]
# Words on which the package's rules turn: its own lexicon, negation, boosters, idioms, contrast, emphasis, emoji.
WORDS = """
    good bad great horrible love hate no not never without doubt least at very so this or nor kind of kinda sort but
    isn't the movie bomb shit yeah right bad ass badass bus stop to die for BAD GOOD VERY ok :) :D \U0001f601 good!
    why?? uber hardly kiss of death beating heart A x
""".split()  # noqa: SIM905


@pytest.mark.parametrize(("text", "score"), PUBLISHED)
def test_published_example_sentences_get_their_published_score(text, score):
    assert SentimentReward()(prompts=[""], completions=[text]) == [score]


def test_every_score_equals_the_packages_own():
    """Short texts made of the words its rules are about, and long ones: the shortcut must not change any of them."""
    import random

    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    package, rng = SentimentIntensityAnalyzer(), random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(4000)]
    texts += [" ".join(rng.choices(WORDS, k=80)) for _ in range(50)] + ["", " ", "\n good \t", "GOOD", "caf\u00e9 good"]
    texts += ["it was a kiss of death", "only a beating heart", "we met at the bus stop", "to die for", "kind of good"]
    different = [text for text in texts if compound(text) != package.polarity_scores(text)["compound"]]
    assert different == []


def test_a_conversation_is_scored_on_what_the_assistant_wrote():
    conversation = [
        {"role": "assistant", "content": "The book was good."},
        {"role": "tool", "content": "horrible horrible horrible"},
    ]
    assert SentimentReward()(prompts=[""], completions=[conversation]) == [0.4404]


def test_empty_text_is_neutral():
    assert SentimentReward()(prompts=["", ""], completions=["", "the"]) == [0.0, 0.0]


def test_pickles():
    copy = pickle.loads(pickle.dumps(SentimentReward()))
    assert copy(prompts=[""], completions=["The book was good."]) == [0.4404]
    assert copy.__name__ == "sentiment"


def test_missing_package_names_the_installation_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "vaderSentiment", None)
    sentiment._vader.cache_clear()
    sentiment._analyzer.cache_clear()
    try:
        with pytest.raises(UserError, match=r'pip install "trl_ext\[rewards\]"') as error:
            SentimentReward()
        assert "\n" not in str(error.value)
    finally:
        sentiment._vader.cache_clear()
        sentiment._analyzer.cache_clear()
