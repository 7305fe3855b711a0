"""What a person sees of a run: a progress bar, a short line a log, now and then completions with their rewards."""

import json
import math
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from trl_ext.callbacks._guard import never_raises
from trl_ext.monitor.metrics import METRICS
from trl_ext.rewards.samples import evenly, samples_table
from trl_ext.rewards.text import completion_text, prompt_text

# Label, format, and keys or canonical names of metrics: the first one that was logged is shown.
_SHOWN = (
    ("reward", "{:6.3f}", ("reward",)),
    ("loss", "{:6.3f}", ("loss",)),
    ("accuracy", "{:.3f}", ("rewards/accuracies", "accuracy", "token_accuracy")),
    ("kl", "{:5.2f}", ("kl_per_sequence", "kl_per_token")),
    ("entropy", "{:.2f}", ("entropy_per_token",)),
    ("length", "{:.1f}", ("completion_length",)),
    ("expl.var", "{:5.2f}", ("explained_variance",)),
    ("lr", "{:.1e}", ("learning_rate",)),
)


def log_line(step: int, max_steps: int, logs: Mapping[str, Any], width: int | None = None) -> str:
    """One short line of a log, `""` when it holds nothing that is shown (the summary at the end of a run).

    Reads the keys of TRL's trainers, of stock PPO and of evaluations. Where a reward is logged the loss is left out: a
    policy-gradient loss says nothing about progress. A quantity that is missing or `None` is left out.

    Args:
        width: columns of the terminal; quantities that do not fit are left out from the right.
    """
    prefix = "eval_" if any(key.startswith("eval_") for key in logs) else ""
    shown: list[str] = []
    for label, form, names in _SHOWN:
        keys = [key for name in names for key in METRICS.get(name, (name,))]
        value = next((logs[prefix + key] for key in keys if isinstance(logs.get(prefix + key), int | float)), None)
        if value is not None and not (label == "loss" and shown):
            shown.append(f"  {label} {form.format(value)}")
    line = f"{'eval ' if prefix else ''}step {step:>{len(str(max_steps))}}/{max_steps}"
    while width is not None and shown and len(line) + sum(map(len, shown)) > width:
        shown.pop()
    return line + "".join(shown) if shown else ""


def drop_raw_logs(trainer: Any) -> None:
    """Takes the two callbacks of Transformers out that print raw dictionaries, one of them under `disable_tqdm`."""
    for raw in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(raw)


class ConsoleCallback(TrainerCallback):
    """Shows a run to whoever started it. Use it in place of the callback that prints raw dictionaries:

        trainer = GRPOTrainer(..., callbacks=[ConsoleCallback(reward_funcs)])
        drop_raw_logs(trainer)

    Works on HF trainers and on stock PPO, prints in the main process alone, and draws the bar only where the error
    stream is a terminal: log files get lines. An error in it is logged once and never ends a run.

    Args:
        reward_funcs: functions whose completions to show: those with a `last_batch`, as `load_reward_funcs` gives them.
            The samples are also appended to `output_dir/trl_ext/samples.jsonl`.
        samples_every: steps between two tables. The first one comes with the first log, the last one at the end.
        num_samples: completions in a table.
    """

    def __init__(
        self, reward_funcs: Sequence[Callable] | None = None, samples_every: int = 50, num_samples: int = 4
    ) -> None:
        self.reward_funcs = list(reward_funcs or [])
        self.samples_every, self.num_samples = samples_every, num_samples
        self._progress = ProgressCallback()
        self._next_samples = 0
        self._sampled_at = -1

    @never_raises
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            # disable=None: tqdm draws only in a terminal. The trainer's own switch counts as well.
            disable = True if args.disable_tqdm else None
            self._progress.training_bar = tqdm(total=state.max_steps, dynamic_ncols=True, disable=disable)
            self._progress.current_step = 0

    @never_raises
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._progress.on_step_end(args, state, control)

    @never_raises
    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._progress.training_bar is not None and not self._progress.training_bar.disable:
            self._progress.on_prediction_step(args, state, control, **kwargs)

    @never_raises
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._progress.on_evaluate(args, state, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._print_line(state, logs or {})
            if state.global_step >= self._next_samples:
                self._next_samples = state.global_step + self.samples_every
                self._show_samples(args, state)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            if state.global_step > self._sampled_at:
                self._show_samples(args, state)
            self._close_bar(args, state, control)

    @never_raises
    def _close_bar(self, args: Any, state: Any, control: Any) -> None:
        self._progress.on_train_end(args, state, control)

    @never_raises
    def _print_line(self, state: Any, logs: Mapping[str, Any]) -> None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        if line := log_line(state.global_step, state.max_steps, logs, width):
            tqdm.write(line)

    @never_raises
    def _show_samples(self, args: Any, state: Any) -> None:
        batches = {f.__name__: batch for f in self.reward_funcs if (batch := getattr(f, "last_batch", None))}
        if not batches:
            return
        prompts, completions, _ = next(iter(batches.values()))
        rewards = {name: batch.rewards for name, batch in batches.items()}
        title = f"Samples at step {state.global_step}"
        tqdm.write(f"\n{samples_table(prompts, completions, rewards, self.num_samples, title)}\n")
        self._sampled_at = state.global_step
        path = Path(args.output_dir, "trl_ext", "samples.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            for i in evenly(len(completions), self.num_samples):
                row = {
                    "step": state.global_step,
                    "prompt": prompt_text(prompts[i]),
                    "completion": completion_text(completions[i]),
                    "rewards": {name: _finite(values[i]) for name, values in rewards.items()},
                }
                file.write(json.dumps(row, allow_nan=False) + "\n")


def _finite(value: float | None) -> float | None:
    """Strict JSON has no NaN: `null`, as for a reward that does not apply."""
    return value if value is not None and math.isfinite(value) else None
