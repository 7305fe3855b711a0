"""The review snippets, and what is made of them: prompts, and preference pairs.

The snippets lie beside the recipes, not inside the package (they are 1.2 MB of data under their own licence). They are
looked for in `data_dir`, by default the `recipes/data` of the clone this package was imported from; a package
installed without a clone says so, and has `trl_ext.tiny.prompts()`.
"""

import hashlib
import random
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

from datasets import Dataset

from ..errors import UserError

REVIEWS = "reviews"
HELD_OUT = 600
_DATA_DIR = Path(__file__).resolve().parents[2] / "recipes" / "data"
_SNIPPETS = "movie_review_snippets.tsv"


def load_reviews(split: str = "train", data_dir: str | Path | None = None) -> Dataset:
    """The review snippets: columns `text` and `rating` (-4 very negative to 4 very positive, mean of 20 judges).

    `test` is the 600 texts whose SHA-256 is smallest, `train` the others: the same split on every machine, whatever
    the order of the file, and a text that occurs twice never lies on both sides.

    Raises:
        UserError: another split, or no snippets in `data_dir`.
    """
    if split not in ("train", "test"):
        raise UserError(f"no split {split!r} in dataset {REVIEWS!r}; there are: train, test")
    path = Path(data_dir or _DATA_DIR) / _SNIPPETS
    if not path.is_file():
        raise UserError(f"no {path}: pass the clone's recipes/data as data_dir, or use trl_ext.tiny.prompts()")
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    held_out = set(sorted({text for _, text in rows}, key=_digest)[:HELD_OUT])
    kept = [(float(rating), text) for rating, text in rows if (text in held_out) == (split == "test")]
    return Dataset.from_dict({"text": [text for _, text in kept], "rating": [rating for rating, _ in kept]})


def review_prompts(split: str = "train", words: int = 3, data_dir: str | Path | None = None) -> Dataset:
    """Openings of review snippets, each once: column `prompt`. No opening of `test` occurs in `train`."""
    openings = prefixes(load_reviews(split, data_dir)["text"][:], words)  # [:] since a column is read row by row
    if split == "test":
        seen = set(prefixes(load_reviews("train", data_dir)["text"][:], words))
        openings = [opening for opening in openings if opening not in seen]
    return Dataset.from_dict({"prompt": openings})


def prefixes(texts: Iterable[str], words: int = 3) -> list[str]:
    """The first `words` words of each text that has more, without repetition, in order of appearance."""
    parts = (text.split() for text in texts)
    return list(dict.fromkeys(" ".join(part[:words]) for part in parts if len(part) > words))


def review_pairs(
    split: str = "train",
    num_pairs: int = HELD_OUT,
    min_gap: float = 1.5,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Dataset:
    """Pairs of review snippets of which the judges liked one better: columns `chosen`, `rejected` and `rating_gap`.

    Drawn evenly, without repetition, from all pairs of the split whose ratings differ by at least `min_gap`: the same
    pairs on every machine, whatever the order of the file. A text of `test` is in no pair of `train`.

    Args:
        num_pairs: how many pairs.
        min_gap: in points of the rating, above 0, which spans -4..4; the judges agree less on closer pairs.
        seed: another seed draws other pairs.

    Raises:
        UserError: fewer pairs than wanted have that gap, or a gap or number that is not above 0.
    """
    if num_pairs < 1 or not min_gap > 0:
        raise UserError(f"num_pairs and min_gap must be above 0, not {num_pairs} and {min_gap}")
    reviews = load_reviews(split, data_dir)
    # A text that occurs twice counts once, with its higher rating.
    rating_of = dict(sorted(zip(reviews["text"][:], reviews["rating"][:], strict=True)))
    rated = sorted((rating, text) for text, rating in rating_of.items())
    ratings = [rating for rating, _ in rated]
    # Those far enough below a chosen text come first in `rated`; pairs are numbered in that order, none is built.
    below = [bisect_right(ratings, rating - min_gap + 1e-9) for rating in ratings]
    ends = list(accumulate(below))
    if num_pairs > ends[-1]:
        raise UserError(f"only {ends[-1]} pairs of {split!r} differ by {min_gap}: lower min_gap or num_pairs")
    drawn = [(bisect_right(ends, number), number) for number in random.Random(seed).sample(range(ends[-1]), num_pairs)]
    pairs = [(rated[i], rated[number - ends[i] + below[i]]) for i, number in drawn]
    return Dataset.from_dict(
        {
            "chosen": [text for (_, text), _ in pairs],
            "rejected": [text for _, (_, text) in pairs],
            "rating_gap": [round(better - worse, 6) for (better, _), (worse, _) in pairs],
        }
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
