"""YAML files of the user, read strictly, and written so that they are read back as they were."""

import os
import re
from collections.abc import Collection, Mapping
from typing import Any

import yaml

from trl_ext.errors import UserError, did_you_mean

_EXPONENT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


class StrictLoader(yaml.SafeLoader):
    """YAML in which a key given twice is an error, and `1e-3` a number as in YAML 1.2 and JSON."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """What a YAML file holds.

    Raises:
        UserError: it cannot be read; one line that names file, line and problem.
    """
    text = ""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        return yaml.load(text, StrictLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'no UTF-8 text'}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        lines = text.splitlines()
        quotes = mark and mark.line < len(lines) and "comparison" in lines[mark.line]
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise UserError(f"{path}{place}: {problem}{'; write the comparison in quotes' if quotes else ''}") from error


class _StrictDumper(yaml.SafeDumper):
    """Writes words so that `StrictLoader` reads words, and no references to what came before."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_StrictDumper.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
_StrictDumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"'
    ),
)


def dump_yaml(content: Any) -> str:
    """YAML that `StrictLoader` reads as `content`: plain values, in the order they are in.

    Raises:
        UserError: it would be read as something else.
    """
    text = yaml.dump(content, Dumper=_StrictDumper, allow_unicode=True, sort_keys=False, width=10**6)
    try:
        again = yaml.load(text, StrictLoader)
    except yaml.YAMLError as error:
        raise UserError(f"these values cannot be written as YAML: {' '.join(str(error).split())[:200]}") from error
    if repr(again) != repr(content):
        raise UserError("these values cannot be written as YAML: they would be read as other ones")
    return text


def refuse_unknown_keys(content: Mapping[Any, Any], known: Collection[str], where: str) -> None:
    """Looks at the keys alone.

    Raises:
        UserError: a key that is none of `known`, with the nearest of them.
    """
    for key in content:
        if key not in known:
            meant = did_you_mean(key, known, f"there are: {', '.join(known)}")
            raise UserError(f"{where}: unknown key {str(key)!r}; {meant}")
