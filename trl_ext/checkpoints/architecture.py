"""What weights the architecture of a config.json has, from Transformers itself: the model is built without memory, and
names are mapped as `from_pretrained` maps them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trl_ext.checkpoints.naming import weight_name

if TYPE_CHECKING:  # importing it takes seconds, which a checkpoint without a config.json need not wait for
    from transformers import PreTrainedModel

# A config.json may come from anybody. What chooses code to be fetched is left out. See also architecture_process.py
_LEFT_OUT = re.compile(r"_.*|.*attn_implementation|.*experts_implementation|auto_map|.*kernel.*_config|use_kernels")
_FETCHES = re.compile(r"(use_.*)?backbone.*|timm.*")  # models whose parts come from elsewhere
_LAYERS = re.compile(r".*(layers?|blocks?|stages?|depths?|repeats?)")
_EXPERTS = re.compile(r".*experts?")
_COUNTS = re.compile(r".*(labels?|groups?|heads?|codebooks?|streams?|windows?|levels?|scales?)(_size)?")
_MOST_LAYERS, _MOST_EXPERTS, _MOST_OF_A_COUNT = 2000, 60_000, 100_000  # the second with the layers that have them
_LARGEST = 1 << 31  # of any whole number
_OLD_BUFFERS = re.compile(r"rotary_emb\.inv_freq|(^|\.)position_ids$|\.(attn|attention)\.(masked_)?bias$")


@dataclass(frozen=True)
class Differences:
    """
    Attributes:
        missing: weights of the architecture that are not stored, by its own names.
        unexpected: stored ones that it does not have.
        reshaped: stored ones of another shape, with the architecture's.
        wrapped: stored ones that it has by another name: what a wrapper put in front was not taken off.
        tied: stored ones that are one tensor with another in it.
    """

    missing: list[str]
    unexpected: list[str]
    reshaped: dict[str, tuple[int, ...]]
    wrapped: list[str]
    tied: frozenset[str]


class Architecture:
    """Of a model on the meta device."""

    def __init__(self, model: "PreTrainedModel") -> None:
        self._shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        self._known = dict.fromkeys(self._shapes, True)  # for Transformers, which asks whether a name has a value
        self._prefix = model.base_model_prefix
        self._tied = _tied(model)
        self._need_not_be = _pattern(model, "_keys_to_ignore_on_load_missing")
        self._may_be = _pattern(model, "_keys_to_ignore_on_load_unexpected")
        self._not_saved = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
        self._renamings, self._converters = _conversions(model)

    def compared(self, stored: Mapping[str, tuple[int, ...]]) -> Differences:
        """
        Args:
            stored: shapes by name.
        """
        found: set[str] = set()
        unexpected, wrapped, tied = [], [], []
        reshaped = {}
        for name, shape in stored.items():
            own, is_converted = self._own_name(name)
            if own not in self._shapes:
                inner = self._own_name(weight_name(name))[0]
                if inner != own and inner in self._shapes:
                    wrapped.append(name)
                    found.add(inner)
                elif not (_OLD_BUFFERS.search(own) or (self._may_be and self._may_be.search(own))):
                    unexpected.append(name)
                continue
            found.add(own)
            if own in self._tied:
                tied.append(name)
            if not is_converted and shape != self._shapes[own]:
                reshaped[name] = self._shapes[own]
        missing = [name for name in self._shapes if name not in found and not self._may_be_missing(name, found)]
        return Differences(missing, unexpected, reshaped, wrapped, frozenset(tied))

    def _own_name(self, name: str) -> tuple[str, bool]:
        """As the built model has it, and whether it becomes part of another tensor or of several."""
        if self._renamings is None:
            for own in (name, f"{self._prefix}.{name}", name.removeprefix(f"{self._prefix}.")):
                if own in self._shapes:
                    return own, False
            return name, False
        from transformers.core_model_loading import rename_source_key

        own, pattern = rename_source_key(name, self._renamings, self._converters, self._prefix, self._known)
        return own, pattern is not None

    def _may_be_missing(self, name: str, found: set[str]) -> bool:
        ignored = self._need_not_be is not None and self._need_not_be.search(name) is not None
        tied = any(other in found for other in self._tied.get(name, ()))
        return ignored or tied or name in self._not_saved


def _tied(model: "PreTrainedModel") -> dict[str, set[str]]:
    """Of each name the others that are the same tensor."""
    families: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        families.setdefault(id(parameter), set()).add(name)
    tied = {name: family for family in families.values() if len(family) > 1 for name in family}
    for name, other in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        tied.setdefault(name, set()).add(other)
        tied.setdefault(other, set()).add(name)
    return tied


def _pattern(model: "PreTrainedModel", attribute: str) -> re.Pattern[str] | None:
    patterns: Iterable[str] = getattr(model, attribute, None) or ()
    joined = "|".join(f"({pattern})" for pattern in patterns)
    return re.compile(joined) if joined else None


def _conversions(model: "PreTrainedModel") -> tuple[list[Any] | None, list[Any]]:
    """How Transformers renames, and joins, what is stored; `None` in versions before 5, which hardly do."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter
    except ImportError:
        return None, []
    transforms = get_model_conversion_mapping(model)
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    return [one for one in transforms if not isinstance(one, WeightConverter)], converters


