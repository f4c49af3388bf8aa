"""A loss as people compare language models by it."""

import math
from typing import Final

_LARGEST_LOSS: Final = 700.0  # its exponential is a number still, which JSON and MLflow can hold


def perplexity(loss: float) -> float:
    """Among how many equally likely tokens the model chooses: e to the loss, at most e**700."""
    return math.exp(min(loss, _LARGEST_LOSS))
