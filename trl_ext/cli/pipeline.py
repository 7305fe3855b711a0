"""`trl-ext pipeline`: recipes one after another, each from what an earlier one made."""

import argparse
import shlex
import sys

from trl_ext.errors import UserError, say

INTERRUPTED = 130


def add_pipeline(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "pipeline",
        help="run recipes one after another, each from what an earlier one made",
        description="Runs the stages of a pipeline. A stage that is done is skipped; one whose options changed, or "
        "that starts from a stage that ran since, runs again. The same command again goes on where it was ended.",
        epilog="Exit code: 0; 2 for wrong input or a stage that failed; 130 after Ctrl-C or SIGTERM.",
    )
    command.add_argument("file", metavar="PIPELINE.yaml", help="output_dir and stages, such as recipes/pipeline.yaml")
    command.add_argument("--output_dir", help="in place of the file's")
    command.add_argument("--accelerate_config", metavar="FILE.yaml", help="for `accelerate launch`, in every stage")
    command.add_argument("--num_processes", type=int, help="for `accelerate launch`, in every stage")
    command.add_argument("--dry-run", action="store_true", help="say what would run, and why, and run nothing")
    command.set_defaults(run=_pipeline)


def _pipeline(options: argparse.Namespace) -> int:
    from dataclasses import replace
    from pathlib import Path

    from trl_ext.pipeline.checking import check_stages
    from trl_ext.pipeline.definition import read_pipeline
    from trl_ext.pipeline.results import results_table
    from trl_ext.pipeline.running import command_of, planned, run_pipeline
    from trl_ext.pipeline.state import PipelineState
    from trl_ext.reporting.replay_table import plain_console
    from trl_ext.sweep.jobs import interrupt_on_signals

    pipeline = read_pipeline(options.file, options.output_dir)
    if options.accelerate_config is not None:
        if not Path(options.accelerate_config).is_file():
            raise UserError(f"--accelerate_config: there is no file {options.accelerate_config}")
        stages = [replace(stage, accelerate_config=None) for stage in pipeline.stages]
        pipeline = replace(pipeline, stages=stages, accelerate_config=options.accelerate_config)
    if options.num_processes is not None and options.num_processes < 1:
        raise UserError(f"--num_processes must be at least 1, not {options.num_processes}")
    state = PipelineState(pipeline, look_only=options.dry_run)
    try:
        interrupt_on_signals()
        plan = planned(pipeline, state)
        check_stages(pipeline, [stage for stage, why in plan if why])
        if options.dry_run:
            for stage, why in plan:
                print(f"{stage.name}: {why or 'done'}")
                if why:
                    print(f"    {shlex.join(command_of(pipeline, stage, options.num_processes))}")
            return 0
        try:
            ran = run_pipeline(pipeline, state, _say, options.num_processes)
        except KeyboardInterrupt:
            say("trl-ext: ended; the same command goes on from here")
            return INTERRUPTED
        for stage in pipeline.stages:  # what compare.py has printed, where it has not just done so
            path = Path(stage.options["output_dir"], "comparison.txt")
            if stage.name not in ran and path.is_file():
                print(path.read_text(encoding="utf-8", errors="replace"))
        plain_console().print(results_table(pipeline, state))
        return 0
    finally:
        state.close()


def _say(line: str) -> None:
    sys.stdout.flush()
    say(f"trl-ext: {line}")
