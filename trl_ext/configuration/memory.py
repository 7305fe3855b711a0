"""An estimate of the memory of one process: what a run keeps, and what a step needs on top.

Each line says what it assumes. Nothing is sharded here: FSDP and DeepSpeed divide what they shard by the processes.
"""

from importlib.util import find_spec
from typing import Any, NamedTuple

from .derived import kind_of, processes_of, sequence_length, sequences_a_sample
from .model_facts import ModelFacts

# Bytes that an optimizer keeps for a trainable parameter, as (times the parameter's own bytes, fixed bytes)
_STATES = {
    "8bit": (0.0, 2.0, "two moments of one byte"),
    "4bit": (0.0, 1.0, "two moments of half a byte"),
    "adam": (2.0, 0.0, "two moments of the parameter's dtype"),
    "lion": (1.0, 0.0, "one moment of the parameter's dtype"),
    "rmsprop": (1.0, 0.0, "one moment of the parameter's dtype"),
    "adagrad": (1.0, 0.0, "one moment of the parameter's dtype"),
    "adafactor": (0.0, 0.0, "rows and columns alone, next to nothing"),
    "sgd": (0.0, 0.0, "no moments"),
}


class MemoryLine(NamedTuple):
    """`bytes` is `None` for what cannot be told from what is given; `assumes` is the formula in words."""

    name: str
    bytes: float | None
    assumes: str


class MemoryEstimate(NamedTuple):
    """Attributes:
    kept: from the first step to the last.
    training: on top while a micro-batch is trained on.
    generating: on top while completions are sampled; empty for supervised training.
    """

    kept: list[MemoryLine]
    training: list[MemoryLine]
    generating: list[MemoryLine]

    @property
    def total(self) -> float:
        """Bytes at the peak: what is kept, and the larger of the two phases. A line that is not known counts as 0."""
        return _sum(self.kept) + max(_sum(self.training), _sum(self.generating))

    @property
    def complete(self) -> bool:
        """Whether every line is known."""
        return all(line.bytes is not None for line in self.kept + self.training + self.generating)


def memory_estimate(args: Any, facts: ModelFacts, prompt_length: int | None = None) -> MemoryEstimate:
    """Bytes of one process.

    Args:
        args: a config object of TRL or trl_ext, as constructed.
        facts: of the policy, from `model_facts` or `local_model_facts`.
        prompt_length: tokens of the longest prompt.
    """
    kept = [
        MemoryLine("weights", facts.weight_bytes, f"{facts.parameters:,} parameters as they are loaded"),
        MemoryLine("gradients", facts.trainable_bytes, f"{facts.trainable:,} trainable parameters in their own dtype"),
        _optimizer(args, facts),
        *_autocast(args, facts),
        *_reference(args, facts),
        *_value_model(args, facts),
    ]
    generating = [] if kind_of(args) == "supervised" else [_key_value_cache(args, facts, prompt_length)]
    return MemoryEstimate(kept, _activations(args, facts, prompt_length), generating)


def optimizer_state_bytes(optim: str, facts: ModelFacts) -> tuple[float | None, str]:
    """(bytes of the optimizer's state, why), by TRL's name of the optimizer; `None` for one that is not known here."""
    name = str(getattr(optim, "value", optim)).lower()
    for part, (times, fixed, why) in _STATES.items():
        if part in name:
            return times * facts.trainable_bytes + fixed * facts.trainable, why
    return None, "not known for this optimizer"


def activation_elements(facts: ModelFacts, tokens: int, checkpointing: bool) -> int | None:
    """Numbers kept for the backward pass of a decoder of the Llama shape with fused attention.

    A layer keeps 8 x hidden (two norms with their inputs, the residuals) + 2 x queries + 2 x keys and values
    + 4 x intermediate a token. With gradient checkpointing each layer keeps its input alone, and one layer at a time is
    computed again (https://huggingface.co/papers/2205.05198 counts alike).
    """
    if facts.hidden_size is None or facts.num_layers is None:
        return None
    hidden = facts.hidden_size
    queries, key_values = facts.query_size or hidden, facts.key_value_size or hidden
    layer = 8 * hidden + 2 * queries + 2 * key_values + 4 * (facts.intermediate_size or 4 * hidden)
    if checkpointing:
        return tokens * (facts.num_layers * hidden + layer)
    return tokens * facts.num_layers * layer


def _optimizer(args: Any, facts: ModelFacts) -> MemoryLine:
    size, why = optimizer_state_bytes(args.optim, facts)
    return MemoryLine("optimizer", size, f"{getattr(args.optim, 'value', args.optim)}: {why}")


