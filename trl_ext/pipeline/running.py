"""The pipeline itself: each stage that is not done yet, one after another."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from trl_ext.checkpoints.saved import newest_whole
from trl_ext.errors import UserError
from trl_ext.pipeline.definition import Pipeline, Stage
from trl_ext.pipeline.state import PipelineState
from trl_ext.strict_yaml import dump_yaml
from trl_ext.sweep.jobs import end_group, end_left_over, put_aside


def command_of(pipeline: Pipeline, stage: Stage, num_processes: int | None = None) -> list[str]:
    """The words of a stage: its options are in the file `<output_dir>/<name>.yaml`."""
    engine = stage.accelerate_config or pipeline.accelerate_config
    start = [sys.executable]
    if engine is not None or num_processes is not None:
        start += ["-m", "accelerate.commands.launch", "--quiet"]
        start += [] if engine is None else ["--config_file", engine]
        start += [] if num_processes is None else ["--num_processes", str(num_processes)]
    return [*start, stage.recipe, "--config", str(_options_file(pipeline, stage))]


def planned(pipeline: Pipeline, state: PipelineState) -> list[tuple[Stage, str | None]]:
    """Each stage, and why it will run; None: it is done."""
    plan: list[tuple[Stage, str | None]] = []
    for stage in pipeline.stages:
        again = [name for name in stage.needs if any(name == each.name and why for each, why in plan)]
        why = state.differs(stage) or (None if state.is_done(stage) else "it was cut short")
        plan.append((stage, why or (f"{', '.join(again)} runs again" if again else None)))
    return plan


def run_pipeline(
    pipeline: Pipeline, state: PipelineState, say: Callable[[str], None], num_processes: int | None = None
) -> list[str]:
    """Runs what is not done, and stops at the first stage that fails. Returns the names of what it ran.

    A stage that was cut short goes on from its newest checkpoint where it saved one, and begins anew where not. What a
    folder held of other options is kept beside it. Ctrl-C ends the stage that runs, and passes on.

    Args:
        say: told of each stage, a line each.
    Raises:
        UserError: a stage failed; what came before it is kept.
    """
    ran: list[str] = []
    for number, stage in enumerate(pipeline.stages, 1):
        name = f"stage {number} of {len(pipeline.stages)}, {stage.name}"
        if state.is_done(stage):
            say(f"{name}: done already, in {stage.options['output_dir']}")
            continue
        if end_left_over(state.stages.get(stage.name, {})):
            say(f"{name} was still running from a pipeline that was killed, and was ended")
        folder = stage.options["output_dir"]
        resume = state.differs(stage) is None and _has_checkpoint(folder)
        say(f"{name}: " + ("goes on from its newest checkpoint" if resume else state.differs(stage) or "begins anew"))
        options = {**stage.options, "resume_from_checkpoint": "true"} if resume else stage.options
        try:
            if not resume:
                put_aside(Path(folder), "before")
            _options_file(pipeline, stage).write_text(dump_yaml(options), encoding="utf-8")
        except OSError as error:
            raise UserError(f"{name}: cannot write into {pipeline.output_dir}: {error.strerror}") from error
        began = time.monotonic()
        code = _run(command_of(pipeline, stage, num_processes), stage, state)
        seconds = time.monotonic() - began
        if code:
            anew = f" (without {folder} this stage begins anew)" if resume else ""
            raise UserError(
                f"{name} failed after {seconds:.0f} seconds {_how(code)} and give the same command again: what is done "
                f"is kept{anew}"
            )
        state.end(stage, time.time(), seconds)
        ran.append(stage.name)
        say(f"{name}: {seconds:.0f} seconds")
    return ran


def _run(words: list[str], stage: Stage, state: PipelineState) -> int:
    # a session of its own: what it starts can be ended with it, and Ctrl-C reaches it through us alone
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        facts = {"pid": process.pid}
        with contextlib.suppress(psutil.Error):
            facts["created"] = psutil.Process(process.pid).create_time()
        state.begin(stage, **facts)
        return process.wait()
    finally:
        end_group(process)


def _how(code: int) -> str:
    if code > 0:
        return f"with status {code}, for the reason above; mend it"
    if -code == signal.SIGKILL:
        return "by signal 9, by hand or by the kernel because memory was full (dmesg): make room"
    return f"by signal {-code}: find what sent it"


def _has_checkpoint(folder: str) -> bool:
    try:
        newest_whole(folder)
    except UserError:  # none, or broken ones alone
        return False
    return True


def _options_file(pipeline: Pipeline, stage: Stage) -> Path:
    return Path(pipeline.output_dir, f"{stage.name}.yaml")
