"""Does the JSON of a completion agree with a schema?"""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.json_text import PLACES, read_json
from trl_ext.rewards.options import check_choice, check_flag, shown
from trl_ext.rewards.results import Unscored
from trl_ext.rewards.text import Completion, completion_text

_PATTERN_TIMEOUT = 1.0  # seconds for all patterns of one completion
_SHALLOW = 100  # openings of arrays and objects: fewer never use up Python's stack
_END: ContextVar[float] = ContextVar("trl_ext_json_schema_end")  # of them, as `time.monotonic` has it


class JsonSchemaReward:
    """1 where a completion's JSON agrees with a JSON Schema, else 0; 0 without valid JSON.

    Patterns are read by the package `regex` and have one second together for a completion; one that needs more fails.

    The draft is the one that the schema names under `$schema`, 2020-12 by default. `format` is a remark, as the
    standard has it, and not checked. References stay inside the schema: nothing is fetched.

    Args:
        schema: the schema, or the path of a JSON file that holds it.
        where: as `json_valid` has it; default `"whole"`.
        partial: whether an object that does not agree gets a part instead of 0; default false. The part is the share of
            right members: of those that `required` names, and those that `properties` names and that are there, the
            ones that are present and without a fault inside. Each fault elsewhere (an additional property, say) counts
            as one more member that is wrong. What is no object gets 0.
    Raises:
        UserError: a file that cannot be read, what is no JSON Schema (with the place in it), a reference that leads
            nowhere, or `unevaluatedProperties` beside `patternProperties`, for whose patterns there is no time limit.
    """

    __name__ = "json_schema"

    def __init__(
        self, schema: Mapping[str, Any] | str | os.PathLike[str], where: str = "whole", partial: bool = False
    ) -> None:
        self.where = check_choice("json_schema", "where", where, PLACES)
        self.partial = check_flag("json_schema", "partial", partial)
        self.schema = _plain(schema) if isinstance(schema, Mapping) else _read(schema)
        self._validator = _make_validator(self.schema)

    def __reduce__(self) -> tuple:
        return type(self), (self.schema, self.where, self.partial)

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float | None]:
        return [self._score(completion_text(completion)) for completion in completions]

    def _score(self, text: str) -> float | None:
        try:
            value = read_json(text, self.where)
        except ValueError:
            return 0.0
        _END.set(time.monotonic() + _PATTERN_TIMEOUT)
        try:
            return self._partial(value) if self.partial else float(self._validator.is_valid(value))
        except ArithmeticError:  # a number too large to divide
            return 0.0
        except RecursionError:
            if text.count("[") + text.count("{") < _SHALLOW:
                return Unscored("json_schema: the schema refers to itself without end: mend its $ref")
            return 0.0  # nested too deeply to check
        except TimeoutError as error:  # of a pattern
            return Unscored(str(error))

    def _partial(self, value: Any) -> float:
        faults = list(self._validator.iter_errors(value))
        if not faults:
            return 1.0
        if not isinstance(value, dict):
            return 0.0
        required = self.schema.get("required", [])
        members = {*required, *(key for key in self.schema.get("properties", {}) if key in value)}
        inside = {fault.absolute_path[0] for fault in faults if fault.absolute_path}
        right = sum(member in value and member not in inside for member in members)
        missing = ["required"]  # where the schema speaks of missing members: they are counted already
        whole = sum(not fault.absolute_path and list(fault.absolute_schema_path) != missing for fault in faults)
        return right / (len(members | inside) + whole)


def _read(path: Any) -> dict[str, Any]:
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"json_schema needs a mapping or the path of a JSON file for schema, not {shown(path)}")
    try:
        schema = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        cause = getattr(error, "strerror", None) or f"no JSON, {error}"
        raise UserError(f"json_schema cannot read {path}: {cause}: name a JSON file or give a mapping") from error
    if not isinstance(schema, dict):
        raise UserError(f"json_schema needs an object in {path}, not {shown(schema)}")
    return schema


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """As a JSON file would give it: YAML also reads dates, and keys that are no text."""
    try:
        return json.loads(json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"json_schema needs a schema that JSON can write: {error}") from error


