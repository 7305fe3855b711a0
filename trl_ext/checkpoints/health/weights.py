"""Weights that are not finite, constant, zero, dead or far too large."""

import re
from collections.abc import Iterator
from statistics import median

from trl_ext.checkpoints.health.finding import Case, HealthFinding, Rule, counted, listed, named
from trl_ext.checkpoints.moments import TensorStatistics
from trl_ext.checkpoints.naming import group_of
from trl_ext.monitor.alerts import Severity

_DEAD = 0.5  # share of rows or columns
_OUTLIER = 30.0  # times the median root mean square of its kind
_LARGEST = {"norm": 1e3, "attention": 5.0, "MLP": 5.0}  # root mean squares, far above those of any published model
_MANY = 1024  # elements: what is smaller may be a scale, or a toy
_FP16_LARGEST = 65504.0
_BUFFER = re.compile(r"mask|running_(mean|var)|inv_freq")
_MAY_BE_ZERO = re.compile(r"bias|_integer$|position|token_type|codebook")  # from the start on
_PEFT = ("LoRA A", "LoRA B", "adapter")  # judged in adapter.py


def nonfinite_weights(case: Case) -> Iterator[HealthFinding]:
    # a mask may hold infinity, and the lowest number there is
    bad = [one for one in case.measured.tensors.values()
           if one.nan or (one.infinite and not _BUFFER.search(one.tensor.name))]  # fmt: skip
    if not bad:
        return
    worst = max(bad, key=lambda one: (one.nan + one.infinite) / max(one.tensor.elements, 1))
    name, count = worst.tensor.name, worst.tensor.elements
    yield HealthFinding(
        "nonfinite_weights", Severity.CRITICAL,
        f"{len(bad):,} of {len(case.measured.tensors):,} tensors hold NaN or infinity; '{name}' {worst.nan:,} NaN and "
        f"{worst.infinite:,} infinite of {count:,}",
        "This model is lost: go back to the last checkpoint without, lower learning_rate or max_grad_norm, and with "
        "fp16 change to bf16.",
        name, {"nan": sum(one.nan for one in bad), "infinite": sum(one.infinite for one in bad),
               **named([one.tensor.name for one in bad])},
    )  # fmt: skip


def zero_weights(case: Case) -> Iterator[HealthFinding]:
    """Matrices of zeros. Biases, and what PEFT and a head with one output begin with, may be zero."""
    matrices = list(_matrices(case))
    zero = [one.tensor.name for one in matrices if one.zeros == one.tensor.elements]
    if zero:
        kinds = {_kind(name) for name in zero}
        of_these = [one for one in matrices if _kind(one.tensor.name) in kinds]
        # the same one of every layer may begin so (gates, codebooks)
        is_design = len(of_these) == len(zero) > 1 and len(zero) <= len(matrices) / 2
        yield HealthFinding(
            "zero_weights", Severity.WARNING if is_design else Severity.ERROR,
            f"{counted(zero)} {'is' if len(zero) == 1 else 'are'} all zero: {listed(zero)}",
            "They were never initialized, or were saved before they were gathered from the ranks (ZeRO-3, FSDP).",
            zero[0], named(zero),
        )  # fmt: skip


def constant_weights(case: Case) -> Iterator[HealthFinding]:
    constant = [one for one in _matrices(case) if one.constant and one.zeros == 0]
    if constant:
        names = [one.tensor.name for one in constant]
        yield HealthFinding(
            "constant_weights", Severity.ERROR,
            f"all elements are equal in {counted(names)}: {listed(names)} ({constant[0].mean:.4g})",
            "They were never initialized: look at how the model was built, and at keys that did not match on loading.",
            names[0], named(names),
        )  # fmt: skip


def dead_units(case: Case) -> Iterator[HealthFinding]:
    """Many rows or columns of zeros. An embedding has rows that no token uses."""
    dead = []
    for one in _matrices(case):
        if one.tensor.rows_and_columns is None or one.zeros == one.tensor.elements:
            continue
        rows, columns = one.tensor.rows_and_columns
        share = max((one.dead_rows or 0) / rows, (one.dead_columns or 0) / columns)
        if share > _DEAD and group_of(one.tensor.name) not in ("embedding", "head"):
            dead.append((share, one))
    if dead:
        share, worst = max(dead, key=lambda pair: pair[0])
        names = [one.tensor.name for _, one in dead]
        yield HealthFinding(
            "dead_units", Severity.WARNING,
            f"more than half of the rows or columns are zero in {counted(names)}; in '{worst.tensor.name}' "
            f"{worst.dead_rows:,} rows and {worst.dead_columns:,} columns of {tuple(worst.tensor.shape)}",
            "Only part of the tensor was saved (a shard of tensor parallelism), or it was pruned.",
            worst.tensor.name, {"share": share, **named(names)},
        )  # fmt: skip


