"""Do different prompts, or different tries, still bring different completions?"""

from trl_ext.rewards.reliability.numbers import ramp
from trl_ext.rewards.text import Completion, completion_text

LEAST = 32  # completions from which a share means something
_SHORT = 5  # words (median): shorter answers repeat by nature, and are compared with the run's own start


def distinct_share(completions: list[Completion]) -> float:
    """Distinct texts by all, white space at the ends aside."""
    texts = [completion_text(completion).strip() for completion in completions]
    return len(set(texts)) / len(texts) if texts else 1.0


def repeats_by_nature(lengths: list[float]) -> bool:
    return sorted(lengths)[len(lengths) // 2] < _SHORT


def diversity(share: float, start: float) -> float:
    """1 while four fifths of the distinct completions of the start are left, 0 from three tenths on."""
    return ramp(share / max(start, 1e-9), 0.8, 0.3)
