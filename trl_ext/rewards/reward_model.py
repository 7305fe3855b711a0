"""Any sequence classifier as a reward function."""

import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_ext.errors import UserError
from trl_ext.rewards.options import check_choice, check_count, check_flag
from trl_ext.rewards.reference_texts import Conversation, read_reference
from trl_ext.rewards.text import Completion, completion_text, prompt_text

if TYPE_CHECKING:
    from trl_ext.rewards.classifier import Classifier

_MOST = 4  # times `batch_size` texts in a batch of short ones


class RewardModelReward:
    """The output of an `AutoModelForSequenceClassification` for prompt and completion together.

    A model with one output (what TRL's `RewardTrainer` makes) gives that output. Of a classifier with several labels
    the reward is the log odds of `label` against all others, log(p / (1 - p)): a difference of logits, which does not
    saturate as a probability does. Of a multi-label or regression model it is the label's own output.

    Texts are put into batches by their length and padded on the right, so that little is computed for padding; values
    come back in the order of the completions and are those of one text at a time, to the precision of the dtype (about
    1e-6 in float32, 1e-2 in bfloat16). Nothing is trained, and dropout is off.

    What the model reads:
        * messages: the tokenizer's chat template over prompt and completion;
        * plain text: the prompt followed by the completion, with the tokenizer's special tokens. A model that reads its
          score off the last token (it has a head named `score`) gets the end token there, as `RewardTrainer` trains it.
    A text without a single token has no score: `None`.

    Args:
        model_name_or_path: a folder or hub id, of a model or of a PEFT adapter. Weights must be safetensors.
        batch_size: texts in a batch of the longest ones. Shorter ones, which take less memory, go up to four times as
            many to a batch, as long as they are no more tokens.
        max_tokens_per_batch: most tokens in a batch, padding included (a longer text is a batch of its own); `None`: no
            other limit than that.
        dtype: `"auto"` (as the checkpoint says), `"float32"`, `"bfloat16"` or `"float16"`.
        device: as torch names it; by default the one that Accelerate gave this process.
        max_length: most tokens of a text; what is too long loses its beginning. By default what tokenizer and model can
            take.
        label: name or index of the label, needed where a model has several.
        chat_template: `False`: of messages the text alone, that of the last one in the prompt and of the completion, a
            line each, as plain text.
        plain_as_chat: plain prompts and completions become messages of user and assistant.
        reference: texts, `{prompt, completion}` mappings, or a file of them (JSON Lines, or one text a line): rewards
            are shifted and scaled to mean 0 and standard deviation 1 over them.
        revision: branch, tag or commit of a hub model.
        trust_remote_code: run code that comes with the model.
        attn_implementation: `"sdpa"`, `"eager"`, ...; by default the model's own.
    Raises:
        UserError: no such model or label; a checkpoint without a trained head; pickled weights; a reference that does
            not vary; messages for a tokenizer without a template.
    """

    __name__ = "reward_model"

    def __init__(
        self,
        model_name_or_path: str,
        batch_size: int = 16,
        max_tokens_per_batch: int | None = None,
        dtype: str = "auto",
        device: str | None = None,
        max_length: int | None = None,
        label: str | int | None = None,
        chat_template: bool = True,
        plain_as_chat: bool = False,
        reference: list | str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        attn_implementation: str | None = None,
    ) -> None:
        if not isinstance(model_name_or_path, str | Path) or not str(model_name_or_path):
            raise UserError(f"reward_model needs a folder or hub id for model_name_or_path, not {model_name_or_path!r}")
        check_count("reward_model", "batch_size", batch_size, 1)
        if max_tokens_per_batch is not None:
            check_count("reward_model", "max_tokens_per_batch", max_tokens_per_batch, 1)
        if max_length is not None:
            check_count("reward_model", "max_length", max_length, 2)  # one token and the end
        check_choice("reward_model", "dtype", dtype, ("auto", "float32", "bfloat16", "float16"))
        if label is not None and (isinstance(label, bool) or not isinstance(label, str | int)):
            raise UserError(f"reward_model needs a name or index for label, not {label!r}")
        flags = {"chat_template": chat_template, "plain_as_chat": plain_as_chat, "trust_remote_code": trust_remote_code}
        for option, flag in flags.items():
            check_flag("reward_model", option, flag)
        if plain_as_chat and not chat_template:
            raise UserError("reward_model writes no messages with chat_template: false: drop plain_as_chat")
        name = str(model_name_or_path)
        # Another process that unpickles this may work in another folder.
        self.model_name_or_path = os.path.abspath(name) if os.path.isdir(name) else name
        self.batch_size, self.max_tokens_per_batch, self.max_length = batch_size, max_tokens_per_batch, max_length
        self.dtype, self.device, self.label = dtype, device, label
        self.chat_template, self.plain_as_chat = chat_template, plain_as_chat
        self.revision, self.trust_remote_code = revision, trust_remote_code
        self.attn_implementation = attn_implementation
        self.mean, self.std = 0.0, 1.0
        conversations = None if reference is None else read_reference(reference)  # its mistakes show before the load
        self._classifier: Classifier | None = self._load()
        if conversations is not None:
            self.mean, self.std = self._calibrate(conversations)

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float | None]:
        scores = self._scores(list(zip(prompts, completions, strict=True)))
        return [None if score is None else (score - self.mean) / self.std for score in scores]

    def __getstate__(self) -> dict[str, Any]:
        """Without the model: it is loaded by its name, when the copy is first asked."""
        return self.__dict__ | {"_classifier": None}

    def _load(self) -> "Classifier":
        from trl_ext.rewards.classifier_loading import (
            load_classifier,
        )  # torch and transformers, only once a model is named

        return load_classifier(
            self.model_name_or_path,
            self.label,
            self.device,
            self.max_length,
            dtype=self.dtype,
            revision=self.revision,
            trust_remote_code=self.trust_remote_code,
            attn_implementation=self.attn_implementation,
        )

    def _calibrate(self, conversations: list[Conversation]) -> tuple[float, float]:
        scores = [score for score in self._scores(conversations) if score is not None]
        std = statistics.pstdev(scores) if len(scores) > 1 else 0.0
        if not 0.0 < std < float("inf"):
            raise UserError(
                f"reward_model cannot be calibrated: over the {len(conversations)} texts of reference its standard "
                f"deviation is {std}; give two texts or more that it rates differently"
            )
        return statistics.fmean(scores), std

    def _scores(self, conversations: list[Conversation]) -> list[float | None]:
        """The model's own values."""
        if self._classifier is None:
            self._classifier = self._load()
        classifier = self._classifier
        rows = classifier.encode([self._input(*each) for each in conversations])
        scores: list[float | None] = [None] * len(rows)
        order = sorted((i for i, ids in enumerate(rows) if ids), key=lambda i: -len(rows[i]))
        batches = [classifier.score([rows[i] for i in batch]) for batch in self._batches(order, rows)]
        values = (value for batch in batches for value in batch.tolist())  # only now: a GPU is not waited for each time
        for i, value in zip(order, values, strict=True):
            scores[i] = value
        return scores

    def _batches(self, order: list[int], rows: list[list[int]]) -> Iterator[list[int]]:
        """Neighbours in `order`, which has the longest text first: the first of a batch says how wide it is."""
        tokens = self.batch_size * len(rows[order[0]]) if order else 0
        if self.max_tokens_per_batch is not None:
            tokens = min(tokens, self.max_tokens_per_batch)
        start = 0
        while start < len(order):
            width = len(rows[order[start]])
            most = min(max(1, tokens // width), _MOST * self.batch_size)
            # those less than half as long wait for the next batch: they would be padding mostly
            batch = [i for i in order[start : start + most] if 2 * len(rows[i]) >= width]
            yield batch
            start += len(batch)

    def _input(self, prompt: Completion, completion: Completion) -> str | list[dict]:
        """A conversation for the chat template, or plain text."""
        if isinstance(prompt, str) and isinstance(completion, str) and not self.plain_as_chat:
            return prompt + completion
        if not self.chat_template:
            return "\n".join(text for text in (prompt_text(prompt), completion_text(completion)) if text)
        asked = _as_messages(prompt, "user") if prompt else []
        return [*asked, *_as_messages(completion, "assistant")]


def _as_messages(said: Completion, role: str) -> list[dict]:
    return [{"role": role, "content": said}] if isinstance(said, str) else said
