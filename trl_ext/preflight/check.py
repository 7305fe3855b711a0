"""What a check found, and all of them together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a check ended. `SKIP`: it does not apply to this trainer, and the message says why."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        family: what it belongs to, one of `trl_ext.preflight.names.FAMILIES`.
        name: of the check, unique in its family.
        message: what was found, with the numbers.
        numbers: the same numbers for programs; not finite ones are None.
        advice: the option to change, as TRL spells it; empty where nothing is to be done.
    """

    family: str
    name: str
    status: Status
    message: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""


def worse(*statuses: Status) -> Status:
    """The worst of them."""
    order = [Status.SKIP, Status.PASS, Status.WARN, Status.FAIL]
    return max(statuses, key=order.index, default=Status.PASS)


def above(value: float, warn: float, fail: float) -> Status:
    """PASS up to `warn`, WARN up to `fail`, FAIL above it and where `value` is NaN."""
    if value <= warn:
        return Status.PASS
    return Status.WARN if value <= fail else Status.FAIL


@dataclass(frozen=True)
class Report:
    """All checks of one set-up.

    Attributes:
        trainer: the name of its class.
        seconds: by family, what its checks took.
        sample: a prompt and its completion, in pieces of `(text, what it is)`, of `sample.PIECES`; empty where there is
            none to show.
    """

    trainer: str
    checks: tuple[Check, ...]
    seconds: dict[str, float] = field(default_factory=dict)
    sample: tuple[tuple[str, str], ...] = ()

    @property
    def failed(self) -> bool:
        return any(check.status == Status.FAIL for check in self.checks)

    def count(self, status: Status) -> int:
        return sum(check.status == status for check in self.checks)

    def find(self, name: str) -> Check | None:
        return next((check for check in self.checks if check.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """For strict JSON."""
        return {
            "trainer": self.trainer,
            "failed": self.failed,
            "counts": {status.value: self.count(status) for status in Status},
            "checks": [
                {
                    "family": check.family, "name": check.name, "status": check.status.value,
                    "message": check.message, "numbers": check.numbers, "advice": check.advice,
                }
                for check in self.checks
            ],
            "seconds": {family: round(seconds, 3) for family, seconds in self.seconds.items()},
            "sample": [{"text": text, "is": kind} for text, kind in self.sample],
        }  # fmt: skip


def share(values: Iterable[bool]) -> float:
    """Of those that are true; 0 of none."""
    values = list(values)
    return sum(values) / len(values) if values else 0.0
