import json
import pickle

import pytest

from trl_ext.errors import UserError
from trl_ext.rewards.json_actions import JsonActionsReward

ACTIONS = {"search": ["query"], "move": ["x", "y"], "stop": None}


def score(completion, actions=ACTIONS, **kwargs):
    (value,) = JsonActionsReward(actions, **kwargs)(prompts=[""], completions=[completion])
    return value


def turn(text, role="assistant"):
    return {"role": role, "content": text}


SEARCH, STOP = '{"name": "search", "arguments": {"query": "x"}}', '{"name": "stop"}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (SEARCH, 1.0),
        (f"I look it up: {SEARCH}", 1.0),
        (f"```json\n{SEARCH}\n```", 1.0),
        ('{"name": "search", "arguments": {"query": null, "limit": 3}, "why": "so"}', 1.0),
        ('{"name": "move", "arguments": {"x": 1, "y": 2}}', 1.0),
        ('{"name": "move", "arguments": {"x": 1}}', 0.0),
        ('{"name": "move", "arguments": [1, 2]}', 0.0),
        ('{"name": "move"}', 0.0),
        ('{"name": "search", "query": "x"}', 0.0),
        (STOP, 1.0),
        ('{"name": "stop", "arguments": {}}', 1.0),
        ('{"name": "stop", "arguments": "now"}', 0.0),
        ('{"name": "fly", "arguments": {}}', 0.0),
        ('{"name": ["stop"]}', 0.0),
        ('{"action": "stop"}', 0.0),
        ('["stop"]', 0.0),
        ("stop", 0.0),
        ("", 0.0),
    ],
)
def test_a_turn_is_valid_with_a_known_name_and_its_arguments(text, value):
    assert score(text) == value
    assert score([turn(text)]) == value


def test_share_of_the_turns_of_the_assistant():
    turns = [turn(SEARCH), turn("nothing found", "tool"), turn("I give up."), turn(SEARCH, "user"), turn(STOP)]
    assert score(turns) == pytest.approx(2 / 3)
    assert score(turns[:2]) == 1.0
    assert score(turns[2:3]) == 0.0


def test_without_a_turn_it_does_not_apply():
    assert score([]) is None
    assert score([turn("hello", "user")]) is None


@pytest.mark.parametrize(
    ("calls", "value"),
    [
        ([{"type": "function", "function": {"name": "search", "arguments": {"query": "x"}}}], 1.0),
        ([{"type": "function", "function": {"name": "search", "arguments": '{"query": "x"}'}}], 1.0),
        ([{"name": "search", "arguments": {"query": "x"}}], 1.0),
        ([{"function": {"name": "search", "arguments": '{"query": '}}], 0.0),
        ([{"function": {"name": "search", "arguments": {}}}], 0.0),
        ([{"function": {"name": "stop"}}, {"function": {"name": "fly"}}], 0.0),
        ([{"function": None}], 0.0),
        (["stop"], 0.0),
    ],
)
def test_tool_calls_are_actions_and_all_must_be_valid(calls, value):
    assert score([{"role": "assistant", "content": None, "tool_calls": calls}]) == value


def test_names_alone_need_no_arguments():
    assert [score(json.dumps({"name": name}), ["up", "down"]) for name in ("up", "down", "left")] == [1.0, 1.0, 0.0]


def test_arguments_may_stand_beside_the_name_or_under_another():
    beside, under = '{"name": "search", "query": "x"}', '{"name": "search", "input": {"query": "x"}}'
    assert [score(text, arguments=None) for text in (beside, under, STOP)] == [1.0, 0.0, 1.0]
    assert [score(text, arguments="input") for text in (beside, under)] == [0.0, 1.0]


def test_the_object_stands_where_asked():
    texts = (SEARCH, f"So: {SEARCH}", f"So:\n```\n{SEARCH}\n```")
    found = {where: [score(text, where=where) for text in texts] for where in ("whole", "fenced", "first")}
    assert found == {"whole": [1.0, 0.0, 0.0], "fenced": [0.0, 0.0, 1.0], "first": [1.0, 1.0, 1.0]}
    assert score("[1]", where="whole") == 0.0


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"actions": "up"}, r"needs a list for actions, e.g. \[up, down\] or .*, not 'up'"),
        ({"actions": []}, "needs a list for actions"),
        ({"actions": {}}, "needs a mapping for actions"),
        ({"actions": {True: []}}, "has in actions the key True, no text"),
        ({"actions": ["up", "up"]}, "has 'up' twice in actions"),
        (
            {"actions": {"search": "query"}},
            r"needs a list for the arguments of 'search', e.g. \[query\], not 'query'",
        ),
        ({"actions": {"search": [1]}}, "needs texts in the arguments of 'search', not 1"),
        ({"where": "last"}, "has for where the choices whole, fenced, first, not 'last'"),
        ({"arguments": ""}, "needs a name for arguments, or null, not ''"),
        ({"arguments": 3}, "needs a name for arguments, or null, not 3"),
    ],
)
def test_options_that_make_no_sense_are_named(kwargs, said):
    with pytest.raises(UserError, match=f"^json_actions {said}") as error:
        JsonActionsReward(**{"actions": ACTIONS} | kwargs)
    assert "\n" not in str(error.value)


def test_pickles():
    copy = pickle.loads(pickle.dumps(JsonActionsReward(ACTIONS)))
    assert copy(prompts=["", ""], completions=[SEARCH, "{}"]) == [1.0, 0.0]
