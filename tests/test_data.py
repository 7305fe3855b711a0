"""The review snippets and their split; prompts and texts from local files; one line for every mistake."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import datasets
import pytest

from trl_ext import UserError
from trl_ext.data import load_prompts, load_reviews, load_texts, prefixes, review_prompts

SNIPPETS = Path(__file__).parents[1] / "recipes" / "data" / "movie_review_snippets.tsv"


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write_lines(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_train_and_test_are_the_whole_file_and_share_no_text():
    lines = SNIPPETS.read_text(encoding="utf-8").splitlines()[1:]
    parts = [load_reviews(split) for split in ("train", "test")]
    rows = [(f"{row['rating']:g}", row["text"]) for part in parts for row in part]
    assert Counter(rows) == Counter((f"{float(line.split(chr(9))[0]):g}", line.split("\t")[1]) for line in lines)
    train, test = (set(part["text"]) for part in parts)
    assert len(test) == 600 and not train & test


def test_the_held_out_texts_are_those_the_published_loss_was_measured_on():
    text = "\n".join(sorted(load_reviews("test")["text"]))
    assert hashlib.sha256(text.encode()).hexdigest().startswith("7d45371481495e40f569eacb80cb72e5")


def test_the_split_depends_on_the_texts_alone(tmp_path):
    lines = SNIPPETS.read_text(encoding="utf-8").splitlines()
    (tmp_path / SNIPPETS.name).write_text("\n".join([lines[0], *reversed(lines[1:])]), encoding="utf-8")
    assert set(load_reviews("test", tmp_path)["text"]) == set(load_reviews("test")["text"])


def test_ratings_stay_with_their_texts():
    rating_of = dict(zip(*(load_reviews("train")[name] for name in ("text", "rating")), strict=True))
    assert rating_of["Effective but too tepid biopic"] == -0.6


def test_prompts_are_three_words_each_once_and_no_test_prompt_is_seen_in_training():
    train, test = (review_prompts(split)["prompt"] for split in ("train", "test"))
    for prompts in (train, test):
        assert len(set(prompts)) == len(prompts)
        assert {len(prompt.split()) for prompt in prompts} == {3}
    assert len(train) > 8000 and len(test) > 400
    assert not set(train) & set(test)
    texts = list(load_reviews("test")["text"])
    assert all(any(" ".join(text.split()).startswith(prompt) for text in texts) for prompt in test)


def test_prefixes_leave_something_to_write_and_keep_the_order():
    assert prefixes(["a b c", "d e  f g", "a b c d", "d e f h"], words=3) == ["d e f", "a b c"]
    assert prefixes(["a b c", "a d"], words=1) == ["a"]


def test_the_default_data_set_is_reviews():
    assert list(load_prompts()["prompt"]) == list(review_prompts()["prompt"])
    texts = load_texts(split="test")
    assert texts.column_names == ["text"]
    assert list(texts["text"]) == list(load_reviews("test")["text"])


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_a_local_file_is_read_by_its_suffix(tmp_path, suffix):
    path = tmp_path / f"data.{suffix}"
    rows = datasets.Dataset.from_dict({"prompt": ["say, a\tb", "two"], "answer": [1, 2]})
    if suffix == "parquet":
        rows.to_parquet(path)
    elif suffix.startswith("json"):
        rows.to_json(path)
    else:
        rows.to_csv(path, sep="\t" if suffix == "tsv" else ",")
    assert load_prompts(str(path)).to_dict() == rows.to_dict()


def test_a_folder_and_a_saved_dataset_are_read(tmp_path):
    rows = datasets.Dataset.from_dict({"prompt": ["one", "two"]})
    (tmp_path / "folder").mkdir()
    write_lines(tmp_path / "folder" / "train.jsonl", *rows)
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=rows, held=rows.select([1])).save_to_disk(tmp_path / "splits")
    for name in ("folder", "one", "splits"):
        assert list(load_prompts(str(tmp_path / name))["prompt"]) == ["one", "two"]
    assert list(load_prompts(str(tmp_path / "splits"), "held")["prompt"]) == ["two"]
    with pytest.raises(UserError, match=r"no split 'test' in dataset .*there are: train, held"):
        load_prompts(str(tmp_path / "splits"), "test")


def test_another_column_becomes_prompt_and_the_rest_stays(tmp_path):
    name = write_lines(tmp_path / "a.jsonl", {"question": "why?", "prompt": "old", "solution": "because"})
    assert load_prompts(name, column="question")[0] == {"prompt": "why?", "solution": "because"}


def test_conversational_prompts_pass_untouched(tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    name = write_lines(tmp_path / "a.jsonl", {"prompt": messages})
    assert load_prompts(name)[0] == {"prompt": messages}


def test_every_form_of_supervised_data_passes(tmp_path):
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    for row in ({"text": "a"}, {"messages": chat}, {"prompt": "a", "completion": "b"}):
        assert load_texts(write_lines(tmp_path / f"{min(row)}.jsonl", row))[0] == row
    body = write_lines(tmp_path / "body.jsonl", {"body": "a"})
    assert load_texts(body, column="body")[0] == {"body": "a"}


def test_a_part_of_a_split_can_be_named(tmp_path):
    name = write_lines(tmp_path / "a.jsonl", *({"prompt": str(i)} for i in range(10)))
    assert list(load_prompts(name, "train[:3]")["prompt"]) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (None, {}, "neither a local file or folder nor a reachable hub dataset"),
        ('{"question": "a", "n": 1}', {}, "no column 'prompt' in dataset"),
        ('{"question": "a", "n": 1}', {}, "set dataset_prompt_column to one of: question, n"),
        ('{"prompt": 3}', {}, "column 'prompt' of dataset"),
        ('{"prompt": "a"}', {"split": "test"}, "no split 'test' in dataset"),
        ('{"prompt": "a"}', {"split": "train[:0]"}, "is empty"),
        ("[]", {}, "split 'train', is empty"),
        ("", {}, "split 'train', is empty"),
        ("{nonsense", {}, "cannot read dataset"),
    ],
)
def test_a_mistake_in_the_data_is_one_line(tmp_path, content, options, expected):
    path = tmp_path / "data.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError) as caught:
        load_prompts(str(path), **options)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("save", ["save_to_disk", "to_parquet", "to_csv"])
def test_a_dataset_without_rows_is_empty(tmp_path, save):
    path = tmp_path / f"none.{save.removeprefix('to_')}"
    getattr(datasets.Dataset.from_dict({"prompt": []}), save)(path)
    with pytest.raises(UserError, match="split 'train', is empty"):
        load_prompts(str(path))


def test_texts_name_the_columns_there_are(tmp_path):
    with pytest.raises(UserError, match=r"no column 'text' .* set dataset_text_field to one of: body, prompt"):
        load_texts(write_lines(tmp_path / "a.jsonl", {"body": "a", "prompt": "b"}))


@pytest.mark.parametrize("name", ["nobody/nothing", "nothing"])
def test_a_hub_dataset_out_of_reach_is_one_line(name):
    with pytest.raises(UserError, match=f"no dataset '{name}': neither"):
        load_prompts(name)


def test_reviews_say_which_splits_there_are_and_where_the_snippets_should_lie(tmp_path):
    with pytest.raises(UserError, match="no split 'validation' in dataset 'reviews'; there are: train, test"):
        load_prompts("reviews", "validation")
    with pytest.raises(UserError, match=r"movie_review_snippets\.tsv: pass the clone's recipes/data as data_dir"):
        load_reviews(data_dir=tmp_path)
