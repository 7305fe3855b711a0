"""Policies side by side: what reward functions give to their completions of the same held-out prompts, and samples.

    python recipes/compare.py --policies trl_ext/tiny runs/ppo --reward_funcs sentiment '{name: length, weight: 0.3}'
    accelerate launch recipes/compare.py --policies Qwen/Qwen3-0.6B runs/my_dpo --dataset_name trl-lib/tldr \\
        --reward_funcs runs/reward --max_new_tokens 128 --output_dir runs/compared

The first policy is the one that the others are measured from: KL is that of a policy to it, in nats a completion.
"""

import dataclasses
import json
import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object, set_seed
from rich import box
from rich.table import Table
from rich.text import Text
from trl import ModelConfig, maybe_apply_chat_template

from trl_ext import UserError, check_reward_funcs, load_reward_funcs
from trl_ext.configuration import building, check_template, cli_errors, load_policy_and_tokenizer, parse
from trl_ext.data import REVIEWS, load_prompts
from trl_ext.functional import token_log_probs
from trl_ext.reporting.replay_table import plain_console
from trl_ext.rewards.calls import Call, ask
from trl_ext.rewards.reliability.duplicates import distinct_share
from trl_ext.rewards.text import completion_text, prompt_text


@dataclasses.dataclass
class ScriptArguments:
    """Which policies, on what, judged by what."""

    policies: list[str] = dataclasses.field(
        default_factory=lambda: ["trl_ext/tiny"],
        metadata={"help": "Folders (of models or adapters) or hub ids; the first one is the reference of the KL."},
    )
    dataset_name: str = dataclasses.field(
        default=REVIEWS, metadata={"help": "`reviews`, a local file or folder, or a hub id."}
    )
    dataset_config: str | None = dataclasses.field(default=None, metadata={"help": "Configuration of a hub dataset."})
    dataset_test_split: str = dataclasses.field(default="test", metadata={"help": "Split with the prompts."})
    dataset_prompt_column: str = dataclasses.field(
        default="prompt", metadata={"help": "Column with texts or lists of messages."}
    )
    reward_funcs: list[dict | str] = dataclasses.field(
        default_factory=lambda: ["sentiment"], metadata={"help": "As the reinforcement learning recipes take them."}
    )
    gold_reward: dict | str | None = dataclasses.field(
        default=None, metadata={"help": "A measure that no policy was trained on; it does not count in the total."}
    )
    num_prompts: int = dataclasses.field(default=256, metadata={"help": "The first so many of the split."})
    batch_size: int = dataclasses.field(default=64, metadata={"help": "Prompts at once, on each process."})
    max_new_tokens: int = dataclasses.field(default=24, metadata={"help": "Longest completion, in tokens."})
    temperature: float = dataclasses.field(default=1.0, metadata={"help": "Of the sampling."})
    num_samples: int = dataclasses.field(default=3, metadata={"help": "Prompts whose completions are shown."})
    seed: int = dataclasses.field(default=0, metadata={"help": "Of the sampling."})
    output_dir: str | None = dataclasses.field(
        default=None, metadata={"help": "Folder for comparison.json and completions.jsonl; none are written without."}
    )


@dataclasses.dataclass
class Completed:
    """One completion; `kl` in nats, None where the vocabularies differ."""

    row: int
    completion: Any
    length: int
    kl: float | None
    rewards: list[float | None]


class Judge:
    """Reward functions of the recipes' kind, the gold reward last."""

    def __init__(self, script_args: ScriptArguments, dataset: Any) -> None:
        self.functions, self.weights = load_reward_funcs(script_args.reward_funcs)
        if script_args.gold_reward is not None:
            self.functions += load_reward_funcs(script_args.gold_reward)[0]
        check_reward_funcs(self.functions, dataset)
        self.names = [getattr(function, "__name__", type(function).__name__) for function in self.functions]

    def __call__(self, call: Call) -> list[list[float | None]]:
        return [list(row) for row in zip(*(ask(function, call) for function in self.functions), strict=True)]

    def total(self, rewards: list[float | None]) -> float:
        """As TRL adds them up: what does not apply counts nothing."""
        return sum(weight * reward for weight, reward in zip(self.weights, rewards, strict=False) if reward is not None)


