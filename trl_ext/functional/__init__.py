"""Pure tensor mathematics. Imports torch and nothing else; tensors in, tensors out, no state.

Notation: B completions of at most T tokens. A `mask` (B, T) is 1 where the policy chose the token, 0 elsewhere
(padding, tool results, completions that could not be scored).
"""

from .advantages import (
    against_the_batch,
    against_the_mean,
    gae,
    gae_over_turns,
    leave_one_out,
    scaled_by_group,
)
from .kl import kl_estimate
from .log_probs import token_log_probs
from .losses import clipped_value_loss, explained_variance
from .masking import at_last_token, learning_mask, masked_mean, masked_whiten, with_terminal_state
from .schedules import decayed

__all__ = [
    "against_the_batch",
    "against_the_mean",
    "at_last_token",
    "clipped_value_loss",
    "decayed",
    "explained_variance",
    "gae",
    "gae_over_turns",
    "kl_estimate",
    "learning_mask",
    "leave_one_out",
    "masked_mean",
    "masked_whiten",
    "scaled_by_group",
    "token_log_probs",
    "with_terminal_state",
]
