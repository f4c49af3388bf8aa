"""The named sizes of encoders, counted."""

from dataclasses import dataclass

import torch

from bert_core.config import PUBLISHED_VOCABULARIES, SIZES, encoder_config
from bert_core.model.catalogue import EncoderModel, count_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSize:
    """A named size, and the parameters of encoder and pooler over each published vocabulary."""

    name: str
    num_layers: int
    hidden_size: int
    num_parameters: dict[str, int]  # by vocabulary and its size, such as "cased 28,996"


def encoder_sizes() -> list[EncoderSize]:
    """All named sizes, from the smallest to the largest."""
    return [
        EncoderSize(
            name=name,
            num_layers=num_layers,
            hidden_size=hidden_size,
            num_parameters={
                f"{vocabulary} {vocab_size:,}": _count(name, vocab_size)
                for vocabulary, vocab_size in PUBLISHED_VOCABULARIES.items()
            },
        )
        for name, (num_layers, hidden_size, _) in SIZES.items()
    ]


def _count(name: str, vocab_size: int) -> int:
    with torch.device("meta"):  # counted without memory
        return count_parameters(EncoderModel(encoder_config(name, vocab_size)))
