"""From a configuration file or a few names to the trainer that would train."""

import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from trl import (
    DPOConfig,
    GRPOConfig,
    GRPOTrainer,
    ModelConfig,
    RewardConfig,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    get_peft_config,
)

from trl_ext.configuration import RLScriptArguments, building, load_policy_and_tokenizer, load_value_model, parse
from trl_ext.configuration.header import HEADER
from trl_ext.data import load_prompts
from trl_ext.errors import UserError
from trl_ext.rewards import check_reward_funcs, load_reward_funcs
from trl_ext.strict_yaml import read_yaml
from trl_ext.trainers import PPOConfig, PPOTrainer, ReinforceLOOConfig, ReinforceLOOTrainer

from .capture import trainer_of_script
from .names import TRAINERS

RECIPES: dict[str, Any] = {"sft.py": SFTConfig, "reward.py": RewardConfig, "dpo.py": DPOConfig}
CONFIGS: dict[str, type] = {
    "reinforce_loo": ReinforceLOOConfig, "ppo": PPOConfig, "grpo": GRPOConfig, "rloo": RLOOConfig,
}  # fmt: skip


def build_trainer(
    words: Sequence[str], config: str | None = None, script: str | None = None, trainer: str | None = None
) -> Any:
    """The trainer, built and not trained.

    Args:
        words: options as on the command line of a recipe; they win over the file's.
        config: a YAML file of one of the recipes, or of the same form.
        script: that builds the trainer; by default the one of the file's own name beside it (`ppo.py` of `ppo.yaml`).
        trainer: one of `TRAINERS`, where there is no script; by default told from the options of the file.
    Raises:
        UserError: whatever is wrong with them, in one line.
    """
    if config is not None and not Path(config).is_file():
        raise UserError(f"no configuration file {config!r}")
    try:
        return _built(words, config, script, trainer)
    except UserError as error:
        raise UserError(f"{error}{_made_by(config, str(error))}") from error


def _built(words: Sequence[str], config: str | None, script: str | None, trainer: str | None) -> Any:
    given = [] if config is None else ["--config", config]
    beside = None if config is None else Path(config).with_suffix(".py")
    if script is None and trainer is None and beside is not None and beside.is_file():
        script = str(beside)
    if script is None and trainer is None:
        script = recipe_of_options(config)
    if script is not None:
        return trainer_of_script(script, [*given, *words])
    return _build(trainer or trainer_of_options(config), [*given, *words])


def _made_by(config: str | None, message: str) -> str:
    """The command that makes the missing model, where a configuration beside the file writes into its folder."""
    name = None if config is None else _read(config).get("model_name_or_path")
    if name is None or f"no model {str(name)!r}" not in message:
        return ""
    for path in sorted(Path(str(config)).parent.glob("*.yaml")):
        try:
            if _read(str(path)).get("output_dir") == name:
                return f"; make it first: python {recipe_of_options(str(path))} --config {path}"
        except UserError:  # somebody else's file
            continue
    return ""


def recipe_of_options(config: str | None) -> str | None:
    """The recipe beside the file that knows an option which no trainer of `TRAINERS` has; None where all have all.

    Raises:
        UserError: there is such an option, and no such recipe.
    """
    options = {} if config is None else _read(config)
    of_rl = set().union(*(hints_of(trainer) for trainer in TRAINERS))
    known = {recipe: [name for name in options if name in config_class.__dataclass_fields__ and name not in of_rl]
             for recipe, config_class in RECIPES.items()}  # fmt: skip
    for recipe, config_class in RECIPES.items():
        if options.get("config_class") == config_class.__name__:
            known = {recipe: ["config_class"]}
    most = max(map(len, known.values()))
    if not most:
        return None
    fitting = [recipe for recipe, names in known.items() if len(names) == most]
    path = Path(str(config)).parent / fitting[0]
    if len(fitting) == 1 and path.is_file():
        return str(path)
    words = " or ".join(f"--script recipes/{recipe}" for recipe in fitting)
    raise UserError(f"{config}: {known[fitting[0]][0]} is no option of {', '.join(TRAINERS)}: name its script, {words}")


def _read(config: str) -> dict[str, Any]:
    content = read_yaml(config)
    return content if isinstance(content, dict) else {}


def trainer_of_options(config: str | None) -> str:
    """Which of `TRAINERS` takes all options of the file; PPO where one of them is PPO's alone."""
    if config is None:
        return "reinforce_loo"
    content = _read(config)
    written_by = {config.__name__: name for name, config in CONFIGS.items()}
    if content.get("config_class") in written_by:  # by `to_yaml`
        return written_by[content["config_class"]]
    options = set(content) - set(HEADER)
    unknown = {name: options - set(hints_of(name)) - {"env"} for name in TRAINERS}
    fewest = min(len(names) for names in unknown.values())
    fitting = [name for name in TRAINERS if len(unknown[name]) == fewest]
    if fewest > len(options) // 4:
        missing = ", ".join(sorted(map(str, unknown[fitting[0]]))[:3])
        raise UserError(
            f"{config} is of no trainer that preflight builds by itself ({missing}): name the script that it belongs "
            "to, --script recipes/sft.py, or one of --trainer " + ", ".join(TRAINERS)
        )
    return fitting[0]


def hints_of(trainer: str) -> dict[str, Any]:
    """The options of that trainer's configuration, and the type of each."""
    types = (RLScriptArguments, CONFIGS[trainer], ModelConfig)
    return {name: hint for each in types for name, hint in typing.get_type_hints(each).items()}


def _build(name: str, words: list[str]) -> Any:
    config_class = CONFIGS[name]
    with building():
        script_args, args, model_args = parse((RLScriptArguments, config_class, ModelConfig), words)
        reward_funcs, args.reward_weights = load_reward_funcs(script_args.reward_funcs, args.reward_weights)
        dataset = load_prompts(
            script_args.dataset_name,
            script_args.dataset_train_split,
            script_args.dataset_prompt_column,
            script_args.dataset_config,
        )
        check_reward_funcs(reward_funcs, dataset)
        model, tokenizer = load_policy_and_tokenizer(model_args, getattr(args, "trust_remote_code", False))
        peft_config = get_peft_config(model_args)
        value_model = load_value_model(script_args.value_model_name_or_path, model_args, tokenizer)
        if name == "ppo":
            return PPOTrainer(args, tokenizer, model, reward_funcs=reward_funcs, train_dataset=dataset,
                              value_model=value_model, peft_config=peft_config)  # fmt: skip
        trainer_class = {"reinforce_loo": ReinforceLOOTrainer, "grpo": GRPOTrainer, "rloo": RLOOTrainer}[name]
        return trainer_class(
            model=model, reward_funcs=reward_funcs, args=args, train_dataset=dataset, processing_class=tokenizer,
            peft_config=peft_config, **({"value_model": value_model} if name == "reinforce_loo" else {}),
        )  # fmt: skip


def words_for(model: str, dataset: str | None, reward_funcs: Sequence[str] | None) -> list[str]:
    """Options of a small run with that model, where there is no configuration file."""
    words = ["--model_name_or_path", model, "--num_generations", "8", "--per_device_train_batch_size", "16"]
    words += ["--report_to", "none", "--max_steps", "100", "--max_completion_length", "256"]
    if not torch.cuda.is_available():
        words += ["--use_cpu", "true", "--bf16", "false", "--dtype", "float32"]
    words += ["--dataset_name", dataset] if dataset else []
    return [*words, "--reward_funcs", *reward_funcs] if reward_funcs else words
