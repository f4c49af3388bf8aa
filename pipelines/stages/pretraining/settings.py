"""What the pretraining can be told."""

from typing import Literal

from pydantic import Field

from pipelines.training.settings import TrainingSettings


class PretrainingSettings(TrainingSettings):
    """The encoder's size and how long, how wide and how fast it is pretrained."""

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = Field(
        default="mini",
        description="Layers x width: tiny 2x128, mini 4x256, small 4x512, medium 8x512, "
        "base 12x768, large 24x1024.",
    )
    num_steps: int = Field(default=1000, ge=1, le=10**9, description="Optimizer steps.")
    examples_per_step: int = Field(
        default=64, ge=1, le=10**9, description="Examples of one optimizer step, over all workers."
    )
    micro_batch_examples: int = Field(
        default=16,
        ge=1,
        le=10**9,
        description="Examples that one worker computes at once. A step is cut into these, and at "
        "most as many workers share it.",
    )
    learning_rate: float = Field(
        default=1e-3, gt=0, le=1, description="Peak learning rate, reached after the warm-up."
    )
    evaluate_every_steps: int = Field(
        default=200, ge=1, le=10**9, description="Optimizer steps between two held-out evaluations."
    )
    evaluation_examples: int = Field(
        default=512,
        ge=1,
        le=10**9,
        description="Held-out examples of the evaluations during training.",
    )
    final_evaluation_examples: int = Field(
        default=20_000, ge=1, le=10**9, description="Held-out examples of the final evaluation."
    )
