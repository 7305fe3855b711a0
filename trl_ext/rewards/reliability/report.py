"""What is known of the rewards' reliability: a score with its parts, findings with advice, and the evidence."""

import math
from dataclasses import dataclass, field
from typing import Any

from trl_ext.monitor.rules.base import Finding
from trl_ext.rewards.reliability.components import Component

# Each part of the score, and what a 0 means.
PARTS: dict[str, str] = {
    "stability": "the reward jumps, or its spread changes, without learning",
    "consistency": "the same completion gets another reward",
    "robustness": "white space, case, an appended sentence or doubled text move the reward",
    "signal": "functions give the same value to everything",
    "balance": "one function's scale drowns the others",
    "independence": "the reward is a measure of length or of repetition",
    "diversity": "the completions are copies of each other",
    "agreement": "the held-back measure falls while the reward rises, or disagrees with the probe set",
}


@dataclass
class ReliabilityReport:
    """As of `step`.

    Attributes:
        score: 0 to 1, the mean of the lowest part and of the average of all parts that are known; `None` when none is.
        parts: 0 to 1 by name (`PARTS`), `None` for what was not measured.
        completions: in the window.
        components: one for each reward function.
        measures: the numbers behind the parts; NaN and what is unknown is left out.
        findings: by the name of their rule, worst first.
        recommendations: what to change, most urgent first.
        samples: completions kept as evidence, each with `kind` (`best`, `worst`, `suspicious`), `why` and its rewards.
    """

    step: int
    completions: int
    parts: dict[str, float | None]
    components: list[Component]
    measures: dict[str, float]
    findings: dict[str, Finding]
    samples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def score(self) -> float | None:
        known = [part for part in self.parts.values() if part is not None]
        return (min(known) + sum(known) / len(known)) / 2 if known else None

    @property
    def recommendations(self) -> list[str]:
        return [finding.advice for finding in self.findings.values()]

    def to_dict(self) -> dict[str, Any]:
        """For strict JSON."""
        return {
            "step": self.step,
            "completions": self.completions,
            "score": self.score,
            "parts": dict(self.parts),
            "components": [
                {key: _known(value) for key, value in component._asdict().items()} for component in self.components
            ],
            "measures": {name: value for name, value in self.measures.items() if math.isfinite(value)},
            "findings": [
                {
                    "rule": rule, "severity": finding.severity.value, "message": finding.message,
                    "advice": finding.advice, **({"evidence": finding.evidence} if finding.evidence else {}),
                }
                for rule, finding in self.findings.items()
            ],
            "recommendations": self.recommendations,
            "samples": self.samples,
        }  # fmt: skip


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
