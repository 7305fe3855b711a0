"""What the command line must know before it loads anything."""

FAMILIES = ("options", "dataset", "tokenizer", "alignment", "masks", "reference", "advantages", "rewards", "gradient",
            "mini_run")  # fmt: skip
TRAINERS = ("reinforce_loo", "ppo", "grpo", "rloo")  # those that preflight builds without a script
