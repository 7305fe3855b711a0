"""What the monitor says."""

import math
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """`info` < `warning` < `error` < `critical`. Equal to its name as a string."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for info to 3 for critical."""
        return _RANKS[self]

    def __lt__(self, other: str) -> bool:
        return self.rank < Severity(other).rank

    def __le__(self, other: str) -> bool:
        return self.rank <= Severity(other).rank

    def __gt__(self, other: str) -> bool:
        return self.rank > Severity(other).rank

    def __ge__(self, other: str) -> bool:
        return self.rank >= Severity(other).rank


_RANKS = {severity: rank for rank, severity in enumerate(Severity)}


@dataclass
class Alert:
    """One root cause, from the log it was first seen in until it has gone.

    Attributes:
        step: training step of the latest news: opened, risen in severity.
        rule: name of the rule.
        severity: the worst so far.
        metric: canonical name of the metric that shows it best.
        value: of that metric at `step`; may be NaN or infinite.
        message: what is wrong, with the numbers.
        advice: likely causes in order, and the option to change by its TRL name.
        evidence: numbers and short strings behind the verdict; `logs`, `last_step` and `last_value` follow it while it
            is open.
        opened: step at which it was first seen.
        closed: step at which it counted as gone, `None` while open.
    """

    step: int
    rule: str
    severity: Severity
    metric: str
    value: float
    message: str
    advice: str
    evidence: dict[str, Any] = field(default_factory=dict)
    opened: int = 0
    closed: int | None = None

    def copy(self) -> "Alert":
        """One that does not change as the run goes on."""
        return replace(self, evidence=dict(self.evidence))

    def to_dict(self) -> dict[str, Any]:
        """Plain Python; write it with `strict_json.to_strict_json`."""
        return {**asdict(self), "severity": self.severity.value}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Alert":
        """From `to_dict`, or from strict JSON such as a line of `alerts.jsonl`: further keys are ignored, and a number
        that was not finite reads as NaN."""
        known = {f.name: record[f.name] for f in fields(cls)}
        known["severity"] = Severity(known["severity"])
        known["value"] = math.nan if known["value"] is None else known["value"]
        known["evidence"] = {key: math.nan if item is None else item for key, item in known["evidence"].items()}
        return cls(**known)
