"""Statistics of arrays that hold ties and gaps."""

import numpy as np

_FEWEST = 8  # pairs
_CHANCE = 1.0  # standard errors of a correlation, 1 / sqrt(n): less is none


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
    if known.sum() < _FEWEST:
        return None
    return correlation(ranks(x[known]), ranks(y[known]))


def spearman_of_pairs(columns: np.ndarray) -> dict[tuple[int, int], float]:
    """`spearman` of each pair of columns; shape `(n, columns)`. Columns without NaN are ranked once, not for each."""
    whole = ~np.isnan(columns).any(axis=0)
    ranked = {i: ranks(columns[:, i]) for i in range(len(whole)) if whole[i]} if len(columns) >= _FEWEST else {}
    found = {}
    for i in range(columns.shape[1]):
        for j in range(i + 1, columns.shape[1]):
            both = i in ranked and j in ranked
            value = correlation(ranked[i], ranked[j]) if both else spearman(columns[:, i], columns[:, j])
            if value is not None:
                found[i, j] = value
    return found


def correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Pearson's; `None` where one of the two is constant."""
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else None


def slope(x: np.ndarray, y: np.ndarray, weight: np.ndarray, independent: bool = False) -> tuple[float, float]:
    """Weighted least squares of `y` on `x`: the slope, and how many of its standard errors it lies from 0.

    The error comes from the scatter around the line. Neighbours that err alike say less than as many independent ones:
    with the residuals' correlation r from each to the next the variance is (1 + r) / (1 - r) times as large (Bartlett),
    unless they are taken as `independent`. 0, 0 for fewer than four points or a single `x`.
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
    residuals = dy - b * dx
    scatter = float(weight @ residuals**2)
    error = (scatter / (len(x) - 2) / spread * (1.0 if independent else _inflation(residuals))) ** 0.5
    if error == 0:
        return b, float(np.sign(b)) * np.inf if b else 0.0
    return b, b / error


def _inflation(residuals: np.ndarray) -> float:
    """(1 + r) / (1 - r) for positive r, which is estimated too low by about (1 + 4 r) / n in a series of n."""
    squares = float(residuals @ residuals)
    if squares == 0:
        return 1.0
    n = len(residuals)
    r = float(residuals[1:] @ residuals[:-1]) / squares
    r = float(np.clip((r * n + 1) / max(n - 4, 1), 0.0, 0.95)) if r > _CHANCE / n**0.5 else 0.0
    return (1 + r) / (1 - r)
