"""YAML files of the user, read strictly."""

import os
import re
from typing import Any

import yaml

from trl_ext.errors import UserError


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


StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


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