def _autocast(args: Any, facts: ModelFacts) -> list[MemoryLine]:
    """Autocast keeps a copy of each trainable float32 weight until the end of the forward pass."""
    if not (args.bf16 or args.fp16) or not facts.trainable or facts.trainable_bytes < 4 * facts.trainable:
        return []
    return [MemoryLine("16-bit copies", 2 * facts.trainable, "autocast's, of trainable float32 weights")]


def _reference(args: Any, facts: ModelFacts) -> list[MemoryLine]:
    follows = getattr(args, "reference", "frozen") != "frozen"
    if kind_of(args) == "supervised":
        wanted = type(args).__name__.startswith("DPO") and not getattr(args, "precompute_ref_log_probs", False)
    else:
        wanted = getattr(args, "kl_coef", getattr(args, "beta", 0.0)) != 0
        wanted = wanted or getattr(args, "kl_target", None) is not None
    if not wanted:
        return [MemoryLine("reference", 0, "none")]
    if facts.adapter:
        copy = "a frozen copy of the adapter in float32" if follows else "the policy with its adapter off"
        return [MemoryLine("reference", 4 * facts.trainable if follows else 0, copy)]
    if getattr(args, "reference", "frozen") == "ema":
        return [MemoryLine("reference", 4 * facts.parameters, "a second model in float32, for its moving average")]
    return [MemoryLine("reference", facts.weight_bytes, "a second model, without gradients")]


def _value_model(args: Any, facts: ModelFacts) -> list[MemoryLine]:
    if getattr(args, "baseline", None) == "value":
        return [MemoryLine("value function", 0, "a head on the policy; a value_model of its own comes on top")]
    if kind_of(args) == "ppo":  # the stock trainer's: a backbone of its own
        size, why = optimizer_state_bytes(args.optim, facts)
        total = None if size is None else facts.weight_bytes + facts.trainable_bytes + size
        return [MemoryLine("value model", total, f"as large as the policy, with gradients; {why}")]
    return []


def _activations(args: Any, facts: ModelFacts, prompt_length: int | None) -> list[MemoryLine]:
    length, counted = sequence_length(args, prompt_length)
    if length is None:
        return [MemoryLine("activations", None, "sequences have no limit: set max_length")]
    rows = args.per_device_train_batch_size * sequences_a_sample(args)
    tokens, checkpointing = rows * length, bool(args.gradient_checkpointing)
    elements = activation_elements(facts, tokens, checkpointing)
    size = 2 if args.bf16 or args.fp16 else facts.bytes_per_weight
    how = "gradient checkpointing keeps each layer's input" if checkpointing else "all layers are kept"
    prompts = "" if counted else "; prompts of unknown length not counted"
    line = MemoryLine(
        "activations", None if elements is None else elements * size,
        f"{rows} sequences of {length} tokens, {size:g} bytes a number, {how}{prompts}",
    )  # fmt: skip
    return [line, *_logits(args, facts, rows, length)]


def _logits(args: Any, facts: ModelFacts, rows: int, length: int) -> list[MemoryLine]:
    """Current TRL's head gives log-probabilities without them; before, they and their gradient are kept."""
    if type(args).__name__.startswith("Reward"):
        return []
    if find_spec("trl.kernels") is not None:
        return [MemoryLine("logits", 0, "TRL's head gives log-probabilities in pieces, without them")]
    if kind_of(args) != "supervised":
        length = args.response_length if kind_of(args) == "ppo" else args.max_completion_length
    size = None if facts.vocab_size is None else 2 * 4 * rows * length * facts.vocab_size
    return [MemoryLine("logits", size, f"{rows} x {length} tokens x vocabulary in float32, and their gradient")]


def _key_value_cache(args: Any, facts: ModelFacts, prompt_length: int | None) -> MemoryLine:
    if getattr(args, "use_vllm", False):
        return MemoryLine("vLLM", None, "has a memory of its own: vllm_gpu_memory_utilization of the GPU if colocated")
    length, counted = sequence_length(args, prompt_length)
    if kind_of(args) == "ppo":
        rows = args.per_device_train_batch_size * args.gradient_accumulation_steps
    else:
        rows = args.generation_batch_size // processes_of(args)
    if length is None or facts.num_layers is None or facts.key_value_size is None:
        return MemoryLine("key-value cache", None, "the model's shape is not known")
    size = 2 if args.bf16 or args.fp16 else facts.bytes_per_weight
    prompts = "" if counted else "; prompts of unknown length not counted"
    return MemoryLine(
        "key-value cache", rows * length * facts.num_layers * 2 * facts.key_value_size * size,
        f"{rows} sequences of {length} tokens sampled at once, {size:g} bytes a number{prompts}",
    )  # fmt: skip


def _sum(lines: list[MemoryLine]) -> float:
    return sum(line.bytes or 0 for line in lines)
