"""A policy, a tokenizer and prompts that need no download.

The embedded policy was trained by `recipes/sft.py` on sentences from film reviews; `README.md` beside this file is its
model card. The name `trl_ext/tiny` stands for it wherever a recipe takes `model_name_or_path`. For tests there are
random models and a tokenizer of single bytes.
"""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from .models import PolicyShape, new_policy, random_policy, random_scorer
from .tokenizer import byte_tokenizer, train_tokenizer

NAME = "trl_ext/tiny"
PATH = Path(__file__).resolve().parent

__all__ = [
    "NAME",
    "PATH",
    "PolicyShape",
    "byte_tokenizer",
    "load_policy",
    "load_tokenizer",
    "new_policy",
    "prompts",
    "random_policy",
    "random_scorer",
    "resolve",
    "train_tokenizer",
]


def resolve(name_or_path: str) -> str:
    """`trl_ext/tiny` becomes the folder of the embedded policy, in any current folder; other names stay as they are."""
    return str(PATH) if name_or_path.rstrip("/") == NAME else name_or_path


def load_policy(dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The embedded policy in `dtype` (stored as float16; train it in float32)."""
    return AutoModelForCausalLM.from_pretrained(PATH, dtype=dtype)


def load_tokenizer() -> PreTrainedTokenizerBase:
    """The embedded policy's tokenizer: byte-level BPE, pad apart from EOS, padding on the left, a chat template."""
    return AutoTokenizer.from_pretrained(PATH)


def prompts() -> list[str]:
    """Openings of review sentences, three words each, from the sentences the embedded policy was trained on."""
    return (PATH / "prompts.txt").read_text(encoding="utf-8").splitlines()
