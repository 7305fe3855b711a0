"""Asks reward functions about two samples before a model is loaded: a mistake in them costs seconds, not a run."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.calls import Call, ask
from trl_ext.rewards.checking import CheckedReward
from trl_ext.rewards.probing import probing

SAMPLES = (
    "Thank you, this is a great answer.",
    "<think>\n2 + 2 is 4\n</think>\nThe answer is \\boxed{4}.",
)
_PROMPT = "How much is 2 + 2?"


def check_reward_funcs(reward_funcs: Sequence[Callable], dataset: Any = None) -> None:
    """Asks each function about two sample completions, as a trainer would.

    Args:
        reward_funcs: as `load_reward_funcs` gives them; an `nn.Module` is left out.
        dataset: the dataset, or a list of its rows, with `prompt` and the columns that functions may want; the first
            two rows are asked about. `None`: a function that wants a column is left out.
    Raises:
        UserError: a function that fails on one, named.
    """
    rows = None if dataset is None else list(islice(iter(dataset), len(SAMPLES)))  # a stream has no length
    if rows is not None and not rows:
        raise UserError("the dataset has no rows, so that its rewards cannot be tried: choose another split or dataset")
    for func in reward_funcs:
        if not isinstance(func, CheckedReward):
            continue
        if rows is None and _wants_columns(func.func):
            continue
        ask_strictly(func, sample_call(rows))


def ask_strictly(func: CheckedReward, call: Call) -> None:
    """Without a trace in it.

    Raises:
        UserError: it fails on a completion, whatever its own policy.
    """
    with probing():
        ask(CheckedReward(func.func, func.__name__, "raise", func.timeout), call)


def sample_call(rows: Sequence[Mapping[str, Any]] | None = None) -> Call:
    """About two completions, in the form (text or messages) of the rows' prompts."""
    rows = [rows[i % len(rows)] for i in range(len(SAMPLES))] if rows else [{"prompt": _PROMPT}] * len(SAMPLES)
    prompts = [row.get("prompt", _PROMPT) for row in rows]
    columns = {key: [row[key] for row in rows] for key in rows[0] if key not in ("prompt", "completion")}
    texts: list[Any] = list(SAMPLES)
    if isinstance(prompts[0], list):
        texts = [[{"role": "assistant", "content": text}] for text in texts]
    ids = [list(range(1, len(text.split()) + 1)) for text in SAMPLES]
    return Call(prompts, texts, ids, columns)


def _wants_columns(func: Callable) -> bool:
    """Whether it has an argument without default that is no part of what every trainer passes."""
    given = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"}
    try:
        parameters = inspect.signature(func).parameters.values()
    except (TypeError, ValueError):
        return False
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return any(p.default is p.empty and p.name not in given for p in named)
