"""The policy and its tokenizer, from TRL's `ModelConfig`."""

from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import get_quantization_config

from .mistakes import model_path


def load_policy_and_tokenizer(model_args, trust_remote_code: bool = False):
    """The causal language model and tokenizer that `model_args` names: a folder, a hub id or `trl_ext/tiny`.

    Raises:
        UserError: no such model.
    """
    name = model_path(model_args.model_name_or_path, model_args.model_revision)
    options = {"revision": model_args.model_revision, "trust_remote_code": trust_remote_code}
    model = AutoModelForCausalLM.from_pretrained(
        name,
        dtype=model_args.dtype,
        attn_implementation=model_args.attn_implementation,
        quantization_config=get_quantization_config(model_args),
        **options,
    )
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left", **options)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer
