"""Opens a checkpoint of any form: which files hold weights, and where each tensor lies. Reads no weights yet."""

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from trl_ext.checkpoints.distributed import METADATA, read_distributed
from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.folder import CheckpointFolder, inside
from trl_ext.checkpoints.imports import is_of_tensors
from trl_ext.checkpoints.packed import with_forms
from trl_ext.checkpoints.pickled import MOST, Name, read_pickle
from trl_ext.checkpoints.safetensors_file import read_safetensors
from trl_ext.checkpoints.stored import StoredTensor
from trl_ext.checkpoints.torch_file import read_torch_file

_INDEX = re.compile(r".+\.(safetensors|bin)\.index\.json")
_TRAINER_STATE = re.compile(
    r"(optimizer|scheduler|scaler|rng_state|random_states|training_args|sampler|custom_checkpoint).*\.(pt|pth|bin|pkl)"
)
_OTHER_PICKLES = (".pkl", ".pickle", ".ckpt", ".p")  # of no form that is known: what loading them would import
_VARIANT = re.compile(r"(model|pytorch_model|adapter_model)\.\w+(?:-\d+-of-\d+)?\.(safetensors|bin)")
_TORCH = (".bin", ".pt", ".pth")
_ZERO_MODEL = re.compile(r".*_model_states\.pt")
_ZERO_OPTIMIZER = re.compile(r".*_optim_states\.pt")


@dataclass(frozen=True)
class Problem:
    """A file, or a tensor of it, that cannot be read.

    Attributes:
        kind: as `UnreadableError` has it.
    """

    file: str
    kind: str
    message: str


