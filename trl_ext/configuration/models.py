"""The policy and its tokenizer, from TRL's `ModelConfig`."""

from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl import get_quantization_config

from ..errors import UserError
from .mistakes import model_path


def load_policy_and_tokenizer(model_args, trust_remote_code: bool = False):
    """The causal language model and tokenizer that `model_args` names: a folder, a hub id or `trl_ext/tiny`.

    Raises:
        UserError: no such model.
    """
    name = model_path(model_args.model_name_or_path, model_args.model_revision)
    options = {"revision": model_args.model_revision, "trust_remote_code": trust_remote_code}
    quantization = get_quantization_config(model_args)
    model = AutoModelForCausalLM.from_pretrained(
        name,
        dtype=model_args.dtype,
        attn_implementation=model_args.attn_implementation,
        # `None` would take the place of what a model says that is stored in 4 or 8 bits
        **({} if quantization is None else {"quantization_config": quantization}),
        **options,
    )
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left", **options)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def check_template(tokenizer: Any, prompts: Any) -> None:
    """Before training, where messages could not be written as text.

    Args:
        prompts: a dataset with the column `prompt`.
    Raises:
        UserError: the prompts are messages, and the tokenizer has no chat template.
    """
    if isinstance(prompts[0]["prompt"], list) and not tokenizer.chat_template:
        raise UserError(
            f"the prompts are messages, and the tokenizer of {tokenizer.name_or_path!r} has no chat template: take a "
            "model that has one (chat_template.jinja in its folder), or prompts of text"
        )


def init_kwargs(training_args: Any, model_args: Any) -> dict[str, Any]:
    """`model_init_kwargs` for a trainer that loads the model itself: what `ModelConfig` says, and what was given.

    Revision, attention and dtype of the command line would be lost otherwise: the trainers read `model_init_kwargs`.
    With a GPU a process the model is made on the CPU, as under DDP: TRL's `device_map="auto"` would draw new weights (a
    reward model's head, an adapter) from the GPU's generator where there is one process, and from the CPU's where there
    are several, and under FSDP TRL 1.16 lays a reference over all GPUs with it.
    """
    of_the_model = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **({"device_map": None} if training_args.n_gpu <= 1 else {}),
    }
    return of_the_model | (training_args.model_init_kwargs or {})


def load_value_model(name_or_path: str | None, model_args: Any, tokenizer: Any, trust_remote_code: bool = False) -> Any:
    """A value network: that model's body and a scalar `score` head, which starts at zero unless the folder has one.

    Values then start at 0, so that the first advantages are those of plain REINFORCE. `None` for no name.

    Args:
        name_or_path: a folder, a hub id or `trl_ext/tiny`.
        model_args: TRL's `ModelConfig`; its dtype and attention are the value network's as well.
    Raises:
        UserError: no such model.
    """
    if name_or_path is None:
        return None
    model, loading = AutoModelForSequenceClassification.from_pretrained(
        model_path(name_or_path),
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
        dtype=model_args.dtype,
        attn_implementation=model_args.attn_implementation,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
    )
    if any(key.startswith("score.") for key in loading["missing_keys"]):
        model.score.weight.data.zero_()
    return model
