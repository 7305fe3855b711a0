import pickle
import time

import pytest

from trl_ext.errors import UserError
from trl_ext.rewards.json_format import JsonFieldsReward, JsonValidReward

WHOLE = [
    ('{"a": 1}', 1.0),
    (' [1, "x", null, true, -1.5e3]\n', 1.0),
    ("3", 1.0),
    ('"text"', 1.0),
    ('{"brace": "}{", "quote": "\\"}", "accent": "é\\u00e9"}', 1.0),
    ("", 0.0),
    ("   ", 0.0),
    ('\u00a0{"a": 1}', 0.0),  # no white space of JSON
    ('{"a": 1}\x1f', 0.0),
    ("{'a': 1}", 0.0),
    ('{"a": 1,}', 0.0),
    ('{"a": 1} and more', 0.0),
    ('Here: {"a": 1}', 0.0),
    ('```json\n{"a": 1}\n```', 0.0),
    ('{"a": NaN}', 0.0),
    ("[Infinity]", 0.0),
    ("-Infinity", 0.0),
    ('{"a": 1, "a": 2}', 0.0),
    ('[{"b": {"a": 1, "a": 1}}]', 0.0),
    ('"line\nbreak"', 0.0),
    ("01", 0.0),
    ("True", 0.0),
    ("1" * 10_000, 1.0),
    ("-" + "9" * 10_000, 1.0),
    ("[" * 100_000 + "]" * 100_000, 0.0),
]
FENCED = [
    ('```json\n{"a": 1}\n```', 1.0),
    ("Here:\n\n```\n[1]\n```\nThat is all.", 1.0),
    ('~~~json\r\n{"a": 1}\r\n~~~\r\n', 1.0),
    ('````\n{"a": "```"}\n````', 1.0),
    ('```\n{"a": 1}\n```\n```\nbroken\n```', 1.0),
    ('```\nbroken\n```\n```\n{"a": 1}\n```', 0.0),  # the first block
    ('```json\n{"a": 1}', 0.0),  # cut off
    ('````\n{"a": 1}\n```', 0.0),  # the fence that closes is as long
    ('{"a": 1}', 0.0),
    ("```json\n```", 0.0),
    ("", 0.0),
]
FIRST = [
    ('{"a": 1}', 1.0),
    ('Here: {"a": {"b": "}"}} and more } {', 1.0),
    ('```json\n{"a": 1}\n```', 1.0),
    ('For {x} in {"a", "b"}: {"a": 1}', 1.0),
    ('Say "hello" {"a": "\\"{"}', 1.0),
    ("{}", 1.0),
    ('{"a": NaN} {"b": 1}', 1.0),
    ('{"a": {"b": 1}, oops}', 0.0),  # what stands inside a broken one does not count
    ('{"a": {"b": 1}, "c": ', 0.0),  # cut off
    ('{"a": "{\\"b\\": 1}', 0.0),
    ("[1, 2]", 0.0),
    ("no braces", 0.0),
    ('{"a":' * 50_000 + "1" + "}" * 50_000, 0.0),
]


@pytest.mark.parametrize(
    ("where", "text", "value"),
    [(where, *row) for where, rows in (("whole", WHOLE), ("fenced", FENCED), ("first", FIRST)) for row in rows],
)
def test_what_is_json_and_where(where, text, value):
    assert JsonValidReward(where)(prompts=[""], completions=[text]) == [value]
    assert JsonValidReward(where)(prompts=[""], completions=[[{"role": "assistant", "content": text}]]) == [value]


def test_the_whole_completion_is_asked_for_by_default():
    assert JsonValidReward()(prompts=["", ""], completions=["{}", "so {}"]) == [1.0, 0.0]


@pytest.mark.parametrize("piece", ['{"', "{x}", "{", "}", '{\\"', "```json\n", '{"a":{"b":1}', "\\", '"{'])
@pytest.mark.parametrize("where", ["whole", "fenced", "first"])
def test_no_text_takes_long(piece, where):
    started = time.process_time()
    assert JsonValidReward(where)(prompts=[""], completions=[piece * 40_000]) == [0.0]
    assert time.process_time() - started < 2


NESTED = '{"name": "x", "address": {"city": null, "lines": [{"n": 1}, 2]}}'


@pytest.mark.parametrize(
    ("text", "fields", "value"),
    [
        (NESTED, ["name"], 1.0),
        (NESTED, ["name", "age"], 0.5),
        (NESTED, ["address.city"], 1.0),  # null is there
        (NESTED, ["address.city", "address.zip", "name.first", "city"], 0.25),
        (NESTED, ["address.lines.0.n", "address.lines.1", "address.lines.2", "address.lines.1.n"], 0.5),
        (NESTED, ["address.lines.-1", "address.lines.n"], 0.0),
        ('{"0": 1}', ["0"], 1.0),
        ("[[5]]", ["0.0"], 1.0),
        ("{}", ["name"], 0.0),
        ("3", ["name"], 0.0),
        ("name", ["name"], 0.0),
        ('{"name": 1', ["name"], 0.0),
    ],
)
def test_share_of_fields_that_are_present(text, fields, value):
    assert JsonFieldsReward(fields)(prompts=[""], completions=[text]) == [value]
    assert JsonFieldsReward(fields)(prompts=[""], completions=[[{"role": "assistant", "content": text}]]) == [value]


def test_fields_are_looked_for_where_asked():
    text = 'So:\n```json\n{"a": 1}\n```\n'
    scores = [
        JsonFieldsReward(["a"], where)(prompts=[""], completions=[text])[0] for where in ("whole", "fenced", "first")
    ]
    assert scores == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: JsonValidReward("last"), "json_valid has for where the choices whole, fenced, first, not 'last'"),
        (lambda: JsonValidReward(None), "json_valid has for where the choices"),
        (lambda: JsonFieldsReward(["a"], "last"), "json_fields has for where the choices"),
        (
            lambda: JsonFieldsReward("a"),
            r"json_fields needs a list for fields, e.g. \[name, address.city\], not 'a'",
        ),
        (lambda: JsonFieldsReward([]), "json_fields needs a list for fields"),
        (lambda: JsonFieldsReward(["a", True]), "json_fields needs texts in fields, not True"),
        (lambda: JsonFieldsReward(["a", "a"]), "json_fields has 'a' twice in fields"),
        (lambda: JsonFieldsReward(["a..b"]), "json_fields needs names between dots, e.g. address.city, not 'a..b'"),
    ],
)
def test_options_that_make_no_sense_are_named(make, said):
    with pytest.raises(UserError, match=f"^{said}") as error:
        make()
    assert "\n" not in str(error.value)


def test_both_pickle():
    assert pickle.loads(pickle.dumps(JsonValidReward("first")))(prompts=[""], completions=["so {}"]) == [1.0]
    assert pickle.loads(pickle.dumps(JsonFieldsReward(["a", "b"])))(prompts=[""], completions=['{"a": 1}']) == [0.5]
