"""Scores of numbers: Pearson's and Spearman's correlation, from scipy, and the squared error."""

from collections.abc import Sequence

import numpy as np


def number_figures(answered: Sequence[float], expected: Sequence[float]) -> dict[str, float]:
    """The correlations and the mean squared error; a correlation with a constant is 0."""
    from scipy.stats import pearsonr, spearmanr

    said, true = np.asarray(answered, np.float64), np.asarray(expected, np.float64)
    is_constant = len(said) < 2 or np.ptp(said) == 0 or np.ptp(true) == 0
    return {
        "eval/pearson": 0.0 if is_constant else float(pearsonr(said, true).statistic),
        "eval/spearman": 0.0 if is_constant else float(spearmanr(said, true).statistic),
        "eval/squared_error": float(np.mean((said - true) ** 2)),
    }
