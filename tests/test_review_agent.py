"""The agent's task: its answers against the snippets themselves, its demonstrations against its own tools."""

import json
import re

import pytest

from trl_ext.data import (
    ReviewEnvironment,
    agent_demonstrations,
    agent_questions,
    answered,
    load_prompts,
    load_reviews,
    load_texts,
)
from trl_ext.errors import UserError
from trl_ext.tiny import load_tokenizer


@pytest.fixture(scope="module")
def questions():
    return {split: agent_questions(split) for split in ("train", "test")}


def pair(text):
    return tuple(map(int, re.findall(r"\d+", text)))


def test_every_solution_is_what_the_snippets_ratings_give(questions):
    ratings = [round(rating) for rating in load_reviews("train")["rating"]]
    for row in [*questions["test"], *questions["train"].select(range(500))]:
        text = row["prompt"][0]["content"]
        first, second = (ratings[number - 1] for number in pair(text))
        right = max(first, second) if "good" in text else first + second if "together" in text else first - second
        assert int(row["solution"]) == right, text


def test_no_pair_of_reviews_is_on_both_sides(questions):
    pairs = {split: {frozenset(pair(p[0]["content"])) for p in rows["prompt"]} for split, rows in questions.items()}
    assert not pairs["train"] & pairs["test"] and 0.08 < len(pairs["test"]) / len(pairs["train"]) < 0.15
    assert load_prompts("review_agent", "test").to_dict() == questions["test"].to_dict()


def test_demonstrations_do_what_the_tools_do_and_half_of_them_whatever_is_drawn(questions):
    demonstrations = agent_demonstrations("test")
    assert (
        demonstrations.to_dict()
        == agent_demonstrations("test").to_dict()
        == load_texts("review_agent", "test").to_dict()
    )
    solutions = {
        p[0]["content"]: s for p, s in zip(questions["test"]["prompt"], questions["test"]["solution"], strict=True)
    }
    right, kinds = 0, {}
    for messages in demonstrations["messages"]:
        environment = ReviewEnvironment()
        text = messages[0]["content"]
        environment.reset(solution=solutions[text], reviews=pair(text))
        calls = [json.loads(message["content"]) for message in messages if message["role"] == "assistant"]
        for call, answer in zip(calls[:-1], messages[2::2], strict=True):
            ((name, arguments),) = call.items()
            assert getattr(environment, name)(**arguments) == answer["content"]
            kinds.setdefault(messages[0]["content"].split()[1:3][-1], set()).add(name)
        assert calls[-1] == {"done": True}
        solved = messages[-2]["content"] == solutions[text]
        right += solved
        assert environment.turn_rewards == [0.25, 0.25, 0.5 * solved]
        assert answered([messages[1:]], [solutions[text]]) == [float(solved)]
    assert all(names == {"look_up", "add", "subtract", "larger"} for names in kinds.values())
    assert 0.6 < right / len(demonstrations) < 0.8


def test_only_the_first_right_result_and_look_are_rewarded():
    environment = ReviewEnvironment()
    environment.reset(reviews=[4, 5])
    for review in (4, 4, 6, 5):
        environment.look_up(review)
    assert environment.turn_rewards == [0.25, 0.0, 0.0, 0.25]
    ratings = [round(rating) for rating in load_reviews("train")["rating"]]
    assert environment.add() == str(ratings[6 - 1] + ratings[5 - 1])  # the two that were looked up last
    environment.reset(solution=str(ratings[4 - 1] - ratings[5 - 1]), reviews=[4, 5])
    environment.look_up(4)
    assert environment.subtract() == "look up two reviews first"
    environment.look_up(5)
    for _ in range(2):
        environment.subtract()
    assert environment.turn_rewards == [0.25, 0.0, 0.25, 0.5, 0.0]
    environment.reset(solution="3")
    assert environment.turn_rewards == []
    assert environment.look_up(10**9) == "no such review"


def test_a_call_is_rendered_as_the_demonstrations_write_it_and_read_back():
    tokenizer, text = load_tokenizer(), json.dumps({"subtract": {"a": 2, "b": -1}})
    call = {"type": "function", "function": {"name": "subtract", "arguments": {"a": 2, "b": -1}}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert tokenizer.apply_chat_template([message], tokenize=False) == f"assistant: {text}<eos>"
    parsed = tokenizer.parse_response(f"{text}\n{text}<eos>", prefix="user: ?\nassistant: ")
    assert parsed["tool_calls"] == [call, call]


def test_another_split_is_refused():
    with pytest.raises(UserError, match="train, test"):
        agent_questions("validation")
