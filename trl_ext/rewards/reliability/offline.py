"""The reliability of rewards from a file of completions, without a run."""

from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from trl_ext.errors import UserError
from trl_ext.rewards.calls import Call, ask
from trl_ext.rewards.checking import CheckedReward
from trl_ext.rewards.json_lines import columns_of, completion_of
from trl_ext.rewards.reliability.judge import RewardReliability
from trl_ext.rewards.reliability.probe_set import ProbeSet
from trl_ext.rewards.reliability.probes import probe
from trl_ext.rewards.reliability.report import ReliabilityReport
from trl_ext.rewards.text import completion_text

_BATCH = 64


class _Reader:
    """Rows in batches of one step each, in the order of the file; memory is that of a batch."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.read = 0

    def batches(self, rows: Iterable[dict[str, Any]]) -> Iterable[tuple[int, list[dict[str, Any]]]]:
        batch: list[dict[str, Any]] = []
        step = 0
        for row in rows:
            self.read += 1
            given = row.get("step", row.get("seen_at", (self.read - 1) // _BATCH))
            if not isinstance(given, int | float) or isinstance(given, bool):
                raise UserError(f"{self.where}, completion {self.read}: step must be a number, not {given!r}")
            if batch and (given != step or len(batch) == _BATCH):
                yield step, batch
                batch = []
            step = int(given)
            batch.append(row)
        if batch:
            yield step, batch


def check_completions(
    rows: Iterable[dict[str, Any]],
    reward_funcs: Sequence[Callable] | None = None,
    weights: Sequence[float] | None = None,
    *,
    window: int = 1000,
    num_probes: int = 8,
    gold_reward: Callable | None = None,
    probe_set: ProbeSet | None = None,
    tokenize: Callable[[list[str]], list[list[int]]] | None = None,
    where: str = "rows",
) -> ReliabilityReport:
    """What `RewardReliabilityCallback` would say after a run that brought these completions.

    Args:
        rows: `completion` (or `text`), and where there are such `prompt`, `step`, `rewards` (a mapping by function),
            `gold` (a number), and dataset columns. In the order of the run.
        reward_funcs: asked about each completion, and again for the probes. `None`: `rewards` of the rows are judged.
        tokenize: for functions that count tokens, where rows have no `completion_ids`.
        where: the file, for errors.
    Raises:
        UserError: no rows, or a row without what is needed.
    """
    reader, reliability, last = _Reader(where), None, None
    functions = [f if isinstance(f, CheckedReward) else CheckedReward(f) for f in reward_funcs or ()]

    def score(call: Call) -> np.ndarray:
        if call.completion_ids is None and tokenize is not None:
            call = call._replace(completion_ids=tokenize(list(map(completion_text, call.completions))))
        return np.array([ask(function, call) for function in functions], dtype=float).T

    for step, batch in reader.batches(rows):
        call = _call(batch, reader)
        if reliability is None:
            names = [function.__name__ for function in functions] or _names(batch[0], reader)
            reliability = RewardReliability(names, weights, window)
        given = score(call) if functions else _given(batch, reliability.window.names, reader)
        reliability.observe(step, call.prompts, call.completions, given)
        if gold_reward is not None or any("gold" in row for row in batch):
            gold = ask(gold_reward, call) if gold_reward is not None else [row.get("gold") for row in batch]
            golden = np.array([value if _is_number(value) else np.nan for value in gold], dtype=float)
            reliability.observe_gold(step, call.prompts, call.completions, given, golden)
        if last is None or len(call.completions) >= min(num_probes, len(last.completions)):
            last = call  # the latest with enough to be scored again in a batch
    if reliability is None or last is None:
        raise UserError(f"{where} has no completions")
    if functions and num_probes:
        count = min(num_probes, len(last.completions))
        reliability.observe_probes(probe(last.take(range(count)), reliability.window.weights, score))
    if functions and probe_set is not None:
        reliability.observe_probe_set(probe_set.score(lambda call: score(_with_columns(call))), probe_set.truth)
    return reliability.report()


def _call(batch: list[dict[str, Any]], reader: _Reader) -> Call:
    first = reader.read - len(batch)
    completions = [completion_of(row, f"{reader.where}, completion {first + i}") for i, row in enumerate(batch, 1)]
    columns = columns_of(batch, reader.where)
    ids = [row.get("completion_ids") for row in batch]
    known = ids if all(isinstance(row, list) for row in ids) else None
    return Call([row.get("prompt", "") for row in batch], completions, known, columns)


def _with_columns(call: Call) -> Call:
    """The rows of a probe set as the columns that reward functions take."""
    rows = call.others["inputs"]
    return call._replace(others={key: [row.get(key) for row in rows] for key in rows[0] if key != "prompt"})


def _names(row: dict[str, Any], reader: _Reader) -> list[str]:
    rewards = row.get("rewards")
    if isinstance(rewards, dict) and rewards:
        return list(map(str, rewards))
    if _is_number(row.get("reward")):
        return ["reward"]
    raise UserError(
        f"{reader.where} holds no rewards: name reward functions (--config or --reward_funcs), or give each row "
        '"rewards": {"my_reward": 0.5}'
    )


def _given(batch: list[dict[str, Any]], names: list[str], reader: _Reader) -> np.ndarray:
    rows = []
    for number, row in enumerate(batch, start=reader.read - len(batch) + 1):
        rewards = row.get("rewards")
        values = rewards if isinstance(rewards, dict) else {"reward": row.get("reward")}
        unknown = sorted(set(map(str, values)) - set(names))
        if unknown:
            raise UserError(
                f"{reader.where}, completion {number} has a reward {unknown[0]!r} that the first one lacks: give all "
                "rows the same names, null where one does not apply"
            )
        for name, value in values.items():
            if value is not None and not _is_number(value):
                raise UserError(f"{reader.where}, completion {number}: {name} must be a number or null, not {value!r}")
        rows.append([np.nan if values.get(name) is None else values[name] for name in names])
    return np.array(rows, dtype=float)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
