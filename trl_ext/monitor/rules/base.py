"""What a rule is: a pure decision on canonical metrics, with its own streaming state."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import UNUSABLE, Row, scalar
from trl_ext.monitor.statistics import Statistic

_PLAIN = frozenset({float, int, str, bool, type(None)})


def plain(value: Any) -> Any:
    """What JSON can hold: numbers of NumPy and torch become Python's, what is neither number nor list becomes text."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    number = scalar(value)
    return str(value) if number is UNUSABLE else number  # an array, say


@dataclass(frozen=True)
class Finding:
    """A rule's verdict that something is wrong in this log. Fields as in `Alert`."""

    severity: Severity
    metric: str
    value: float
    message: str
    advice: str
    evidence: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """A rule of a user may give a severity's name, or numbers of NumPy and torch.

        Raises:
            TypeError, ValueError: what no file could hold.
        """
        object.__setattr__(self, "severity", Severity(self.severity))
        if type(self.value) is not float:
            object.__setattr__(self, "value", float(self.value))
        if not (isinstance(self.message, str) and isinstance(self.advice, str) and isinstance(self.metric, str)):
            raise TypeError("metric, message and advice of a Finding are text")
        if self.evidence is None:
            object.__setattr__(self, "evidence", {})
        elif not _PLAIN.issuperset(map(type, self.evidence.values())):
            object.__setattr__(self, "evidence", {str(key): plain(item) for key, item in self.evidence.items()})


class Verdict(Enum):
    """The two other verdicts. Only `HEALTHY` lets an open alert close; a log without the metric says nothing."""

    HEALTHY = "healthy"
    NO_DATA = "no data"


class Rule:
    """One rule. A subclass names itself and writes `check`; its state is every `Statistic` it holds.

    Attributes:
        name: also the first part of its thresholds' names.
        metrics: canonical names; a log that carries none of them is not shown to the rule. `prefix*` stands for all
        that
            start so; empty: every log is shown.
        statistical: judges against the run's own history, so that the engine keeps it quiet during warm-up.
        close_after: healthy logs in a row after which its alert closes.
        explained_by: rules whose open alert is the cause of what this one sees: it then stays quiet, unless it has
            something worse to say.
        useless_with: canonical names; a log that carries one of them is not shown to the rule.
        patient: its verdict may come three logs late: it is asked about four logs at once, which makes most logs cheap.
        at_start: judges the first logs of a run alone, and is not asked later.
        facts: what is known of the run besides its logs (options of the trainer); see `engine.Engine`.
        shared: statistics that the rules of one engine have in common.

    Args:
        limits: this rule's thresholds without the `<name>.`.
        window: how many logs a rolling statistic remembers.
    """

    name: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]] = ()
    statistical: ClassVar[bool] = False
    close_after: ClassVar[int] = 5
    explained_by: ClassVar[tuple[str, ...]] = ()
    useless_with: ClassVar[tuple[str, ...]] = ()
    patient: ClassVar[bool] = False
    at_start: ClassVar[bool] = False

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        self.limits = limits
        self.window = window
        self.facts: Mapping[str, Any] = {}
        self.shared: dict[str, Any] = {}

    def check(self, row: Row) -> Finding | Verdict:
        """Judges one log. Called once a log, in order; takes constant time."""
        raise NotImplementedError

    def resumed(self) -> None:
        """The next log is the first one after the run was resumed."""

    def unseen(self) -> str | None:
        """A metric that the user named and that never arrived; said at the end of the run."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """JSON."""
        return {name: part.state_dict() for name, part in vars(self).items() if isinstance(part, Statistic)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in vars(self).items():
            if isinstance(part, Statistic):
                part.load_state_dict(state[name])


class Levels(Statistic):
    """The worst severity whose condition has held for enough logs in a row.

    Args:
        needed: how many in a row each severity takes, in ascending order of severity.
    """

    def __init__(self, needed: Mapping[Severity, float]):
        self._severities = tuple(needed)
        self._needed = tuple(needed.values())
        self._streaks = [0] * len(needed)
        self._running = False

    def push(self, *holds: bool) -> Severity | Verdict:
        """Args:
            holds: whether this log meets the condition of each severity, in the order of `needed`.
        Returns:
            The severity; `HEALTHY` when no condition holds; `NO_DATA` while one holds but not for long enough.
        """
        if True not in holds:  # nearly always
            if self._running:
                self._streaks, self._running = [0] * len(self._streaks), False
            return Verdict.HEALTHY
        self._running = True
        worst: Severity | Verdict = Verdict.HEALTHY
        for i, hold in enumerate(holds):
            self._streaks[i] = self._streaks[i] + 1 if hold else 0
            if self._streaks[i] >= self._needed[i]:
                worst = self._severities[i]
        return Verdict.NO_DATA if worst is Verdict.HEALTHY else worst

    def state_dict(self) -> dict[str, Any]:
        return dict(zip(self._severities, self._streaks, strict=True))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._streaks = [int(state[severity]) for severity in self._severities]
        self._running = any(self._streaks)