@torch.no_grad()
def complete(model: Any, reference: Any, tokenizer: Any, rows: list[dict], options: ScriptArguments, judge: Judge):
    """A `Completed` for each row, sampled from the whole distribution."""
    texts = [maybe_apply_chat_template({"prompt": row["prompt"]}, tokenizer)["prompt"] for row in rows]
    plain = isinstance(rows[0]["prompt"], str)
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=plain).to(model.device)
    ids = model.generate(
        **inputs,
        do_sample=True,
        temperature=options.temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=options.max_new_tokens,
    )
    width = inputs["input_ids"].size(1)
    completion_ids = ids[:, width:]
    ended = torch.isin(completion_ids, torch.tensor(_ends(model), device=ids.device)).cumsum(1)
    mask = ((ended == 0) | ((ended == 1) & (ended.diff(dim=1, prepend=ended.new_zeros(len(ids), 1)) == 1))).long()
    kls = _kl(model, reference, ids, torch.cat([inputs["attention_mask"], mask], 1), width)
    kept = [row[: int(n)].tolist() for row, n in zip(completion_ids, mask.sum(1), strict=True)]
    answers = tokenizer.batch_decode(kept, skip_special_tokens=True)
    completions = answers if plain else [[{"role": "assistant", "content": answer}] for answer in answers]
    columns = {name: [row[name] for row in rows] for name in rows[0] if name not in ("prompt", "row", "completion")}
    rewards = judge(Call([row["prompt"] for row in rows], completions, kept, columns))
    parts = zip(rows, completions, kept, kls, rewards, strict=True)
    return [Completed(row["row"], text, len(tokens), kl, given) for row, text, tokens, kl, given in parts]


def _ends(model: Any) -> list[int]:
    ends = model.generation_config.eos_token_id
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


def _kl(model: Any, reference: Any, ids: torch.Tensor, mask: torch.Tensor, width: int) -> list[float | None]:
    """Sum over a completion's tokens of the log-ratio of the two policies: on average the KL."""
    if model is not reference and model.config.vocab_size != reference.config.vocab_size:
        return [None] * len(ids)
    positions = (mask.cumsum(1) - 1).clamp(min=0)

    def log_probs(policy: Any) -> torch.Tensor:
        logits = policy(ids, attention_mask=mask, position_ids=positions).logits[:, width - 1 : -1]
        return token_log_probs(logits, ids[:, width:])[0]

    ratio = (log_probs(model) - log_probs(reference)) * mask[:, width:]
    return ratio.sum(1).tolist()


def compare(script_args: ScriptArguments, model_args: ModelConfig, rows: list[dict], judge: Judge) -> dict[str, list]:
    """Policy -> its completions, in the order of the prompts, on every process."""
    state, found, reference = PartialState(), {}, None
    for name in script_args.policies:
        model, tokenizer = load_policy_and_tokenizer(dataclasses.replace(model_args, model_name_or_path=name))
        check_template(tokenizer, rows)
        model = model.to(state.device).eval()
        reference = model if reference is None else reference
        set_seed(script_args.seed + state.process_index)
        completed: list[Completed] = []
        with state.split_between_processes(rows) as own:
            for start in range(0, len(own), script_args.batch_size):
                batch = own[start : start + script_args.batch_size]
                completed += complete(model, reference, tokenizer, batch, script_args, judge)
        found[name] = sorted(gather_object(completed), key=lambda each: each.row)
    return found


