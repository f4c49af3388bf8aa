"""What the pretraining can be told."""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from bert_core.masking import MaskingConfig
from pipelines.stages.examples.settings import ExampleSettings
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
    mask_fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of an example's tokens to predict, where masks are dynamic; empty: as "
        "the examples say.",
    )
    final_mask_fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="The share in the last step: it goes there in a line from the first step; "
        "empty: it stays.",
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

    def masking_at(self, step: int, own: MaskingConfig) -> MaskingConfig:
        """How step `step` draws its masks; `own` is what the examples say of them."""
        first = own.fraction if self.mask_fraction is None else self.mask_fraction
        last = first if self.final_mask_fraction is None else self.final_mask_fraction
        way = step / max(1, self.num_steps - 1)
        return replace(own, fraction=first + (last - first) * way)

    def fault_with(self, examples: ExampleSettings) -> str:
        """Why these settings cannot train on such examples, in a sentence; empty where they can."""
        rates = ("mask_fraction", "final_mask_fraction")
        given = [name for name in rates if getattr(self, name) is not None]
        if given and (examples.objective == "clm" or examples.masking == "static"):
            found = "clm" if examples.objective == "clm" else "examples.masking=static"
            return (
                f"pretraining.{given[0]} must go with dynamic masks, which training draws itself, "
                f"found {found}; leave it out, or set examples.masking=dynamic and an objective "
                "with masks"
            )
        return ""
