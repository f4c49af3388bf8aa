"""The peak learning rate that `auto` means: it follows the encoder's size.

A small encoder learns at twenty times the rate of BERT-base, and at the small one's rate BERT-base
loses what it knows. Each rule is a line through two encoders, in the logarithms of layers x width
and rate, for steps of about 32 examples and AdamW (Muon's steps are scaled to AdamW's).
Measured on an encoder between the two in docs/decisions/0036.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, Protocol

from pipelines.stage import Observer, Progress

Use = Literal["pretraining", "finetuning"]


class Shape(Protocol):
    """What of an encoder's config decides its rate."""

    @property
    def num_layers(self) -> int:
        """How many layers it has."""

    @property
    def hidden_size(self) -> int:
        """How wide they are."""


# (BERT-tiny's, BERT-base's). Fine-tuning: Devlin et al. (2019), appendix A.3, has 5e-5 to 2e-5 for
# base; pretraining: going on, Gururangan et al. (2020) and Sun et al. (2019) have 1e-4 to 5e-5.
_RATES: Final[Mapping[Use, tuple[float, float]]] = MappingProxyType(
    {"pretraining": (5e-4, 5e-5), "finetuning": (1e-3, 5e-5)}
)
_TINY, _BASE = 2 * 128, 12 * 768


def automatic_rate(use: Use, encoder: Shape) -> float:
    """The peak rate at which `encoder` is pretrained further, or fine-tuned; two digits.

    Below BERT-tiny's size it is BERT-tiny's.
    """
    tiny, base = _RATES[use]
    size = max(_TINY, encoder.num_layers * encoder.hidden_size)
    slope = math.log(base / tiny) / math.log(_BASE / _TINY)
    return float(f"{tiny * (size / _TINY) ** slope:.1e}")


def resolved_rate(
    rate: float | Literal["auto"], use: Use, encoder: Shape, observe: Observer
) -> float:
    """`rate`, or what `auto` means for this encoder, which is said to `observe`."""
    if isinstance(rate, float):
        return rate
    note = f"{use}: {automatic_rate_note(use, encoder)}"
    observe(Progress(stage=use, done=0, total=0, unit="steps", note=note))
    return automatic_rate(use, encoder)


def automatic_rate_note(use: Use, encoder: Shape) -> str:
    """What `auto` means for this encoder, in a phrase."""
    return (
        f"learning_rate=auto is {automatic_rate(use, encoder):g} for an encoder of "
        f"{encoder.num_layers} layers of width {encoder.hidden_size}"
    )
