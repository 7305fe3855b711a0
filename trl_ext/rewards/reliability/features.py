"""What of a completion a reward may be mistaken about: how long it is, and how much it repeats."""

from itertools import pairwise

import numpy as np

from trl_ext.rewards.text import Completion, completion_text

_LONGEST = 2000  # words looked at


def features(completions: list[Completion]) -> dict[str, np.ndarray]:
    """`length` in words, and `repetition`: 1 minus the share of distinct pairs of words."""
    lengths, repetitions = [], []
    for completion in completions:
        words = completion_text(completion).lower().split(None, _LONGEST)[:_LONGEST]
        lengths.append(len(words))
        pairs = len(words) - 1
        repetitions.append(1 - len(set(pairwise(words))) / pairs if pairs > 0 else 0.0)
    return {"length": np.array(lengths, dtype=float), "repetition": np.array(repetitions, dtype=float)}