def _make_validator(schema: dict[str, Any]) -> Any:
    """The validator of the schema's draft, after a look at the schema itself; one that never fetches anything."""
    import jsonschema  # here, because naming rewards must stay quick
    from referencing.jsonschema import EMPTY_REGISTRY

    draft = jsonschema.Draft202012Validator
    if "$schema" in schema:
        named = schema["$schema"]
        draft = jsonschema.validators.validator_for(schema, default=None) if isinstance(named, str) else None
        if draft is None:
            raise UserError(
                f"json_schema does not know the draft {shown(named)}: leave $schema out, or write "
                '"https://json-schema.org/draft/2020-12/schema"'
            )
    try:
        draft.check_schema(schema, format_checker=jsonschema.FormatChecker(formats=()))
    except jsonschema.SchemaError as error:
        message = " ".join(error.message.split())
        raise UserError(f"json_schema was given what is no JSON Schema, at {error.json_path}: {message}") from error
    if schema.keys().isdisjoint(draft.VALIDATORS):
        raise UserError(
            f"json_schema was given a schema that asks for nothing, {shown(schema)}: name the fields under properties, "
            "e.g. {type: object, properties: {name: {type: string}}, required: [name]}"
        )
    try:
        _check_parts(schema, draft.META_SCHEMA["$schema"])
    except (AttributeError, TypeError) as error:  # of keywords of old drafts that the library does not walk through
        raise _unusable(error) from error
    timed = jsonschema.validators.extend(
        draft,
        {
            "pattern": _pattern,
            "patternProperties": _pattern_properties,
            "additionalProperties": _additional_properties,
        },
    )
    validator = timed(schema, registry=EMPTY_REGISTRY)
    try:
        validator.is_valid({})
    except Exception as error:  # of keywords that the library does not follow everywhere, as `extends` of draft 3
        raise _unusable(error) from error
    return validator


def _unusable(error: Exception) -> UserError:
    return UserError(f"json_schema cannot use this schema, write it for draft 2020-12: {shown(str(error))}")


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    import regex

    return regex.compile(pattern)


def _found(pattern: str, text: str) -> bool:
    left = _END.get(math.inf) - time.monotonic()
    try:
        if left <= 0:
            raise TimeoutError
        return _compiled(pattern).search(text, timeout=min(left, _PATTERN_TIMEOUT)) is not None
    except TimeoutError:
        raise TimeoutError(
            f"json_schema: the patterns took longer than {_PATTERN_TIMEOUT:g} s, the last one {shown(pattern)} on the "
            f"text that starts with {shown(text)}"
        ) from None


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    """As jsonschema has it, with a time limit."""
    from jsonschema import ValidationError

    if validator.is_type(instance, "string") and not _found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    """As jsonschema has it, with a time limit."""
    if validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            for key, value in instance.items():
                if _found(pattern, key):
                    yield from validator.descend(value, subschema, path=key, schema_path=pattern)


def _additional_properties(validator: Any, subschema: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """As jsonschema has it, which matches the keys of `patternProperties` anew, with a time limit."""
    from jsonschema import ValidationError

    if not validator.is_type(instance, "object"):
        return
    patterns = schema.get("patternProperties", {})
    named = schema.get("properties", {})
    extra = [key for key in instance if key not in named and not any(_found(pattern, key) for pattern in patterns)]
    if validator.is_type(subschema, "object"):
        for key in extra:
            yield from validator.descend(instance[key], subschema, path=key)
    elif extra and not subschema:
        yield ValidationError(f"additional properties are not allowed: {', '.join(map(repr, extra))}")


def _check_parts(schema: dict[str, Any], draft: str) -> None:
    """That each reference leads somewhere in the schema, under the names that its `$id`s give to its parts, and that
    each pattern can be read and has a time limit."""
    from referencing.jsonschema import EMPTY_REGISTRY, specification_with

    root = specification_with(draft).create_resource(schema)
    waiting = [(root, EMPTY_REGISTRY.resolver_with_root(root))]
    keywords: set[str] = set()
    while waiting:
        resource, resolver = waiting.pop()
        contents = resource.contents if isinstance(resource.contents, dict) else {}
        keywords |= contents.keys()
        for reference in (contents[key] for key in ("$ref", "$dynamicRef") if isinstance(contents.get(key), str)):
            _follow(resolver, reference)
        for pattern in [
            *contents.get("patternProperties", ()),
            *([contents["pattern"]] if "pattern" in contents else []),
        ]:
            _check_pattern(pattern)
        waiting += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]
    if keywords >= {"unevaluatedProperties", "patternProperties"}:
        raise UserError(
            "json_schema takes no unevaluatedProperties beside patternProperties, whose patterns would have no time "
            "limit: write additionalProperties"
        )


def _follow(resolver: Any, reference: str) -> None:
    """To where it leads, and on where that is a reference itself: without end, it would be followed without end."""
    from referencing.exceptions import Unresolvable

    seen = set()
    while isinstance(reference, str):
        try:
            found = resolver.lookup(reference)
        except Unresolvable as error:
            raise UserError(
                f"json_schema was given a schema without what it refers to, {shown(reference)}: "
                'write that under $defs and refer to it as "#/$defs/name"'
            ) from error
        if id(found.contents) in seen:
            raise UserError("json_schema was given a schema that refers to itself without end: mend its $ref")
        seen.add(id(found.contents))
        resolver = found.resolver
        reference = found.contents.get("$ref") if isinstance(found.contents, dict) else None  # type: ignore[assignment]


def _check_pattern(pattern: str) -> None:
    import regex

    try:
        _compiled(pattern)
    except (regex.error, RecursionError, OverflowError) as error:
        raise UserError(f"json_schema cannot read the pattern {shown(pattern)}: {error}") from error
