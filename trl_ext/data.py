"""Prompts, texts and preferences for the recipes: the review snippets of this repository, hub datasets, local files.

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

import datasets
from datasets import Dataset

from .errors import UserError

REVIEWS = "reviews"
HELD_OUT = 600
_DATA_DIR = Path(__file__).resolve().parents[1] / "recipes" / "data"
_SNIPPETS = "movie_review_snippets.tsv"
_READERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".txt": "text"}


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
    openings = prefixes(load_reviews(split, data_dir)["text"], words)
    if split == "test":
        seen = set(prefixes(load_reviews("train", data_dir)["text"], words))
        openings = [opening for opening in openings if opening not in seen]
    return Dataset.from_dict({"prompt": openings})


def prefixes(texts: Iterable[str], words: int = 3) -> list[str]:
    """The first `words` words of each text that has more, without repetition, in order of appearance."""
    parts = (text.split() for text in texts)
    return list(dict.fromkeys(" ".join(part[:words]) for part in parts if len(part) > words))


def load_prompts(
    dataset_name: str = REVIEWS,
    split: str = "train",
    column: str = "prompt",
    config: str | None = None,
    data_dir: str | Path | None = None,
) -> Dataset:
    """A dataset for trainers that sample: `column` renamed to `prompt`, texts or lists of messages; others untouched.

    Args:
        dataset_name: `reviews`, a local file (json, jsonl, csv, tsv, parquet, txt) or folder, or a hub dataset.
        config: configuration of a hub dataset, as `datasets.load_dataset` takes it.
        data_dir: where the snippets of `reviews` lie.

    Raises:
        UserError: no such dataset, split or column, no rows, or prompts that are neither text nor messages.
    """
    if dataset_name == REVIEWS:
        prompts = review_prompts(split, data_dir=data_dir)
        if column != "prompt":
            raise UserError(_no_column(prompts, column, dataset_name, "dataset_prompt_column"))
        return prompts
    dataset = _load(dataset_name, split, config)
    if column not in dataset.column_names:
        raise UserError(_no_column(dataset, column, dataset_name, "dataset_prompt_column"))
    if column != "prompt":
        others = dataset.remove_columns(["prompt"]) if "prompt" in dataset.column_names else dataset
        dataset = others.rename_column(column, "prompt")
    if not isinstance(dataset[0]["prompt"], str | list):
        kind = type(dataset[0]["prompt"]).__name__
        raise UserError(f"column {column!r} of dataset {dataset_name!r} holds {kind}; prompts are text or messages")
    return dataset


def load_texts(
    dataset_name: str = REVIEWS,
    split: str = "train",
    column: str = "text",
    config: str | None = None,
    data_dir: str | Path | None = None,
) -> Dataset:
    """A dataset for `SFTTrainer`: with texts in `column`, or else `messages`, or `prompt` and `completion`.

    Arguments and errors are those of `load_prompts`.
    """
    if dataset_name == REVIEWS:
        return load_reviews(split, data_dir).select_columns(["text"])
    dataset = _load(dataset_name, split, config)
    names = set(dataset.column_names)
    if column not in names and not ("messages" in names or {"prompt", "completion"} <= names):
        raise UserError(_no_column(dataset, column, dataset_name, "dataset_text_field"))
    return dataset


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
    rating_of = dict(sorted(zip(reviews["text"], reviews["rating"], strict=True)))
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


def load_preferences(
    dataset_name: str = REVIEWS,
    split: str = "train",
    config: str | None = None,
    num_pairs: int = HELD_OUT,
    min_gap: float = 1.5,
    data_dir: str | Path | None = None,
) -> Dataset:
    """A dataset for `RewardTrainer`: `chosen` and `rejected`, texts or lists of messages, with or without `prompt`.

    Args:
        dataset_name: as `load_prompts` takes it; `reviews` is `review_pairs`.
        num_pairs, min_gap: of `reviews` alone, see `review_pairs`.

    Raises:
        UserError: what `load_prompts` and `review_pairs` refuse, or columns that are not a preference.
    """
    if dataset_name == REVIEWS:
        return review_pairs(split, num_pairs, min_gap, data_dir=data_dir)
    dataset = _load(dataset_name, split, config)
    for name in ("chosen", "rejected"):
        if name not in dataset.column_names:
            there = ", ".join(dataset.column_names)
            raise UserError(
                f"no column {name!r} in dataset {dataset_name!r}, which has {there}: a preference is in the columns "
                "chosen and rejected, and prompt where there is one"
            )
    names = [name for name in ("prompt", "chosen", "rejected") if name in dataset.column_names]
    kinds = {name: _form(dataset[0][name]) for name in names}
    if len(set(kinds.values())) > 1 or None in kinds.values():
        found = ", ".join(f"{name}: {kind or type(dataset[0][name]).__name__}" for name, kind in kinds.items())
        raise UserError(f"dataset {dataset_name!r} mixes forms: all text or all lists of messages; it has {found}")
    return dataset


def _form(value: object) -> str | None:
    return "text" if isinstance(value, str) else "messages" if isinstance(value, list) else None


def _load(name: str, split: str, config: str | None) -> Dataset:
    try:
        return _read(name, split, config)
    except (StopIteration, IndexError) as error:  # how `datasets` fails where there are no rows at all
        raise UserError(_empty(name, split)) from error
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(_explain(name, split, error)) from error


def _read(name: str, split: str, config: str | None) -> Dataset:
    path = Path(name)
    if path.is_file() and path.suffix in _READERS:
        options = {"sep": "\t"} if path.suffix == ".tsv" else {}
        return datasets.load_dataset(_READERS[path.suffix], data_files=str(path), split=split, **options)
    if any((path / mark).is_file() for mark in ("state.json", "dataset_dict.json")):  # written by save_to_disk
        saved = datasets.load_from_disk(name)
        splits = saved if isinstance(saved, datasets.DatasetDict) else {"train": saved}
        if split not in splits:
            raise ValueError(f"Unknown split; there are: {', '.join(splits)}")
        return splits[split]
    return datasets.load_dataset(name, config, split=split)


def _explain(name: str, split: str, error: Exception) -> str:
    cause = " ".join(str(error.__cause__ or error).split())[:300]
    if cause.startswith("Unknown split"):
        return f"no split {split!r} in dataset {name!r}: {cause}"
    if isinstance(error, FileNotFoundError | ConnectionError) and not Path(name).exists():
        return f"no dataset {name!r}: neither a local file or folder nor a reachable hub dataset has that name"
    if cause.endswith("corresponds to no data!"):
        return _empty(name, split)
    return f"cannot read dataset {name!r}: {cause}"


def _empty(name: str, split: str) -> str:
    return f"dataset {name!r}, split {split!r}, is empty; choose another split or dataset"


def _no_column(dataset: Dataset, column: str, name: str, option: str) -> str:
    return f"no column {column!r} in dataset {name!r}; set {option} to one of: {', '.join(dataset.column_names)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
