"""Sums over a block, a part at a time that stays in the processor's cache.

Compiled by TorchScript, which runs all of a function without Python's lock: threads that come back to Python after each
operation wait for each other (measured: 1.8 times as fast on two cores, 1.3 times without), and training waits for
them. PyTorch has deprecated it; where it cannot compile, the same functions run as they are.
"""

import warnings

import torch
from torch import Tensor

PART = 1 << 19  # elements: bfloat16 of one tensor fill half of a core's cache
FLOAT32_PART = 1 << 17  # of two tensors as float32


def channels(size: int) -> int:
    """That a part of so many elements is seen as, each of which fits the processor's nearest cache."""
    return 64 if size % 64 == 0 else 1


def _moments(values: Tensor, integers: Tensor, mask: int, part: int) -> tuple[Tensor, Tensor]:
    """Of bfloat16, float16 or float32, shape `(elements,)`; `integers` are their bits, of which `mask` takes the
    magnitude, and are overwritten with it.

    Returns:
        The means and variances of the channels of all parts (of float32: the sum and the sum of squares of each part),
        float64 of shape `(2, channels)`. The smallest and largest magnitude of each part, one after the other, as
        integers.
    """
    firsts: list[Tensor] = []
    seconds: list[Tensor] = []
    ends: list[Tensor] = []
    for start in range(0, values.size(0), part):
        size = min(part, values.size(0) - start)
        numbers = values.narrow(0, start, size)
        if values.dtype == torch.float32:
            firsts.append(numbers.sum().view([1]))
            seconds.append(numbers.dot(numbers).view([1]))
        else:
            # The statistics of batch normalization: mean and variance in two passes that convert in registers, where
            # converting to float32 first takes twice the time. Running statistics are asked for and never looked at
            parts = channels(size)
            unused = torch.zeros([parts])
            mean, variance = torch.batch_norm_update_stats(numbers.view([1, parts, -1]), unused, unused, 0.0)
            firsts.append(mean)
            seconds.append(variance)
        low, high = torch.aminmax(integers.narrow(0, start, size).bitwise_and_(mask))
        ends.append(low)
        ends.append(high)
    return torch.stack([torch.cat(firsts), torch.cat(seconds)]).double(), torch.stack(ends)


def _compared_moments(
    values: Tensor, other: Tensor, integers: Tensor, mask: int, part: int, own_part: Tensor, other_part: Tensor
) -> tuple[Tensor, Tensor]:
    """The same of two tensors, which become float32 in `own_part` and `other_part`.

    Returns:
        Of each such part the sum, its sum of squares, those of `other` and of the difference, float64 of shape
        `(parts, 4)`. Magnitudes as above.
    """
    sums: list[Tensor] = []
    ends: list[Tensor] = []
    float32_part = own_part.size(0)
    for start in range(0, values.size(0), float32_part):
        size = min(float32_part, values.size(0) - start)
        own = own_part.narrow(0, 0, size)
        beside = other_part.narrow(0, 0, size)
        own.copy_(values.narrow(0, start, size))
        beside.copy_(other.narrow(0, start, size))
        sums.append(own.sum())
        sums.append(own.dot(own))
        sums.append(beside.dot(beside))
        own.sub_(beside)
        sums.append(own.dot(own))
    for start in range(0, values.size(0), part):
        size = min(part, values.size(0) - start)
        low, high = torch.aminmax(integers.narrow(0, start, size).bitwise_and_(mask))
        ends.append(low)
        ends.append(high)
    return torch.stack(sums).view([-1, 4]).double(), torch.stack(ends)


def _compiled(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.jit.script(function)
        except Exception:  # no source at hand, a Python that it does not support, gone from torch
            return function


moments = _compiled(_moments)
compared_moments = _compiled(_compared_moments)
