import json
import pickle
import time
import urllib.request

import jsonschema
import pytest

from trl_ext.errors import UserError
from trl_ext.rewards import CheckedReward
from trl_ext.rewards.json_schema import JsonSchemaReward

FILM = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "rating": {"type": "number", "minimum": 0, "maximum": 5},
        "cast": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["title", "rating"],
    "additionalProperties": False,
}


def score(text, schema=FILM, **kwargs):
    (value,) = JsonSchemaReward(schema, **kwargs)(prompts=[""], completions=[text])
    return value


@pytest.mark.parametrize(
    ("text", "value", "partial"),
    [
        ('{"title": "M", "rating": 4.5}', 1, 1),
        ('{"title": "M", "rating": 4.5, "cast": ["Lorre"]}', 1, 1),
        ('{"title": "M"}', 0, 1 / 2),
        ('{"title": "M", "rating": 9}', 0, 1 / 2),
        ('{"title": "M", "rating": "9"}', 0, 1 / 2),
        ('{"title": 3, "rating": 9}', 0, 0),
        ('{"title": "M", "rating": 4, "cast": ["Lorre", 3, 4]}', 0, 2 / 3),  # a member is wrong once
        ('{"title": "M", "rating": 4, "year": 1931}', 0, 2 / 3),
        ('{"year": 1931}', 0, 0),
        ("{}", 0, 0),
        ('["title", "rating"]', 0, 0),
        ("3", 0, 0),
        ('{"title": "M", "rating": 4', 0, 0),
        ("a film", 0, 0),
        ('{"title": "M", "rating": NaN}', 0, 0),
        ('{"title": "M", "title": "M", "rating": 4}', 0, 0),
    ],
)
def test_agreement_and_its_parts_by_hand(text, value, partial):
    assert score(text) == value
    assert score(text, partial=True) == pytest.approx(partial)
    assert score([{"role": "assistant", "content": text}]) == value


def test_a_schema_without_members_has_no_parts():
    schema = {"type": "array", "minItems": 2}
    assert [score(text, schema, partial=True) for text in ("[1, 2]", "[1]", "{}")] == [1.0, 0.0, 0.0]


def test_a_fault_in_a_member_that_the_schema_does_not_name_lowers_the_part():
    schema = {"required": ["a"], "additionalProperties": {"type": "number"}}
    assert [score(text, schema, partial=True) for text in ('{"a": 1, "b": 2}', '{"a": 1, "b": "x"}')] == [1.0, 0.5]


def test_a_schema_is_read_from_a_file(tmp_path):
    (tmp_path / "film.json").write_text(json.dumps(FILM))
    for path in (tmp_path / "film.json", str(tmp_path / "film.json")):
        assert score('{"title": "M", "rating": 4}', path) == 1.0


def test_json_is_looked_for_where_asked():
    text = 'So:\n```\n{"title": "M", "rating": 4}\n```'
    assert [score(text, where=where) for where in ("whole", "fenced", "first")] == [0.0, 1.0, 1.0]


def test_the_draft_is_the_one_the_schema_names():
    pair = {"items": [{"type": "string"}, {"type": "number"}]}  # a list of items is draft 7, prefixItems is 2020-12
    draft_7 = {"$schema": "http://json-schema.org/draft-07/schema#", **pair}
    assert [score(text, draft_7) for text in ('["a", 1]', "[1, 1]")] == [1.0, 0.0]
    assert score("[1, 1]", {"prefixItems": pair["items"]}) == 0.0


