"""What the fine-tuning can be told."""

import math
from typing import Literal

from pydantic import Field

from pipelines.training.settings import TrainingSettings


class FinetuningSettings(TrainingSettings):
    """How a model of a task is trained from an encoder."""

    encoder: str | None = Field(
        default=None,
        min_length=1,
        description="The encoder to start from, in place of one that is pretrained: a folder (ours "
        "or a published BERT), models:/<name>@<alias>, or the fingerprint of one in the store. "
        "Corpus, vocabulary, examples and pretraining are left out. Empty: the recipe's own.",
    )
    num_epochs: float = Field(
        default=3.0, gt=0, le=10**6, description="Passes over the labelled texts."
    )
    examples_per_step: int = Field(
        default=32, ge=1, le=10**9, description="Texts of one optimizer step, over all workers."
    )
    micro_batch_examples: int = Field(
        default=16,
        ge=1,
        le=10**9,
        description="Texts that one worker computes at once. A step is cut into these, and at "
        "most as many workers share it.",
    )
    learning_rate: float = Field(
        default=2e-4, gt=0, le=1, description="Peak learning rate, reached after the warm-up."
    )
    layer_decay: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Each layer learns at so many times the rate of the one above it, the "
        "embeddings slowest, the head at the whole rate; 1: all alike.",
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
    label_smoothing: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of each item's class that the loss gives to all classes alike.",
    )
    class_weights: Literal["equal", "balanced"] = Field(
        default="equal",
        description="What an item of a rare class counts: as much as any, or more, so that all "
        "classes together count alike.",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=8,
        description="Longer texts are cut to so many tokens; empty: to what the encoder reads.",
    )
    window_stride: int | None = Field(
        default=None,
        ge=1,
        description="Tokens by which windows advance over what is longer than max_tokens: contexts "
        "of questions, sentences that are tagged; empty: half a window. Other texts are cut.",
    )
    num_evaluations: int = Field(
        default=5,
        ge=1,
        le=10**9,
        description="Held-out evaluations during training, the last one included.",
    )
    compare_with_random: bool = Field(
        default=True,
        description="Train a second model from random weights with the same budget, to "
        "show what the pretraining is worth.",
    )

    def evaluate_every_steps(self, num_steps: int) -> int:
        """How many steps lie between evaluations: never more of these than were asked for."""
        return math.ceil(num_steps / self.num_evaluations)
