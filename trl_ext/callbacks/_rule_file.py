"""Declarative rules of the user in a YAML file."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jsonschema

from trl_ext.errors import UserError
from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.names import unknown_name
from trl_ext.monitor.rows import LARGEST
from trl_ext.monitor.rules import Rule
from trl_ext.monitor.rules.custom import COMPARISONS
from trl_ext.strict_yaml import read_yaml

# One rule. What it leaves out takes the defaults of `monitor.rules.custom.custom_rule`.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "metric": {"type": "string", "minLength": 1},
        "comparison": {"enum": list(COMPARISONS)},
        "value": {"type": "number"},
        "logs": {"type": "integer", "minimum": 1},
        "severity": {"enum": [severity.value for severity in Severity]},
        "message": {"type": "string", "minLength": 1},
    },
    "required": ["metric", "comparison", "value"],
}
_VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
_WORDS = {"string": "text", "number": "a number", "integer": "a whole number"}
_EXAMPLE = '{name: too_long, metric: completion_length, comparison: ">", value: 200, logs: 3, severity: error}'

CustomRules = str | os.PathLike[str] | Iterable[Mapping[str, Any] | Callable[..., Any] | Rule]


def read_rules(rules: CustomRules | None) -> list[Any]:
    """What `Engine(custom_rules=...)` takes.

    Args:
        rules: the path of a YAML file that is a list of mappings (or a mapping with that list under `rules`); anything
            else goes to the engine, which checks it, as it is.
    Raises:
        UserError: the file cannot be read, or a rule in it is wrong: one line that names file, rule and key.
    """
    if rules is None:
        return []
    if not isinstance(rules, str | os.PathLike):
        return list(rules)
    path = os.fspath(rules)
    content = read_yaml(path)
    if isinstance(content, Mapping) and list(content) == ["rules"]:
        content = content["rules"]
    if not isinstance(content, list) or not content:
        raise UserError(f"{path}: write a list of rules, one a line: - {_EXAMPLE}")
    names: set[str] = set()
    for i, rule in enumerate(content, start=1):
        if not isinstance(rule, Mapping):
            raise UserError(f"{path}, rule {i}: write a mapping such as {_EXAMPLE}, not {rule!r}")
        label = f"{path}, rule {i if rule.get('name') is None else repr(rule['name'])}"
        _check(label, rule)
        if rule.get("name") in names:
            raise UserError(f"{label}: name is taken by another rule")
        names.add(rule.get("name", i))
    return content


def _check(label: str, rule: Mapping[str, Any]) -> None:
    for key in rule:
        if key not in SCHEMA["properties"]:
            raise UserError(f"{label}: {unknown_name('key', key, SCHEMA['properties'])}")
    error = jsonschema.exceptions.best_match(_VALIDATOR.iter_errors(rule))
    if error is not None:
        raise UserError(f"{label}: {_in_words(error)}")
    if not abs(rule["value"]) < LARGEST:
        raise UserError(f"{label}: value must be a finite number, not {rule['value']!r:.60}")


def _in_words(error: jsonschema.ValidationError) -> str:
    wanted = error.validator_value
    if error.validator == "required":
        missing = [key for key in wanted if key not in error.instance]
        return f"{' and '.join(missing)} missing; an example: {_EXAMPLE}"
    key = error.path[0]
    if error.validator == "enum":
        quoted = " in quotes (YAML reads a bare > otherwise)" if key == "comparison" else ""
        return f"{key} must be one of {', '.join(wanted)}{quoted}, not {error.instance!r}"
    if error.validator == "type":
        return f"{key} must be {_WORDS[wanted]}, not {error.instance!r}"
    return f"{key} must be at least {wanted}" if error.validator == "minimum" else f"{key} must not be empty"
