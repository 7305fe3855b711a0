"""The stored tensors beside those that Transformers would build from config.json."""

from collections.abc import Iterator

from trl_ext.checkpoints.health.configuration import EMBEDDING, HEAD, VALUE_HEAD
from trl_ext.checkpoints.health.finding import Case, HealthFinding, Rule, counted, listed, named
from trl_ext.checkpoints.naming import group_of, layer_of
from trl_ext.monitor.alerts import Severity


def wrapped_names(case: Case) -> Iterator[HealthFinding]:
    """A wrapper of the model was saved, and not the model."""
    wrapped = case.differences.wrapped if case.differences else []
    if wrapped:
        yield HealthFinding(
            "names_wrapped", Severity.CRITICAL,
            f"{counted(wrapped)} are named as in a wrapper of {case.architecture}, such as '{wrapped[0]}'",
            "from_pretrained takes none of them and initializes these weights at random: save the model inside "
            "(accelerator.unwrap_model; merge_and_unload of an adapter), or take what is in front off the names.",
            wrapped[0], named(wrapped),
        )  # fmt: skip


def config_contradicts_itself(case: Case) -> Iterator[HealthFinding]:
    if case.not_compared is None:
        return
    if case.not_compared.is_contradiction:
        yield HealthFinding(
            "config_contradiction", Severity.WARNING,
            f"Transformers cannot build {case.architecture} with config.json: {case.not_compared.reason}",
            "It will not load: copy the config.json that was saved with these weights.",
        )  # fmt: skip
    else:
        yield HealthFinding(
            "architecture_not_compared", Severity.INFO,
            f"the tensors were not compared with those of {case.architecture}: {case.not_compared.reason}",
            "Look whether config.json is of this model, and whether this machine can start a process and import "
            "transformers in it.",
        )  # fmt: skip


def tensors_lost(case: Case) -> Iterator[HealthFinding]:
    if case.differences is None:
        return
    stored_layers = {layer_of(tensor.name) for tensor in case.checkpoint.tensors}
    lost = [
        name for name in case.differences.missing
        if not ("layers_missing" in case.said and layer_of(name) not in stored_layers)
        and not ("value_head_missing" in case.said and VALUE_HEAD.search(name))
        and not ("embedding_missing" in case.said and group_of(name) in ("embedding", "head"))
        and not (HEAD.search(name) and case.text_config.get("tie_word_embeddings") is False)
    ]  # fmt: skip
    if lost:
        yield HealthFinding(
            "tensors_lost", Severity.ERROR,
            f"{counted(lost)} of {case.architecture} {'is' if len(lost) == 1 else 'are'} missing: {listed(lost)}",
            "Part of the model was not saved, and is initialized at random on loading: save again.", lost[0],
            named(lost),
        )  # fmt: skip


def tensors_unexpected(case: Case) -> Iterator[HealthFinding]:
    if case.differences is None:
        return
    more = [
        name for name in case.differences.unexpected
        if not ("layers_extra" in case.said and layer_of(name) is not None) and not VALUE_HEAD.search(name)
    ]  # fmt: skip
    if more:
        in_layers = any(layer_of(name) is not None for name in more)  # elsewhere it may be a head of another task
        yield HealthFinding(
            "tensors_unexpected", Severity.WARNING if in_layers else Severity.INFO,
            f"{counted(more)} that {case.architecture} does not have: {listed(more)}",
            "from_pretrained leaves them out: config.json is of another model, or names were changed.", more[0],
            named(more),
        )  # fmt: skip


def shapes(case: Case) -> Iterator[HealthFinding]:
    if case.differences is None:
        return
    other = {
        name: shape for name, shape in case.differences.reshaped.items()
        if "hidden_size" not in case.said
        and not ("vocab_size" in case.said and (EMBEDDING.search(name) or HEAD.search(name)))
        and not ("num_labels" in case.said and VALUE_HEAD.search(name))
    }  # fmt: skip
    if other:
        name, shape = next(iter(other.items()))
        own = case.shapes[name]
        yield HealthFinding(
            "shape_disagrees", Severity.ERROR,
            f"{counted(list(other))} of another shape than config.json makes them: '{name}' is {own}, not {shape}",
            "It will not load: config.json is of another model, or one rank's part of a sharded weight was saved.",
            name, {"shape": list(own), "expected": list(shape), **named(list(other))},
        )  # fmt: skip


# After those of configuration.py, which tell of some of this in words of their own
RULES: tuple[Rule, ...] = (config_contradicts_itself, wrapped_names, tensors_lost, tensors_unexpected, shapes)
