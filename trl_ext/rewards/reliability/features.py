"""What of a completion a reward may be mistaken about: how long it is, and how much it repeats."""

from itertools import pairwise

import numpy as np

from trl_ext.rewards.text import Completion, completion_text

_LAST = 100  # words whose pairs are looked at: a policy that degenerates does so towards the end


def features(completions: list[Completion]) -> dict[str, np.ndarray]:
    """`length` in words, and `repetition`: of the last 100 words 1 minus the share of distinct pairs of neighbours."""
    lengths, repetitions = [], []
    for completion in completions:
        words = completion_text(completion).split()
        lengths.append(len(words))
        words = words[-_LAST:]
        pairs = len(words) - 1
        repetitions.append(1 - len(set(pairwise(words))) / pairs if pairs > 0 else 0.0)
    return {"length": np.array(lengths, dtype=float), "repetition": np.array(repetitions, dtype=float)}
