"""One section of the model card: what was trained on which rewards, how it went, what the monitor said.

TRL's trainers write `README.md` in `create_model_card`, before each checkpoint and before the upload at the end. No
event comes between that and the upload, so that the method is wrapped on the one trainer object.
"""

import functools
import inspect
import json
import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trl_ext.callbacks._markdown import escaped, table
from trl_ext.callbacks._public_text import public
from trl_ext.callbacks._reward_source import reward_source
from trl_ext.monitor.alerts import Alert

BEGIN, END = "<!-- trl_ext: begin -->", "<!-- trl_ext: end -->"
_SECTION = re.compile(f"{re.escape(BEGIN)}(?:(?!{re.escape(BEGIN)}).)*?{re.escape(END)}", re.DOTALL)
_ALERTS, _LONGEST = 20, 400  # the worst of them, and characters of a message
_WRITER = "_trl_ext_writer"


def follow_model_card(trainer: Any, write: Callable[[Any], None]) -> None:
    """Calls `write(trainer)` whenever the trainer has written its card, in place of an earlier `write`. For the main
    process, which alone writes it."""
    create = getattr(trainer, "create_model_card", None)
    if create is None:
        return
    if hasattr(create, _WRITER):
        setattr(create, _WRITER, write)
        return

    # weakly: a trainer that held itself would keep its model until the garbage is collected
    owner = weakref.ref(trainer)
    method: Callable[[], Any] = weakref.WeakMethod(create) if inspect.ismethod(create) else lambda: create

    @functools.wraps(getattr(create, "__func__", create))
    def created(*args: Any, **kwargs: Any) -> Any:
        result = method()(*args, **kwargs)
        if (trainer := owner()) is not None:
            getattr(created, _WRITER)(trainer)
        return result

    setattr(created, _WRITER, write)
    trainer.create_model_card = created


def write_section(trainer: Any, summary: Mapping[str, Any], only_where_it_is: bool = False, began: float = 0.0) -> None:
    """Puts the section into the card of `trainer.args.output_dir`, if there is a card.

    Args:
        summary: of the monitor.
        only_where_it_is: leaves a card without the section as it is.
        began: seconds since 1970; an evaluation written before is of another run.
    Raises:
        OSError: it cannot be read or written.
    """
    path = Path(str(trainer.args.output_dir), "README.md")
    if not path.is_file():
        return
    with open(path, encoding="utf-8", newline="") as file:  # line ends stay as they are
        before = file.read()
    if only_where_it_is and not _SECTION.search(before):
        return
    temporary = path.with_name("_README.md.tmp")  # the hub is not sent what begins with an underscore
    with open(temporary, "w", encoding="utf-8", newline="") as file:
        file.write(with_section(before, section_of(trainer, summary, began)))
    os.replace(temporary, path)


def with_section(card: str, section: str) -> str:
    """The section in the place of the one that is there, at the end of a card without one."""
    marked = f"{BEGIN}\n{section}\n{END}"
    if _SECTION.search(card):
        return _SECTION.sub(lambda _: marked, card, count=1)
    return f"{card.rstrip()}\n\n{marked}\n".lstrip()


def section_of(trainer: Any, summary: Mapping[str, Any], began: float = 0.0) -> str:
    callbacks = trainer.callback_handler.callbacks
    alerts = [alert for callback in callbacks for alert in getattr(callback, "alerts", ()) if isinstance(alert, Alert)]
    source = reward_source(trainer)
    rewards = dict(zip(source.names, source.weights, strict=True)) if source is not None else {}
    held_out = _held_out(Path(str(trainer.args.output_dir), "eval_results.json"), began)
    return card_section(type(trainer).__name__, rewards, summary, alerts, trainer.state.max_steps, held_out)


def card_section(
    trainer: str, rewards: Mapping[str, float], summary: Mapping[str, Any], alerts: Sequence[Alert], max_steps: int,
    held_out: Mapping[str, float] | None = None,
) -> str:  # fmt: skip
    """Markdown. Whatever is not ours in it (names, messages) is escaped, and says no secret and no path.

    Args:
        trainer: its class.
        rewards: weight of each reward function.
        summary: of the monitor.
        alerts: of all callbacks.
        held_out: numbers of an evaluation after the training.
    """
    of = f" of {max_steps}" if max_steps > 0 else ""
    parts = [
        "## How the training went",
        f"`{trainer}`, step {summary['last_step']}{of}: {_state(summary)}. Recorded by trl_ext.",
    ]
    if rewards:
        rows = [(public(name), f"{weight:g}") for name, weight in rewards.items()]
        parts += ["### Reward functions", table(["function", "weight"], rows)]
    if summary["metrics"]:
        rows_of = [
            (name, *(f"{seen[which]:.4g}" for which in ("first", "last", "min", "max")))
            for name, seen in summary["metrics"].items()
        ]
        parts += ["### Metrics", table(["metric", "first", "last", "least", "largest"], rows_of)]
    if held_out:
        rows = [(public(name), f"{value:.4g}") for name, value in held_out.items()]
        parts += ["### Held-out", table(["metric", "value"], rows)]
    parts += ["### Alerts", *_alerts(alerts)]
    return "\n\n".join(parts)


def _held_out(path: Path, began: float) -> dict[str, float]:
    """What `trainer.save_metrics("eval", ...)` wrote, without times."""
    try:
        written = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_mtime >= began else {}
    except (OSError, ValueError):
        return {}
    found = written if isinstance(written, dict) else {}
    return {
        name.removeprefix("eval_"): value
        for name, value in found.items()
        if name.startswith("eval_") and isinstance(value, int | float) and not name.endswith(("_second", "_runtime"))
    }


def _state(summary: Mapping[str, Any]) -> str:
    if summary["stopped"]:
        return escaped(_short(summary["stopped"]))
    return "completed" if summary["completed"] else "not over yet"


def _alerts(alerts: Sequence[Alert]) -> list[str]:
    if not alerts:
        return ["None."]
    worst = sorted(alerts, key=lambda alert: -alert.severity.rank)[:_ALERTS]
    rows = [
        (
            str(alert.severity),
            public(alert.rule),
            f"{alert.opened}" + (f" to {alert.closed}" if alert.closed is not None else ""),
            _short(alert.message),
        )
        for alert in sorted(worst, key=lambda alert: (alert.opened, alert.rule))
    ]
    more = [f"And {len(alerts) - _ALERTS} less severe ones."] if len(alerts) > _ALERTS else []
    return [table(["severity", "rule", "step", "what"], rows), *more]


def _short(text: str) -> str:
    text = public(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