def test_references_inside_the_schema_work():
    tree = {
        "$defs": {"tree": {"type": "object", "additionalProperties": {"$ref": "#/$defs/tree"}}},
        "$ref": "#/$defs/tree",
    }
    assert [score(text, tree) for text in ('{"a": {"b": {}}}', '{"a": {"b": 1}}')] == [1.0, 0.0]
    named = {
        "$id": "https://example.org/outer",
        "$defs": {"inner": {"$id": "inner", "$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}}},
        "properties": {"a": {"$ref": "inner"}},
    }
    assert [score(text, named) for text in ('{"a": "b"}', '{"a": 1}')] == [1.0, 0.0]
    assert score("3", {"enum": [{"$ref": "#/nowhere"}, 3]}) == 1.0  # data is no schema


def test_numbers_beyond_all_bounds_do_not_crash():
    cents = {"type": "number", "multipleOf": 0.01}
    assert [score(text, cents) for text in ("1.25", "9" * 400, "9" * 10_000, "1e999")] == [1.0, 0.0, 0.0, 0.0]
    assert [score(text, {"maximum": 5}) for text in ("5", "9" * 10_000, "-" + "9" * 10_000)] == [1.0, 0.0, 1.0]


def test_deep_nesting_does_not_crash():
    lists = {"type": "array", "items": {"$ref": "#"}}
    assert score("[" * 20 + "]" * 20, lists) == 1.0
    assert score("[" * 900 + "]" * 900, lists) == 0.0


def test_nothing_is_fetched(monkeypatch):
    asked = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda *args, **kwargs: asked.append(args))
    with pytest.raises(UserError, match=r"a schema without what it refers to, 'https://example.org/a.json'"):
        JsonSchemaReward({"$ref": "https://example.org/a.json"})
    hidden = {"unknown": {"$ref": "https://example.org/a.json"}, "properties": {"a": {"$ref": "#/unknown"}}}
    with pytest.raises(UserError, match=r"without what it refers to, 'https://example\.org/a\.json'"):
        JsonSchemaReward(hidden)
    assert not asked


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "objekt"}, r"was given what is no JSON Schema, at \$.type: 'objekt' is not valid"),
        ({"required": "title"}, r"no JSON Schema, at \$.required: 'title' is not of type 'array'"),
        ({"properties": {"a": {"properties": 5}}}, r"no JSON Schema, at \$.properties.a.properties: 5 is not of type"),
        ({"pattern": "("}, r"cannot read the pattern '\('"),
        ({"allOf": [{"patternProperties": {"(": {}}}]}, r"cannot read the pattern '\('"),
        (
            {"unevaluatedProperties": False, "allOf": [{"patternProperties": {"a": {}}}]},
            "takes no unevaluatedProperties beside patternProperties",
        ),
        (
            {"title": "string", "rating": "number"},
            "a schema that asks for nothing, .*: name the fields under",
        ),
        ({}, "a schema that asks for nothing"),
        ({"$schema": "draft 7", "type": "object"}, r"does not know the draft 'draft 7': leave \$schema out"),
        ({"$schema": ["x"], "type": "object"}, r"does not know the draft \['x'\]"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, r"without what it refers to, '#/\$defs/b': write that under"),
        ({"items": {"$dynamicRef": "#b"}}, "without what it refers to, '#b'"),
        ({"$ref": "#"}, "refers to itself without end"),
        ({"const": {1, 2}}, "needs a schema that JSON can write: Object of type set"),
        ({"const": float("nan")}, "needs a schema that JSON can write"),
        (3, "needs a mapping or the path of a JSON file for schema, not 3"),
        ("no/such.json", "cannot read no/such.json: No such file or directory: name a JSON file"),
    ],
)
def test_what_is_no_schema_is_named_with_its_place(schema, said):
    with pytest.raises(UserError, match=f"^json_schema .*{said}") as error:
        JsonSchemaReward(schema)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"type": ', "cannot read .*film.json: no JSON, Expecting value: line 1 column 10"),
        (b"\xff", "cannot read .*film.json: no JSON"),
        (b"[1]", r"needs an object in .*film.json, not \[1\]"),
        (b'{"type": "objekt"}', "no JSON Schema, at"),
    ],
)
def test_a_file_that_holds_no_schema_is_named(tmp_path, content, said):
    (tmp_path / "film.json").write_bytes(content)
    with pytest.raises(UserError, match=f"^json_schema .*{said}") as error:
        JsonSchemaReward(str(tmp_path / "film.json"))
    assert "\n" not in str(error.value)


def test_options_that_make_no_sense_are_named():
    with pytest.raises(UserError, match=r"^json_schema needs true or false for partial, not 1"):
        JsonSchemaReward(FILM, partial=1)
    with pytest.raises(UserError, match=r"^json_schema has for where the choices whole, fenced, first, not 'last'"):
        JsonSchemaReward(FILM, where="last")


