"""`trl-ext replay`: the monitor over the log of a run."""

import argparse
import contextlib
import json
import sys
from typing import Any

from trl_ext.cli.output import ALERTS, FAIL_ON, complain
from trl_ext.errors import UserError, say
from trl_ext.monitor import Engine
from trl_ext.monitor.presets import PRESETS
from trl_ext.monitor.replay import Replay, engine_for, replay


def add_replay(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "replay",
        help="say what went wrong in a run, from its log",
        description="Runs the monitor over logs: trainer_state.json, JSON Lines (metrics.jsonl), CSV, TensorBoard's "
        "event files, W&B's offline files, or the folder of a run.",
        epilog="The options of the monitor that watched a run apply where none are given here. Exit code: 0; 2 when a "
        "log cannot be read or holds no metric; 3 when --fail-on says so.",
    )
    command.add_argument("paths", nargs="+", metavar="PATH", help="a file, or the folder of a run")
    command.add_argument("--json", action="store_true", help="one JSON object a path, each on a line of its own")
    command.add_argument("--fail-on", choices=FAIL_ON, help="exit with 3 when there is such an alert or worse")
    command.add_argument("--rules", help="only these, by name, separated by commas")
    command.add_argument("--preset", help=f"rules and limits of one kind of run: {', '.join(PRESETS)}")
    command.add_argument("--thresholds", metavar="FILE", help="YAML with other limits, such as `kl_high: {logs: 5}`")
    command.add_argument("--custom-rules", metavar="FILE", help="YAML with a list of your own rules")
    command.add_argument("--warmup-steps", type=int, metavar="N", help="logs before rules that compare a run with its "
                         "own history speak (10)")  # fmt: skip
    command.add_argument("--window", type=int, metavar="N", help="logs a rolling statistic remembers (64)")
    command.set_defaults(run=_replay)


def _replay(options: argparse.Namespace) -> int:
    asked = _asked(options)
    Engine(**asked)  # raises once, not for each path
    code, worst = 0, None
    for path in options.paths:
        try:
            log = _open_log(path)
            engine, wanted = engine_for(log, asked)
            result = replay(log, engine, path, wanted)
        except UserError as error:
            code = complain(str(error))
            continue
        except OSError as error:
            code = complain(f"cannot read {path}: {error.strerror or error}")
            continue
        worst = max(filter(None, (worst, result.severity)), default=None)
        _show(result, options.json)
    if code == 0 and options.fail_on and worst is not None and worst >= options.fail_on:
        return ALERTS
    return code


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    """The engine's arguments that were given."""
    asked: dict[str, Any] = {name: getattr(options, name) for name in ("preset", "warmup_steps", "window")}
    if options.rules is not None:
        asked["rules"] = [name.strip() for name in options.rules.split(",")]
    if options.thresholds is not None or options.custom_rules is not None:
        # the callbacks' package imports Transformers, for seconds, and some integrations announce themselves
        with contextlib.redirect_stdout(sys.stderr):
            from trl_ext.callbacks._rule_file import read_rules
            from trl_ext.callbacks._threshold_file import read_thresholds

        asked["thresholds"] = read_thresholds(options.thresholds) or None
        asked["custom_rules"] = read_rules(options.custom_rules) or None
    return {name: value for name, value in asked.items() if value is not None}


def _open_log(path: str):
    from trl_ext.reporting.log_sources import open_log

    return open_log(path)


def _show(result: Replay, as_json: bool) -> None:
    for note in result.notes:
        say(f"trl-ext: {result.path}: {note}")
    if as_json:
        print(json.dumps(result.to_dict(), allow_nan=False))
        return
    from trl_ext.reporting.replay_table import replay_text

    print(replay_text(result))