def summary_of(completed: list[Completed], judge: Judge) -> dict[str, float | None]:
    """Means over the completions; of the total also its standard error."""
    totals = [judge.total(each.rewards) for each in completed]
    columns = dict(zip(judge.names, zip(*(each.rewards for each in completed), strict=True), strict=True))
    known = {name: [value for value in values if value is not None] for name, values in columns.items()}
    kls = [each.kl for each in completed if each.kl is not None]
    return {
        "reward": fmean(totals),
        "reward_standard_error": stdev(totals) / math.sqrt(len(totals)) if len(totals) > 1 else None,
        **{f"rewards/{name}": fmean(values) if values else None for name, values in known.items()},
        "kl": fmean(kls) if kls else None,
        "completion_length": fmean(each.length for each in completed),
        "distinct": distinct_share([each.completion for each in completed]),
    }


def table_of(summaries: dict[str, dict], judge: Judge) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", overflow="fold")
    gold = judge.names[len(judge.weights) :]
    for name in ("reward", *judge.names, "KL", "tokens", "distinct"):
        table.add_column(f"{name} (gold)" if name in gold else name, justify="right")
    for policy, each in summaries.items():
        error = each["reward_standard_error"]
        values = [
            *(each[f"rewards/{name}"] for name in judge.names),
            each["kl"],
            each["completion_length"],
            each["distinct"],
        ]
        reward = f"{each['reward']:.3f}" + (f" ± {error:.3f}" if error is not None else "")
        table.add_row(policy, reward, *("-" if value is None else f"{value:.3g}" for value in values))
    return table


def samples_of(found: dict[str, list[Completed]], rows: list[dict], judge: Judge, num_samples: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("prompt", "policy", "completion"):
        table.add_column(name, overflow="fold", ratio=5 if name == "completion" else 2)
    table.add_column("reward", justify="right")
    for i in range(0, len(rows), max(1, len(rows) // max(1, num_samples)))[:num_samples]:
        for j, (policy, completed) in enumerate(found.items()):
            prompt = Text("" if j else prompt_text(rows[i]["prompt"])[-200:], style="dim")
            text = Text(" ".join(completion_text(completed[i].completion).split())[:300])
            table.add_row(
                prompt, policy, text, f"{judge.total(completed[i].rewards):.2f}", end_section=j == len(found) - 1
            )
    return table


def write(
    folder: Path, summaries: dict[str, dict], found: dict[str, list[Completed]], rows: list[dict], judge: Judge
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps(summaries, indent=2) + "\n", encoding="utf-8")
    with open(folder / "completions.jsonl", "w", encoding="utf-8") as file:
        for policy, completed in found.items():
            for each in completed:
                line = {"policy": policy, "prompt": rows[each.row]["prompt"], "completion": each.completion}
                line |= {"rewards": dict(zip(judge.names, each.rewards, strict=True)), "kl": each.kl}
                file.write(json.dumps(line) + "\n")


@cli_errors()
def main(args: list[str] | None = None) -> None:
    with building():
        script_args, model_args = parse((ScriptArguments, ModelConfig), args)
        dataset = load_prompts(
            script_args.dataset_name,
            script_args.dataset_test_split,
            script_args.dataset_prompt_column,
            script_args.dataset_config,
        )
        if min(script_args.num_prompts, script_args.batch_size, script_args.max_new_tokens) < 1:
            raise UserError("num_prompts, batch_size and max_new_tokens are at least 1")
        rows = [
            {"row": i, **row} for i, row in enumerate(dataset.select(range(min(script_args.num_prompts, len(dataset)))))
        ]
        judge = Judge(script_args, dataset)
        found = compare(script_args, model_args, rows, judge)

    if not PartialState().is_main_process:
        return
    summaries = {policy: summary_of(completed, judge) for policy, completed in found.items()}
    console = plain_console()
    with console.capture() as capture:
        console.print(table_of(summaries, judge))
        console.print(samples_of(found, rows, judge, script_args.num_samples))
    print(capture.get(), end="")
    if script_args.output_dir is not None:
        write(Path(script_args.output_dir), summaries, found, rows, judge)
        (Path(script_args.output_dir) / "comparison.txt").write_text(
            Text.from_ansi(capture.get()).plain, encoding="utf-8"
        )
        print(f"saved: {script_args.output_dir}")


if __name__ == "__main__":
    main()
