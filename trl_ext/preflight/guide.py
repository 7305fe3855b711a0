"""Asks for model, data and rewards, runs the checks one family at a time, and writes the YAML."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console
from rich.prompt import Confirm, IntPrompt, Prompt

from trl_ext import tiny
from trl_ext.configuration.values import describe, fit
from trl_ext.data import REVIEWS
from trl_ext.errors import UserError
from trl_ext.reporting.replay_table import plain_console
from trl_ext.rewards.registry import REWARDS
from trl_ext.strict_yaml import StrictLoader, dump_yaml

from .check import Check, Report, Status
from .names import TRAINERS
from .running import preflight
from .sample import Sample
from .setup import build_trainer, hints_of
from .terminal import closing_line, family_block

ADAPTER_RATE, FULL_RATE, TINY_RATE = 2e-5, 1e-6, 3e-4


def guide(quick: bool = False, console: Console | None = None, families: Sequence[str] | None = None) -> Report:
    """The whole walk. Returns the last report.

    Args:
        families: of checks, as in `preflight`.
    Raises:
        UserError: the answers end before the questions do.
    """
    console = console or plain_console()
    try:
        options = _ask(console)
        while True:
            report = _check(options, quick, families, console)
            changed = _change(options, report, console)
            if not changed:
                break
        _write(options, report, console)
    except EOFError:
        raise UserError("the answers ended before the questions did: run --guide in a terminal") from None
    return report


def _ask(console: Console) -> dict[str, Any]:
    console.print("Every answer can be changed later; Enter takes what stands in parentheses.\n")
    trainer = Prompt.ask("Trainer", choices=list(TRAINERS), default="reinforce_loo", console=console)
    model = Prompt.ask("Model: a folder or a hub id", default=tiny.NAME, console=console)
    embedded = model.rstrip("/") == tiny.NAME
    adapter = not embedded and Confirm.ask("Train a LoRA adapter", default=True, console=console)
    dataset = Prompt.ask("Prompts: a file, a folder or a hub id", default=REVIEWS, console=console)
    column = "prompt" if dataset == REVIEWS else Prompt.ask("Its column", default="prompt", console=console)
    console.print(f"Reward functions by name: {', '.join(REWARDS)}; or my_module.function, file.py:function, a model")
    rewards = Prompt.ask("Rewards, apart by spaces", default="sentiment", console=console).split()
    tokens = _whole("Longest completion, in tokens", 24 if embedded else 512, console)
    folder = Prompt.ask("Folder of the run", default=f"runs/{trainer}", console=console)
    options: dict[str, Any] = {
        "trainer": trainer, "model_name_or_path": model, "dtype": "float32" if embedded else "bfloat16",
        "dataset_name": dataset, "dataset_prompt_column": column, "reward_funcs": rewards, "output_dir": folder,
        "learning_rate": TINY_RATE if embedded else ADAPTER_RATE if adapter else FULL_RATE,
        "per_device_train_batch_size": 64 if embedded else 8, "logging_steps": 1, "report_to": "none",
    }  # fmt: skip
    options |= {"response_length" if trainer == "ppo" else "max_completion_length": tokens}
    options |= (
        {"total_episodes": 8320, "stop_token": "eos"} if trainer == "ppo" else {"max_steps": 160, "num_generations": 8}
    )
    options |= {"use_peft": True, "lora_target_modules": "all-linear"} if adapter else {}
    options |= {"bf16": False, "gradient_checkpointing": False} if embedded else {}
    return options


def _whole(question: str, default: int, console: Console) -> int:
    while (answer := IntPrompt.ask(question, default=default, console=console)) < 1:
        console.print("1 or more")
    return answer


def _check(options: dict[str, Any], quick: bool, families: Sequence[str] | None, console: Console) -> Report:
    """One family at a time; the walk stops at the first that fails, so that it can be mended."""
    console.print()
    here = {} if torch.cuda.is_available() else {"use_cpu": True, "bf16": False}  # of this look alone
    words = words_of({name: value for name, value in (options | here).items() if name != "trainer"})
    try:
        trainer = build_trainer(words, trainer=options["trainer"])
    except UserError as error:
        check = Check("options", "build", Status.FAIL, str(error))
        console.print(family_block("options", [check]))
        return Report("no trainer", (check,))

    def show(family: str, checks: list[Check], sample: Sample) -> None:
        console.print(family_block(family, checks, sample))

    report = preflight(trainer, quick, families, on_family=show, stop_at_failure=True)
    console.print(closing_line(report))
    return report


def words_of(options: dict[str, Any]) -> list[str]:
    """As on a command line."""
    words: list[str] = []
    for name, value in options.items():
        words.append(f"--{name}")
        words += [str(each) for each in value] if isinstance(value, list) else [_word(value)]
    return words


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _change(options: dict[str, Any], report: Report, console: Console) -> bool:
    """Options that the user changes after what was found; whether there were any."""
    wanting = [check for check in report.checks if check.status in (Status.WARN, Status.FAIL)]
    if not wanting:
        return False
    changed = False
    while True:
        answer = Prompt.ask(
            "\nChange an option: `name value` (Enter: none)", default="", show_default=False, console=console
        )
        if not answer.strip():
            return changed
        name, _, value = answer.strip().removeprefix("--").partition(" ")
        hints = hints_of(options["trainer"])
        if name not in hints:
            console.print(f"no option {name!r}")
            continue
        try:
            options[name] = fit(yaml.load(value, StrictLoader) if value else True, hints[name])
        except (ValueError, yaml.YAMLError):
            console.print(f"{name} expects {describe(hints[name])}, not {value!r}")
            continue
        changed = True


def _write(options: dict[str, Any], report: Report, console: Console) -> None:
    trainer = options["trainer"]
    if report.failed and not Confirm.ask("A check failed. Write the file anyway", default=False, console=console):
        return
    kept = {name: value for name, value in options.items() if name != "trainer"}
    content = f"# Written by trl-ext preflight --guide, for the trainer {trainer}\n{dump_yaml(kept)}"
    while True:  # until there is a file that can be written
        path = Path(
            Prompt.ask("\nFile for this configuration", default=f"{trainer}.yaml", console=console)
        ).expanduser()
        try:
            if path.is_file() and not Confirm.ask(f"{path} exists. Replace it", default=False, console=console):
                console.print("nothing written")
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
            break
        except OSError as error:
            console.print(f"cannot write {path}: {error.strerror}")
    console.print(f"written: {path}\n  trl-ext preflight --trainer {trainer} --config {path}")
    if trainer in ("reinforce_loo", "ppo"):
        console.print(f"  accelerate launch recipes/{trainer}.py --config {path}")
    else:
        console.print(f"  a script of yours with trl.{trainer.upper()}Trainer takes these options")
