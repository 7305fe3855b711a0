"""`trl-ext checkpoint`: is a checkpoint healthy, and what moved since another?"""

import argparse
from pathlib import Path

from trl_ext.cli.output import ALERTS, FAIL_ON, WRONG_INPUT, complain
from trl_ext.errors import UserError, say
from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.strict_json import to_strict_json


def add_checkpoint(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "checkpoint",
        help="say whether a checkpoint is healthy, and what moved since another",
        description="Reads a checkpoint once, without running anything of it: safetensors, PEFT adapters, torch.save, "
        "torch.distributed.checkpoint, DeepSpeed. A folder of checkpoints gives a line each, and the trend.",
        epilog="Exit code: 0; 2 when a checkpoint or the reference cannot be read; 3 when --fail-on says so.",
    )
    command.add_argument("paths", nargs="+", metavar="PATH", help="a folder, a file of weights, or the folder of a run")
    command.add_argument("--reference", metavar="PATH", help="the base model or another checkpoint: a folder or hub id")
    command.add_argument("--json", action="store_true", help="one JSON object a path, each on a line of its own")
    command.add_argument("--tensors", action="store_true", help="with --json: the numbers of each tensor, too")
    command.add_argument("--fail-on", choices=FAIL_ON, help="exit with 3 when there is such a finding or worse")
    command.add_argument("--report", metavar="FOLDER", help="write checkpoint.md and checkpoint.png there")
    command.add_argument("--workers", type=int, metavar="N", help="threads (as many as there are cores)")
    command.set_defaults(run=_checkpoint)


def _checkpoint(options: argparse.Namespace) -> int:
    from trl_ext.checkpoints.reader import open_checkpoint
    from trl_ext.checkpoints.reference import find_reference

    if options.workers is not None and not 1 <= options.workers <= 256:
        return complain("--workers must be from 1 to 256")
    if options.report and len(options.paths) > 1:
        return complain("--report is of one path: name one")
    reference = None if options.reference is None else open_checkpoint(find_reference(options.reference))
    if reference is not None and not reference.tensors:
        return complain(f"the reference {options.reference} has no weights that can be read")
    code, worst = 0, None
    for path in options.paths:
        try:
            severity, readable = _one(path, reference, options)
        except UserError as error:
            code = complain(str(error))
            continue
        code = code if readable else WRONG_INPUT
        worst = max(filter(None, (worst, severity)), default=None)
    if code == 0 and options.fail_on and worst is not None and worst >= options.fail_on:
        return ALERTS
    return code


def _one(path: str, reference, options: argparse.Namespace) -> tuple[Severity | None, bool]:
    """Shows it. The worst finding, and whether there was anything to judge."""
    from trl_ext.checkpoints.health.judging import judge
    from trl_ext.checkpoints.run_folder import is_run, judge_run
    from trl_ext.reporting.checkpoint_table import health_text, run_text

    if is_run(path):
        run = judge_run(path, reference, options.workers)
        print(to_strict_json(run.to_dict(options.tensors)) if options.json else run_text(run))
        if options.report:
            _report(run, options.report)
        return run.severity, bool(run.checkpoints) and all(_readable(health) for health in run.checkpoints)
    health = judge(path, reference, options.workers)
    print(to_strict_json(health.to_dict(options.tensors)) if options.json else health_text(health))
    if options.report:
        _report(health, options.report)
    return health.severity, _readable(health)


def _report(verdict, folder: str) -> None:
    from trl_ext.reporting.checkpoint_report import write_report

    for path in write_report(verdict, Path(folder)):
        say(f"trl-ext: wrote {path}")


def _readable(health) -> bool:
    """Whether some of it could be judged; an empty adapter is read, and found to be empty."""
    return bool(health.measured.tensors) or not any(
        finding.rule == "no_weights" or finding.rule.startswith("file_") for finding in health.findings
    )