def test_pickles_with_the_schema_of_its_file(tmp_path):
    (tmp_path / "film.json").write_text(json.dumps(FILM))
    kept = pickle.dumps(JsonSchemaReward(str(tmp_path / "film.json"), partial=True))
    (tmp_path / "film.json").unlink()
    assert pickle.loads(kept)(prompts=[""], completions=['{"title": "M"}']) == [0.5]


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": "^(a|aa)+$"}}},
        {"patternProperties": {"^(a|aa)+$": False}},
        # listed first: its own look at the patterns needs a limit, too
        {"additionalProperties": True, "patternProperties": {"^(a|aa)+$": True}},
    ],
)
def test_a_catastrophic_pattern_costs_that_text_its_reward_and_not_the_batch(schema, monkeypatch):
    monkeypatch.setattr("trl_ext.rewards.json_schema._PATTERN_TIMEOUT", 0.2)
    long = "a" * 60 + "!"
    bad = json.dumps({"a": long} if "properties" in schema else {long: 1})
    started = time.monotonic()
    checked = CheckedReward(JsonSchemaReward(schema))
    assert checked(prompts=[""] * 2, completions=[bad, '{"b": 1}']) == [None, 1.0]
    assert checked.failures == 1
    assert time.monotonic() - started < 20


def test_a_pattern_may_use_what_re_cannot():
    assert score('"été"', {"pattern": r"^\p{L}+$"}) == 1.0
    assert score('"e1"', {"pattern": r"^\p{L}+$"}) == 0.0


@pytest.mark.parametrize("additional", [True, False, {"type": "number"}, {"required": ["x"]}])
@pytest.mark.parametrize("named", [{}, {"a": {"type": "string"}}])
@pytest.mark.parametrize("patterns", [{}, {"^n_": {"type": "number"}, "z$": {}}])
def test_additional_properties_are_what_jsonschema_has_them(additional, named, patterns):
    schema = {"additionalProperties": additional, "properties": named, "patternProperties": patterns}
    schema = {key: value for key, value in schema.items() if value != {}}
    values = ({}, {"a": "x"}, {"a": 1}, {"n_1": 1}, {"n_1": "x"}, {"b": 2}, {"b": {"x": 1}}, {"bz": "y", "a": "x"}, [1])
    theirs = [float(jsonschema.Draft202012Validator(schema).is_valid(value)) for value in values]
    assert [score(json.dumps(value), schema) for value in values] == theirs


def test_patterns_mean_what_they_did():
    schema = {"properties": {"a": {"pattern": "b"}}, "patternProperties": {"^n_": {"type": "number"}}}
    texts = ['{"a": "abc"}', '{"a": "x"}', '{"a": 3}', '{"n_1": 2}', '{"n_1": "2"}', '{"an_1": "2"}']
    assert JsonSchemaReward(schema)(prompts=[""] * 6, completions=texts) == [1, 0, 1, 1, 0, 1]


@pytest.mark.parametrize("place", ["items", "properties", "not"])
def test_a_reference_that_never_ends_is_refused_wherever_it_stands(place):
    loop = {"$ref": "#/$defs/a"}
    schema = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": loop}, place: {"x": loop} if place == "properties" else loop}
    with pytest.raises(UserError, match="refers to itself without end"):
        JsonSchemaReward(schema)


def test_a_schema_may_refer_to_itself_further_in():
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
    assert score('{"children": [{"children": []}]}', tree) == 1.0
    assert score('{"children": [{"children": 3}]}', tree) == 0.0


def test_a_draft_that_the_library_follows_in_part_is_one_line():
    with pytest.raises(UserError, match="json_schema cannot use this schema"):
        JsonSchemaReward(
            {"$schema": "http://json-schema.org/draft-03/schema#", "extends": {"$ref": "#/a"}, "a": {"type": "object"}}
        )


def test_a_reference_that_never_ends_through_a_choice_is_told_when_it_is_met():
    x = {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "integer"}]}
    checked = CheckedReward(JsonSchemaReward({"$defs": {"x": x}, "items": {"$ref": "#/$defs/x"}}))
    assert checked(prompts=[""] * 2, completions=["[1]", "[]"]) == [None, 1.0]
    assert checked.failures == 1


def test_all_patterns_of_a_completion_share_the_time(monkeypatch):
    monkeypatch.setattr("trl_ext.rewards.json_schema._PATTERN_TIMEOUT", 0.2)
    schema = {"type": "array", "items": {"pattern": "^(a|aa)+$"}}
    slow = json.dumps(["a" * n for n in range(20, 60)] + ["a" * 60 + "!"] * 20)
    started = time.monotonic()
    assert CheckedReward(JsonSchemaReward(schema, partial=True))(prompts=[""] * 2, completions=[slow, "[]"]) == [
        None,
        1.0,
    ]
    assert time.monotonic() - started < 3
