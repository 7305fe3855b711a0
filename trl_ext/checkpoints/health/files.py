"""Files that are missing, empty, cut off, dangerous, or that disagree with each other."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

from trl_ext.checkpoints.distributed import METADATA
from trl_ext.checkpoints.health.finding import Case, HealthFinding, Rule, counted, listed, named, number
from trl_ext.checkpoints.imports import danger
from trl_ext.checkpoints.reader import is_trainer_state
from trl_ext.monitor.alerts import Severity

_KINDS = {
    "missing": ("file_missing", Severity.CRITICAL, "Save again, or copy the file from where it was saved."),
    "empty": ("file_empty", Severity.CRITICAL, "The save was interrupted or the disk is full: save again, and look at "
              "the free space."),
    "truncated": ("file_truncated", Severity.CRITICAL, "The save or the copy was interrupted: save or copy again; do "
                  "not resume from here."),
    "header": ("file_damaged", Severity.CRITICAL, "The file was damaged after it was written, or made to harm: fetch "
               "it again from a source you trust."),
    "unsafe": ("file_unsafe", Severity.CRITICAL, "Do not load it. Ask whoever made it for safetensors."),
    "format": ("file_unreadable", Severity.ERROR, "Save as safetensors (the default of save_pretrained)."),
}  # fmt: skip
_TEMPORARY = re.compile(r".*\.(tmp|part|incomplete|lock)|tmp.*|\..*\.swp")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.(safetensors|bin)")


def unreadable_files(case: Case) -> Iterator[HealthFinding]:
    for problem in case.checkpoint.problems:
        rule, severity, advice = _KINDS[problem.kind]
        if problem.kind != "unsafe" and (problem.file.endswith(".json") or is_trainer_state(problem.file)):
            severity = Severity.ERROR  # the weights are none the worse
        yield HealthFinding(rule, severity, problem.message, advice, numbers={"file": problem.file})


def no_weights(case: Case) -> Iterator[HealthFinding]:
    checkpoint = case.checkpoint
    if checkpoint.tensors or (checkpoint.problems and checkpoint.form != "nothing"):
        return
    if "adapter_config.json" in checkpoint.files and not any(n.startswith("adapter_model.") for n in checkpoint.files):
        return  # said of the adapter
    small = {name: size for name, size in checkpoint.files.items() if name.endswith(".safetensors")}
    if small:
        (name, size), *_ = small.items()
        rule = "adapter_empty" if name.startswith("adapter") else "weights_empty"
        yield HealthFinding(
            rule, Severity.CRITICAL, f"'{name}' has {size:,} bytes: a header and no tensor",
            "Nothing was saved. With DeepSpeed ZeRO-3 or FSDP the weights have to be gathered first "
            "(accelerator.get_state_dict); with PEFT look whether the adapter's name and target_modules fit.",
            numbers={"file": name, "bytes": size},
        )  # fmt: skip
    else:
        yield HealthFinding(
            "no_weights", Severity.CRITICAL, f"no weights among {counted(list(checkpoint.files), 'file')}",
            "Look whether this is the folder of a checkpoint, and whether the save was interrupted.",
        )  # fmt: skip


def index_disagrees(case: Case) -> Iterator[HealthFinding]:
    """The index names a shard that is not there, or the shards hold other tensors than it says."""
    checkpoint = case.checkpoint
    where: dict[str, set[str]] = {}
    for tensor in checkpoint.tensors:
        for piece in tensor.pieces:
            where.setdefault(piece.file, set()).add(tensor.name)
    unreadable = {problem.file for problem in checkpoint.problems}
    for index, weight_map in checkpoint.indices.items():
        suffix = ".safetensors" if ".safetensors." in index else ".bin"
        if suffix == ".bin" and not any(file.endswith(".bin") for file in where):
            continue  # a second copy of the weights, which was not read
        shards = sorted(set(weight_map.values()))
        for shard in shards:
            yield from _bad_shard(case, index, shard)
        lost = [t for t, shard in weight_map.items() if shard in where and t not in where[shard]]
        if lost:
            yield HealthFinding(
                "index_disagrees", Severity.CRITICAL,
                f"'{index}' places {counted(lost)} in shards that do not hold them: {listed(lost)}",
                "The index and the shards are of different saves: save again into an empty folder.", lost[0],
                named(lost),
            )  # fmt: skip
        own = _shards_of(index, checkpoint.files)
        unknown = [t for shard in own if shard in where for t in sorted(where[shard]) if t not in weight_map]
        if unknown:
            yield HealthFinding(
                "index_disagrees", Severity.ERROR,
                f"the shards hold {counted(unknown)} that '{index}' does not know: {listed(unknown)}",
                "They will not be loaded: save again into an empty folder.", unknown[0], named(unknown),
            )  # fmt: skip
        left_over = [shard for shard in own if shard not in shards and shard not in unreadable]
        if left_over:
            yield HealthFinding(
                "file_extra", Severity.WARNING, f"'{index}' does not name {listed(left_over)}",
                "Shards of an earlier save lie in the folder: delete them, and save into an empty folder.",
                numbers={"files": left_over},
            )  # fmt: skip
        yield from _total_size(case, index, set(weight_map))


def _bad_shard(case: Case, index: str, shard: str) -> Iterator[HealthFinding]:
    name = PurePosixPath(shard)
    if name.is_absolute() or len(name.parts) != 1 or ".." in name.parts or "\\" in shard:
        yield HealthFinding(
            "file_unsafe", Severity.CRITICAL, f"'{index}' names '{shard[:120]}', which leads out of the checkpoint",
            "Do not load it: this index was made to read other files than the checkpoint's.", numbers={"file": index},
        )  # fmt: skip
    elif shard not in case.checkpoint.files:
        yield HealthFinding(
            "file_missing", Severity.CRITICAL, f"'{index}' names '{shard}', which is not there",
            "Copy or save all shards; the checkpoint cannot be loaded without.", numbers={"file": shard},
        )  # fmt: skip


def _shards_of(index: str, files: dict[str, int]) -> list[str]:
    stem, suffix = index.removesuffix(".index.json").rsplit(".", 1)
    found = ((name, _SHARD.fullmatch(name)) for name in files)
    return [name for name, parts in found if parts and parts[1] == stem and parts[4] == suffix]


def _total_size(case: Case, index: str, names: set[str]) -> Iterator[HealthFinding]:
    metadata = case.document(index).get("metadata")
    said = number(metadata.get("total_size")) if isinstance(metadata, dict) else None
    stored = [tensor for tensor in case.checkpoint.tensors if tensor.name in names]
    size = sum(piece.size for piece in {piece for tensor in stored for piece in tensor.pieces})  # tied ones once
    if said is not None and len(stored) == len(names) and abs(said - size) > 0.01 * size:
        yield HealthFinding(
            "total_size", Severity.WARNING,
            f"'{index}' says {said:,.0f} bytes of weights, the shards hold {size:,}",
            "The index is of another save or another dtype: save again into an empty folder.",
            numbers={"said": said, "bytes": size},
        )  # fmt: skip


def shards_without_index(case: Case) -> Iterator[HealthFinding]:
    """Shards of which some are missing, where no index says so."""
    families: dict[tuple[str, int, str], set[int]] = {}
    for name in case.checkpoint.files:
        if found := _SHARD.fullmatch(name):
            families.setdefault((found[1], int(found[3]), found[4]), set()).add(int(found[2]))
    indices = {index.removesuffix(".index.json") for index in case.checkpoint.indices}
    for (stem, count, suffix), numbers in families.items():
        if f"{stem}.{suffix}" in indices or f"{stem}.{suffix}.index.json" in case.checkpoint.files:
            continue
        lost = sorted(set(range(1, min(count, 100_000) + 1)) - numbers)
        if lost:
            message = f"{len(lost)} of {count} shards of '{stem}' are missing, the first is number {lost[0]}"
        else:
            message = f"'{stem}.{suffix}.index.json' is missing beside {count} shards"
        yield HealthFinding(
            "file_missing", Severity.CRITICAL, message,
            "Transformers cannot load it: copy or save all shards and the index.",
        )  # fmt: skip


def doubled_tensors(case: Case) -> Iterator[HealthFinding]:
    counts = Counter(tensor.name for tensor in case.checkpoint.tensors)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        yield HealthFinding(
            "tensor_doubled", Severity.ERROR, f"{counted(twice)} stand in more than one file: {listed(twice)}",
            "Which one is loaded depends on the order of the files: save again into an empty folder.", twice[0],
            named(twice),
        )  # fmt: skip


def unfinished_save(case: Case) -> Iterator[HealthFinding]:
    left = [name for name in case.checkpoint.files if _TEMPORARY.fullmatch(PurePosixPath(name).name)]
    if case.checkpoint.path.name.startswith("tmp-"):
        left.append(case.checkpoint.path.name)
    if left:
        yield HealthFinding(
            "save_unfinished", Severity.WARNING, f"temporary files of a save: {listed(left)}",
            "A save is going on, or was killed: look again when it has ended.", numbers={"files": left[:20]},
        )  # fmt: skip


def imports_of_pickles(case: Case) -> Iterator[HealthFinding]:
    """What `torch.load(weights_only=False)` would import, and could run."""
    for file, names in case.checkpoint.imports.items():
        of_a_trainer = is_trainer_state(file) or file.endswith(
            (METADATA, ".distcp", "_model_states.pt", "_optim_states.pt")
        )
        judged = [(severity, str(name)) for name in names if (severity := danger(name, of_a_trainer)) is not None]
        if not judged:
            continue
        judged.sort(key=lambda pair: -pair[0].rank)
        what = listed([name for _, name in judged], 5)
        yield HealthFinding(
            "pickle_imports", judged[0][0], f"loading '{file}' with pickle would import {what[:300]}",
            "Load it with weights_only=True, and not at all if you do not know why it needs these.",
            numbers={"file": file, "imports": [name for _, name in judged[:20]]},
        )  # fmt: skip


def views_left_out(case: Case) -> Iterator[HealthFinding]:
    left = case.checkpoint.left_out
    if left:
        yield HealthFinding(
            "tensor_not_judged", Severity.INFO, 
            f"{counted(left)} are views with gaps and were not looked at: {listed(left)}",
            "Save them with .contiguous().", left[0], named(left),
        )  # fmt: skip


RULES: tuple[Rule, ...] = (
    unreadable_files, no_weights, index_disagrees, shards_without_index, doubled_tensors, unfinished_save,
    imports_of_pickles, views_left_out,
)  # fmt: skip