class CannotBuildError(Exception):
    """Transformers has the architecture, and cannot build it with these numbers."""


def architecture_of(config: Mapping[str, Any]) -> Architecture | None:
    """`None` where Transformers does not have it, or where it cannot be built from this configuration alone.

    Runs no code but that of Transformers, which for some models draws random numbers and changes the default dtype of
    the process while it builds.

    Raises:
        CannotBuildError: the numbers do not go together.
    """
    try:
        own = _cleaned(config)
    except RecursionError:
        return None
    named = own.get("architectures")
    name = named[0] if isinstance(named, list) and named else None
    kind = own.pop("model_type", None)
    if not isinstance(name, str) or not isinstance(kind, str) or not _is_small(own):
        return None
    return _built(name, kind, own)


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _cleaned(one) for key, one in value.items() if not _LEFT_OUT.fullmatch(str(key))}
    return [_cleaned(one) for one in value] if isinstance(value, list) else value


def _built(name: str, kind: str, config: dict[str, Any]) -> Architecture | None:
    import transformers
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING, PreTrainedModel

    if kind not in CONFIG_MAPPING:
        return None
    try:
        model_class = getattr(transformers, name, None)
        if not (isinstance(model_class, type) and issubclass(model_class, PreTrainedModel)):
            return None
        built_config = CONFIG_MAPPING[kind].from_dict(config)
        if not isinstance(built_config, getattr(model_class, "config_class", None) or ()):
            return None
        built_config._attn_implementation = "eager"  # others may be looked for on the hub
        with torch.device("meta"):
            model = model_class(built_config)
    except (StrictDataclassError, ValueError, AssertionError, ZeroDivisionError, RuntimeError) as error:
        *_, last = str(error).strip().splitlines() or [type(error).__name__]
        raise CannotBuildError(last.strip().removeprefix("ValueError: ")[:200]) from error
    except Exception:  # for want of a package, say
        return None
    return Architecture(model)


def _is_small(config: Mapping[str, Any]) -> bool:
    """Whether it can be built in a moment, from this alone. What gets past this is ended by architecture_process.py."""
    layers, experts = 0, 1
    waiting: list[tuple[str, Any]] = list(config.items())
    while waiting:
        key, value = waiting.pop()
        if _FETCHES.fullmatch(key) and value not in (None, False):
            return False
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += [(key, one) for one in value]
        elif isinstance(value, int) and not isinstance(value, bool):
            if abs(value) >= _LARGEST or (_COUNTS.fullmatch(key) and value > _MOST_OF_A_COUNT):
                return False
            layers += value if _LAYERS.fullmatch(key) else 0
            experts = max(experts, value) if _EXPERTS.fullmatch(key) else experts
    return layers <= _MOST_LAYERS and layers * experts <= _MOST_EXPERTS
