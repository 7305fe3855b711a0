"""Reward modules written for the PPO that TRL dropped: an `nn.Module` with `base_model_prefix` and a `score` head."""

from typing import Any

import torch
from transformers import PreTrainedModel
from trl.trainer.utils import pad


def last_hidden_states(backbone: Any, **inputs: Any) -> torch.Tensor:
    """`(B, L, hidden)` of a model with a `score` head, by the call that stock PPO makes. Of Transformers' own models
    the states of the other layers are not asked for: they would be kept for nothing, and no layer be compiled."""
    if isinstance(backbone, PreTrainedModel) and getattr(backbone.config, "tie_last_hidden_states", None) is not False:
        output = backbone(**inputs, return_dict=True, use_cache=False)
        if getattr(output, "last_hidden_state", None) is not None:
            return output.last_hidden_state
    return backbone(**inputs, return_dict=True, output_hidden_states=True, use_cache=False).hidden_states[-1]


@torch.no_grad()
def score_completions(
    reward_model: Any, prompt_ids: list, completion_ids: list, pad_token_id: int, batch_size: int, device
) -> list[float]:
    """The `score` head at the last token of prompt + completion, on the very tokens that were sampled.

    The call and the layout (prompts padded left, completions right) are those of TRL's `get_reward` (1.12), which such
    modules rely on: the backbone with `output_hidden_states`, then `score` on the last hidden states of the sequence.

    Args:
        prompt_ids, completion_ids (`list[list[int]]`): token ids without padding, one row a completion.
        batch_size (`int`): rows in one forward.
    """
    backbone, scores = getattr(reward_model, reward_model.base_model_prefix), []
    for start in range(0, len(prompt_ids), batch_size):
        prompts, completions = (
            [torch.tensor(ids) for ids in rows[start : start + batch_size]] for rows in (prompt_ids, completion_ids)
        )
        sides = [(prompts, "left"), (completions, "right")]
        ids = torch.cat([pad(rows, padding_value=pad_token_id, padding_side=side) for rows, side in sides], 1)
        mask = torch.cat(
            [pad([torch.ones_like(row) for row in rows], padding_value=0, padding_side=side) for rows, side in sides], 1
        )
        last = ids.size(1) - 1 - mask.flip(1).argmax(1)
        ids, mask, last = ids.to(device), mask.to(device).bool(), last.to(device)
        hidden = last_hidden_states(
            backbone,
            input_ids=ids.masked_fill(~mask, 0),
            attention_mask=mask,
            position_ids=mask.cumsum(1) - mask.long(),
        )
        values = reward_model.score(hidden).squeeze(-1)
        scores += values[torch.arange(len(prompts), device=device), last].tolist()
    return scores
