"""Generation as fast as the card allows, inside a trainer of TRL or ours."""

import copy
import inspect
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation import utils as generation_utils

from ..errors import UserError
from ..ranks import text_of_any
from ..stand_in import StandIn
from .buckets import length_bucket, rows_bucket
from .sampling_record import IdleRows, SamplingRecord
from .twin import NoTwinError, Twin, base_of, is_sharded

logger = logging.getLogger(__name__)
FARTHEST = 0.1  # nats a token, on the prompts of the first batch, between the policy and its twin
FEW = 4  # of those prompts
DEVICES = ("cuda",)  # where Transformers compiles
COMPLETIONS, LOG_PROBABILITIES = 1, 4  # in what GRPO's `_generate` returns


class FastGeneration:
    """Makes `trainer` generate with a compiled twin of its policy in 16 bits: a static cache, CUDA graphs, attention
    over the cache as it is, and no wait for the card after each token.

        with FastGeneration(trainer):
            trainer.train()

    What is sampled stays a sample of the policy but for the rounding of 16 bits; `correct=True` weighs it by TRL's
    importance sampling (`vllm_importance_sampling_correction` and its options), and logs how far the two are apart.

    The first batch compiles, for about half a minute; later ones do not, as long as the batch is no larger and prompt
    and completion together stay in the same bucket (64 tokens, or an eighth of the power of two above).

    A model that cannot be compiled or has no twin generates as before, after one warning that says why. So does what
    the options ask for and a static cache cannot give: images, beams, a cache of another kind. What one process cannot
    none does, from the next batch on; from the same call on where FSDP2 divides the policy.

    Args:
        trainer: stock GRPO or RLOO of TRL, or ours.
        dtype: of the twin. Weights of the policy that have it are shared, others copied before each batch.
        correct: importance sampling, in GRPO and ours; one more forward of the policy a batch where the trainer makes
            none. RLOO has none.
    Attributes:
        compilations: graphs compiled so far.
        refused: why the trainer generates as before, or None; `start` tries anew.
    Raises:
        UserError: the trainer generates with vLLM, continuous batching or another `FastGeneration`, or is none that
            generates.
    """

    def __init__(self, trainer: Any, dtype: torch.dtype = torch.bfloat16, correct: bool = False) -> None:
        if not hasattr(trainer, "_generate_single_turn"):
            raise UserError(f"{type(trainer).__name__} does not generate as TRL's GRPO and RLOO trainers do")
        _refuse_second(trainer)
        for other in ("use_vllm", "use_transformers_continuous_batching"):
            if getattr(trainer, other, False):
                raise UserError(f"{other}=True generates in its own way: drop it, or fast generation")
        if correct and not hasattr(trainer, "vllm_importance_sampling_correction"):
            raise UserError(f"{type(trainer).__name__} has no importance sampling: set correct=False")
        mode = str(getattr(trainer, "vllm_importance_sampling_mode", ""))
        if correct and getattr(trainer, "loss_type", "") == "vespo" and mode.startswith("sequence"):
            raise UserError(
                f"loss_type='vespo' takes no vllm_importance_sampling_mode={mode!r}: set token_truncate or token_mask"
            )
        self.trainer, self.dtype, self.correct = trainer, dtype, correct
        self.compilations = 0
        self.refused: str | None = None
        self._twin: Twin | None = None
        self._wanted: torch.Tensor | None = None  # what the policy says, until the twin has said the same
        self._agreed = False  # all processes know that there is a reason
        self._most_rows = 0
        self._corrected, self._turns = False, 0  # of the batch that is being generated
        self._record: SamplingRecord | None = None
        self._replaced: dict[str, Any] = {}
        self._stand_in: StandIn | None = None
        self._told_of_rollout_func = False

    # On and off -------------------------------------------------------------------------------------------------------

    def start(self) -> "FastGeneration":
        """As entering the context does; `stop` ends it."""
        trainer = self.trainer
        if not self._replaced:
            _refuse_second(trainer)
            by_ours = {"_generate_single_turn": self._turn, "_generate": self._generate_all}
            if self.correct:
                by_ours |= {"_generate_and_score_completions": self._batch, "_compute_loss": self._loss}
                trainer.vllm_importance_sampling_correction = True
            self._replaced = {name: getattr(trainer, name) for name in by_ours}
            self._stand_in = StandIn(trainer, **by_ours)
            self._stand_in.start()
            self.refused, self._agreed = None, False
        return self

    def stop(self) -> None:
        """The trainer generates as before; the twin and its graphs are freed. All processes call it."""
        if self._stand_in is not None:
            self._stand_in.stop()
        self._stand_in, self._replaced = None, {}
        self.release()

    def __enter__(self) -> "FastGeneration":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def release(self) -> None:
        """Frees the twin and the graphs, those of `compile_layers` too; what comes next makes them again. All processes
        call it."""
        self._record = None
        if self._twin is not None:
            self._twin, self._wanted = None, None
            torch._dynamo.reset()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    # What TRL calls ---------------------------------------------------------------------------------------------------

    def _batch(self, *args: Any, **kwargs: Any) -> Any:
        """All of a batch is weighed or nothing: trainers ask before they generate and after it, on all processes."""
        with self._weighing(self.refused is None):
            return self._replaced["_generate_and_score_completions"](*args, **kwargs)

    def _loss(self, model: Any, inputs: Any) -> Any:
        """A batch that waits in the trainer is as it was generated, whatever has come since, until `stop`."""
        with self._weighing("importance_sampling_ratio" in inputs):
            return self._replaced["_compute_loss"](model, inputs)

    def _weighing(self, weighs: bool) -> StandIn:
        """`use_vllm` is what TRL asks before it weighs; before it generates it must not hear it."""
        return StandIn(self.trainer, use_vllm=weighs)

    def _generate_all(self, *args: Any, **kwargs: Any) -> Any:
        """All turns of a batch. Processes may have other numbers of turns, and all come to its end."""
        self._corrected, self._turns = self.trainer.use_vllm, 0
        try:
            with self._weighing(False):  # TRL would ask vLLM
                result = self._replaced["_generate"](*args, **kwargs)
            if self._corrected and result[LOG_PROBABILITIES] is None:  # greedy, or of a rollout_func
                unknown = _unknown(result[COMPLETIONS])
                result = (*result[:LOG_PROBABILITIES], unknown, *result[LOG_PROBABILITIES + 1 :])
        finally:
            self._corrected = False
        if self._turns == 0 and getattr(self.trainer, "rollout_func", None) and not self._told_of_rollout_func:
            self._told_of_rollout_func = True
            self._warn("the rollout_func does it in its own way")
        if not self._agreed:
            reason = self._of_any(self.refused)
            self._agreed = reason is not None
            if reason is not None and self.refused is None:
                self._refuse(reason)
        return result

    def _turn(self, *args: Any, **kwargs: Any) -> Any:
        original = self._replaced["_generate_single_turn"]
        self._record = None
        self._turns += 1
        if self.refused is not None:
            result = original(*args, **kwargs)
        else:
            policy = self.trainer.accelerator.unwrap_model(self.trainer.model)
            with StandIn(policy, generate=lambda **inputs: self._generate(policy, **inputs)):  # which TRL calls
                result = original(*args, **kwargs)
        if not self._corrected or not isinstance(result, tuple):
            return result
        completion_ids, log_probabilities, *rest = result
        if self._record is not None:
            log_probabilities, self._record = log_probabilities or self._record.of(completion_ids), None
        elif self.refused is not None:  # amid the batch: a turn before may have them
            log_probabilities = _unknown(completion_ids)
        return completion_ids, log_probabilities, *rest

    def _generate(self, policy: Any, **inputs: Any) -> torch.Tensor:
        """In the place of `policy.generate`, with its arguments."""
        sharded = is_sharded(policy)  # then generating without the twin is a collective: all do it, or none
        output, reason = None, None
        for step in (self._look, self._make_twin, self._take_weights, self._sample):
            try:
                with torch.autocast(inputs["input_ids"].device.type, enabled=False):
                    output = step(policy, **inputs)
            except NoTwinError as error:
                reason = str(error)
            except Exception as error:  # of the compiler, of a model that does not take a static cache, of memory
                if sharded and step == self._take_weights:  # the others wait in it: nothing can be agreed on
                    raise
                reason = _told(error)
            if sharded:
                reason = self._of_any(reason)
            if reason is not None:
                self._refuse(reason)
                return type(policy).generate(policy, **inputs)
        assert output is not None
        return output

    def _of_any(self, reason: str | None) -> str | None:
        """The reason of this process or of any; a collective."""
        told, process = text_of_any(reason, self.trainer.args)
        return reason or (told and f"on process {process}, {told}")

    def _refuse(self, reason: str) -> None:
        self.refused = reason
        self.release()
        self._warn(reason)

    def _warn(self, reason: str) -> None:
        if self.trainer.accelerator.is_main_process:  # which learns the reason of another at the end of the batch
            warnings.warn(f"generation goes on as without fast generation: {reason}", stacklevel=2)

    def _look(self, policy: Any, **inputs: Any) -> None:
        if reason := self._cannot(policy, inputs):
            raise NoTwinError(reason)

    def _cannot(self, policy: Any, inputs: dict[str, Any]) -> str | None:
        config = inputs["generation_config"]
        others = sorted(set(inputs) - {"input_ids", "attention_mask", "generation_config"})
        device = inputs["input_ids"].device.type
        accelerator = self.trainer.accelerator
        if device not in DEVICES:
            return f"the model is on {device}, and Transformers compiles on {' or '.join(DEVICES)}"
        if (kept := next(policy.parameters()).device.type) != device:
            return f"the weights are kept on {kept} (fsdp_offload_params, say), and the tokens are on {device}"
        if others:
            return f"the model is given {', '.join(others)} besides tokens"
        if base_of(policy).config.is_encoder_decoder:
            return "the model has an encoder"
        if (config.num_beams or 1) > 1:
            return f"num_beams={config.num_beams}"
        if config.cache_implementation not in (None, "static", "dynamic"):
            return f"cache_implementation={config.cache_implementation!r} was asked for"
        if str(accelerator.distributed_type).endswith("DEEPSPEED") and accelerator.deepspeed_plugin.zero_stage == 3:
            return "ZeRO-3 holds a part of every weight; FSDP2 works"
        if getattr(accelerator, "is_fsdp2", False) is False and str(accelerator.distributed_type).endswith("FSDP"):
            return "FSDP 1 holds a part of every weight in a form of its own; fsdp_version: 2 works"
        return None

    # With the twin ----------------------------------------------------------------------------------------------------

    def _make_twin(self, policy: Any, **inputs: Any) -> None:
        if self._twin is None:
            self._twin = Twin(policy, self.dtype)

    def _take_weights(self, policy: Any, input_ids: Any, attention_mask: Any, **inputs: Any) -> None:
        """All that is a collective where the weights are divided."""
        assert self._twin is not None
        is_new = self._twin.is_empty
        self._twin.refresh(policy)
        if is_new:
            self._wanted = self._of_policy(policy, input_ids, attention_mask)

    def _sample(self, policy: Any, input_ids: Any, attention_mask: Any, generation_config: Any) -> torch.Tensor:
        assert self._twin is not None
        if self._wanted is not None:
            self._compare(self._wanted, self._twin, input_ids, attention_mask)
            self._wanted = None
        model = self._twin.model
        model.generation_config = policy.generation_config  # with what TRL set in it
        rows = len(input_ids)
        size = rows_bucket(rows, self._most_rows)
        self._most_rows = max(self._most_rows, rows)
        stops = StoppingCriteriaList()
        processors = LogitsProcessorList()
        if size > rows:
            input_ids, attention_mask = (
                torch.cat([tensor, tensor[:1].expand(size - rows, -1)]) for tensor in (input_ids, attention_mask)
            )
            stops.append(IdleRows(rows))
        if self.correct and generation_config.do_sample:
            self._record = SamplingRecord(generation_config.temperature or 1.0)
            processors.append(self._record.processor)
            stops.append(self._record)
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        with _deferred_stop():
            output = model.generate(
                input_ids=input_ids, attention_mask=attention_mask,
                generation_config=_static(generation_config, input_ids.size(1)),
                logits_processor=processors, stopping_criteria=stops,
            )  # fmt: skip
        compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"] - before
        if compiled:
            logger.info("compiled generation for %d rows of %d tokens", size, output.size(1))
        self.compilations += compiled
        return output[:rows]

    @torch.no_grad()
    def _of_policy(self, policy: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Its log-probabilities behind the first prompts, `(rows, vocabulary)`."""
        was_training = policy.training
        policy.eval()
        try:
            with self.trainer.accelerator.autocast():
                logits = policy(**_few(policy, input_ids, attention_mask)).logits
        finally:
            policy.train(was_training)
        return logits[:, -1].float().log_softmax(-1)

    @torch.no_grad()
    def _compare(self, wanted: torch.Tensor, twin: Twin, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> None:
        """A twin that computes something else must not sample: what is patched into a policy is not in its class."""
        logits = twin.model(**_few(twin.model, input_ids, attention_mask)).logits
        got = logits[:, -1].float().log_softmax(-1)
        distance = ((wanted - got).abs() * wanted.exp()).sum(-1).mean().item()
        if not distance <= FARTHEST:
            raise NoTwinError(f"a copy of the policy in {self.dtype} is {distance:.2g} nats a token from it")


def _refuse_second(trainer: Any) -> None:
    if isinstance(getattr(vars(trainer).get("_generate_single_turn"), "__self__", None), FastGeneration):
        raise UserError(
            "the trainer generates fast already (fast_generation: true, or another FastGeneration): drop one"
        )


def _told(error: Exception) -> str:
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "the card has no room for the twin, its cache and its graphs"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _few(model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, Any]:
    """What a forward is given for the logits behind the first prompts, those alone where its class can."""
    takes = inspect.signature(type(base_of(model)).forward).parameters
    last = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
    return {"input_ids": input_ids[:FEW], "attention_mask": attention_mask[:FEW], "use_cache": False, **last}


def _unknown(completion_ids: list[list[int]]) -> list[list[float]]:
    """Log-probabilities that TRL weighs with 1."""
    return [[math.nan] * len(ids) for ids in completion_ids]


def _static(config: Any, prompt_length: int) -> Any:
    """The trainer's generation_config with a static cache, whose length is that of a bucket."""
    static = copy.deepcopy(config)
    static.disable_compile = False
    static.cache_implementation = "static"
    longest = prompt_length + static.max_new_tokens if static.max_new_tokens is not None else static.max_length
    static.max_cache_len = length_bucket(longest)
    return static


@contextmanager
def _deferred_stop() -> Iterator[None]:
    """Transformers' own check of the ends one step late, which it makes on Apple's chips alone: without it the host
    waits for the card after each token."""
    check = getattr(generation_utils, "DeferredStopCheck", None)
    if check is None:  # older Transformers
        yield
        return
    kept = check.__dict__["is_supported"]

    def is_supported(device: torch.device, cache: Any, cache_is_returned: bool, is_assistant: bool) -> bool:
        return device.type == "cuda" and not cache_is_returned and not is_assistant

    check.is_supported = staticmethod(is_supported)
    try:
        yield
    finally:
        check.is_supported = kept
