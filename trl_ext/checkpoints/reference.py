"""Finds the reference of a checkpoint: a folder, or a model of the hub."""

import os
import re
from pathlib import Path

from trl_ext.checkpoints.errors import UnreadableError

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?")
_FILES = ["*.safetensors", "*.json", "*.bin", "*.index.json"]


def find_reference(name: str | os.PathLike[str]) -> Path:
    """The folder or file of that name, or the snapshot of a hub id (`owner/model` or `owner/model@revision`), fetched
    where it is not in the cache. Nothing of it is run.

    Raises:
        UnreadableError: there is neither.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    text = str(name)
    if not _HUB_ID.fullmatch(text) or text.startswith("."):
        raise UnreadableError(f"the reference {path} does not exist: name a folder, or a hub id", "missing")
    from huggingface_hub import snapshot_download

    repository, _, revision = text.partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=_FILES))
    except Exception as error:  # of the network, of the hub, of the cache
        cause = " ".join(str(error).split())[:160]
        raise UnreadableError(
            f"the reference '{text}' is no folder here, and the hub does not give it: {cause}", "missing"
        ) from error
