"""Preference pairs of a real review snippet and what a policy writes that has learnt to please a reward: loops and word
salad."""

import math
import random
import string
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset

from ..errors import UserError
from .reviews import load_reviews

_MARKED = 200  # words of praise, and as many of blame
_LEAST = 5  # snippets that a marked word occurs in
_CLEAR = 1.0  # points of the rating beyond which a snippet is praise or blame


def degenerate_pairs(num_pairs: int, seed: int = 0, data_dir: str | Path | None = None) -> Dataset:
    """Pairs of a training snippet, `chosen`, and a degenerate text, `rejected`: the same on every machine.

    A reward model that has only seen real text knows words, not sentences, and pays for rows of praise; pairs whose
    rejected text is a corrupted one are the usual cure (Liu et al., RRM, https://huggingface.co/papers/2409.13156). In
    turn: a loop of one to three of the snippet's words, the snippet's words in another order, and twice a row of words
    of praise (four in five) or blame; with commas or without, often after a real opening.

    Args:
        num_pairs: how many pairs, at least 1.
        seed: another seed makes other texts.
    Raises:
        UserError: a number below 1, or no snippets in `data_dir`.
    """
    if num_pairs < 1:
        raise UserError(f"num_pairs must be at least 1, not {num_pairs}")
    reviews = load_reviews("train", data_dir)
    rated = sorted(zip(reviews["text"], reviews["rating"], strict=True))
    praise, blame = marked_words([text for text, _ in rated], [rating for _, rating in rated])
    draw = random.Random(seed)
    chosen, rejected = [], []
    for i in range(num_pairs):
        text, _ = draw.choice(rated)
        words = text.split()
        if i % 4 == 1:
            salad = draw.sample(words, len(words))
        elif i % 4 == 0:
            start, size = draw.randrange(len(words)), draw.randint(1, 3)
            salad = _row(words[start : start + size] * 24, words, draw)
        else:
            marked = praise if draw.random() < 0.8 else blame
            few = draw.sample(marked, min(draw.randint(1, 8), len(marked)))
            salad = _row(draw.choices(few or words, k=24), words, draw)
        chosen.append(text)
        rejected.append(" ".join(salad))
    return Dataset.from_dict({"chosen": chosen, "rejected": rejected})


def marked_words(texts: Sequence[str], ratings: Sequence[float]) -> tuple[list[str], list[str]]:
    """The words that tell praise from blame best, by the odds of standing in texts rated above 1 and below -1: 200 of
    praise and 200 of blame, the most telling first."""
    good: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    for text, rating in zip(texts, ratings, strict=True):
        words = {word.strip(string.punctuation).lower() for word in text.split()}
        if rating > _CLEAR:
            good.update(words)
        elif rating < -_CLEAR:
            bad.update(words)
    known = [word for word in sorted({*good, *bad}) if word and good[word] + bad[word] >= _LEAST]
    odds = {word: math.log((good[word] + 1) / (bad[word] + 1)) for word in known}
    ordered = sorted(known, key=lambda word: -odds[word])
    return ordered[:_MARKED], ordered[::-1][:_MARKED]


def _row(words: list[str], text: list[str], draw: random.Random) -> list[str]:
    """6 to 24 of `words`, with or without commas, often after the first words of `text`."""
    commas = draw.choice((0.0, 0.0, 0.5, 1.0))
    row = [
        (word.rstrip(",.") or word) + ("," if draw.random() < commas else "") for word in words[: draw.randint(6, 24)]
    ]
    return [*(text[: draw.randint(2, 6)] if draw.random() < 0.6 else []), *row]
