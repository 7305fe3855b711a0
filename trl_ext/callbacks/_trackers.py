"""Where alerts, tables and the closing summary go besides the files: the trackers that report this run."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

from trl_ext.callbacks._markdown import escaped, table
from trl_ext.callbacks.reporting_guard import attempt
from trl_ext.monitor.alerts import Alert, Severity

_WANDB_LEVELS = {Severity.INFO: "INFO", Severity.WARNING: "WARN", Severity.ERROR: "ERROR", Severity.CRITICAL: "ERROR"}
_TITLE = 63  # characters that W&B allows

Rows = Sequence[Sequence[str | float | None]]


class _Tracker(Protocol):
    """One place: its callback, which Transformers made for `report_to`, says whether it reports just now."""

    callback: TrainerCallback

    def is_open(self) -> bool: ...
    def alert(self, alert: Alert) -> None: ...
    def table(self, name: str, columns: Sequence[str], rows: Rows, step: int) -> None: ...
    def summary(self, prefix: str, values: Mapping[str, Any], step: int) -> None: ...


class _TensorBoard:
    """Has text alone: a tag for each rule, since its viewer shows a few texts of a tag."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    def is_open(self) -> bool:
        return self.callback.tb_writer is not None

    def alert(self, alert: Alert) -> None:
        text = f"**{escaped(_title(alert))}**: {escaped(_text(alert))}"
        self.callback.tb_writer.add_text(f"trl_ext/alerts/{alert.rule}", text, alert.step)

    def table(self, name: str, columns: Sequence[str], rows: Rows, step: int) -> None:
        cells = [[_cell(value) for value in row] for row in rows]
        self.callback.tb_writer.add_text(name, table([escaped(column) for column in columns], cells), step)

    def summary(self, prefix: str, values: Mapping[str, Any], step: int) -> None:
        self.table(f"{prefix}/summary", ["quantity", "value"], _as_rows(values), step)
        self.callback.tb_writer.flush()  # stock PPO that is stopped closes no writer


class _Wandb:
    def __init__(self, callback: Any) -> None:
        self.callback = callback
        self._wandb = callback._wandb

    def is_open(self) -> bool:
        return getattr(self._wandb, "run", None) is not None

    def alert(self, alert: Alert) -> None:
        self._wandb.alert(_title(alert), _text(alert), level=_WANDB_LEVELS[alert.severity])

    def table(self, name: str, columns: Sequence[str], rows: Rows, step: int) -> None:
        data = [list(row) for row in rows]
        self._wandb.log({name: self._wandb.Table(columns=list(columns), data=data), "train/global_step": step})

    def summary(self, prefix: str, values: Mapping[str, Any], step: int) -> None:
        self._wandb.run.summary.update({f"{prefix}/{name}": value for name, value in values.items()})


class _Trackio:
    """Its run belongs to the thread that began it."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback
        self._trackio = callback._trackio

    def is_open(self) -> bool:
        return bool(self.callback._initialized)

    def alert(self, alert: Alert) -> None:
        if hasattr(self._trackio, "alert"):
            level = self._trackio.AlertLevel(_WANDB_LEVELS[alert.severity].lower())
            self._trackio.alert(_title(alert), _text(alert), level)

    def table(self, name: str, columns: Sequence[str], rows: Rows, step: int) -> None:
        content = self._trackio.Table(columns=list(columns), data=[list(row) for row in rows])
        self._trackio.log({name: content, "train/global_step": step})

    def summary(self, prefix: str, values: Mapping[str, Any], step: int) -> None:
        self.table(f"{prefix}/summary", ["quantity", "value"], _as_rows(values), step)


_KINDS: list[tuple[str, type[TrainerCallback], Callable[[Any], _Tracker]]] = [
    ("tensorboard", TensorBoardCallback, _TensorBoard),
    ("wandb", WandbCallback, _Wandb),
    ("trackio", TrackioCallback, _Trackio),
]


class Trackers:
    """The trackers among a trainer's callbacks; for the main process, and the thread that trains.

    One that fails is left alone after one warning. Holds their callbacks, not the trainer.
    """

    def __init__(self, callbacks: Iterable[TrainerCallback] = ()) -> None:
        self._places = [
            (name, place(each)) for each in callbacks for name, kind, place in _KINDS if isinstance(each, kind)
        ]
        self._sent: set[tuple[str, int, Severity]] = set()

    def __bool__(self) -> bool:
        return bool(self._places)

    def alert(self, alert: Alert) -> None:
        """Sends one that opened or rose in severity; what was sent before, or has closed, is not sent."""
        news = (alert.rule, alert.opened, alert.severity)
        if self and alert.closed is None and news not in self._sent:
            self._sent.add(news)
            self._send("alert", alert)

    def table(self, name: str, columns: Sequence[str], rows: Rows, step: int, without: Iterable[str] = ()) -> None:
        """Text and numbers, `None` (and what is not finite) for none; to all but those named in `without`, as in
        `report_to`."""
        cells = [[None if isinstance(v, float) and not math.isfinite(v) else v for v in row] for row in rows]
        self._send("table", name, columns, cells, step, without=without)

    def summary(self, prefix: str, values: Mapping[str, Any], step: int) -> None:
        """What a run came to: in W&B the run's summary, elsewhere a table `<prefix>/summary`."""
        self._send("summary", prefix, values, step)

    def _send(self, what: str, *content: Any, without: Iterable[str] = ()) -> None:
        for name, place in self._places:
            if name not in without and attempt(place.callback, place.is_open):
                attempt(place.callback, getattr(place, what), *content)


def _title(alert: Alert) -> str:
    return f"[{alert.severity}] {alert.rule}"[:_TITLE]


def _text(alert: Alert) -> str:
    advice = f" What to do: {alert.advice}" if alert.advice else ""
    return f"Step {alert.step}: {alert.message}.{advice}"


def _as_rows(values: Mapping[str, Any]) -> Rows:
    return [(name, value if isinstance(value, str) else _cell(value)) for name, value in values.items()]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
