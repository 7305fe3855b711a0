"""Sentiment of a completion by VADER, a word list with rules for negation, emphasis and contrast."""

from functools import cache
from types import SimpleNamespace
from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.text import Completion, completion_text

# VADER judges a word by at most three words before it and two behind it.
_BEFORE, _AFTER = 3, 2


@cache
def _vader() -> Any:
    """The module; its absence is the user's to mend."""
    try:
        from vaderSentiment import vaderSentiment
    except ImportError as error:
        raise UserError(
            'The sentiment reward needs the package vaderSentiment: pip install "trl_ext[rewards]"'
        ) from error
    return vaderSentiment


@cache
def _analyzer() -> Any:
    return _vader().SentimentIntensityAnalyzer()


def compound(text: str) -> float:
    """VADER's compound score in -1..1, equal to `polarity_scores(text)["compound"]`.

    The rules are the package's own. What is saved is time: words outside its lexicon are not asked about, and each word
    is shown its neighbours alone, because the package lowercases all words again for each word it weighs.

    Paper: Hutto and Gilbert, VADER: A Parsimonious Rule-based Model for Sentiment Analysis of Social Media Text,
    ICWSM 2014.
    """
    vader, analyzer = _vader(), _analyzer()
    if not analyzer.emojis.keys().isdisjoint(text):  # rare: the package spells them out first
        return analyzer.polarity_scores(text)["compound"]
    sentence = vader.SentiText(text)
    words = sentence.words_and_emoticons
    lower = [word.lower() for word in words]
    valences: list[float] = []
    for i, word in enumerate(lower):
        kind_of = word == "kind" and lower[i + 1 : i + 2] == ["of"]
        if word not in analyzer.lexicon or kind_of:
            valences.append(0)
            continue
        start = max(0, i - _BEFORE)
        window = SimpleNamespace(words_and_emoticons=words[start : i + _AFTER + 1], is_cap_diff=sentence.is_cap_diff)
        valences += analyzer.sentiment_valence(0, window, words[i], i - start, [])
    return analyzer.score_valence(analyzer._but_check(words, valences), text)["compound"]


class SentimentReward:
    """The compound score of each completion: -1 very negative, 0 neutral, 1 very positive.

    Raises:
        UserError: vaderSentiment is not installed.
    """

    __name__ = "sentiment"

    def __init__(self) -> None:
        _analyzer()  # a missing package is reported before a model is loaded, not at the first step

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float]:
        return [compound(completion_text(completion)) for completion in completions]
