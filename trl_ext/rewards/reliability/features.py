"""What of a completion a reward may be mistaken about: how long it is, and how much it repeats."""

from itertools import pairwise

import numpy as np

from trl_ext.rewards.text import Completion, completion_text, words_of

_LAST = 50  # words whose pairs are looked at: a policy that degenerates does so towards the end


def features(completions: list[Completion]) -> dict[str, np.ndarray]:
    """`length` in words (before the last 50 single spaces are counted), and `repetition`: of the last 50 words 1 minus
    the share of distinct pairs of neighbours."""
    lengths, repetitions = [], []
    for completion in completions:
        text = completion_text(completion)
        before = 0
        if text.isascii():
            words = text.rsplit(None, _LAST)
            if len(words) > _LAST:
                before = words.pop(0).strip().count(" ") + 1
        else:
            words = words_of(text)
            before, words = max(len(words) - _LAST, 0), words[-_LAST:]
        lengths.append(before + len(words))
        pairs = len(words) - 1
        repetitions.append(1 - len(set(pairwise(words))) / pairs if pairs > 0 else 0.0)
    return {"length": np.array(lengths, dtype=float), "repetition": np.array(repetitions, dtype=float)}
