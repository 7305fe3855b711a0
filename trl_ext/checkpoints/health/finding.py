"""What is said of a checkpoint, and what a rule is told."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trl_ext.checkpoints.architecture import Differences
from trl_ext.checkpoints.architecture_process import NotCompared, differences
from trl_ext.checkpoints.errors import printable
from trl_ext.checkpoints.measuring import Measured
from trl_ext.checkpoints.naming import step_of
from trl_ext.checkpoints.reader import Checkpoint
from trl_ext.monitor.alerts import Severity

MODEL_FILE = re.compile(r"(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)")  # that from_pretrained reads
_NAMED = 20  # tensors listed in the numbers of a finding


@dataclass(frozen=True)
class HealthFinding:
    """One fault.

    Attributes:
        tensor: the one that shows it best; `None` where it is not about tensors.
        message: what is wrong, with the numbers.
        advice: the likely cause, and what to do.
        numbers: behind the verdict; `tensors` names up to 20 of those concerned.
    """

    rule: str
    severity: Severity
    message: str
    advice: str
    tensor: str | None = None
    numbers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", printable(self.message))

    def to_dict(self) -> dict[str, Any]:
        return {
            "rule": self.rule, "severity": self.severity.value, "tensor": self.tensor, "message": self.message,
            "advice": self.advice, "numbers": self.numbers,
        }  # fmt: skip


class Case:
    """What the rules are told.

    Args:
        reference: the base model, or another checkpoint of the run.

    Attributes:
        said: the rules that have spoken so far, lest a later one tells of the same.
    """

    def __init__(self, checkpoint: Checkpoint, measured: Measured, reference: Checkpoint | None = None) -> None:
        self.checkpoint, self.measured, self.reference = checkpoint, measured, reference
        self.said: set[str] = set()

    def document(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder; empty where there is none that holds an object."""
        found = self.checkpoint.documents.get(name)
        return found if isinstance(found, dict) else {}

    @cached_property
    def config(self) -> dict[str, Any]:
        return self.document("config.json")

    @cached_property
    def text_config(self) -> dict[str, Any]:
        """The language model's part of it."""
        nested = self.config.get("text_config")
        return {**self.config, **nested} if isinstance(nested, dict) else self.config

    @cached_property
    def adapter(self) -> dict[str, Any]:
        return self.document("adapter_config.json")

    @cached_property
    def is_adapter(self) -> bool:
        return "adapter_config.json" in self.checkpoint.files or any(
            name.startswith("adapter_model.") for name in self.checkpoint.files
        )

    @cached_property
    def step(self) -> int | None:
        """Of training, where the folder tells."""
        step = whole_number(self.document("trainer_state.json").get("global_step"))
        return step if step is not None else step_of(self.checkpoint.path.resolve())

    @cached_property
    def is_checkpoint(self) -> bool:
        """Whether a trainer wrote it to resume from."""
        return "trainer_state.json" in self.checkpoint.files or self.step is not None

    @cached_property
    def architecture(self) -> str:
        named = self.config.get("architectures")
        return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the tensors that are numbers as they are, by name."""
        return {tensor.name: tensor.shape for tensor in self.checkpoint.tensors if tensor.form is None}

    @property
    def differences(self) -> Differences | None:
        """From what config.json describes; `None` where that cannot be told, or where files are not as they should be,
        which is said elsewhere."""
        return self._built if isinstance(self._built, Differences) else None

    @property
    def not_compared(self) -> NotCompared | None:
        """Why there are no `differences` where there should be."""
        return self._built if isinstance(self._built, NotCompared) else None

    @cached_property
    def _built(self) -> Differences | NotCompared | None:
        stored = [one for one in self.checkpoint.tensors
                  if any(MODEL_FILE.fullmatch(piece.file) for piece in one.pieces) or not one.pieces]  # fmt: skip
        shards = {shard for weight_map in self.checkpoint.indices.values() for shard in weight_map.values()}
        unread = any(MODEL_FILE.fullmatch(problem.file) for problem in self.checkpoint.problems)
        packed = "quantization_config" in self.config or any(one.form is not None for one in stored)
        indexed = {name for weight_map in self.checkpoint.indices.values() for name in weight_map}
        complete = shards <= self.checkpoint.files.keys() and indexed <= {one.name for one in stored}
        if not stored or packed or unread or self.is_adapter or not complete:
            return None
        return differences(self.config, {one.name: one.shape for one in stored})


Rule = Callable[[Case], Iterator[HealthFinding]]


def whole_number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: Any) -> float | None:
    """`None` for what is no finite number; JSON may hold whole numbers that no float does."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        return None
    return float(value)


def texts(value: Any) -> list[str]:
    """The texts of a list, or of what else a file has in its place."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def named(tensors: Sequence[str]) -> dict[str, Any]:
    """For the numbers of a finding."""
    return {"count": len(tensors), "tensors": list(tensors[:_NAMED])}


def counted(tensors: Sequence[Any], what: str = "tensor") -> str:
    return f"1 {what}" if len(tensors) == 1 else f"{len(tensors):,} {what}s"


def listed(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
