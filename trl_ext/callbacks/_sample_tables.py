"""Completions beside their rewards, now and then, for the trackers."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from trl_ext.callbacks._reward_failures import checked_rewards
from trl_ext.callbacks._trackers import Trackers
from trl_ext.callbacks.console import ConsoleCallback
from trl_ext.rewards.samples import evenly
from trl_ext.rewards.text import completion_text, prompt_text

SAMPLES_EVERY, NUM_SAMPLES = 50, 8  # steps, and rows; those of the console where there is one
_PROMPT, _COMPLETION = 500, 2000  # characters: the end of a prompt, the start of a completion


class SampleTables:
    """`trl_ext/samples`: at the first log, every `SAMPLES_EVERY` steps, and at the end.

    W&B and trackio get none where TRL's own `log_completions` sends them all completions.
    """

    def __init__(self, trainer: Any, trackers: Trackers) -> None:
        self.trainer = weakref.ref(trainer)
        self._trackers = trackers
        console = next((c for c in trainer.callback_handler.callbacks if isinstance(c, ConsoleCallback)), None)
        self._every = console.samples_every if console is not None else SAMPLES_EVERY
        self._rows = console.num_samples if console is not None else NUM_SAMPLES
        self._without = ("wandb", "trackio") if getattr(trainer.args, "log_completions", False) else ()
        self.due, self._shown = 0, -1  # steps

    def show(self, step: int, at_the_end: bool = False) -> None:
        if not self._trackers or step < (self._shown + 1 if at_the_end else self.due):
            return
        self.due, self._shown = step + self._every, step
        prompts, completions, rewards = latest_completions(self.trainer())
        rows: list[list[str | float | None]] = []
        for i in evenly(len(completions), self._rows):
            given = [values[i] for values in rewards.values()]
            rows.append([prompt_text(prompts[i])[-_PROMPT:], completion_text(completions[i])[:_COMPLETION], *given])
        if rows:
            columns = ["prompt", "completion", *rewards]
            self._trackers.table("trl_ext/samples", columns, rows, step, without=self._without)


def latest_completions(trainer: Any) -> tuple[Sequence[Any], Sequence[Any], Mapping[str, Sequence[float | None]]]:
    """Prompts, completions, and the rewards of each function; empty for a trainer that makes none.

    GRPO and RLOO keep those of the latest generation for `log_completions`, asked for or not; for stock PPO the checked
    reward functions do.
    """
    logs = getattr(trainer, "_logs", None)
    if isinstance(logs, dict) and {"prompt", "completion", "rewards"} <= set(logs):
        prompts, completions = list(logs["prompt"]), list(logs["completion"])
        rewards: dict[str, list[float | None]] = {name: list(values) for name, values in logs["rewards"].items()}
    else:
        batches = {f.__name__: f.last_batch for f in checked_rewards(trainer) if f.last_batch is not None}
        if not batches:
            return [], [], {}
        first = next(iter(batches.values()))
        prompts, completions = list(first.prompts), list(first.completions)
        rewards = {name: list(batch.rewards) for name, batch in batches.items()}
    whole = {name: values for name, values in rewards.items() if len(values) == len(completions)}
    return (prompts, completions, whole) if len(prompts) == len(completions) else ([], [], {})
