"""Where an episode of turns ends: after so many tokens, after so many turns."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from ..errors import UserError

# What a `rollout_func` returns of the prompt, or a turn; all else that is as long as the completion is per token
_NOT_PER_TOKEN = ("prompt_ids", "turn_rewards")


def count_turns(policy: list[int]) -> int:
    """Runs of the policy's own tokens (1), between which its tools and environment speak (0)."""
    return sum(bit for bit, _ in groupby(map(int, policy)))


def kept_tokens(policy: list[int], max_tokens: int | None, max_turns: int | None) -> int:
    """How many tokens of a completion lie within both limits.

    What the environment said last is cut as well, as in TRL's loop: an answer that nobody reads is none. A completion
    within the limits is left as it is.
    """
    end, turns, last_turn_ended = len(policy), 0, 0
    for i, bit in enumerate(policy):
        turns += bool(bit) and (i == 0 or not policy[i - 1])
        if (max_turns is not None and turns > max_turns) or (max_tokens is not None and i >= max_tokens):
            end = last_turn_ended or i
            break
        if bit:
            last_turn_ended = i + 1
    return end


def cut_by(policy: list[int], max_tokens: int | None, max_turns: int | None) -> str | None:
    """Which limit cuts a completion: `"tokens"`, `"turns"`, or None where it lies within both."""
    end = kept_tokens(policy, max_tokens, max_turns)
    if end == len(policy):
        return None
    return "turns" if end == kept_tokens(policy, None, max_turns) else "tokens"


def check_rollouts(output: Any) -> None:
    """Raises:
    UserError: a `rollout_func` returned what no trainer can take; what is missing altogether TRL says.
    """
    if not isinstance(output, Mapping):
        raise UserError(
            "rollout_func must return a dictionary with prompt_ids, completion_ids and logprobs, not "
            f"{type(output).__name__}"
        )
    masks = output.get("env_mask")
    for i, ids in enumerate(output.get("completion_ids") or ()):
        if len(ids) == 0:
            raise UserError(f"rollout_func: completion {i} has no token; give at least the one that ends a text")
        if masks is not None and (i >= len(masks) or len(masks[i]) != len(ids)):
            raise UserError(f"rollout_func: env_mask of completion {i} must have {len(ids)} entries, one a token")


def policy_masks(output: dict[str, Any]) -> list[list[int]]:
    """Of what a `rollout_func` returned: 1 on the tokens that the policy chose, all of them without `env_mask`."""
    return output.get("env_mask") or [[1] * len(ids) for ids in output["completion_ids"]]


def cut_rollouts(output: dict[str, Any], max_tokens: int | None, max_turns: int | None) -> dict[str, Any]:
    """What a `rollout_func` returned, each completion cut at the limits, with all that it returned per token.

    A field is per token where each entry is a list as long as its completion. Of `turn_rewards` those of the turns that
    are whole stay.
    """
    completions = output["completion_ids"]
    masks = policy_masks(output)
    ends = [kept_tokens(mask, max_tokens, max_turns) for mask in masks]
    lengths, cut = [len(ids) for ids in completions], dict(output)
    if ends == lengths:
        return cut
    for name, values in output.items():
        if name not in _NOT_PER_TOKEN and _per_token(values, lengths):
            cut[name] = [value[:end] for value, end in zip(values, ends, strict=True)]
    if output.get("turn_rewards") is not None:
        cut["turn_rewards"] = [
            rewards if rewards is None else rewards[: _whole_turns(mask, end)] if end < len(mask) else rewards
            for rewards, mask, end in zip(output["turn_rewards"], masks, ends, strict=True)
        ]
    return cut


def _whole_turns(policy: list[int], end: int) -> int:
    turns = count_turns(policy[:end])
    return turns - (end < len(policy) and turns > 0 and bool(policy[end]) and bool(policy[end - 1]))


def _per_token(values: Any, lengths: list[int]) -> bool:
    if not isinstance(values, list) or len(values) != len(lengths):
        return False
    return all(hasattr(v, "__len__") and hasattr(v, "__getitem__") and not isinstance(v, str | dict) and len(v) == n
               for v, n in zip(values, lengths, strict=True))  # fmt: skip
