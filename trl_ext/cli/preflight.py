"""`trl-ext preflight`: what is wrong with a run before it begins."""

import argparse
import contextlib
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from trl_ext.errors import UserError
from trl_ext.monitor.strict_json import to_strict_json
from trl_ext.strict_yaml import read_yaml

FAILED = 1  # exit code


def add_preflight(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "preflight",
        help="check model, tokenizer, data, rewards and gradients before a run",
        description="Builds the trainer that a configuration or a script describes, and checks it: options, dataset, "
        "tokenizer, log-probabilities, masks, reference, advantages, rewards, gradients, and three updates with what "
        "the whole run will take. Options of the recipe may follow; they win over the file.",
        epilog="Exit code: 0; 1 when a check failed; 2 for wrong input.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="YAML", help="of a recipe; the script of its name beside it is used")
    parser.add_argument("--script", metavar="FILE", help="any script that builds a trainer of TRL and calls train()")
    parser.add_argument("--trainer", metavar="NAME", help="reinforce_loo, ppo, grpo or rloo, where there is no script")
    parser.add_argument("--model", metavar="NAME", help="folder or hub id, in place of a configuration")
    parser.add_argument("--dataset", metavar="NAME", help="`reviews`, a file, a folder or a hub id, with --model")
    parser.add_argument("--reward_funcs", nargs="+", metavar="NAME", help="as in a configuration")
    parser.add_argument("--quick", action="store_true", help="fewer completions and rows")
    parser.add_argument("--only", nargs="+", metavar="FAMILY", help="these families of checks alone")
    parser.add_argument("--guide", action="store_true", help="asks for what is needed, and writes the YAML")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    parser.set_defaults(run=_run, takes_words=True)


def _run(options: argparse.Namespace) -> int:
    _check_options(options)
    _quiet()
    if options.guide:
        from trl_ext.preflight.guide import guide

        return FAILED if guide(quick=options.quick, families=options.only).failed else 0
    from trl_ext.preflight.check import Report
    from trl_ext.preflight.running import preflight
    from trl_ext.preflight.terminal import closing_line

    stdout, began = sys.stdout, time.time()
    with contextlib.redirect_stdout(sys.stderr):  # scripts and libraries print
        trainer, show = _trainer(options), _live(options, stdout)
        if isinstance(trainer, Report):
            report = trainer
            if show is not None:
                show("options", list(report.checks), ())
        else:
            report = preflight(trainer, options.quick, options.only, show)
    _tidy_up(trainer, began)
    if options.json:
        print(to_strict_json(report.to_dict()))
    else:
        _console(stdout).print(closing_line(report))
    return FAILED if report.failed else 0


def _check_options(options: argparse.Namespace) -> None:
    from trl_ext.preflight.names import FAMILIES, TRAINERS

    for name in options.only or ():
        if name not in FAMILIES:
            raise UserError(f"no family of checks {name!r}; there are {', '.join(FAMILIES)}")
    if options.trainer is not None and options.trainer not in TRAINERS:
        raise UserError(f"no trainer {options.trainer!r}; there are {', '.join(TRAINERS)}, and --script for others")
    if options.guide:
        _alone(options)
        return
    if not (options.config or options.script or options.model):
        raise UserError("say what to check: --config FILE.yaml, --script FILE.py, --model NAME, or --guide")
    for name in ("config", "script"):
        path = getattr(options, name)
        if path is not None and not os.path.isfile(path):
            raise UserError(f"no file {path!r}")
    if options.config is not None and options.script is None:  # a script may read what it likes
        content = read_yaml(options.config)
        if content is not None and not isinstance(content, dict):
            raise UserError(f"{options.config} is no configuration: it holds {content!r:.40}, not options and values")


def _alone(options: argparse.Namespace) -> None:
    """What the guide asks for cannot be given to it."""
    names = ("config", "script", "trainer", "model", "dataset", "reward_funcs", "json")
    given = [f"--{name}" for name in names if getattr(options, name)] + list(options.words)
    if given:
        raise UserError(f"--guide asks for everything itself: leave out {' '.join(given)}")


def _trainer(options: argparse.Namespace) -> Any:
    """The trainer; a report of one failed check where it cannot be built."""
    from trl_ext.preflight.check import Check, Report, Status
    from trl_ext.preflight.setup import build_trainer, words_for

    words = [word for word in options.words if word != "--"]
    if options.model is not None and options.config is None and options.script is None:
        words = [*words_for(options.model, options.dataset, options.reward_funcs), *words]
    else:
        for name, option in (("model", "model_name_or_path"), ("dataset", "dataset_name")):
            value = getattr(options, name)
            words += [f"--{option}", value] if value else []
        words += ["--reward_funcs", *options.reward_funcs] if options.reward_funcs else []
    try:
        return build_trainer(words, options.config, options.script, options.trainer)
    except UserError as error:
        check = Check("options", "build", Status.FAIL, str(error), {}, "Nothing else can be checked before that.")
        return Report("no trainer", (check,))


def _tidy_up(trainer: Any, began: float) -> None:
    """Transformers makes the folder of a run when a trainer is built: the empty one that was not there goes again."""
    folder = Path(getattr(getattr(trainer, "args", None), "output_dir", None) or os.devnull)
    with contextlib.suppress(OSError):
        while folder.is_dir() and folder.stat().st_ctime >= began and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent


def _live(options: argparse.Namespace, stdout: Any) -> Any:
    """Prints each family when it is done."""
    from trl_ext.preflight.terminal import family_block

    if options.json:
        return None
    console = _console(stdout)

    def show(family: str, checks: list, sample: tuple) -> None:
        console.print(family_block(family, checks, sample))

    return show


def _console(stdout: Any) -> Any:
    from trl_ext.reporting.replay_table import plain_console

    return plain_console(stdout)


def _quiet() -> None:
    """Warnings and progress bars of libraries would stand between the checks."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it misses kernels that nothing here asks for
    import datasets
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
