"""Adapters of PEFT: never trained, incomplete, or not what their configuration says."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from trl_ext.checkpoints.health.finding import Case, HealthFinding, Rule, counted, listed, named, texts, whole_number
from trl_ext.checkpoints.lora import rank_for
from trl_ext.checkpoints.naming import group_of, weight_name
from trl_ext.monitor.alerts import Severity

_STRONG = 1.0  # norm of what an adapter adds, by that of the weight it is added to
_BREAKING = 10.0


def untrained_adapter(case: Case) -> Iterator[HealthFinding]:
    """B of LoRA begins as zeros, and moves with the first step."""
    b = [one for one in case.measured.tensors.values() if _starts_as_zeros(one.tensor.name)]
    still = [one.tensor.name for one in b if one.tensor.elements and one.zeros == one.tensor.elements]
    if not still:
        return
    trained = bool(case.step) or "training_args.bin" in case.checkpoint.files
    if len(still) < len(b):
        yield HealthFinding(
            "adapter_partly_untrained", Severity.WARNING,
            f"{len(still)} of {len(b)} B matrices of LoRA are all zero, as they begin: {listed(still)}",
            "These layers get no gradient: look at frozen modules, at layers a checkpointed forward skips, and at "
            "experts that no token reaches.", still[0], named(still),
        )  # fmt: skip
    elif trained:
        when = f"after {case.step:,} steps " if case.step else ""
        yield HealthFinding(
            "adapter_untrained", Severity.CRITICAL,
            f"all {len(b)} B matrices of LoRA are zero {when}as they begin: the adapter changes nothing",
            "It never got a gradient: look whether the optimizer has its parameters, whether gradient checkpointing "
            "needs use_reentrant=False or enable_input_require_grads(), and whether another adapter was active.",
            still[0], named(still),
        )  # fmt: skip
    else:
        yield HealthFinding(
            "adapter_untrained", Severity.INFO, f"all {len(b)} B matrices of LoRA are zero: a fresh adapter",
            "Nothing to do before training; after it, the adapter was never trained.", still[0], named(still),
        )  # fmt: skip


def _starts_as_zeros(name: str) -> bool:
    """An embedding's LoRA begins with zeros in A."""
    embedding = "lora_embedding_" in name
    return ("lora_embedding_A" in name) if embedding else group_of(name) == "LoRA B"


def dead_adapter(case: Case) -> Iterator[HealthFinding]:
    """A of LoRA begins at random; where it is zero neither of the two gets a gradient."""
    zero = [
        one.tensor.name for one in case.measured.tensors.values()
        if re.search(r"lora_A(\.\w+)?\.weight$", one.tensor.name) and one.zeros == one.tensor.elements > 0
    ]  # fmt: skip
    if zero:
        yield HealthFinding(
            "adapter_dead", Severity.ERROR, f"{len(zero)} A matrices of LoRA are all zero: {listed(zero)}",
            "They were not saved or never initialized: the adapter changes nothing there, and cannot be trained.",
            zero[0], named(zero),
        )  # fmt: skip


def other_base(case: Case) -> Iterator[HealthFinding]:
    """Matrices that do not fit the weights of the reference."""
    if case.reference is None or not case.measured.lora:
        return
    shapes = {weight_name(tensor.name): tensor.shape for tensor in case.reference.tensors if tensor.form is None}
    own = {tensor.name: tensor.shape for tensor in case.checkpoint.tensors}
    wrong = [
        update for update in case.measured.lora
        if len(shapes.get(update.target, ())) == 2
        and {own[update.b][0], own[update.a][1]} != set(shapes[update.target]) and "embedding" not in update.a
    ]  # fmt: skip
    if wrong:
        rows, columns = own[wrong[0].b][0], own[wrong[0].a][1]
        yield HealthFinding(
            "adapter_shape", Severity.ERROR,
            f"the adapter adds {rows} x {columns} numbers to '{wrong[0].target}', which has {shapes[wrong[0].target]}",
            "The reference is not the model this adapter was trained on.", wrong[0].a,
            named([update.a for update in wrong]),
        )  # fmt: skip


