"""The learning rate of a run, in words."""

from typing import Any

_FALLS = {
    "linear": "falls in a line to 0",
    "cosine": "falls along a cosine to 0",
    "constant": "stays",
    "constant_with_warmup": "stays",
    "inverse_sqrt": "falls with the root of the step",
    "polynomial": "falls along a polynomial",
}


def schedule_in_words(args: Any, total_steps: int | None, steps_per_update: int = 1) -> str:
    """`"1e-05: rises over 10 of 500 optimizer steps, then falls in a line to 0"`.

    Args:
        args: a config object.
        total_steps: optimizer steps of the run, `None` where they are not known.
        steps_per_update: optimizer steps in what `warmup_steps` counts: more than 1 for PPO's updates.
    """
    name = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    after = _FALLS.get(name, f"follows {name}")
    if args.lr_scheduler_kwargs:
        after += f" ({', '.join(f'{key} {value}' for key, value in args.lr_scheduler_kwargs.items())})"
    warmup = args.warmup_steps * steps_per_update if args.warmup_steps >= 1 else args.warmup_steps
    rate = f"{args.learning_rate:g}"
    if not warmup or name == "constant":  # which has no warm-up
        return f"{rate}: {after}"
    if warmup < 1 and total_steps is None:
        return f"{rate}: rises over {warmup:.0%} of the steps, then {after}"
    steps = args.get_warmup_steps(total_steps or 0) if warmup < 1 else int(warmup)
    return f"{rate}: rises over {steps} of {total_steps or 'the'} optimizer steps, then {after}"
