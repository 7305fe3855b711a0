"""The weights beside config.json, the tokenizer and generation_config.json."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from tokenizers import Tokenizer

from trl_ext.checkpoints.blocks import Other, map_blocks
from trl_ext.checkpoints.drift import compare
from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.health.finding import (
    MODEL_FILE,
    Case,
    HealthFinding,
    Rule,
    counted,
    listed,
    number,
    whole_number,
)
from trl_ext.checkpoints.naming import group_of, layer_of, weight_name
from trl_ext.checkpoints.stored import NAMES
from trl_ext.monitor.alerts import Severity

EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|embed_in|tok_embeddings)\.weight$")
HEAD = re.compile(r"(^|\.)(lm_head|embed_out)\.weight$")
VALUE_HEAD = re.compile(r"(^|\.)(score|classifier|v_head|value_head|classification_head|reward_head)(\.|$)")
_VOCABULARY = re.compile(r"tokenizer\.json|vocab|merges|spiece|sentencepiece|\.model$|\.tiktoken$|tekken|\.bpe|\.spm$")
_WITHOUT_VOCABULARY = ("ByT5", "Canine", "Perceiver", "MyT5")  # which read bytes or characters
_LARGEST_TOKENIZER = 64 << 20  # bytes


def config_missing(case: Case) -> Iterator[HealthFinding]:
    folder_of_model = any(MODEL_FILE.fullmatch(name) for name in case.checkpoint.files)
    by_trainer = "training_args.bin" in case.checkpoint.files
    one_file = case.checkpoint.form.startswith("one file")
    if case.checkpoint.tensors and folder_of_model and not one_file and "config.json" not in case.checkpoint.files:
        yield HealthFinding(
            # a trainer saves a module of one's own without
            "config_missing", Severity.INFO if by_trainer else Severity.WARNING,
            "weights of a model without config.json",
            "from_pretrained cannot load them: save with save_pretrained, or copy config.json from the base model.",
        )  # fmt: skip


def vocabulary(case: Case) -> Iterator[HealthFinding]:
    """Rows of the embedding beside the configuration and the tokenizer."""
    found = [(name, shape) for name, shape in case.shapes.items() if EMBEDDING.search(name) and len(shape) == 2]
    if not found:
        return
    name, (rows, columns) = found[0]
    said = whole_number(case.text_config.get("vocab_size"))
    # some architectures have a row of their own behind the vocabulary
    reshaped = None if case.differences is None else case.differences.reshaped
    if said is not None and rows not in (said, said + 1) and (reshaped is None or name in reshaped):
        yield HealthFinding(
            "vocab_size", Severity.ERROR, f"'{name}' has {rows:,} rows, config.json says vocab_size {said:,}",
            "It will not load: after resize_token_embeddings save model and configuration together.", name,
            {"rows": rows, "vocab_size": said},
        )  # fmt: skip
    hidden = whole_number(case.text_config.get("hidden_size") or case.text_config.get("n_embd"))
    embedded = whole_number(case.text_config.get("embedding_size") or case.text_config.get("word_embed_proj_dim"))
    if hidden is not None and columns not in (hidden, embedded) and (reshaped is None or name in reshaped):
        yield HealthFinding(
            "hidden_size", Severity.ERROR, f"'{name}' has {columns:,} columns, config.json says hidden_size {hidden:,}",
            "config.json is of another model: copy the one that was saved with these weights.", name,
            {"columns": columns, "hidden_size": hidden},
        )  # fmt: skip
    tokens = _tokens(case)
    if tokens is not None and tokens > rows:
        yield HealthFinding(
            "tokenizer_larger", Severity.ERROR,
            f"the tokenizer has tokens up to {tokens - 1:,}, '{name}' has {rows:,} rows",
            "A text with the added tokens ends in an index error: model.resize_token_embeddings(len(tokenizer)) before "
            "training.", name, {"tokens": tokens, "rows": rows},
        )  # fmt: skip


def _tokens(case: Case) -> int | None:
    """One more than the largest id of the tokenizer; `None` where there is none that can be read."""
    folder = case.checkpoint.folder
    if not 0 < case.checkpoint.files.get("tokenizer.json", 0) <= _LARGEST_TOKENIZER:
        return None
    try:
        with folder.open("tokenizer.json") as file:
            tokenizer = Tokenizer.from_buffer(file.read())
        return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    except UnreadableError:
        return None
    except Exception as error:  # what the library raises is nothing narrower
        cause = UnreadableError(f"'tokenizer.json' is no tokenizer: {' '.join(str(error).split())[:120]}", "format")
        case.checkpoint.cannot_read("tokenizer.json", cause)
        return None


def tokenizer_missing(case: Case) -> Iterator[HealthFinding]:
    """Its configuration without its vocabulary."""
    config = case.document("tokenizer_config.json")
    has_vocabulary = any(_VOCABULARY.search(name) for name in case.checkpoint.files)
    needs_none = str(config.get("tokenizer_class", "")).startswith(_WITHOUT_VOCABULARY) or config.get("auto_map")
    if config and not has_vocabulary and not needs_none:
        yield HealthFinding(
            "tokenizer_missing", Severity.WARNING, "tokenizer_config.json is there, and no file of its vocabulary",
            "AutoTokenizer cannot load it: save the tokenizer again (tokenizer.save_pretrained).",
        )  # fmt: skip


def special_tokens(case: Case) -> Iterator[HealthFinding]:
    config, generation = case.text_config, case.document("generation_config.json")
    size = whole_number(config.get("vocab_size"))
    outside = {}
    for name in ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"):
        for one in _ids(config.get(name)) | _ids(generation.get(name)):
            if size is not None and not -1 <= one < size:  # -1 stands for no padding token in older models
                outside[name] = one
    if outside:
        yield HealthFinding(
            "token_id", Severity.WARNING,
            f"{', '.join(f'{name} {value:,}' for name, value in outside.items())} where vocab_size is {size:,}",
            "Set them to tokens of this tokenizer, in config.json and generation_config.json.",
            numbers={**outside, "vocab_size": size},
        )  # fmt: skip
    eos = _ids(generation.get("eos_token_id", config.get("eos_token_id")))
    pads = [whole_number(document.get("pad_token_id")) for document in (generation, config)]
    pad = next((one for one in pads if one is not None and eos == {one}), None)
    tokenizer = case.document("tokenizer_config.json")
    same_text = _text(tokenizer.get("pad_token")) is not None and _text(tokenizer.get("pad_token")) == _text(
        tokenizer.get("eos_token")
    )
    if pad is not None or same_text:
        yield HealthFinding(
            "pad_is_eos", Severity.INFO,
            "the padding token is the end-of-text token" + (f" ({pad})" if pad is not None else ""),
            "Where masks come from the padding token the model never learns to stop: use another padding token, or "
            "masks from lengths as TRL's collators make them.", numbers={"pad_token_id": pad},
        )  # fmt: skip
    of_config, of_generation = _ids(config.get("eos_token_id")), _ids(generation.get("eos_token_id"))
    if of_config and of_generation and not of_config & of_generation:
        yield HealthFinding(
            "eos_disagrees", Severity.WARNING,
            f"config.json ends at token {sorted(of_config)}, generation_config.json at {sorted(of_generation)}",
            "Generation does not stop where training put the end: set both to the tokenizer's eos_token_id.",
            numbers={"config": sorted(of_config), "generation_config": sorted(of_generation)},
        )  # fmt: skip


def _ids(value: Any) -> set[int]:
    values = value if isinstance(value, list) else [value]
    return {one for one in map(whole_number, values) if one is not None}


def _text(token: Any) -> str | None:
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def generation_config(case: Case) -> Iterator[HealthFinding]:
    """Options of sampling that make odd texts, or that are ignored."""
    options = case.document("generation_config.json")
    odd = []
    temperature, top_p, top_k = (number(options.get(name)) for name in ("temperature", "top_p", "top_k"))
    samples = options.get("do_sample")
    if samples is True and temperature is not None and not 0.01 <= temperature <= 2:
        odd.append(f"temperature {temperature:g} (0.01 to 2 is usual)")
    if top_p is not None and not 0 < top_p <= 1:
        odd.append(f"top_p {top_p:g} (above 0, up to 1)")
    if samples is True and top_p is not None and 0 < top_p < 0.05:
        odd.append(f"top_p {top_p:g} leaves hardly more than the best token")
    if top_k is not None and (top_k < 0 or top_k != int(top_k)):
        odd.append(f"top_k {top_k:g} (a whole number of at least 0)")
    if samples is True and top_k == 1:
        odd.append("top_k 1 leaves the best token alone")
    if samples is False and any(value not in (None, 1.0) for value in (temperature, top_p)):
        odd.append("do_sample is false, and temperature or top_p is set, which is then ignored")
    for name, low, high in (("repetition_penalty", 1.0, 2.0), ("length_penalty", -10, 10), ("typical_p", 1e-9, 1.0)):
        value = number(options.get(name))
        if value is not None and not low <= value <= high:
            odd.append(f"{name} {value:g} ({low:g} to {high:g} is usual)")
    for name in ("max_new_tokens", "max_length", "num_beams", "num_return_sequences"):
        value = number(options.get(name))
        if value is not None and value < 1:
            odd.append(f"{name} {value:g} (at least 1)")
    least, most = number(options.get("min_new_tokens")), number(options.get("max_new_tokens"))
    if least is not None and most is not None and least > most:
        odd.append(f"min_new_tokens {least:g} is more than max_new_tokens {most:g}")
    if odd:
        yield HealthFinding(
            "generation_config", Severity.WARNING, f"generation_config.json samples oddly: {'; '.join(odd)}",
            "Set these in generation_config.json to what evaluations are to use.", numbers={"options": odd},
        )  # fmt: skip


def dtype(case: Case) -> Iterator[HealthFinding]:
    """What config.json says beside what most weights are stored in."""
    said = case.text_config.get("dtype", case.text_config.get("torch_dtype"))
    known = getattr(torch, said, None) if isinstance(said, str) else None
    if not isinstance(known, torch.dtype) or "quantization_config" in case.config or case.is_adapter:
        return
    sizes: Counter[str] = Counter()
    for tensor in case.checkpoint.tensors:
        if tensor.torch_dtype is not None and tensor.torch_dtype.is_floating_point and tensor.form is None:
            sizes[tensor.dtype] += tensor.elements
    if not sizes:
        return
    (stored, _), *_ = sizes.most_common(1)
    if stored != NAMES.get(known):
        yield HealthFinding(
            "dtype_disagrees", Severity.WARNING,
            f"config.json says {said}, most weights are {stored} ({sizes[stored]:,} of {sum(sizes.values()):,})",
            "from_pretrained converts them, and an evaluation sees other numbers than training did: save in the dtype "
            "that is to be used.", numbers={"config": said, "stored": stored},
        )  # fmt: skip


def tied_weights(case: Case) -> Iterator[HealthFinding]:
    """The head of a language model beside its embedding."""
    tied = case.text_config.get("tie_word_embeddings")
    embedding = next((t for t in case.checkpoint.tensors if EMBEDDING.search(t.name)), None)
    head = next((t for t in case.checkpoint.tensors if HEAD.search(t.name)), None)
    if embedding is None or not case.architecture.endswith("ForCausalLM") or case.is_adapter:
        return
    if head is None and tied is False:
        yield HealthFinding(
            "head_missing", Severity.CRITICAL, "config.json says tie_word_embeddings false, and there is no lm_head",
            "It will be initialized at random: save the whole model, or set tie_word_embeddings to true.",
            embedding.name,
        )  # fmt: skip
    if head is None or tied is not True or embedding.form or head.form:
        return
    if case.differences is not None and head.name not in case.differences.tied:
        return  # an architecture that does not tie them, whatever config.json says
    if head.shape != embedding.shape:
        different = "their shapes differ"
    else:
        other = {head.name: Other(case.checkpoint.folder, embedding)}
        (done,) = map_blocks(case.checkpoint.folder, [head], compare, 1, other)
        if done.error is not None or done.result is None or done.result.drift is None or not done.result.drift.moved:
            return
        different = f"relative difference {done.result.drift.drift().relative:.3g}"
    yield HealthFinding(
        "tie_broken", Severity.ERROR,
        f"config.json says tie_word_embeddings true, but '{head.name}' is not '{embedding.name}' ({different})",
        "Loading takes one for both, and what the other learned is lost: set tie_word_embeddings to false, or train "
        "with the weights tied (LoRA on lm_head unties them: ensure_weight_tying).", head.name,
    )  # fmt: skip


def value_head(case: Case) -> Iterator[HealthFinding]:
    """A classifier, reward or value model needs one; a policy has none."""
    if not case.checkpoint.tensors or case.is_adapter or not case.architecture:
        return
    heads = [name for name in case.shapes if VALUE_HEAD.search(name)]
    wanted = case.architecture.endswith(("ForSequenceClassification", "ForTokenClassification"))
    complete = case.differences is not None and not case.differences.missing
    if wanted and not heads and not complete:
        yield HealthFinding(
            "value_head_missing", Severity.CRITICAL, f"{case.architecture} without a head (score or classifier)",
            "It will be initialized at random, and every reward or value with it: save the whole model.",
        )  # fmt: skip
    elif heads and case.architecture.endswith("ForCausalLM"):
        yield HealthFinding(
            "value_head_present", Severity.INFO, f"a value head beside the language model: {listed(heads)}",
            "from_pretrained of the language model ignores it.", heads[0],
        )  # fmt: skip
    labels = case.config.get("id2label")
    outputs = [n for n in heads if n.endswith(("score.weight", "classifier.weight")) and len(case.shapes[n]) == 2]
    if wanted and outputs and isinstance(labels, dict) and len(labels) != case.shapes[outputs[0]][0]:
        yield HealthFinding(
            "num_labels", Severity.ERROR,
            f"'{outputs[0]}' has {case.shapes[outputs[0]][0]} outputs, config.json {counted(list(labels), 'label')}",
            "It will not load: set num_labels to the outputs.", outputs[0],
        )  # fmt: skip


def layers(case: Case) -> Iterator[HealthFinding]:
    """Layers that are missing, or more than the configuration has."""
    said = whole_number(case.text_config.get("num_hidden_layers") or case.text_config.get("n_layer"))
    if said is None or case.is_adapter or "vision_config" in case.config or "encoder" in case.config:
        return
    found = {layer_of(weight_name(tensor.name)) for tensor in case.checkpoint.tensors} - {None}
    if not found or len(found) == 1 < said:
        return
    lost = sorted(set(range(min(said, 100_000))) - found)
    more = sorted(layer for layer in found if layer is not None and layer >= said)
    if case.differences is not None:  # what is called a layer may not be counted there
        lost = sorted(set(lost) & {layer_of(name) for name in case.differences.missing})
        more = sorted(set(more) & {layer_of(name) for name in case.differences.unexpected})
    if lost:
        yield HealthFinding(
            "layers_missing", Severity.CRITICAL,
            f"{counted(lost, 'layer')} of {said} missing, the first is number {lost[0]}",
            "They will be initialized at random: copy or save all shards.", numbers={"layers": lost[:20]},
        )  # fmt: skip
    # heads that predict further tokens are stored as layers behind the last
    if more and not (whole_number(case.text_config.get("num_nextn_predict_layers")) or 0) >= len(more):
        yield HealthFinding(
            "layers_extra", Severity.ERROR, f"{counted(more, 'layer')} more than the {said} of config.json",
            "They will not be loaded: config.json is of another model.", numbers={"layers": more[:20]},
        )  # fmt: skip


def layer_tensors(case: Case) -> Iterator[HealthFinding]:
    """A layer that has less than most others and nothing else instead; of an adapter, a layer left out. Where the
    architecture is known, architecture.py knows better."""
    if case.differences is not None:
        return
    chosen = ("exclude_modules", "layers_to_transform")
    if any(case.adapter.get(name) for name in chosen) or isinstance(case.adapter.get("target_modules"), str):
        return  # an adapter of some layers
    shards = {shard for weight_map in case.checkpoint.indices.values() for shard in weight_map.values()}
    if case.checkpoint.problems or case.measured.alone or not shards <= case.checkpoint.files.keys():
        return  # said already
    towers: dict[str, dict[int, set[str]]] = {}  # an encoder and a decoder, say, have layers of their own
    for tensor in case.checkpoint.tensors:
        name = weight_name(tensor.name)
        layer = layer_of(name)
        if layer is not None and tensor.form is None:
            tower, _, rest = name.partition(f".{layer}.")
            towers.setdefault(tower, {}).setdefault(layer, set()).add(rest)
    for tower, members in towers.items():
        yield from _uneven_layers(case, tower, members)


def _uneven_layers(case: Case, tower: str, members: dict[int, set[str]]) -> Iterator[HealthFinding]:
    if len(members) < 3:
        return
    (usual, times), *_ = Counter(map(frozenset, members.values())).most_common(1)
    # the first and the last layer of many a model lack a norm or a projection
    ends = () if case.is_adapter else (min(members), max(members))
    less = {layer: usual - names for layer, names in members.items() if names < usual and layer not in ends}
    few = max(1, len(members) // 10)
    if times >= len(members) / 2 and 0 < len(less) <= few:
        layer, lost = min(less.items())
        name = f"{tower}.{layer}.{min(lost)}"
        yield HealthFinding(
            "tensors_lost", Severity.ERROR,
            f"layer {layer} lacks {counted(sorted(lost))} that {times} of {len(members)} layers have, such as '{name}'",
            "Part of the model was not saved, and is initialized at random on loading: save again.", name,
            numbers={"layers": sorted(less)[:20]},
        )  # fmt: skip
    within = range(min(members), min(max(members), 100_000))
    gaps = [layer for layer in within if layer not in members] if case.is_adapter else []
    if 0 < len(gaps) <= few:
        yield HealthFinding(
            "tensors_lost", Severity.WARNING,
            f"the adapter has nothing for {counted(gaps, 'layer')}, such as {gaps[0]}",
            "Part of the adapter was not saved, or exclude_modules leaves it out.", numbers={"layers": gaps[:20]},
        )  # fmt: skip


def embedding_missing(case: Case) -> Iterator[HealthFinding]:
    if case.is_adapter or not case.architecture.endswith("ForCausalLM") or not case.checkpoint.tensors:
        return
    if case.checkpoint.indices and case.checkpoint.problems:
        return  # said of the shard
    names = [tensor.name for tensor in case.checkpoint.tensors]
    in_layers = any(layer_of(name) is not None for name in names)
    if in_layers and not any(group_of(name) in ("embedding", "head") or "embed" in name for name in names):
        yield HealthFinding(
            "embedding_missing", Severity.CRITICAL, f"{case.architecture} without an embedding",
            "It will be initialized at random: save the whole model.",
        )  # fmt: skip


RULES: tuple[Rule, ...] = (
    config_missing, vocabulary, tokenizer_missing, special_tokens, generation_config, dtype, tied_weights, value_head,
    layers, layer_tensors, embedding_missing,
)  # fmt: skip
