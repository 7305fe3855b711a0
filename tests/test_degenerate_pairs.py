"""Loops and word salad that a reward model must rank below real text."""

import hashlib

import pytest

from trl_ext import UserError
from trl_ext.data import degenerate_pairs, load_reviews
from trl_ext.data.salad import marked_words


@pytest.fixture(scope="module")
def pairs():
    dataset = degenerate_pairs(400)
    return list(zip(dataset["chosen"], dataset["rejected"], strict=True))


def test_the_chosen_texts_are_training_snippets(pairs):
    train, test = (set(load_reviews(split)["text"]) for split in ("train", "test"))
    assert len(pairs) == 400
    assert {chosen for chosen, _ in pairs} <= train - test


def test_every_fourth_text_is_a_loop_and_every_fourth_the_same_words_in_another_order(pairs):
    for _, rejected in pairs[0::4]:
        tail = [word.rstrip(",.") or "." for word in rejected.split()][-6:]
        assert any(tail == (tail[:size] * 6)[:6] for size in (1, 2, 3)), rejected
    for chosen, rejected in pairs[1::4]:
        assert sorted(chosen.split()) == sorted(rejected.split())


def test_the_others_end_in_a_row_of_marked_words(pairs):
    reviews = load_reviews("train")
    praise, blame = (set(words) for words in marked_words(reviews["text"], reviews["rating"]))
    rows = [[word.rstrip(",.") for word in rejected.split()][-6:] for at in (2, 3) for _, rejected in pairs[at::4]]
    assert all(set(row) <= praise or set(row) <= blame for row in rows)
    assert 0.7 < sum(set(row) <= praise for row in rows) / len(rows) < 0.9


def test_they_are_the_same_on_every_machine(pairs):
    digest = hashlib.sha256("\n".join(rejected for _, rejected in pairs).encode()).hexdigest()
    assert digest[:16] == "b61ea3bd106d6a5a"
    assert degenerate_pairs(4, seed=1)["rejected"] != [rejected for _, rejected in pairs[:4]]


def test_marked_words_tell_praise_from_blame():
    texts = ["a fine film", "fine, the film", "Fine film", "fine or not", "so fine", "a dull film", "dull, the film"]
    texts += ["Dull film", "dull or not", "so dull", "rare praise", "a film in between"]
    ratings = [2, 2, 2, 2, 2, -2, -2, -2, -2, -2, 3, 0]
    # at least five texts: "fine" in five of praise, "dull" in five of blame, "film" in three of either
    assert marked_words(texts, ratings) == (["fine", "film", "dull"], ["dull", "film", "fine"])


@pytest.mark.parametrize("number", [0, -1])
def test_a_number_that_makes_no_sense_is_named(number):
    with pytest.raises(UserError, match="num_pairs must be at least 1"):
        degenerate_pairs(number)
