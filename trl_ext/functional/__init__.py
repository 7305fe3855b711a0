"""Pure tensor mathematics. Imports torch and nothing else; tensors in, tensors out, no state.

Notation: B completions of at most T tokens. A `mask` (B, T) is 1 where the policy chose the token, 0 elsewhere
(padding, tool results, completions that could not be scored).
"""

from .advantages import gae, leave_one_out
from .kl import kl_estimate
from .log_probs import token_log_probs
from .losses import clipped_value_loss, explained_variance
from .masking import at_last_token, masked_mean, masked_whiten, with_terminal_state

__all__ = [
    "at_last_token",
    "clipped_value_loss",
    "explained_variance",
    "gae",
    "kl_estimate",
    "leave_one_out",
    "masked_mean",
    "masked_whiten",
    "token_log_probs",
    "with_terminal_state",
]
