"""Which tokens of a completion are the JSON of its actions, and whether it acts validly."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from tokenizers.decoders import DecodeStream

from ..rewards.json_schema import JsonSchemaReward
from ..rewards.json_text import object_spans

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what part of a character decodes to


class Actions(NamedTuple):
    """Of a batch.

    Attributes:
        mask: `(B, T)`, 1 on every token that holds a character of an action's outermost object, 0 elsewhere.
        valid: `(B,)`, whether each turn acts, and every action agrees with the schema. Where there are tools, the last
            of several turns may be the answer instead, a text without a brace.
        per_completion: `(B,)`, actions.
    """

    mask: torch.Tensor
    valid: torch.Tensor
    per_completion: torch.Tensor


class _Turn(NamedTuple):
    """
    Attributes:
        text: what was said.
        tokens: places of those that hold a character of an action.
        actions: how many.
        agrees: whether all agree with the schema.
    """

    text: str
    tokens: list[int]
    actions: int
    agrees: bool


class JsonActions:
    """Finds actions where the policy speaks: in each run of its own tokens by itself, so that no tool's answer is one.

    An action is a JSON object, of which only the outermost counts, as strictly read as by the reward functions
    (`json_text`): inside a string braces are text; one that the limit of tokens cuts off is none, and no part of it is.

    Args:
        tokenizer: that generated the tokens.
        schema: a JSON Schema that every action must agree with, or the path of one.
        answers: whether the last of several turns may be an answer.
    Raises:
        UserError: no JSON Schema, or a file that cannot be read.
    """

    def __init__(self, tokenizer: Any, schema: Any = None, answers: bool = False) -> None:
        self._tokenizer, self._answers = tokenizer, answers
        self._schema = None if schema is None else JsonSchemaReward(schema)

    def find(self, completion_ids: torch.Tensor, policy: torch.Tensor) -> Actions:
        """
        Args:
            completion_ids, policy: `(B, T)`; the latter 1 on the tokens that the policy chose.
        """
        found = torch.zeros_like(policy)
        valid, count = [], []
        for row, (ids, own) in enumerate(zip(completion_ids.tolist(), policy.tolist(), strict=True)):
            runs = _runs(own)
            turns = [self._turn(ids[begin:end]) for begin, end in runs]
            for (begin, _), turn in zip(runs, turns, strict=True):
                found[row, [begin + token for token in turn.tokens]] = 1
            answered = self._answers and len(turns) > 1 and "{" not in turns[-1].text
            acting = turns[:-1] if answered else turns
            valid.append(bool(turns) and all(turn.actions > 0 and turn.agrees for turn in acting))
            count.append(sum(turn.actions for turn in turns))
        device = policy.device
        return Actions(found, torch.tensor(valid, device=device), torch.tensor(count, device=device))

    def _turn(self, ids: list[int]) -> _Turn:
        text = _decoded(self._tokenizer, ids)
        spans = object_spans(text)
        tokens = _tokens_of(self._tokenizer, ids, text, spans) if spans else []
        return _Turn(text, tokens, len(spans), all(self._agrees(text[start:stop]) for start, stop in spans))

    def _agrees(self, action: str) -> bool:
        return self._schema is None or self._schema([""], [action]) == [1.0]


def _runs(mask: list[int]) -> list[tuple[int, int]]:
    """(first, behind the last) of each run of ones."""
    edges = [i for i in range(len(mask) + 1) if (mask[i] if i < len(mask) else 0) != (mask[i - 1] if i else 0)]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _tokens_of(tokenizer: Any, ids: list[int], text: str, spans: list[tuple[int, int]]) -> list[int]:
    """Which tokens hold a character of a span; of a character that several tokens make, each holds it."""
    begin, end = _offsets(tokenizer, ids, text)
    first = 1 if not _decoded(tokenizer, ids[:1]) else 0  # the mark of a space that no text has
    places, tokens = range(len(ids)), list[int]()
    for start, stop in spans:
        from_here = max(bisect_right(places, start, key=end), first)
        tokens += range(from_here, bisect_left(places, stop, key=begin))
    return tokens


def _offsets(tokenizer: Any, ids: list[int], text: str) -> tuple[Callable[[int], int], Callable[[int], int]]:
    """Where in the text a token begins and ends; neither ever falls from one token to the next."""
    if tokenizer.is_fast and _INCOMPLETE not in text:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        if encoded["input_ids"] == ids:
            offsets = encoded["offset_mapping"]
            return lambda i: offsets[i][0], lambda i: offsets[i][1]
    # A policy may choose other tokens for a text than the tokenizer would
    lengths = _streamed_lengths(tokenizer, ids, text)

    @cache
    def decoded(count: int) -> int:
        return len(_decoded(tokenizer, ids[:count]).rstrip(_INCOMPLETE))

    length = decoded if lengths is None else lengths.__getitem__
    return length, lambda i: max(length(i + 1), length(i) + 1)


def _streamed_lengths(tokenizer: Any, ids: list[int], text: str) -> list[int] | None:
    """Characters that the first 0, 1, ... tokens make, in one pass; None where that does not come to the text."""
    if not tokenizer.is_fast:
        return None
    stream, parts, lengths = DecodeStream(skip_special_tokens=False), [], [0]
    try:
        for token in ids:
            parts.append(stream.step(tokenizer.backend_tokenizer, token) or "")
            lengths.append(lengths[-1] + len(parts[-1]))
    except Exception:  # tokenizers raises no other: bytes that are no character, behind some that are
        return None
    return lengths if "".join(parts) == text.rstrip(_INCOMPLETE) else None


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
