"""All checkpoints of a run judged: `judge_run`."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.health.finding import HealthFinding
from trl_ext.checkpoints.health.judging import CheckpointHealth, judge, score_of, status_of
from trl_ext.checkpoints.naming import step_of
from trl_ext.checkpoints.reader import Checkpoint
from trl_ext.checkpoints.trend import Trend, checkpoints_of
from trl_ext.monitor.alerts import Severity


@dataclass
class RunHealth:
    """The verdict on the checkpoints of a run.

    Attributes:
        checkpoints: by step.
        unreadable: folders that are gone or cannot be listed, with the reason.
        findings: about the run as a whole.
    """

    path: Path
    checkpoints: list[CheckpointHealth] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    trend: Trend = field(default_factory=Trend)
    findings: list[HealthFinding] = field(default_factory=list)

    @property
    def severity(self) -> Severity | None:
        """The worst of the run and of all its checkpoints."""
        of_all = [finding.severity for finding in self.findings]
        of_all += [health.severity for health in self.checkpoints if health.severity is not None]
        return max(of_all, default=None)

    def to_dict(self, tensors: bool = False) -> dict[str, Any]:
        """Statistics and findings of the latest checkpoint, with those of the run; score and status are the worst."""
        latest = self.checkpoints[-1].to_dict(tensors) if self.checkpoints else {}
        latest["path"], latest["run"] = str(self.path), True
        if "health" in latest:
            worst = min(health.score for health in self.checkpoints)
            latest["health"]["score"] = min(worst, score_of(self.findings))
            latest["health"]["status"] = status_of(self.severity)
            latest["health"]["findings"] += [finding.to_dict() for finding in self.findings]
            latest["recommendations"] += [finding.advice for finding in self.findings if finding.severity > "info"]
        latest["checkpoints"] = [
            {"path": str(health.checkpoint.path), "step": health.step, "health": health.to_dict()["health"]}
            for health in self.checkpoints
        ]
        latest["unreadable"] = self.unreadable
        latest["trend"] = self.trend.to_dict()
        return latest


def judge_run(
    folder: str | os.PathLike[str],
    reference: Checkpoint | None = None,
    workers: int | None = None,
    heard: Callable[[CheckpointHealth], Any] | None = None,
) -> RunHealth:
    """Judges each `checkpoint-N` of a folder, and how the weights moved from one to the next.

    Args:
        heard: called with each as it is done.
    Raises:
        UnreadableError: there is none.
    """
    run = RunHealth(Path(folder))
    paths = checkpoints_of(folder)
    if not paths:
        raise UnreadableError(f"{folder} has no folder checkpoint-N", "missing")
    seen: dict[tuple[str, str], HealthFinding] = {}
    for path in paths:
        try:
            health = judge(path, reference, workers)
        except UnreadableError as error:  # deleted since
            run.unreadable[path.name] = str(error)
            continue
        run.checkpoints.append(health)
        run.trend.add(step_of(path) or 0, health)
        for finding in run.trend.findings():
            seen[finding.rule, finding.message.split(" (")[0]] = finding
        if heard is not None:
            heard(health)
    run.findings = sorted(seen.values(), key=lambda finding: -finding.severity.rank)
    return run


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether it is a folder of checkpoints, and none itself."""
    if not Path(path).is_dir():
        return False
    names = os.listdir(path)
    own = any(name.endswith((".safetensors", ".bin", ".metadata")) and name != "training_args.bin" for name in names)
    return not own and bool(checkpoints_of(path))
