"""One checkpoint judged: `judge`."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trl_ext.checkpoints.architecture_process import prepare
from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.groups import GroupStatistics, by_group, by_layer, whole
from trl_ext.checkpoints.health import adapter, architecture, configuration, files, reference, resuming, weights
from trl_ext.checkpoints.health.finding import Case, HealthFinding, Rule
from trl_ext.checkpoints.measuring import Measured, measure
from trl_ext.checkpoints.reader import Checkpoint, open_checkpoint
from trl_ext.monitor.alerts import Severity

logger = logging.getLogger(__name__)

# `files` last: what cannot be read is known when all has been read
RULES: tuple[Rule, ...] = (
    *weights.RULES, *adapter.RULES, *configuration.RULES, *architecture.RULES, *resuming.RULES, *reference.RULES,
    *files.RULES,
)  # fmt: skip
_COSTS = {Severity.INFO: 0.0, Severity.WARNING: 0.1, Severity.ERROR: 0.5, Severity.CRITICAL: 1.0}
_STATUS = {None: "healthy", Severity.INFO: "healthy", Severity.WARNING: "suspicious", Severity.ERROR: "damaged",
           Severity.CRITICAL: "unusable"}  # fmt: skip
_failed: set[str] = set()


@dataclass
class CheckpointHealth:
    """The verdict on one checkpoint.

    Attributes:
        findings: the worst first.
    """

    checkpoint: Checkpoint
    measured: Measured
    findings: list[HealthFinding]
    step: int | None = None

    @property
    def severity(self) -> Severity | None:
        """Of the worst finding."""
        return max((finding.severity for finding in self.findings), default=None)

    @property
    def status(self) -> str:
        """`healthy`, `suspicious` (warnings), `damaged` (errors) or `unusable` (critical findings)."""
        return status_of(self.severity)

    @property
    def score(self) -> float:
        """As `score_of` has it."""
        return score_of(self.findings)

    @cached_property
    def groups(self) -> list[GroupStatistics]:
        return by_group(self.measured)

    @cached_property
    def layers(self) -> list[GroupStatistics]:
        return by_layer(self.measured)

    @cached_property
    def whole(self) -> GroupStatistics:
        return whole(self.measured)

    @property
    def recommendations(self) -> list[str]:
        """What to do, once each, the most urgent first."""
        return list(dict.fromkeys(f.advice for f in self.findings if f.severity > Severity.INFO))

    def to_dict(self, tensors: bool = False) -> dict[str, Any]:
        """For `strict_json.to_strict_json`.

        Args:
            tensors: also the statistics of each tensor.
        """
        statistics: dict[str, Any] = {
            "whole": self.whole.to_dict(),
            "groups": {group.name: group.to_dict() for group in self.groups},
            "layers": {group.name: group.to_dict() for group in self.layers},
            "bytes": sum(self.checkpoint.files.values()),
        }
        if self.measured.lora:
            statistics["lora"] = [vars(update) for update in self.measured.lora]
        if tensors:
            statistics["tensors"] = {name: self._tensor(name) for name in self.measured.tensors}
        return {
            "path": str(self.checkpoint.path),
            "format": self.checkpoint.form,
            "step": self.step,
            "health": {
                "score": self.score,
                "status": self.status,
                "findings": [finding.to_dict() for finding in self.findings],
            },
            "statistics": statistics,
            "recommendations": self.recommendations,
        }

    def _tensor(self, name: str) -> dict[str, Any]:
        one = self.measured.tensors[name]
        found = {key: value for key, value in vars(one).items() if key not in ("tensor", "bits", "sample")}
        found |= {"shape": list(one.tensor.shape), "dtype": one.tensor.dtype, "form": one.tensor.form}
        if name in self.measured.drifts:
            found["drift"] = vars(self.measured.drifts[name])
        return found


def score_of(findings: Sequence[HealthFinding]) -> float:
    """1 without warnings, less 0.1 for each rule that warns, 0.5 for each with an error and 1 for a critical one; at
    least 0."""
    worst: dict[str, float] = {}
    for finding in findings:
        worst[finding.rule] = max(worst.get(finding.rule, 0.0), _COSTS[finding.severity])
    return max(0.0, round(1.0 - sum(worst.values()), 6))


def status_of(severity: Severity | None) -> str:
    """Of the worst finding."""
    return _STATUS[severity]


def judge(
    path: str | os.PathLike[str],
    reference: str | os.PathLike[str] | Checkpoint | None = None,
    workers: int | None = None,
) -> CheckpointHealth:
    """Reads a checkpoint once, and says what is wrong with it. Nothing of it is run, nothing is written.

    Args:
        path: a folder with weights, or one file of them.
        reference: the base model or another checkpoint, to see what moved; a folder or a file.
        workers: threads; as many as there are cores by default, 12 at most.
    Raises:
        UnreadableError: there is nothing of that name.
    """
    checkpoint = open_checkpoint(path)
    other = reference if reference is None or isinstance(reference, Checkpoint) else open_checkpoint(reference)
    prepare(checkpoint.documents.get("config.json"))
    measured = measure(checkpoint, other, workers)
    case = Case(checkpoint, measured, other)
    return CheckpointHealth(checkpoint, measured, findings_of(case, RULES), case.step)


def findings_of(case: Case, rules: Sequence[Rule]) -> list[HealthFinding]:
    """The worst first. A rule that fails says nothing, and its traceback is logged once."""
    found: list[HealthFinding] = []
    for rule in rules:
        try:
            for finding in rule(case):
                found.append(finding)
                case.said.add(finding.rule)
        except UnreadableError as error:  # deleted while we look
            case.checkpoint.cannot_read(Path(case.checkpoint.path).name, error)
        except Exception:
            if rule.__name__ not in _failed:
                _failed.add(rule.__name__)
                logger.exception("The checkpoint rule %s failed; the others go on.", rule.__name__)
    return sorted(found, key=lambda finding: -finding.severity.rank)
