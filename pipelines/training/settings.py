"""Settings of the trainings."""

from typing import Literal

from pydantic import Field

from pipelines.settings import Settings


class TrainingSettings(Settings):
    """The optimizer, its schedule and the cadence of a training."""

    learning_rate: float = Field(
        default=1e-4, gt=0, le=1, description="Peak learning rate, reached after the warm-up."
    )
    warmup_fraction: float = Field(
        default=0.1, ge=0, le=1, description="Share of the steps over which the rate rises."
    )
    schedule: Literal["linear", "cosine", "constant"] = Field(
        default="linear", description="How the learning rate falls after the warm-up."
    )
    weight_decay: float = Field(
        default=0.01, ge=0, le=1, description="Decoupled weight decay; none on biases and norms."
    )
    max_gradient_norm: float = Field(
        default=1.0, gt=0, description="Gradients are scaled down to this global norm."
    )
    dropout: float = Field(
        default=0.1, ge=0, lt=1, description="Dropout on hidden states and attention."
    )
    precision: Literal["auto", "bf16", "float32"] = Field(
        default="auto",
        description="Arithmetic of matrix products; auto: bf16 where the machine computes in it. "
        "Weights stay float32.",
    )
    seed: int = Field(
        default=0, ge=0, lt=2**31, description="Seed of initialization, order, masks and dropout."
    )
    log_every_steps: int = Field(
        default=10, ge=1, description="Optimizer steps between two points of the training curve."
    )
    checkpoint_every_steps: int = Field(
        default=500, ge=1, description="Optimizer steps between two checkpoints."
    )


class PretrainingSettings(TrainingSettings):
    """The encoder's size and how long, how wide and how fast it is pretrained."""

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = Field(
        default="mini",
        description="Layers x width: tiny 2x128, mini 4x256, small 4x512, medium 8x512, "
        "base 12x768, large 24x1024.",
    )
    num_steps: int = Field(default=1000, ge=1, description="Optimizer steps.")
    examples_per_step: int = Field(
        default=64, ge=1, description="Examples of one optimizer step, over all workers."
    )
    micro_batch_examples: int = Field(
        default=64,
        ge=1,
        description="Examples that one worker computes at once; a step is cut into these.",
    )
    learning_rate: float = Field(
        default=1e-3, gt=0, le=1, description="Peak learning rate, reached after the warm-up."
    )
    evaluate_every_steps: int = Field(
        default=200, ge=1, description="Optimizer steps between two held-out evaluations."
    )
    evaluation_examples: int = Field(
        default=512, ge=1, description="Held-out examples of the evaluations during training."
    )
    final_evaluation_examples: int = Field(
        default=20_000, ge=1, description="Held-out examples of the final evaluation."
    )


class FinetuningSettings(TrainingSettings):
    """How a classifier is trained from an encoder."""

    num_epochs: float = Field(default=3.0, gt=0, description="Passes over the labelled texts.")
    examples_per_step: int = Field(
        default=32, ge=1, description="Texts of one optimizer step, over all workers."
    )
    micro_batch_examples: int = Field(
        default=32, ge=1, description="Texts that one worker computes at once."
    )
    learning_rate: float = Field(
        default=2e-4, gt=0, le=1, description="Peak learning rate, reached after the warm-up."
    )
    max_tokens: int | None = Field(
        default=None,
        ge=8,
        description="Longer texts are cut to so many tokens; empty: to what the encoder reads.",
    )
    num_evaluations: int = Field(
        default=5, ge=1, description="Held-out evaluations during training, the last one included."
    )
    compare_with_random: bool = Field(
        default=True,
        description="Train a second classifier from random weights with the same budget, to "
        "show what the pretraining is worth.",
    )
