"""Stops in time, with a checkpoint."""

import logging
import time
from collections import deque
from datetime import datetime
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trl_ext.callbacks._deadline import find_end
from trl_ext.callbacks._stop import StopDecision
from trl_ext.callbacks.stopping import ignores_control
from trl_ext.ranks import largest_over_ranks

logger = logging.getLogger(__name__)

STEPS_REMEMBERED = 16  # the slowest of them is what the next step may take: some steps generate, evaluate or save
MAX_STEPS_BETWEEN_CHECKS = 8  # among several processes, for which a check is a collective
LEAST_RESERVE, LARGEST_RESERVE = 1.0, 300.0


class TimeBudgetCallback(TrainerCallback):
    """Saves a checkpoint and stops before the time is over, on any trainer and on stock PPO (TRL 1.12).

    Looked at after each step: training ends when the next one, as slow as the slowest of the last 16, and the saving
    would not fit any more. The main process's clock counts for all. A resumed run has a budget of its own.

    Args:
        hours, minutes, seconds: the budget; they add up. It is counted from the moment this object is made, so make it
            first: loading a model takes time as well.
        deadline: a `datetime` (local time if it has no zone), an ISO 8601 string, or seconds since 1970. The earlier
            one counts if a budget is given as well. With neither, `SLURM_JOB_END_TIME` is read from the environment.
        reserve: seconds to keep for saving and whatever comes after training. By default a twentieth of the budget,
            300 at most, and twice as long as the slowest save so far.
    Raises:
        UserError: no budget, one that is over, or a value that makes no sense.
    """

    def __init__(
        self,
        hours: float | None = None,
        minutes: float | None = None,
        seconds: float | None = None,
        deadline: datetime | str | float | None = None,
        reserve: float | None = None,
    ):
        budget = find_end(hours, minutes, seconds, deadline, reserve)
        self._end = time.monotonic() + budget
        self._budget = budget
        usual = min(max(budget / 20, LEAST_RESERVE), LARGEST_RESERVE)
        self._reserve_given, self._reserve = reserve is not None, usual if reserve is None else float(reserve)
        self._begin()

    def _begin(self) -> None:
        self._stop = StopDecision()
        self._steps: deque[float] = deque(maxlen=STEPS_REMEMBERED)
        self._next_check = 0
        self._step_began = self._event_ended = time.monotonic()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._begin()
        self._next_check = state.global_step

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        now = time.monotonic()
        self._steps.append(now - self._step_began)
        self._step_began = self._event_ended = now
        if self._stop.taken is None and state.global_step >= self._next_check:
            self._check(args, state, now)
        return self._stop.ask(control)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._event_ended = time.monotonic()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any) -> None:
        took = time.monotonic() - self._event_ended
        if not self._reserve_given:
            self._reserve = max(self._reserve, 2 * took)
        if self._stop.must_raise(state):
            self._stop.raise_after_the_others(self, args, state, control, event)

    def _check(self, args: TrainingArguments, state: TrainerState, now: float) -> None:
        """A collective: a rank whose clock says otherwise must not go on alone."""
        slowest = max(*self._steps, 1e-6)
        affordable = (self._end - self._reserve - now) / slowest
        steps = 0 if affordable < 1 else max(1, min(int(affordable / 2), MAX_STEPS_BETWEEN_CHECKS))
        fewest = -largest_over_ranks(-steps, args)
        self._next_check = state.global_step + (fewest if args.world_size > 1 else 1)
        if fewest == 0:
            go_on = "" if ignores_control(state) else "; resume_from_checkpoint=True goes on from here"
            self._stop.take(
                f"stopped at step {state.global_step}: {self._end - now:.0f} of {self._budget:.0f} seconds are left, a "
                f"step takes up to {slowest:.1f} and {self._reserve:.0f} are kept for saving{go_on}"
            )
            logger.warning("%s", self._stop.taken)