def large_weights(case: Case) -> Iterator[HealthFinding]:
    """Numbers at the end of what a dtype holds, or far from those of the same kind in other layers."""
    held = [one for one in case.measured.tensors.values() if _is_float(one) and not _BUFFER.search(one.tensor.name)]
    over = [one for one in held if one.abs_max >= _FP16_LARGEST]
    if over:
        worst = max(over, key=lambda one: one.abs_max)
        yield HealthFinding(
            "exploding_weights", Severity.ERROR,
            f"{counted(over)} hold numbers up to {worst.abs_max:.3g}, more than float16 can hold (65,504)",
            "Training diverged: go back to an earlier checkpoint, and lower learning_rate.", worst.tensor.name,
            {"abs_max": worst.abs_max, **named([one.tensor.name for one in over])},
        )  # fmt: skip
    families: dict[str, list[TensorStatistics]] = {}
    for one in held:
        if one.finite and one.abs_max and len(one.tensor.shape) > 1:
            families.setdefault(_kind(one.tensor.name), []).append(one)
    far = []
    for ones in families.values():
        if len(ones) < 4:
            continue
        usual = median(_root_mean_square(one) for one in ones)
        far += [(one, _root_mean_square(one) / usual) for one in ones
                if _root_mean_square(one) > _OUTLIER * usual and group_of(one.tensor.name) != "LoRA B"]  # fmt: skip
    if far:
        worst, times = max(far, key=lambda pair: pair[1])
        yield HealthFinding(
            "weight_outlier", Severity.WARNING,
            f"'{worst.tensor.name}' is {times:,.0f} times as large as the same weight of the other layers (root mean "
            f"square {_root_mean_square(worst):.3g})",
            "One layer diverged, or was loaded in another scale.", worst.tensor.name,
            {"times": times, **named([one.tensor.name for one, _ in far])},
        )  # fmt: skip


def unusual_scale(case: Case) -> Iterator[HealthFinding]:
    """Numbers that no model works with, in all layers alike."""
    over = []
    for one in case.measured.tensors.values():
        most = _LARGEST.get(group_of(one.tensor.name))
        is_weight = one.tensor.name.endswith("weight") and _is_float(one) and not case.is_adapter
        few = len(one.tensor.shape) > 1 and one.tensor.elements < _MANY
        if (
            most
            and is_weight
            and one.finite
            and not few
            and most < _root_mean_square(one)
            and one.abs_max < _FP16_LARGEST
        ):
            over.append((_root_mean_square(one) / most, one))
    if over:
        _, worst = max(over, key=lambda pair: pair[0])
        names = [one.tensor.name for _, one in over]
        yield HealthFinding(
            "weight_scale", Severity.WARNING,
            f"{counted(names)} are far larger than those of models that work; '{worst.tensor.name}' has root mean "
            f"square {_root_mean_square(worst):.3g}",
            "Training diverged, or the weights were scaled: go back to an earlier checkpoint, and lower learning_rate.",
            worst.tensor.name, {"root_mean_square": _root_mean_square(worst), **named(names)},
        )  # fmt: skip


def zero_norms(case: Case) -> Iterator[HealthFinding]:
    """Scales of normalization that are all zero, where others are not: in some models all begin with zero."""
    norms = [one for one in case.measured.tensors.values()
             if group_of(one.tensor.name) == "norm" and one.tensor.name.endswith("weight") and _is_float(one)
             and len(one.tensor.shape) == 1 and one.tensor.elements > 1]  # fmt: skip
    zero = [one.tensor.name for one in norms if one.zeros == one.tensor.elements]
    trained = case.step or "training_args.bin" in case.checkpoint.files
    if zero and (len(zero) <= len(norms) / 2 or trained):
        yield HealthFinding(
            "zero_norm", Severity.WARNING,
            f"the scale of {counted(zero, 'normalization')} of {len(norms):,} is all zero: {listed(zero)}",
            "Nothing passes it: it was overwritten, or saved before it was gathered from the ranks.",
            zero[0], named(zero),
        )  # fmt: skip


def _matrices(case: Case) -> Iterator[TensorStatistics]:
    """Weights with rows and columns that are numbers as they are."""
    for one in case.measured.tensors.values():
        shape = one.tensor.shape
        is_matrix = len(shape) > 1 and min(shape[0], one.tensor.elements // max(shape[0], 1)) > 1
        judged = group_of(one.tensor.name) not in _PEFT and not _MAY_BE_ZERO.search(one.tensor.name)
        if _is_float(one) and is_matrix and judged and not case.is_adapter:
            yield one


def _is_float(one: TensorStatistics) -> bool:
    dtype = one.tensor.torch_dtype
    return one.tensor.form is None and dtype is not None and dtype.is_floating_point


def _kind(name: str) -> str:
    """The same for the same weight of all layers."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _root_mean_square(one: TensorStatistics) -> float:
    return one.norm / one.finite**0.5


RULES: tuple[Rule, ...] = (
    nonfinite_weights, zero_weights, constant_weights, dead_units, large_weights, unusual_scale, zero_norms,
)  # fmt: skip
