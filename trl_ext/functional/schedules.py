"""Coefficients that change over training."""


def decayed(start: float, decay: float, floor: float, step: int) -> float:
    """start * decay**step, and never less than `floor`; a `start` below the floor stays as it is.

    Args:
        decay: share that is left after each step, 0 to 1.
        step: optimizer steps so far.
    """
    return max(start * decay**step, min(floor, start))