def incomplete_adapter(case: Case) -> Iterator[HealthFinding]:
    alone = case.measured.alone
    if alone:
        yield HealthFinding(
            "adapter_incomplete", Severity.ERROR, f"{counted(alone, 'matrix').replace('matrixs', 'matrices')} of LoRA "
            f"without a partner: {listed(alone)}",
            "A and B belong together: part of the adapter was not saved, or keys were renamed.", alone[0], named(alone),
        )  # fmt: skip
    if case.is_adapter and case.checkpoint.tensors and "adapter_config.json" not in case.checkpoint.files:
        yield HealthFinding(
            "adapter_config_missing", Severity.ERROR, "an adapter without adapter_config.json",
            "PEFT cannot load it: copy the file from where it was saved, or save with save_pretrained.",
        )  # fmt: skip
    config = "adapter_config.json" in case.checkpoint.files
    if config and not any(name.startswith("adapter_model.") for name in case.checkpoint.files):
        elsewhere = bool(case.checkpoint.tensors)
        yield HealthFinding(
            "file_missing", Severity.WARNING if elsewhere else Severity.CRITICAL,
            "adapter_config.json without adapter_model.safetensors",
            "PEFT finds no weights here: save with save_pretrained of the PEFT model.",
        )  # fmt: skip


def ranks(case: Case) -> Iterator[HealthFinding]:
    if case.adapter.get("peft_type", "LORA") != "LORA":
        return  # AdaLoRA changes them
    wrong = []
    for update in case.measured.lora:
        said = whole_number(rank_for(case.adapter, update.target))
        if said is not None and said != update.rank:
            wrong.append((update, said))
    if wrong:
        update, said = wrong[0]
        yield HealthFinding(
            "adapter_rank", Severity.ERROR,
            f"adapter_config.json says rank {said} for '{update.target}', its matrices have {update.rank}",
            "The configuration is of another adapter: PEFT will fail to load this one.", update.a,
            named([update.a for update, _ in wrong]),
        )  # fmt: skip


def targets(case: Case) -> Iterator[HealthFinding]:
    """`target_modules` of which no matrix was saved. PEFT lets names pass that the model does not have, if one fits."""
    asked = texts(case.adapter.get("target_modules"))
    if not asked or not case.checkpoint.tensors or case.adapter.get("peft_type", "LORA") != "LORA":
        return
    modules = [f".{weight_name(tensor.name)}." for tensor in case.checkpoint.tensors]
    lost = [target for target in asked if not any(f".{target}." in module for module in modules)]
    if lost:
        yield HealthFinding(
            "adapter_targets", Severity.ERROR if len(lost) == len(asked) else Severity.INFO,
            f"target_modules names {listed(lost)}, of which no tensor was saved",
            "The adapter is incomplete, the configuration is of another one, or the model has no module of that name.",
            numbers={"target_modules": lost},
        )  # fmt: skip


def _module(name: str) -> str:
    """What an adapter's tensor belongs to."""
    name = weight_name(name)
    for end in (".lora_", ".ia3_", ".vera_", ".oft_", ".boft_", ".hada_", ".lokr_", ".adaption_", ".trainable_tokens",
                ".modules_to_save", ".ln_tuning", ".weight", ".bias"):  # fmt: skip
        name = name.split(end)[0]
    return name


