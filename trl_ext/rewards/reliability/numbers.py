"""Statistics of arrays that hold ties and gaps."""

import numpy as np


def ramp(value: float, good: float, bad: float) -> float:
    """1 up to `good`, 0 from `bad` on, a straight line between; `good` may lie above `bad`."""
    return float(np.clip((bad - value) / (bad - good), 0.0, 1.0))


def ranks(values: np.ndarray) -> np.ndarray:
    """From 0; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + last - 1) / 2)[inverse]


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:
    """Rank correlation of the pairs without NaN; `None` for fewer than 8 pairs, or where one of the two is constant."""
    known = ~(np.isnan(x) | np.isnan(y))
    if known.sum() < 8:
        return None
    return correlation(ranks(x[known]), ranks(y[known]))


def correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Pearson's; `None` where one of the two is constant."""
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else None


def slope(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Weighted least squares of `y` on `x`: the slope, and how many of its standard errors it lies from 0.

    The error comes from the scatter around the line; 0, 0 for fewer than four points or a single `x`.
    """
    total = weight.sum()
    if len(x) < 4 or total <= 0:
        return 0.0, 0.0
    dx = x - (weight @ x) / total
    spread = float(weight @ dx**2)
    if spread == 0:
        return 0.0, 0.0
    dy = y - (weight @ y) / total
    b = float(weight @ (dx * dy)) / spread
    residual = float(weight @ (dy - b * dx) ** 2) / (len(x) - 2)
    error = (residual / spread) ** 0.5
    if error == 0:
        return b, float(np.sign(b)) * np.inf if b else 0.0
    return b, b / error
