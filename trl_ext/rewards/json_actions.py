"""Are the actions valid that a policy takes in its turns, each written as a JSON object?"""

from collections.abc import Mapping
from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.json_text import PLACES, read_json
from trl_ext.rewards.options import check_choice, check_mapping, check_texts, shown
from trl_ext.rewards.text import Completion, completion_text

_EXAMPLE = "{search: [query], finish: []}"


class JsonActionsReward:
    """Share of a completion's turns that take a valid action, in 0..1; `None` where the policy had no turn.

    A turn is a message of the assistant; a completion that is a string is one turn. Its action is an object such as
    `{"name": "search", "arguments": {"query": "weather"}}`. It is valid where `name` is among the actions and each
    required argument is there, whatever its value; further members do not matter. Of a message with `tool_calls` each
    call is looked at, and all must be valid.

    Args:
        actions: names with their required arguments, `{search: [query], finish: []}`, or names alone, `[up, down]`.
        where: where in the turn the object stands, as `json_valid` has it; default `"first"`.
        arguments: the member that holds the arguments, default `"arguments"`; null where they stand beside `name`.
    Raises:
        UserError: no actions, arguments that are no list of names, or another place.
    """

    __name__ = "json_actions"

    def __init__(
        self, actions: dict[str, list[str]] | list[str], where: str = "first", arguments: str | None = "arguments"
    ) -> None:
        if isinstance(actions, Mapping):
            named = check_mapping("json_actions", "actions", actions, _EXAMPLE)
        else:
            named = dict.fromkeys(check_texts("json_actions", "actions", actions, f"[up, down] or {_EXAMPLE}"))
        self.actions = {name: _names(name, required) for name, required in named.items()}
        self.where = check_choice("json_actions", "where", where, PLACES)
        if arguments is not None and (not isinstance(arguments, str) or not arguments):
            raise UserError(f"json_actions needs a name for arguments, or null, not {shown(arguments)}")
        self.arguments = arguments

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float | None]:
        return [self._score(completion) for completion in completions]

    def _score(self, completion: Completion) -> float | None:
        if isinstance(completion, str):
            return float(self._written(completion))
        turns = [message for message in completion if message.get("role", "assistant") == "assistant"]
        return sum(map(self._turn, turns)) / len(turns) if turns else None

    def _turn(self, message: dict) -> bool:
        if calls := message.get("tool_calls"):
            return all(self._called(call) for call in calls)
        return self._written(completion_text([message]))

    def _written(self, text: str) -> bool:
        try:
            action = read_json(text, self.where)
        except ValueError:
            return False
        if not isinstance(action, dict):
            return False
        return self._valid(action.get("name"), action if self.arguments is None else action.get(self.arguments))

    def _called(self, call: Any) -> bool:
        """A call as TRL and the chat templates have it; the arguments are a mapping or, as OpenAI has it, JSON text."""
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return False
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = read_json(arguments, "whole")
            except ValueError:
                return False
        return self._valid(function.get("name"), arguments)

    def _valid(self, name: Any, arguments: Any) -> bool:
        """Without arguments there may be none at all, or null; otherwise they are an object."""
        required = self.actions.get(name) if isinstance(name, str) else None
        if required is None:
            return False
        if arguments is None:
            return not required
        return isinstance(arguments, dict) and all(argument in arguments for argument in required)


def _names(action: str, required: Any) -> tuple[str, ...]:
    if required is None or required == []:
        return ()
    return tuple(check_texts("json_actions", f"the arguments of {action!r}", required, "[query]"))
