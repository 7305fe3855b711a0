"""Batch arithmetic whose errors name the numbers that would work."""

import os

from ..errors import UserError


def divisors(number: int) -> list[int]:
    """All divisors of a positive integer, ascending."""
    return [d for d in range(1, number + 1) if number % d == 0]


def neighbours(number: int, step: int) -> str:
    """The multiples of `step` next to `number`, as words: what a batch size could be instead."""
    below = number // step * step
    return f"{below + step}" if below == 0 else f"{below} or {below + step}"


def launched_processes() -> int:
    """Number of processes, from the launcher: `TrainingArguments.world_size` exists only after its own post-init."""
    return int(os.environ.get("WORLD_SIZE", 1))


def require_divisible(name: str, number: int, made_of: str, divisor_name: str, divisor: int, minimum: int = 1) -> None:
    """Raise a `UserError` unless `number` is a multiple of `divisor`, naming the values of either that would do."""
    if divisor < minimum or number % divisor:
        fitting = ", ".join(str(d) for d in divisors(number) if d >= minimum)
        raise UserError(
            f"{name} = {made_of} = {number} is not a multiple of {divisor_name} = {divisor}: set {divisor_name} to one "
            f"of {fitting or 'nothing smaller'}, or make the product {neighbours(number, max(divisor, minimum))}."
        )
