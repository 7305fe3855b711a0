"""`trl-ext sweep`: a recipe over many settings, one run after another."""

import argparse
import json
import shlex

from trl_ext.errors import say

NO_VALUE, INTERRUPTED = 1, 130


def add_sweep(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "sweep",
        help="run a recipe over lists and ranges of its options, and say which is best",
        description="Runs the jobs of a sweep one after another, each in a process and a folder of its own. The same "
        "command again goes on where it was ended, in whatever way.",
        epilog="Exit code: 0; 1 when no job gave a value; 2 for wrong input; 130 after Ctrl-C or SIGTERM.",
    )
    command.add_argument(
        "file", metavar="SWEEP.yaml", help="recipe, config, parameters, metric, output_dir, method ..."
    )
    command.add_argument("--dry-run", action="store_true", help="list the jobs and run none")
    command.add_argument("--json", action="store_true", help="the results as one JSON object")
    command.set_defaults(run=_sweep)


def _sweep(options: argparse.Namespace) -> int:
    from trl_ext.sweep.definition import read_sweep
    from trl_ext.sweep.jobs import interrupt_on_signals
    from trl_ext.sweep.results import results_json, results_text
    from trl_ext.sweep.running import planned, run_sweep

    sweep = read_sweep(options.file)
    if options.dry_run:
        return _list(planned(sweep), sweep.method, options.json)
    interrupt_on_signals()
    try:
        results = run_sweep(sweep, lambda line: say(f"trl-ext: {line}"))
    except KeyboardInterrupt:
        say("trl-ext: ended; the same command goes on from here")
        return INTERRUPTED
    if options.json:
        print(json.dumps(results_json(sweep, results)))
    else:
        print(results_text(sweep, results), end="")
        print(f"{sweep.output_dir}/results.json and results.csv; each job's output is in its log.txt")
    return 0 if any(result.value is not None for result in results) else NO_VALUE


def _list(jobs: list, method: str, as_json: bool) -> int:
    for job, command, values in jobs:
        if as_json:
            print(json.dumps({"job": job, "options": values, "command": command}))
        else:
            shown = ", ".join(f"{name}={value}" for name, value in values.items())
            print(f"{job}: {shown or 'its values are chosen when its turn comes'}\n    {shlex.join(command)}")
    if not as_json:
        print(f"{len(jobs)} jobs ({method}); none was run")
    return 0
