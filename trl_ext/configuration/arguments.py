"""What the recipes take besides TRL's own options."""

from dataclasses import dataclass, field

from ..data import REVIEWS


@dataclass
class PreferenceArguments:
    """Pairs of which one is preferred, and what is watched."""

    dataset_name: str = field(default=REVIEWS, metadata={"help": "`reviews`, a local file or folder, or a hub id."})
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a hub dataset."})
    dataset_train_split: str = field(default="train", metadata={"help": "Split to train on."})
    dataset_test_split: str = field(default="test", metadata={"help": "Held-out split; `none`: no held-out accuracy."})
    num_pairs: int = field(default=10_000, metadata={"help": "Pairs of `reviews` to train on; 600 are held out."})
    min_gap: float = field(default=1.5, metadata={"help": "Smallest difference of ratings (-4..4) in `reviews`."})
    on_critical: str = field(
        default="warn", metadata={"help": "On a critical alert: `warn`, or `stop` to save a checkpoint and stop."}
    )


@dataclass
class RLScriptArguments:
    """Prompts, rewards, what is shown and watched, and when to stop."""

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
    value_model_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "A value network of its own, for PPO and baseline='value': a folder or hub id whose body it starts "
            "from, often the policy's. Default: a head on the policy (stock PPO: a copy of the policy's body)."
        },
    )
    samples_every: int = field(default=100, metadata={"help": "Steps between two tables of sample completions."})
    patience: int | None = field(
        default=None,
        metadata={
            "help": "Values of best_metric in a row without improvement after which training stops, with the best "
            "model restored; in validations where there are such, else in logs. Default: no stopping, the last model."
        },
    )
    min_improvement: float = field(default=0.0, metadata={"help": "By how much a value must beat the best."})
    best_metric: str = field(
        default="reward",
        metadata={"help": "What patience watches, as logged; with validation_frequency its value on held-out prompts."},
    )
    validation_frequency: int | None = field(
        default=None, metadata={"help": "Steps between two evaluations on held-out prompts (PPO: updates)."}
    )
    validation_prompts: int | None = field(
        default=128, metadata={"help": "Held-out prompts, the first so many of the split; None: all."}
    )
    dataset_test_split: str = field(default="test", metadata={"help": "Split of the held-out prompts."})
    time_budget: float | None = field(
        default=None, metadata={"help": "Hours, counted once the options are read, after which it saves and stops."}
    )
