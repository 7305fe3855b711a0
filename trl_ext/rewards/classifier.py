"""A sequence classifier and its tokenizer, asked in batches."""

from dataclasses import dataclass
from typing import Any

import torch

from trl_ext.errors import UserError


@dataclass
class Classifier:
    """`model` in evaluation mode, with what it takes to ask it."""

    model: Any
    tokenizer: Any
    label: int
    pad_id: int
    max_length: int | None
    name: str

    def encode(self, texts: list[str | list[dict]]) -> list[list[int]]:
        """Token ids of each text or conversation, at most `max_length`, of which the end is kept."""
        chats = {i: text for i, text in enumerate(texts) if not isinstance(text, str)}
        plain = {i: text for i, text in enumerate(texts) if isinstance(text, str)}
        if chats and not self.tokenizer.chat_template:
            raise UserError(
                f"the tokenizer of {self.name!r} has no chat template for messages: write chat_template: false"
            )
        rendered = [self.tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats.values()]
        # A template writes the special tokens itself.
        rows = dict(zip(chats, self._tokenize(rendered, self.max_length, add_special_tokens=False), strict=True))
        end = self._end()
        room = None if self.max_length is None else self.max_length - len(end)
        for i, ids in zip(plain, self._tokenize(list(plain.values()), room), strict=True):
            rows[i] = ids if ids[-1:] == end else ids + end
        return [rows[i] for i in range(len(texts))]

    @torch.inference_mode()
    def score(self, rows: list[list[int]]) -> torch.Tensor:
        """Float32 tensor of shape `(len(rows),)` on the model's device."""
        width, device = max(map(len, rows)), self.model.device
        ids = torch.tensor([row + [self.pad_id] * (width - len(row)) for row in rows], device=device)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        mask = (torch.arange(width, device=device) < lengths[:, None]).long()
        logits = self.model(input_ids=ids, attention_mask=mask).logits.float()
        own = logits[:, self.label]
        if logits.size(1) == 1 or self.model.config.problem_type in ("regression", "multi_label_classification"):
            return own
        others = [label for label in range(logits.size(1)) if label != self.label]
        return own - logits[:, others].logsumexp(1)

    def _end(self) -> list[int]:
        """What ends a plain text: the end token where the score is read off the last token, as TRL trains it."""
        reads_last = hasattr(self.model, "score") and self.tokenizer.eos_token_id is not None
        return [self.tokenizer.eos_token_id] if reads_last else []

    def _tokenize(self, texts: list[str], limit: int | None, **options: Any) -> list[list[int]]:
        if not texts:
            return []
        cut = {} if limit is None else {"truncation": True, "max_length": limit}
        return self.tokenizer(texts, return_attention_mask=False, **cut, **options)["input_ids"]
