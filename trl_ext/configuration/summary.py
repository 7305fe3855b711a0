"""What a configuration says, for people: what differs from the defaults, and what follows from it."""

from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .derived import DerivedNumbers, derived_numbers
from .memory import MemoryEstimate, memory_estimate
from .model_facts import ModelFacts, local_model_facts, model_facts
from .options import options_given
from .plain import plain_defaults
from .schedule import schedule_in_words

_WIDTH = 120  # where there is no terminal


def print_summary(
    config: Any,
    model: torch.nn.Module | str | None = None,
    dataset_size: int | None = None,
    prompt_length: int | None = None,
    peft_config: Any = None,
    dtype: Any = None,
) -> None:
    """Prints the options that differ from the defaults, the numbers of the run, and an estimate of its memory.

    Args:
        config: a config object of TRL or trl_ext.
        model: the policy, or its folder or hub id, which is looked at where it is on this machine; without it there is
            no estimate of memory.
        dataset_size: rows of the training dataset; without it the length of a run by epochs is not known.
        prompt_length: tokens of the longest prompt; without it prompts are not counted.
        peft_config: the adapter that will be trained, where `model` is a name.
        dtype: in which the weights will be loaded, where `model` is a name; default: as its config says.
    """
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=_WIDTH)
    numbers = derived_numbers(config, dataset_size, prompt_length)
    _print(console, f"{type(config).__name__}: what differs from the defaults", _options(config))
    _print(console, "What follows", _numbers(config, numbers, dataset_size))
    facts: ModelFacts | str = "no model was given"
    if model is not None:
        known = isinstance(model, torch.nn.Module)
        facts = model_facts(model) if known else local_model_facts(str(model), dtype, peft_config)  # type: ignore[arg-type]
    if isinstance(facts, str):
        console.print(Text(f"Memory is not known: {facts}", style="yellow"), soft_wrap=True)
    else:
        _print(console, "Memory of one process, an estimate", _memory(memory_estimate(config, facts, prompt_length)))


def _print(console: Console, title: str, table: Table) -> None:
    console.print(Text(title, style="bold"))
    console.print(table)


def _table(*columns: str, header: bool = True) -> Table:
    table = Table(box=box.SIMPLE_HEAD if header else box.SIMPLE, show_header=header, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _options(config: Any) -> Table:
    table = _table("option", "value", "default")
    defaults = plain_defaults(type(config))
    for name, value in options_given(config).items():
        table.add_row(name, Text(_value(value), style="bold"), Text(_value(defaults.get(name, "")), style="dim"))
    return table


def _numbers(config: Any, numbers: DerivedNumbers, dataset_size: int | None) -> Table:
    table = _table("", "", header=False)
    per_update = int(numbers.steps_per_generation or 1) if numbers.kind == "ppo" else 1
    unknown = "unknown: give dataset_size" if dataset_size is None else "unknown"
    what = {"supervised": "rows"}.get(numbers.kind, "completions")
    lines = {
        "processes": f"{numbers.processes}",
        f"{what} an optimizer step": f"{numbers.samples_per_step:,}",
        "prompts an optimizer step": _optional(numbers.prompts_per_step, "{:,.4g}"),
        "completions sampled at once": _optional(numbers.completions_per_generation, "{:,}"),
        "optimizer steps on these": _optional(numbers.steps_per_generation, "{:g}"),
        "tokens an optimizer step": _tokens(numbers),
        "optimizer steps an epoch": _optional(numbers.steps_per_epoch, "{:,}") or unknown,
        "optimizer steps in all": _optional(numbers.total_steps, "{:,}") or unknown,
        f"{what} in all": _optional(numbers.total_samples, "{:,}") or unknown,
        "epochs": _optional(numbers.epochs, "{:.3g}") or unknown,
        "learning rate": schedule_in_words(config, numbers.total_steps, per_update),
    }
    for name, value in lines.items():
        if value:
            table.add_row(name, value)
    return table


def _tokens(numbers: DerivedNumbers) -> str:
    if numbers.tokens_per_step is None:
        return "unknown: sequences have no limit"
    return f"at most {numbers.tokens_per_step:,}" + ("" if numbers.prompts_counted else ", without prompts")


def _memory(estimate: MemoryEstimate) -> Table:
    table = _table("", "size", "assumes")
    table.columns[1].justify = "right"
    for when, lines in (("", estimate.kept), ("training", estimate.training), ("generating", estimate.generating)):
        for line in lines:
            name = f"{line.name} ({when})" if when else line.name
            table.add_row(name, "?" if line.bytes is None else _size(line.bytes), Text(line.assumes, style="dim"))
    total = "" if estimate.complete else "at least "
    peak = "what is kept, and the larger of training and generating" if estimate.generating else "all of it"
    table.add_row(
        Text("estimate", style="bold"), Text(total + _size(estimate.total), style="bold"), Text(peak, style="dim")
    )
    return table


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _size(number: float) -> str:
    return f"{number / 2**20:.1f} MiB" if number < 2**30 else f"{number / 2**30:.1f} GiB"


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