@dataclass
class Checkpoint:
    """What lies in a folder.

    Attributes:
        form: in words, for people: `safetensors, 3 shards`.
        tensors: the weights, by file in the order of their bytes; not those of optimizers.
        optimizer: tensors of optimizer states, where their files can be read.
        problems: what cannot be read.
        files: bytes of each file, by its path from the folder.
        documents: JSON files of the folder itself, by name.
        indices: the `weight_map` of each index file, by its name.
        imports: what loading a file with pickle would import that is no part of torch, by file.
        left_out: tensors that are views with gaps, which are not judged.
    """

    folder: CheckpointFolder
    form: str = "nothing"
    tensors: list[StoredTensor] = field(default_factory=list)
    optimizer: list[StoredTensor] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)
    indices: dict[str, dict[str, str]] = field(default_factory=dict)
    imports: dict[str, list[Name]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder.path

    def cannot_read(self, file: str, error: UnreadableError) -> None:
        """Notes it among the problems."""
        self.problems.append(Problem(file, error.kind, str(error)))


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """The folder of a checkpoint, or one file with weights.

    Raises:
        UnreadableError: there is nothing of that name.
    """
    path = Path(path)
    if path.is_file():
        checkpoint = Checkpoint(CheckpointFolder(path.parent))
        _note(checkpoint, [path.name])
        _read_file(checkpoint, path.name)
        checkpoint.form = "one file, " + ("safetensors" if path.suffix == ".safetensors" else "torch")
    else:
        checkpoint = Checkpoint(CheckpointFolder(path))
        _read_folder(checkpoint)
    checkpoint.tensors = with_forms(checkpoint.tensors)
    return checkpoint


def _read_folder(checkpoint: Checkpoint) -> None:
    folder = checkpoint.folder
    names = folder.names()
    _note(checkpoint, names)
    _read_documents(checkpoint, names)
    forms = []
    if METADATA in names:
        forms.append(_read_distributed(checkpoint, "", checkpoint.tensors))
    safetensors = [name for name in names if name.endswith(".safetensors")]
    torch_files = [name for name in names if name.endswith(_TORCH) and not _TRAINER_STATE.fullmatch(name)]
    safetensors = [name for name in safetensors if not _is_variant(name, safetensors)]
    torch_files = [name for name in torch_files if not _is_variant(name, torch_files)]
    if "model.safetensors" in safetensors or any(name.startswith("model-") for name in safetensors):
        # Transformers reads these; a second copy of the same weights would only take time
        torch_files = [name for name in torch_files if not name.startswith("pytorch_model")]
        safetensors = [name for name in safetensors if not name.startswith("consolidated")]  # Mistral's own
    for name in [*safetensors, *torch_files]:
        _read_file(checkpoint, name)
    if safetensors:
        forms.append(_counted("safetensors", safetensors))
    if torch_files:
        forms.append(_counted("torch", torch_files))
    for under in folder.folders():
        forms += _read_inner(checkpoint, under)
    for name in names:
        if _TRAINER_STATE.fullmatch(name) or name.endswith(_OTHER_PICKLES):
            _read_trainer_state(checkpoint, name)
    if "adapter_config.json" in names:
        forms.insert(0, "PEFT adapter")
    checkpoint.form = ", ".join(dict.fromkeys(forms)) or "nothing"


def _is_variant(name: str, names: list[str]) -> bool:
    """`model.fp16.safetensors` beside `model.safetensors`: another copy, for who asks for it."""
    found = _VARIANT.fullmatch(name)
    return found is not None and any(re.fullmatch(rf"{found[1]}(-\d+-of-\d+)?\.{found[2]}", one) for one in names)


def _counted(form: str, files: list[str]) -> str:
    return form if len(files) == 1 else f"{form}, {len(files)} files"


def _read_inner(checkpoint: Checkpoint, under: str) -> list[str]:
    """A folder in the folder: a distributed checkpoint, or one of DeepSpeed. Beside weights that were gathered from all
    ranks it holds the same once more, to resume from."""
    into = checkpoint.optimizer if checkpoint.tensors else checkpoint.tensors
    names = checkpoint.folder.names(under)
    own = [PurePosixPath(name).name for name in names]
    if METADATA in own:
        _note(checkpoint, names)
        return [_read_distributed(checkpoint, under, into)]
    if any(_ZERO_MODEL.fullmatch(name) or _ZERO_OPTIMIZER.fullmatch(name) for name in own):
        _note(checkpoint, names)
        for name, short in zip(names, own, strict=True):
            if _ZERO_MODEL.fullmatch(short):
                _read_file(checkpoint, name, into, short.removesuffix("_model_states.pt"))
            elif _ZERO_OPTIMIZER.fullmatch(short):
                _read_file(checkpoint, name, into=checkpoint.optimizer, prefix=short.removesuffix("_optim_states.pt"))
        return ["DeepSpeed ZeRO"]
    return []


def _read_distributed(checkpoint: Checkpoint, under: str, into: list[StoredTensor]) -> str:
    into = checkpoint.optimizer if PurePosixPath(under).name.startswith("optimizer") else into
    name = inside(under, METADATA)
    imports: dict[str, list[Name]] = {}
    try:
        tensors, lost = read_distributed(checkpoint.folder, under, imports)
    except UnreadableError as error:
        checkpoint.cannot_read(name, error)
    else:
        for tensor in tensors:
            of_optimizer = tensor.name.startswith(("optimizer.", "optim."))
            (checkpoint.optimizer if of_optimizer else into).append(tensor)
        checkpoint.problems += [Problem(name, error.kind, f"{tensor}: {error}") for tensor, error in lost]
    for file, names in imports.items():
        foreign = [one for one in dict.fromkeys(names) if not is_of_tensors(one)]
        if foreign:
            checkpoint.imports[file] = foreign
    return "torch.distributed.checkpoint"


def _read_file(checkpoint: Checkpoint, name: str, into: list[StoredTensor] | None = None, prefix: str = "") -> None:
    into = checkpoint.tensors if into is None else into
    try:
        if name.endswith(".safetensors"):
            tensors = read_safetensors(checkpoint.folder, name)
        else:
            found = read_torch_file(checkpoint.folder, name)
            tensors = found.tensors
            checkpoint.left_out += found.left_out
            if found.imports:
                checkpoint.imports[name] = found.imports
    except UnreadableError as error:
        checkpoint.cannot_read(name, error)
        return
    if prefix:
        tensors = [replace(tensor, name=f"{prefix}.{tensor.name}") for tensor in tensors]
    into += tensors


def _read_trainer_state(checkpoint: Checkpoint, name: str) -> None:
    """The tensors of an optimizer; of the others what loading them would import, if they can be looked at."""
    if name.startswith("optimizer"):
        _read_file(checkpoint, name, into=checkpoint.optimizer)
        return
    try:
        imports: list[Name] = []
        with checkpoint.folder.open(name) as file:
            # Accelerate's, too, are written by torch.save
            bare = name.endswith(_OTHER_PICKLES) and file.read(4) != b"PK\x03\x04"
            if bare:
                file.seek(0)
                read_pickle(file.read(MOST + 1), f"'{name}'", imports)
        if not bare:
            imports = read_torch_file(checkpoint.folder, name).imports
    except UnreadableError as error:
        checkpoint.cannot_read(name, error)
        return
    if imports:
        checkpoint.imports[name] = list(dict.fromkeys(imports))


def is_trainer_state(name: str) -> bool:
    """Whether a file is one that a trainer writes to go on, and holds no weights."""
    return _TRAINER_STATE.fullmatch(name) is not None


def _note(checkpoint: Checkpoint, names: list[str]) -> None:
    for name in names:
        if PurePosixPath(name).name.startswith("trl_ext_"):
            continue  # of our own callbacks, which may be writing it
        try:
            checkpoint.files[name] = checkpoint.folder.size(name)
        except UnreadableError as error:
            if error.kind != "missing" or name.endswith((".safetensors", *_TORCH, ".json")):
                checkpoint.cannot_read(name, error)  # others come and go while something is written


def _read_documents(checkpoint: Checkpoint, names: list[str]) -> None:
    for name in names:
        if not name.endswith(".json") or name not in checkpoint.files or name == "tokenizer.json":
            continue
        try:
            document = checkpoint.folder.json(name)
        except UnreadableError as error:
            checkpoint.cannot_read(name, error)
            continue
        if _INDEX.fullmatch(name):
            weight_map = document.get("weight_map") if isinstance(document, dict) else None
            if isinstance(weight_map, dict):
                checkpoint.indices[name] = {str(key): str(value) for key, value in weight_map.items()}
            else:
                checkpoint.problems.append(Problem(name, "format", f"'{name}' has no weight_map"))
        checkpoint.documents[name] = document
