"""Datasets of prompts, texts and preferences: `reviews`, `review_agent`, a local file or folder, or one of the hub."""

from pathlib import Path

import datasets
from datasets import Dataset

from ..errors import UserError
from .review_agent import REVIEW_AGENT, agent_demonstrations, agent_questions
from .reviews import HELD_OUT, REVIEWS, load_reviews, review_pairs, review_prompts

_READERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".txt": "text"}


def load_prompts(
    dataset_name: str = REVIEWS,
    split: str = "train",
    column: str = "prompt",
    config: str | None = None,
    data_dir: str | Path | None = None,
) -> Dataset:
    """A dataset for trainers that sample: `column` renamed to `prompt`, texts or lists of messages; others untouched.

    Args:
        dataset_name: `reviews`, `review_agent`, a local file (json, jsonl, csv, tsv, parquet, txt) or folder, or a hub
            dataset.
        config: configuration of a hub dataset, as `datasets.load_dataset` takes it.
        data_dir: where the snippets of `reviews` lie.

    Raises:
        UserError: no such dataset, split or column, no rows, or prompts that are neither text nor messages.
    """
    if dataset_name in (REVIEWS, REVIEW_AGENT):
        agent = dataset_name == REVIEW_AGENT
        prompts = agent_questions(split) if agent else review_prompts(split, data_dir=data_dir)
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
    if dataset_name == REVIEW_AGENT:
        return agent_demonstrations(split)
    dataset = _load(dataset_name, split, config)
    names = set(dataset.column_names)
    if column not in names and not ("messages" in names or {"prompt", "completion"} <= names):
        raise UserError(_no_column(dataset, column, dataset_name, "dataset_text_field"))
    return dataset


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
        return f"no split {split!r} in dataset {name!r}: {cause} (dataset_train_split, dataset_test_split)"
    if isinstance(error, FileNotFoundError | ConnectionError) and not Path(name).exists():
        return f"no dataset {name!r}: neither a local file or folder nor a reachable hub dataset has that name"
    if cause.endswith("corresponds to no data!"):
        return _empty(name, split)
    return f"cannot read dataset {name!r}: {cause}"


def _empty(name: str, split: str) -> str:
    return f"dataset {name!r}, split {split!r}, is empty; choose another split or dataset"


def _no_column(dataset: Dataset, column: str, name: str, option: str) -> str:
    return f"no column {column!r} in dataset {name!r}; set {option} to one of: {', '.join(dataset.column_names)}"
