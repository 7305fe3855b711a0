"""Whole configurations to start from: `debug`, `small` and `full` for each trainer, YAML files beside this one.

`debug` trains the embedded policy for a few steps on a CPU, `small` a 0.6B model with LoRA on one GPU of 24 GB, `full`
a model of 4B to 8B on 8 GPUs of 80 GB.
"""

from pathlib import Path
from typing import Any

from ..errors import UserError, did_you_mean
from ..strict_yaml import read_yaml

FOLDER = Path(__file__).with_name("templates")
# The config class a recipe parses its options into -> the folder of its templates
TRAINERS = {
    "ReinforceLOOConfig": "reinforce_loo",
    "PPOConfig": "ppo",
    "SFTConfig": "sft",
    "RewardConfig": "reward",
    "DPOConfig": "dpo",
}


def template_names() -> dict[str, list[str]]:
    """Trainer -> its templates, the smallest first."""
    order = ("debug", "small", "full")
    found = {folder: [path.stem for path in (FOLDER / folder).glob("*.yaml")] for folder in TRAINERS.values()}
    return {folder: sorted(names, key=order.index) for folder, names in found.items()}


def template_path(trainer: str, name: str) -> Path:
    """The file of a template.

    Raises:
        UserError: no such trainer or template, with those there are.
    """
    names = template_names()
    if trainer not in names:
        meant = did_you_mean(trainer, names, f"there are: {', '.join(names)}")
        raise UserError(f"there are no templates of {trainer!r}; {meant}")
    if name not in names[trainer]:
        raise UserError(f"there is no template {name!r} of {trainer}; there are: {', '.join(names[trainer])}")
    return FOLDER / trainer / f"{name}.yaml"


def template_of(kind: type, name: str) -> Path:
    """The file of the template `name` for the config class `kind`.

    Raises:
        UserError: no such template, or none for this class.
    """
    trainer = next((TRAINERS[each.__name__] for each in kind.__mro__ if each.__name__ in TRAINERS), None)
    if trainer is None:
        raise UserError(f"there are no templates of {kind.__name__}; there are some of {', '.join(TRAINERS)}")
    return template_path(trainer, name)


def read_template(kind: type, name: str) -> dict[str, Any]:
    """What the template `name` for the config class `kind` says.

    Raises:
        UserError: as `template_of`.
    """
    return read_yaml(template_of(kind, name))
