"""`trl-ext rewards`: which there are, what they give to a text, and how far they can be trusted."""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from itertools import islice
from typing import Any

from trl_ext.cli.output import ALERTS, FAIL_ON
from trl_ext.errors import UserError, say
from trl_ext.monitor.strict_json import to_strict_json


def add_rewards(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("rewards", help="list reward functions, try them on a text, check their reliability")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")

    listing = actions.add_parser("list", help="the reward functions that a configuration can name")
    listing.add_argument("--json", action="store_true", help="one JSON object a function, each on a line of its own")
    listing.set_defaults(run=_list)

    trying = actions.add_parser(
        "try",
        help="what each function gives to a text",
        epilog="Exit code: 0; 2 for wrong input; 3 when a function failed on a completion.",
    )
    trying.add_argument("file", nargs="?", metavar="FILE", help="JSON Lines with completion, prompt and columns")
    trying.add_argument("--text", action="append", help="a completion; may be given several times")
    trying.add_argument("--prompt", default="", help="the prompt of --text")
    trying.add_argument("--limit", type=int, default=100, metavar="N", help="rows of FILE that are shown (100)")
    trying.add_argument("--json", action="store_true", help="one JSON object a completion, each on a line of its own")
    trying.set_defaults(run=_try)

    checking = actions.add_parser(
        "check",
        help="how far rewards can be trusted, from a file of completions",
        description="Says of completions in the order of a run what RewardReliabilityCallback would: dead or "
        "dominating functions, shortcuts through length or repetition, jumps, and where reward functions are named "
        "also whether they give the same again and what small edits do.",
        epilog="Exit code: 0; 2 for wrong input; 3 when --fail-on says so.",
    )
    checking.add_argument("file", metavar="FILE", help="JSON Lines with completion, and rewards unless functions are "
                          "named; step, prompt, gold and columns where there are such")  # fmt: skip
    checking.add_argument("--window", type=int, default=1000, metavar="N", help="completions that are looked at (1000)")
    checking.add_argument("--gold_reward", metavar="NAME", help="a held-back reward, in place of the configuration's")
    checking.add_argument("--probe_set", metavar="FILE", help="completions of known worth, as the callback takes them")
    checking.add_argument("--json", action="store_true", help="the report as one JSON object")
    checking.add_argument("--fail-on", choices=FAIL_ON, help="exit with 3 when there is such a finding or worse")
    checking.set_defaults(run=_check)

    for command in (trying, checking):
        command.add_argument(
            "--config", metavar="YAML", help="a file with reward_funcs: a recipe's, or a list of rewards"
        )
        command.add_argument(
            "--reward_funcs",
            nargs="+",
            metavar="NAME",
            help="names, dotted paths, file.py:function or models, in place of --config",
        )


def _list(options: argparse.Namespace) -> int:
    from trl_ext.reporting.reward_tables import arguments_of, registry_text
    from trl_ext.rewards.registry import REWARDS

    if not options.json:
        print(registry_text(), end="")
        return 0
    for name, entry in REWARDS.items():
        print(json.dumps({"name": name, "description": entry.description, "kwargs": arguments_of(name)}))
    return 0


def _try(options: argparse.Namespace) -> int:
    from trl_ext.rewards.json_lines import columns_of, completion_of, read_json_lines

    functions, weights, config = _functions(options)
    if (options.file is None) == (options.text is None):
        raise UserError("give completions as --text '...', or name one JSON Lines file")
    if options.text is not None:
        rows = [{"prompt": options.prompt, "completion": text} for text in options.text]
    else:
        rows = list(islice(read_json_lines(options.file), max(options.limit, 1)))
    if not rows:
        raise UserError(f"{options.file} has no completions")
    where = options.file or "--text"
    completions = [completion_of(row, f"{where}, completion {i}") for i, row in enumerate(rows, start=1)]
    rewards, totals = _scores(functions, weights, rows, completions, columns_of(rows, where), config.model)
    if options.json:
        for i, row in enumerate(rows):
            given = {name: values[i] for name, values in rewards.items()}
            print(to_strict_json({**row, "rewards": given, "reward": totals[i]}))
    else:
        from trl_ext.reporting.reward_tables import scores_text

        print(scores_text(completions, rewards, weights, totals), end="")
    return ALERTS if any(function.failures for function in functions) else 0


def _scores(
    functions: list[Any],
    weights: list[float],
    rows: list[dict[str, Any]],
    completions: list,
    columns: dict[str, list],
    model: str | None,
) -> tuple:
    import numpy as np

    from trl_ext.rewards.calls import Call, ask
    from trl_ext.rewards.reliability.window import totals_of
    from trl_ext.rewards.text import completion_text

    ids: Any = [row.get("completion_ids") for row in rows]
    if None in ids:
        tokenize = _tokenize(model)
        ids = None if tokenize is None else tokenize(list(map(completion_text, completions)))
    call = Call([row.get("prompt", "") for row in rows], completions, ids, columns)
    rewards = {function.__name__: ask(function, call) for function in functions}
    totals = totals_of(np.array(list(rewards.values()), dtype=float).T, np.array(weights))
    return rewards, [None if value != value else value for value in totals.tolist()]


def _tokenize(model: str | None) -> Callable[[list[str]], list[list[int]]] | None:
    """The policy's tokenizer, for rewards that count tokens; `None` where it cannot be loaded."""
    if model is None:
        return None
    with contextlib.redirect_stdout(sys.stderr):  # some integrations announce themselves
        from transformers import AutoTokenizer

        from trl_ext.configuration.mistakes import model_path, one_line

        try:
            tokenizer = AutoTokenizer.from_pretrained(model_path(model))
        except (OSError, ValueError) as error:
            say(f"trl-ext: no tokenizer of {model}, so tokens are not counted: {one_line(error, 200)}")
            return None
    return lambda texts: tokenizer(texts)["input_ids"]


def _check(options: argparse.Namespace) -> int:
    from trl_ext.reporting.reward_tables import report_text
    from trl_ext.rewards.json_lines import read_json_lines
    from trl_ext.rewards.loading import load_reward_funcs
    from trl_ext.rewards.reliability.offline import check_completions
    from trl_ext.rewards.reliability.probe_set import read_probe_set

    functions, weights, config = (None, None, None)
    if options.config or options.reward_funcs:
        functions, weights, config = _functions(options)
    named = options.gold_reward or (None if config is None else config.gold_reward)
    gold = None if named is None else load_reward_funcs([named])[0][0]
    file = options.probe_set or (None if config is None else config.probe_set)
    if file is not None and functions is None:
        raise UserError("a probe set is scored by reward functions: name them, --config or --reward_funcs")
    probe_set = None if file is None else read_probe_set(file)
    report = check_completions(
        read_json_lines(options.file), functions, weights, window=options.window, gold_reward=gold,
        probe_set=probe_set, tokenize=_tokenize(config.model) if config is not None else None, where=options.file,
    )  # fmt: skip
    print(to_strict_json(report.to_dict()) if options.json else report_text(report, options.file), end="\n")
    worst = max((finding.severity for finding in report.findings.values()), default=None)
    return ALERTS if options.fail_on and worst is not None and worst >= options.fail_on else 0


def _functions(options: argparse.Namespace) -> tuple[list[Any], list[float], Any]:
    """The functions that a configuration or the command line names; models of TRL's own kind cannot be asked here."""
    from trl_ext.rewards.checking import CheckedReward
    from trl_ext.rewards.loading import load_reward_funcs
    from trl_ext.rewards.reward_config import RewardConfig, read_reward_config

    if bool(options.config) == bool(options.reward_funcs):
        raise UserError("name the rewards: --config FILE.yaml, or --reward_funcs sentiment length")
    config = read_reward_config(options.config) if options.config else RewardConfig(options.reward_funcs)
    functions: list[Callable]
    functions, weights = load_reward_funcs(config.reward_funcs, config.reward_weights)
    for function in functions:
        if not isinstance(function, CheckedReward):
            raise UserError("an nn.Module cannot be asked here: name a model by its folder or hub id")
    return functions, weights, config
