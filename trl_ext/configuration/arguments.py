"""What the reinforcement learning recipes take besides TRL's own options."""

from dataclasses import dataclass, field

from ..data import REVIEWS


@dataclass
class RLScriptArguments:
    """Prompts, rewards, and what is shown and watched."""

    dataset_name: str = field(
        default=REVIEWS, metadata={"help": "`reviews`, `review_agent`, a local file or folder, or a hub id."}
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a hub dataset."})
    dataset_train_split: str = field(default="train", metadata={"help": "Split to train on."})
    dataset_prompt_column: str = field(default="prompt", metadata={"help": "Column with texts or lists of messages."})
    reward_funcs: list[dict | str] = field(
        default_factory=lambda: ["sentiment"],
        metadata={
            "help": "Names (trl-ext rewards list), dotted paths, file.py:function, or models; in YAML also "
            "{name, weight, kwargs, on_failure, timeout}."
        },
    )
    gold_reward: dict | str | None = field(
        default=None,
        metadata={"help": "A measure of the truth that is watched and not trained on, named as in reward_funcs."},
    )
    gold_every: int = field(default=10, metadata={"help": "Steps between two questions to `gold_reward`."})
    probe_set: str | None = field(
        default=None, metadata={"help": "JSON Lines of completions with a known score, for the reward to rank."}
    )
    rescore_every: int = field(
        default=50, metadata={"help": "Steps between two probes of the rewards' reliability; 0: none."}
    )
    on_critical: str = field(
        default="warn", metadata={"help": "On a critical alert: `warn`, or `stop` to save a checkpoint and stop."}
    )
    samples_every: int = field(default=100, metadata={"help": "Steps between two tables of sample completions."})
