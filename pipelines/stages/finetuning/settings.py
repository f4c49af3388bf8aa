"""The settings of a fine-tuning."""

from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipelines.settings import Settings
from pipelines.train.settings import BatchSplit, PeakRate, TrainingSettings

Rate = Annotated[float, Field(gt=0, le=1)]
NumEpochs = Annotated[float, Field(gt=0, le=10**6)]


# Devlin et al., 2019, appendix A.3, for BERT-base: rates of 5e-5, 3e-5 and 2e-5, two, three and
# four epochs. The same around other rates and epochs:
_RATES_OF_PAPER = (1.0, 0.6, 0.4)
_EPOCHS_OF_PAPER = (2 / 3, 1.0, 4 / 3)


def _times(value: float, scales: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(f"{value * scale:.3g}") for scale in scales)


class SearchSettings(Settings):
    """Values to try of a fine-tuning, all combinations of them; an empty list: the recipe's own."""

    learning_rate: tuple[Rate, ...] | Literal["auto"] = Field(
        default=(),
        description="Peak learning rates; auto: the recipe's, and 0.6 and 0.4 times that.",
    )
    global_batch_size: tuple[Annotated[int, Field(ge=1, le=10**9)], ...] = Field(
        default=(), description="Texts of one optimizer step."
    )
    num_epochs: tuple[NumEpochs, ...] | Literal["auto"] = Field(
        default=(),
        description="Passes over the labelled texts; auto: the recipe's, a third fewer and a third "
        "more.",
    )
    embeddings_rate: tuple[Annotated[float, Field(gt=0, le=10**6)], ...] = Field(
        default=(), description="How many times the rate the embeddings learn at."
    )

    def around(self, learning_rate: float, num_epochs: float) -> "SearchSettings":
        """The same with numbers in place of each `auto`, around the recipe's."""
        values: dict[str, Any] = {}
        if self.learning_rate == "auto":
            values["learning_rate"] = _times(learning_rate, _RATES_OF_PAPER)
        if self.num_epochs == "auto":
            values["num_epochs"] = _times(num_epochs, _EPOCHS_OF_PAPER)
        return self.model_copy(update=values)

    def points(self) -> list[dict[str, Any]]:
        """Every combination, in the order of the values; one that changes nothing without any."""
        tried = {
            name: values for name in type(self).model_fields if (values := getattr(self, name))
        }
        return [dict(zip(tried, point, strict=True)) for point in product(*tried.values())]


class FinetuningSettings(TrainingSettings):
    """How a model of a task is trained from an encoder."""

    encoder: str | None = Field(
        default=None,
        min_length=1,
        description="The encoder to start from, in place of one that is pretrained: a folder (ours "
        "or a published BERT), models:/<name>@<alias>, or the fingerprint of one in the store. "
        "Corpus, vocabulary, examples and pretraining are left out. Empty: the recipe's own.",
    )
    num_epochs: NumEpochs | Literal["auto"] = Field(
        default="auto",
        description="Passes over the labelled texts; auto: more over few of them, 20 over 500, 10 "
        "over 2,000 and 3 over 17,000 and more.",
    )
    global_batch_size: int = Field(
        default=32, ge=1, le=10**9, description="Texts of one optimizer step, over all workers."
    )
    micro_batch_size: int = Field(
        default=16,
        ge=1,
        le=10**9,
        description="Texts that one worker computes at once. A step is cut into these, and at "
        "most as many workers share it.",
    )
    learning_rate: PeakRate = Field(
        default="auto",
        description="Peak learning rate, reached after the warm-up; auto: as goes with the "
        "encoder's size, 5e-5 for BERT-base and 1e-3 for BERT-tiny.",
    )
    layer_decay: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Each layer learns at so many times the rate of the one above it, the "
        "embeddings slowest, the head at the whole rate; 1: all alike.",
    )
    embeddings_rate: float = Field(
        default=1.0,
        gt=0,
        le=10**6,
        description="The embeddings learn at so many times the rate. An encoder that saw little "
        "text knows few words well: they have most to learn from the labels (docs/tasks.md).",
    )
    freeze_embeddings: bool = Field(
        default=False, description="Leave the encoder's embeddings as they are."
    )
    freeze_layers: int = Field(
        default=0,
        ge=0,
        description="Leave so many of the encoder's lowest layers as they are. With the embeddings "
        "and all layers, the head alone learns.",
    )
    pooling: Literal["auto", "pooler", "mean"] = Field(
        default="auto",
        description="What the head for whole texts reads. pooler: a layer over the first token, as "
        "published; mean: the mean of all tokens, which small encoders and few labels gain by; "
        "auto: the mean, but the pooler for a published encoder that does not make its sentence "
        "vectors of a mean.",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=8,
        description="Longer texts are cut to this many tokens, in training and by the published "
        "model; empty: to what the encoder reads.",
    )
    long_texts: Literal["cut", "windows"] = Field(
        default="cut",
        description="Texts of one or several classes that are longer than max_tokens lose their "
        "end, or are learned and answered in windows: each learns the text's classes, and their "
        "mean probability answers.",
    )
    validation_items: Annotated[int, Field(ge=0, le=10**9)] | Literal["auto"] = Field(
        default="auto",
        description="So many training items, at most half, are not learned from: they say how "
        "sure the model may be of its answers, and with `patience` when to stop. Held-out items "
        "have no part in that. auto: 100 of 1,000 items and more, for tasks with probabilities "
        "that are not means over windows, else none; with `patience` a tenth, at most 1,000.",
    )
    num_evaluations: Annotated[int, Field(ge=1, le=10**9)] | Literal["auto"] = Field(
        default="auto",
        description="Evaluations during training on the validation items (without any, on the "
        "held-out ones), the last one included; auto: 5, and with patience two an epoch.",
    )
    patience: int | None = Field(
        default=None,
        ge=1,
        description="Stop after so many evaluations without a lower validation loss, and publish "
        "the weights of the best one; empty: take all steps, and publish the last weights, which "
        "few items gain by (docs/decisions/0069).",
    )
    num_seeds: int = Field(
        default=1,
        ge=1,
        le=100,
        description="Train so many models, with this seed and those after it. Figures are reported "
        "with mean and deviation, and the model with the best held-out score is published.",
    )
    search: SearchSettings = Field(
        default_factory=SearchSettings,
        description="Values to try; those with the best held-out score are taken. All are tried "
        "with the first seed, the best with the others.",
    )
    compare_with_random: bool = Field(
        default=False,
        description="Train a second model from random weights with the same budget, to "
        "show what the pretraining is worth.",
    )

    @model_validator(mode="after")
    def _patience_has_items(self) -> "FinetuningSettings":
        if self.patience is not None and self.validation_items == 0:
            raise ValueError("patience needs validation_items, which are 0; leave one of them out")
        return self

    @model_validator(mode="after")
    def _seeds_fit(self) -> "FinetuningSettings":
        if self.seed + self.num_seeds > 2**31:
            raise ValueError(
                f"seed={self.seed} and num_seeds={self.num_seeds} reach beyond the largest seed, "
                f"{2**31 - 1}; lower one of them"
            )
        return self

    @property
    def is_one_training(self) -> bool:
        """Whether neither seeds nor values are compared."""
        return self.num_seeds == 1 and self.search == SearchSettings()


def split_of(settings: FinetuningSettings) -> BatchSplit:
    """What the workers of one training run share."""
    return BatchSplit(
        section="finetuning",
        global_batch_size=settings.global_batch_size,
        micro_batch_size=settings.micro_batch_size,
    )
