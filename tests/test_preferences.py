"""Preference pairs of the review snippets, and preference data of others in each of TRL's forms."""

import hashlib
import json
from pathlib import Path

import datasets
import pytest

from trl_ext import UserError
from trl_ext.data import load_preferences, load_reviews, review_pairs

SNIPPETS = Path(__file__).parents[1] / "recipes" / "data" / "movie_review_snippets.tsv"
# Ratings of a toy file; with a gap of 1.5 the pairs are ad, bd, ae, be, ce and de: worked out by hand.
TOY = {"a": 2.1, "b": 2.0, "c": 1.0, "d": 0.5, "e": -1.0}
TOY_PAIRS = {("a", "d"), ("b", "d"), ("a", "e"), ("b", "e"), ("c", "e"), ("d", "e")}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write(folder: Path, ratings: dict[str, float], monkeypatch) -> Path:
    """A folder of snippets all of which are in `train`."""
    monkeypatch.setattr("trl_ext.data.reviews.HELD_OUT", 0)
    lines = "".join(f"{rating}\t{text}\n" for text, rating in ratings.items())
    (folder / SNIPPETS.name).write_text(f"rating\ttext\n{lines}", encoding="utf-8")
    return folder


def pairs_of(dataset) -> list[tuple[str, str]]:
    return list(zip(dataset["chosen"], dataset["rejected"], strict=True))


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_judges_liked_the_chosen_text_better_by_the_gap(split):
    rating_of = dict(sorted(zip(*(load_reviews(split)[name] for name in ("text", "rating")), strict=True)))
    pairs = review_pairs(split, 600)
    assert len(pairs) == len(set(pairs_of(pairs))) == 600
    for row in pairs:
        gap = rating_of[row["chosen"]] - rating_of[row["rejected"]]
        assert gap > 1.5 - 1e-6 and row["rating_gap"] == pytest.approx(gap, abs=1e-5)


def test_no_held_out_text_is_trained_on():
    train, test = load_preferences(num_pairs=20_000), load_preferences(split="test")
    texts = [{text for pair in pairs_of(each) for text in pair} for each in (train, test)]
    assert len(test) == 600 and not texts[0] & texts[1]
    assert len(texts[0]) > 9000  # of 10,005: the draw is not of a few


def test_every_pair_with_that_gap_can_be_drawn_and_no_other(tmp_path, monkeypatch):
    folder = write(tmp_path, TOY, monkeypatch)
    assert set(pairs_of(review_pairs(num_pairs=6, data_dir=folder))) == TOY_PAIRS
    assert set(pairs_of(review_pairs(num_pairs=1, min_gap=3.1, data_dir=folder))) == {("a", "e")}


def test_pairs_are_drawn_evenly(tmp_path, monkeypatch):
    folder = write(tmp_path, TOY, monkeypatch)
    drawn = [pairs_of(review_pairs(num_pairs=1, seed=seed, data_dir=folder))[0] for seed in range(600)]
    for pair in TOY_PAIRS:
        assert 65 < drawn.count(pair) < 135  # 100 expected, deviation 9.1


def test_the_pairs_are_the_same_on_every_machine_and_in_any_order_of_the_file(tmp_path):
    text = "\n".join("\t".join(pair) for pair in pairs_of(review_pairs("test")))
    assert hashlib.sha256(text.encode()).hexdigest().startswith("a8a4075fbf0b8216a747")
    lines = SNIPPETS.read_text(encoding="utf-8").splitlines()
    (tmp_path / SNIPPETS.name).write_text("\n".join([lines[0], *reversed(lines[1:])]), encoding="utf-8")
    assert pairs_of(review_pairs("test", data_dir=tmp_path)) == pairs_of(review_pairs("test"))
    assert pairs_of(review_pairs("test", seed=1)) != pairs_of(review_pairs("test"))


def test_a_text_that_occurs_twice_counts_once_with_its_higher_rating(tmp_path, monkeypatch):
    monkeypatch.setattr("trl_ext.data.reviews.HELD_OUT", 0)
    for order in (["2.0\ta", "-4.0\ta"], ["-4.0\ta", "2.0\ta"]):
        (tmp_path / SNIPPETS.name).write_text("\n".join(["rating\ttext", *order, "0.0\tb"]), encoding="utf-8")
        assert pairs_of(review_pairs(num_pairs=1, data_dir=tmp_path)) == [("a", "b")]


def write_rows(tmp_path: Path, *rows: dict) -> str:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


ASKED = [{"role": "user", "content": "hello"}]
GOOD, BAD = ([{"role": "assistant", "content": text}] for text in ("hi", "go"))


@pytest.mark.parametrize(
    "row",
    [
        {"chosen": "good", "rejected": "bad"},
        {"prompt": "a film", "chosen": " good", "rejected": " bad"},
        {"chosen": ASKED + GOOD, "rejected": ASKED + BAD},
        {"prompt": ASKED, "chosen": GOOD, "rejected": BAD},
    ],
)
def test_each_form_of_preferences_passes_untouched(tmp_path, row):
    assert load_preferences(write_rows(tmp_path, row))[0] == row


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"chosen": "a"}, "no column 'rejected' in dataset"),
        ({"better": "a", "worse": "b"}, "which has better, worse: a preference is in the columns chosen and rejected"),
        ({"chosen": "a", "rejected": GOOD}, "it has chosen: text, rejected: messages"),
        ({"prompt": "a", "chosen": GOOD, "rejected": BAD}, "it has prompt: text, chosen: messages"),
        ({"chosen": 1, "rejected": 2}, "it has chosen: int, rejected: int"),
    ],
)
def test_other_columns_are_refused_in_one_line(tmp_path, row, said):
    with pytest.raises(UserError) as caught:
        load_preferences(write_rows(tmp_path, row))
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("save", ["save_to_disk", "to_parquet"])
def test_a_dataset_without_rows_is_empty(tmp_path, save):
    path = tmp_path / f"none.{save.removeprefix('to_')}"
    getattr(datasets.Dataset.from_dict({"chosen": [], "rejected": []}), save)(path)
    with pytest.raises(UserError, match="split 'train', is empty"):
        load_preferences(str(path))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_pairs": 7}, "only 6 pairs of 'train' differ by 1.5: lower min_gap or num_pairs"),
        ({"min_gap": 9.0}, "only 0 pairs of 'train' differ by 9.0"),
        ({"min_gap": 0.0}, "num_pairs and min_gap must be above 0, not 1 and 0.0"),
        ({"min_gap": float("nan")}, "must be above 0, not 1 and nan"),
        ({"num_pairs": 0}, "must be above 0, not 0 and 1.5"),
        ({"split": "dev"}, "no split 'dev' in dataset 'reviews'"),
    ],
)
def test_pairs_that_cannot_be_drawn_are_one_line(tmp_path, monkeypatch, options, said):
    folder = write(tmp_path, TOY, monkeypatch)
    with pytest.raises(UserError) as caught:
        load_preferences(**{"num_pairs": 1, "data_dir": folder, **options})
    assert said in str(caught.value)
