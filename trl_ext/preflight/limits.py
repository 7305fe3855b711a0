"""From where on a number is worth a warning or a failure, and where that limit comes from."""

import math
from typing import NamedTuple


class Limit(NamedTuple):
    """A warning above `warn`, a failure above `fail`."""

    warn: float
    fail: float


# Mean absolute difference of log-probabilities, in nats a token, of two computations of the same tokens. The rounding
# of float32 comes to 1e-6 to 1e-4, of bfloat16 to 0.01 to 0.02 a token (Yao et al. 2025, "Your efficient RL framework
# secretly brings you off-policy RL training"); a position that is off by one, or dropout of 0.1, to 0.1 and more. A
# quantised base differs between a cached and a whole forward as half precision does.
LOGP_DIFFERENCE = {"float32": Limit(1e-3, 0.05), "half": Limit(0.05, 0.2)}

# Of the reference from the policy before the first step, in nats a token.
REFERENCE_DIFFERENCE = {"float32": Limit(1e-4, 0.01), "half": Limit(0.03, 0.1)}

# Groups whose completions all have the same reward teach nothing: the monitor's own limits (rule zero_signal).
ZERO_VARIANCE = Limit(0.5, 0.9499)
# Completions that end at the limit of tokens (rule all_truncated).
TRUNCATED = Limit(0.95, 1.1)
TRUNCATED_AND_MASKED = Limit(0.5, 0.9)  # mask_truncated_completions: so much of the batch teaches nothing
# Standard deviation of advantages. KL, entropy bonus and value loss are weighed for one of about 1.
LARGE_ADVANTAGES = Limit(100.0, math.inf)
UNSCORED = Limit(0.05, 0.5)  # completions without any reward
DUPLICATES = Limit(0.1, 1.1)  # rows of the dataset that stand in it already
TOO_LONG = Limit(0.01, 0.5)  # prompts that leave no room for a completion, or texts that are cut off
VALID_JSON = (0.5, 0.02)  # share of valid completions below which an agent learns slowly, or nothing

# Learning rates: (parameters of the model from which the row counts, full fine-tuning, adapters). Full fine-tuning with
# RL is done at 1e-7 to 1e-5 (TRL's defaults 1e-6 of GRPO and RLOO, 3e-6 of PPO; InstructGPT 9.65e-6 at 1.3 B),
# supervised at 1e-5 to 5e-5 (TRL 2e-5), preferences at 5e-7 to 5e-6 (TRL 1e-6; Zephyr 5e-7). Adapters want about ten
# times as much (Schulman et al. 2025, "LoRA without regret"). Small models bear more, about as 1 / width: the recipes
# here train a million parameters at 3e-4 to 2e-3. A warning is some times the usual range, a failure ten times that.
LEARNING_RATES: dict[str, list[tuple[float, Limit, Limit]]] = {
    "rl": [
        (1e9, Limit(2e-5, 2e-4), Limit(2e-4, 2e-3)),
        (1e8, Limit(5e-5, 5e-4), Limit(5e-4, 5e-3)),
        (0, Limit(2e-3, 2e-2), Limit(1e-2, 1e-1)),
    ],
    "sft": [
        (1e9, Limit(1e-4, 1e-3), Limit(1e-3, 1e-2)),
        (1e8, Limit(3e-4, 3e-3), Limit(2e-3, 2e-2)),
        (0, Limit(1e-2, 1e-1), Limit(2e-2, 2e-1)),
    ],
    "reward": [
        (1e9, Limit(5e-5, 5e-4), Limit(5e-4, 5e-3)),
        (1e8, Limit(2e-4, 2e-3), Limit(1e-3, 1e-2)),
        (0, Limit(5e-3, 5e-2), Limit(2e-2, 2e-1)),
    ],
    "dpo": [
        (1e9, Limit(1e-5, 1e-4), Limit(1e-4, 1e-3)),
        (1e8, Limit(5e-5, 5e-4), Limit(5e-4, 5e-3)),
        (0, Limit(2e-3, 2e-2), Limit(1e-2, 1e-1)),
    ],
}
LEAST_ADAPTER_RATE = 1e-6  # below it an adapter hardly moves: its B starts at zero


def learning_rate_limit(kind: str, parameters: int, adapter: bool) -> Limit:
    """For a trainer of `kind` (`rl`, `sft`, `reward`, `dpo`) and a model of so many parameters."""
    for least, full, lora in LEARNING_RATES[kind]:
        if parameters >= least:
            return lora if adapter else full
    raise AssertionError("the last row counts from 0")
