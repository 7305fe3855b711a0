"""Is a completion JSON, and does it hold what is asked for?"""

from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.json_text import PLACES, read_json
from trl_ext.rewards.options import check_choice, check_texts, shown
from trl_ext.rewards.text import Completion, completion_text


class JsonValidReward:
    """1 where a completion holds valid JSON, else 0.

    Args:
        where: `"whole"` (default), the completion is JSON and nothing else; `"fenced"`, the first fenced block of
            Markdown is; `"first"`, there is a valid object in the text. More in `json_text.read_json`.
    Raises:
        UserError: another place.
    """

    __name__ = "json_valid"

    def __init__(self, where: str = "whole") -> None:
        self.where = check_choice("json_valid", "where", where, PLACES)

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float]:
        return [self._score(completion_text(completion)) for completion in completions]

    def _score(self, text: str) -> float:
        try:
            read_json(text, self.where)
        except ValueError:
            return 0.0
        return 1.0


class JsonFieldsReward:
    """Share of the required fields that are present in a completion's JSON, in 0..1; 0 without valid JSON.

    A field is present whatever its value is, null and "" too.

    Args:
        fields: names; dots lead inside, and a number is a place in a list: `["name", "address.city", "items.0.id"]`.
        where: as `json_valid` has it; default `"whole"`.
    Raises:
        UserError: no fields, the same one twice, one with an empty part, or another place.
    """

    __name__ = "json_fields"

    def __init__(self, fields: list[str], where: str = "whole") -> None:
        self.fields = check_texts("json_fields", "fields", fields, "[name, address.city]")
        self.where = check_choice("json_fields", "where", where, PLACES)
        self._paths = [field.split(".") for field in self.fields]
        for field, path in zip(self.fields, self._paths, strict=True):
            if not all(path):
                raise UserError(f"json_fields needs names between dots, e.g. address.city, not {shown(field)}")

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float]:
        return [self._score(completion_text(completion)) for completion in completions]

    def _score(self, text: str) -> float:
        try:
            value = read_json(text, self.where)
        except ValueError:
            return 0.0
        return sum(_present(value, path) for path in self._paths) / len(self._paths)


def _present(value: Any, path: list[str]) -> bool:
    for part in path:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return False
    return True
