"""Scores the same completions again: unchanged, one by one, in another order, slightly edited, without reasoning."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trl_ext.rewards.calls import Call
from trl_ext.rewards.probing import probing
from trl_ext.rewards.reliability.edits import EDITS, PAYS, edited, reasoning_of, with_reasoning
from trl_ext.rewards.text import Completion

Score = Callable[[Call], np.ndarray]
_SINGLES = 4  # of the completions are scored one by one


class Effect(NamedTuple):
    """How far one probe moved the rewards.

    Attributes:
        total: mean over the completions, in the unit of the reward; for edits that may pay (`edits.PAYS`) the mean
            change, which is negative where the edit costs, for all others the mean of the absolute changes. NaN where
            the probe did not apply.
        functions: the same for each function.
    """

    total: float
    functions: np.ndarray


class Probes(NamedTuple):
    """What scoring again showed.

    Attributes:
        scored: completions that were scored again.
        consistency: `again` (the very same), `single` (one by one instead of a batch, so with other padding) and
            `order` (reversed).
        sensitivity: one for each of `edits.EDITS`.
        reasoning: `removed` and `swapped` (with that of the next completion); empty where no completion has any.
    """

    scored: int
    consistency: dict[str, Effect]
    sensitivity: dict[str, Effect]
    reasoning: dict[str, Effect]


def probe(call: Call, weights: np.ndarray, score: Score, given: np.ndarray | None = None) -> Probes:
    """Scores the completions of `call` about 7 times, and a few of them once more.

    Args:
        score: gives rewards of shape `(completions, functions)`, NaN where one does not apply. It is called equally
            often, with equally many completions, whatever these are: it may be a collective of several processes.
        given: what the completions got in their own batch; scored here where `None`.
    """
    count = len(call.completions)
    with probing():
        base = score(call)
        again = score(call) if given is None else base
        given = base if given is None else given
        rows = range(min(count, _SINGLES))
        single = np.concatenate([score(call.take([row])) for row in rows])
        backwards = list(range(count - 1, -1, -1))
        order = score(call.take(backwards))[::-1]
        edits = {
            name: score(_with(call, [edited(c, edit) for c in call.completions], new_ids=name in PAYS))
            for name, edit in EDITS.items()
        }
        removed, swapped = (
            score(_with(call, changed, new_ids=True)) for changed in _without_reasoning(call.completions)
        )
    applies = np.array([reasoning_of(completion) is not None for completion in call.completions])
    return Probes(
        count,
        {
            "again": _effect(given, again, weights, signed=False),
            "single": _effect(given[: len(single)], single, weights, signed=False),
            "order": _effect(given, order, weights, signed=False),
        },
        {name: _effect(base, rewards, weights, signed=name in PAYS) for name, rewards in edits.items()},
        {
            "removed": _effect(base[applies], removed[applies], weights, signed=False),
            "swapped": _effect(base[applies], swapped[applies], weights, signed=False),
        }
        if applies.any()
        else {},
    )


def _with(call: Call, completions: list[Completion], new_ids: bool) -> Call:
    """Token ids are made anew (`None` has the scorer do so) where text comes or goes: white space and case, which the
    policy's tokenizer spells in other tokens, are no matter of a reward that counts these."""
    return call._replace(completions=completions, completion_ids=None if new_ids else call.completion_ids)


def _without_reasoning(completions: list[Completion]) -> tuple[list[Completion], list[Completion]]:
    spans = [reasoning_of(completion) for completion in completions]
    known = [span for span in spans if span is not None]
    removed, swapped, at = [], [], 0
    for completion, span in zip(completions, spans, strict=True):
        if span is None:
            removed.append(completion)
            swapped.append(completion)
            continue
        at += 1
        removed.append(with_reasoning(completion, ""))
        swapped.append(with_reasoning(completion, known[at % len(known)]))
    return removed, swapped


def _effect(before: np.ndarray, after: np.ndarray, weights: np.ndarray, signed: bool) -> Effect:
    """A function that gives a number only before or only after is left out: that is a failure, and told as one."""
    change = after - before
    totals = np.where(np.isnan(change), 0.0, change) @ weights
    totals = totals[~np.isnan(change).all(axis=1)]
    if not signed:
        change, totals = np.abs(change), np.abs(totals)
    known = ~np.isnan(change)
    functions = np.where(known, change, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return Effect(float(totals.mean()) if len(totals) else float("nan"), functions)
