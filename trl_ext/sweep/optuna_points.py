"""Combinations that Optuna chooses from what came of those before, by its ask-and-tell interface."""

from typing import Any

from trl_ext.errors import UserError
from trl_ext.sweep.definition import Sweep
from trl_ext.sweep.parameters import Parameter, Point


class OptunaPoints:
    """A study in memory; `tell` of earlier trials brings it to where it was, its random numbers too."""

    def __init__(self, sweep: Sweep):
        try:
            import optuna
        except ImportError as error:
            raise UserError(
                "method: optuna needs Optuna: pip install 'trl_ext[sweep]', or set method: random"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._failed = optuna.trial.TrialState.FAIL
        sampler = optuna.samplers.TPESampler(seed=sweep.seed)
        self._study = optuna.create_study(direction=sweep.goal, sampler=sampler)
        self._parameters = sweep.parameters
        self._asked: dict[int, Any] = {}
        self.total = sweep.trials or 0

    def next(self, number: int) -> Point:
        trial = self._asked[number] = self._study.ask()
        return {name: _suggest(trial, name, parameter) for name, parameter in self._parameters.items()}

    def tell(self, number: int, point: Point, value: float | None) -> None:
        if number not in self._asked and self.next(number) != point:
            # Of an earlier call. The same seed and the same past ask for the same, unless Optuna is another by now.
            self._study.tell(self._asked.pop(number), state=self._failed)
            self._study.enqueue_trial({name: _stored(self._parameters[name], each) for name, each in point.items()})
            self.next(number)
        trial = self._asked.pop(number)
        self._study.tell(trial, value, state=self._failed if value is None else None)


def _suggest(trial: Any, name: str, parameter: Parameter) -> Any:
    if parameter.values and parameter.step is None:
        return parameter.values[trial.suggest_categorical(name, list(range(len(parameter.values))))]
    if parameter.whole:
        step = 1 if parameter.step is None else int(parameter.step)
        return trial.suggest_int(name, int(parameter.low or 0), int(parameter.high or 0), step=step, log=parameter.log)
    return trial.suggest_float(name, parameter.low, parameter.high, step=parameter.step, log=parameter.log)


def _stored(parameter: Parameter, value: Any) -> Any:
    """A value as Optuna knows it: lists by position, since their values may be anything."""
    return parameter.values.index(value) if parameter.values and parameter.step is None else value
