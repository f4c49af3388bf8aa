"""The named sizes of encoders, counted, and the learning rates that follow from a size."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bert_core.config import PUBLISHED_VOCABULARIES, SIZES, encoder_config
from bert_core.model.catalogue import EncoderModel, count_parameters
from pipelines.stage import StageContext
from pipelines.training.settings import Shape, Use, automatic_rate_note


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


class _Sizes(NamedTuple):
    num_layers: int
    hidden_size: int


def automatic_rates_note(recipe: Any, context: StageContext) -> list[str]:
    """The value of `auto` in each section of `recipe` that has it, without starting a run.

    For an encoder in the registry only a run can say it.
    """
    notes = []
    uses: tuple[Use, ...] = ("pretraining", "finetuning")
    for use in uses:
        settings = getattr(recipe, use, None)
        if settings is None or settings.learning_rate != "auto":
            continue
        reference = settings.encoder or recipe.pretraining.encoder
        shape = _shape_of(reference, recipe.pretraining.size, context)
        unknown = f"learning_rate=auto follows the size of {reference}"
        notes.append(f"{use}: {automatic_rate_note(use, shape) if shape else unknown}")
    return notes


def _shape_of(reference: str | None, size: str | None, context: StageContext) -> Shape | None:
    """That of an encoder in a folder or in the store, or of one with random weights."""
    if reference is None:
        return None if size is None else _Sizes(*SIZES[size][:2])
    from bert_core.files import read_json
    from bert_core.hugging_face import model_folder
    from pipelines.training.imported_models import find_model_artifact, is_ours

    artifact = find_model_artifact(reference, context.store)
    folder = artifact.local_folder() if artifact else Path(reference)
    if not folder.is_dir():
        return None
    is_own = is_ours(folder)
    config = read_json(model_folder(folder) / "config.json")
    if is_own:
        return _Sizes(config["encoder"]["num_layers"], config["encoder"]["hidden_size"])
    return _Sizes(config.get("num_hidden_layers", 12), config.get("hidden_size", 768))