def saved_modules(case: Case) -> Iterator[HealthFinding]:
    """`modules_to_save` beside what was saved."""
    if not case.is_adapter or not case.checkpoint.tensors or "adapter_config.json" not in case.checkpoint.files:
        return
    asked = texts(case.adapter.get("modules_to_save"))
    whole = {_module(name) for name in case.shapes if group_of(name) not in ("LoRA A", "LoRA B", "adapter")}
    lost = [m for m in asked if not any(own == m or own.endswith(f".{m}") or f".{m}." in f".{own}." for own in whole)]
    # PEFT adds the head of a classifier by itself
    optional = {"classifier", "score"} if case.adapter.get("task_type") in ("SEQ_CLS", "TOKEN_CLS") else set()
    if optional & set(asked) and len(optional & set(lost)) < len(optional & set(asked)):
        lost = [name for name in lost if name not in optional]
    if lost:
        yield HealthFinding(
            "modules_to_save", Severity.ERROR if len(lost) == len(asked) else Severity.WARNING,
            f"modules_to_save names {listed(lost)}, of which no weight was saved",
            "What was trained there is lost, or the model has no module of that name.",
            numbers={"modules_to_save": lost},
        )  # fmt: skip
    known = texts(case.adapter.get("target_modules"))
    other = [
        own for own in sorted(whole)
        if group_of(f"{own}.weight") not in ("embedding", "head") and not own.endswith("base_layer")
        and not any(f".{m}." in f".{own}." for m in asked + known)
    ]  # fmt: skip
    if other and case.adapter.get("peft_type", "LORA") == "LORA" and case.adapter.get("bias", "none") == "none":
        yield HealthFinding(
            "modules_to_save", Severity.INFO, 
            f"whole weights of {listed(other)}, which modules_to_save does not name",
            "PEFT ignores them when it loads the adapter: name them in modules_to_save, or leave them out.",
            numbers={"modules": other[:20]},
        )  # fmt: skip


def base_model(case: Case) -> Iterator[HealthFinding]:
    if not case.adapter:
        return
    base = case.adapter.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        yield HealthFinding(
            "base_model_unnamed", Severity.INFO, "adapter_config.json names no base model",
            "Whoever loads it has to know: set base_model_name_or_path.",
        )  # fmt: skip
        return
    path = Path(os.path.expanduser(base))
    is_path = base.startswith(("/", "./", "../", "~")) or base.count("/") > 1 or "\\" in base
    if is_path and not (_exists(path) or _exists(case.checkpoint.path / path)):
        sure = path.is_absolute()
        yield HealthFinding(
            "base_model_missing", Severity.ERROR if sure else Severity.WARNING,
            f"the base model '{base}' is not there" + ("" if sure else " (seen from here)"),
            "The adapter cannot be loaded without: put the base back, or write its place or hub id into "
            "base_model_name_or_path of adapter_config.json.", numbers={"base_model_name_or_path": base},
        )  # fmt: skip


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or none
        return False


def strength(case: Case) -> Iterator[HealthFinding]:
    """What the adapter adds, beside the weights it is added to."""
    strong = [u for u in case.measured.lora if u.relative is not None and u.relative > _STRONG]
    if strong:
        worst = max(strong, key=lambda update: update.relative or 0.0)
        times = worst.relative or 0.0
        yield HealthFinding(
            "adapter_too_strong", Severity.ERROR if times > _BREAKING else Severity.WARNING,
            f"the adapter adds {times:.1f} times the norm of '{worst.target}' to it ({counted(strong, 'weight')} of "
            f"{len(case.measured.lora)} more than {_STRONG:g} times)",
            "Little of the base model is left: lower learning_rate or lora_alpha, or go back to an earlier checkpoint.",
            worst.b, {"relative": times, **named([update.b for update in strong])},
        )  # fmt: skip


def rank_collapse(case: Case) -> Iterator[HealthFinding]:
    trained = [update for update in case.measured.lora if update.effective_rank > 0 and update.rank >= 8]
    flat = [update for update in trained if update.effective_rank < 1.5]
    if trained and len(flat) > len(trained) / 2:
        yield HealthFinding(
            "adapter_rank_collapse", Severity.INFO,
            f"{len(flat)} of {len(trained)} products of LoRA use one direction of {flat[0].rank} (effective rank "
            f"{min(update.effective_rank for update in flat):.2f})",
            "Usual in the first steps; later a smaller r would do, or learning_rate is too high.", flat[0].b,
            named([update.b for update in flat]),
        )  # fmt: skip


RULES: tuple[Rule, ...] = (
    untrained_adapter, dead_adapter, other_base, incomplete_adapter, ranks, targets, saved_modules, base_model,
    strength, rank_collapse,
)  # fmt: skip
