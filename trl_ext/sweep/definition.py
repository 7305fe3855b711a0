"""What a sweep is, read from its YAML file and checked before anything runs."""

import hashlib
import os
import shlex
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from trl_ext.errors import UserError
from trl_ext.strict_yaml import read_yaml, refuse_unknown_keys
from trl_ext.sweep.parameters import Parameter, read_parameters

Method = Literal["grid", "random", "optuna"]
Goal = Literal["maximize", "minimize"]
METHODS, GOALS = get_args(Method), get_args(Goal)


@dataclass(frozen=True)
class Sweep:
    """The keys of the file.

    Attributes:
        parameters: option -> a list of values, or `{min, max}` with `step`, `points`, `int` or `log`.
        metric: as logged, or by its canonical name; the mean over the last tenth of a run's logs counts.
        output_dir: the folder of the sweep; job n writes into `<output_dir>/<n>`.
        recipe: a script that takes `--config`; each job gets a file of its own, `config` with the job's values.
        command: instead of `recipe`, the words of any command; the job's values follow as `--name value`.
        config: the YAML file of the recipe's options.
        arguments: words that every job gets besides, such as `[--template, debug]`.
        launcher: words before a recipe; default: the present python.
        method: `grid` (every combination), `random`, or `optuna` (extra `sweep`).
        trials: combinations to try, for `random` and `optuna`.
        seed: of the choice at random.
        goal: `maximize` or `minimize`.
        seeds: each combination is run with each of these as its option `seed`, and judged by the mean.
        timeout: seconds, after which a job is ended.
    """

    parameters: dict[str, Parameter]
    metric: str
    output_dir: str
    recipe: str | None = None
    command: list[str] = field(default_factory=list)
    config: str | None = None
    arguments: list[str] = field(default_factory=list)
    launcher: list[str] = field(default_factory=list)
    method: Method = "grid"
    trials: int | None = None
    seed: int = 0
    goal: Goal = "maximize"
    seeds: list[int] = field(default_factory=list)
    timeout: float | None = None

    def start(self) -> list[str]:
        """The words that every job starts with."""
        if self.recipe is None:
            return [*self.launcher, *self.command]
        return [*(self.launcher or [sys.executable]), self.recipe]

    def to_dict(self) -> dict[str, Any]:
        """In plain values, as it is kept in `sweep.jsonl`; of `config` also what is in it."""
        content = None if self.config is None else hashlib.sha256(Path(self.config).read_bytes()).hexdigest()
        return {**asdict(self), "content of config": content}


def read_sweep(path: str | os.PathLike[str]) -> Sweep:
    """The sweep in a YAML file.

    Raises:
        UserError: one line that names the key and what to write.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected lines such as `recipe: recipes/ppo.py`, and parameters, metric, output_dir")
    refuse_unknown_keys(content, [each.name for each in fields(Sweep)], str(path))
    for name in ("parameters", "metric", "output_dir"):
        if content.get(name) in (None, "", {}):
            raise UserError(f"{path}: {name} is missing")
    read = {name: _typed(path, name, value) for name, value in content.items() if value is not None}
    sweep = Sweep(**{**read, "parameters": read_parameters(path, content["parameters"])})
    _check(path, sweep)
    return sweep


_WORDS, _WORD = ("command", "arguments", "launcher"), ("metric", "output_dir", "recipe", "config", "method", "goal")


def _typed(path: str | os.PathLike[str], name: str, value: Any) -> Any:
    if name in _WORD and not isinstance(value, str):
        raise UserError(f"{path}: {name} expects a word, got {value!r}")
    if name in _WORDS:
        words = shlex.split(value) if isinstance(value, str) else value
        if not isinstance(words, list) or not all(isinstance(word, str | int | float) for word in words):
            raise UserError(f"{path}: {name} expects a list of words, got {value!r}")
        return [str(word) for word in words]
    if name in ("trials", "seed") and type(value) is not int:
        raise UserError(f"{path}: {name} expects a whole number, got {value!r}")
    if name == "timeout" and (type(value) not in (int, float) or not value > 0):
        raise UserError(f"{path}: timeout expects seconds above 0, got {value!r}")
    if name == "seeds" and not (isinstance(value, list) and value and all(type(each) is int for each in value)):
        raise UserError(f"{path}: seeds expects a list of whole numbers such as [0, 1, 2], got {value!r}")
    return value


def _check(path: str | os.PathLike[str], sweep: Sweep) -> None:
    if (sweep.recipe is None) == (not sweep.command):
        raise UserError(f"{path}: give either recipe, the path of a script, or command, a list of words")
    for name, allowed in (("method", METHODS), ("goal", GOALS)):
        if getattr(sweep, name) not in allowed:
            raise UserError(f"{path}: {name} is one of {', '.join(allowed)}, not {getattr(sweep, name)!r}")
    for name in ("recipe", "config"):
        if getattr(sweep, name) is not None and not Path(getattr(sweep, name)).is_file():
            raise UserError(f"{path}: {name}: there is no file {getattr(sweep, name)} in {os.getcwd()}")
    if sweep.method == "grid" and sweep.trials is not None:
        raise UserError(f"{path}: a grid tries every combination: drop trials, or set method: random")
    if sweep.method != "grid" and (sweep.trials is None or sweep.trials < 1):
        raise UserError(f"{path}: method {sweep.method} needs trials, the number of combinations to try")
    if len(set(sweep.seeds)) < len(sweep.seeds):
        raise UserError(f"{path}: seeds names one twice: {sweep.seeds}")
    if any(name.replace("-", "_") == "output_dir" for name in sweep.parameters):
        raise UserError(f"{path}: output_dir is set for each job: take it out of parameters")
    if sweep.seeds and "seed" in sweep.parameters:
        raise UserError(f"{path}: seed is in parameters and seeds is given: keep one of them")
    for name, parameter in sweep.parameters.items():
        if sweep.method == "grid" and not parameter.values:
            raise UserError(
                f"{path}: parameters: {name}: a grid needs values: a list, or min and max with step or points"
            )
