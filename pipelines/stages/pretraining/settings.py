"""The settings of a pretraining, and the phases that they mean: read from a recipe, without torch.

Short examples come first, which cost little, then those of the full length.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from bert_core.masking import MaskingConfig
from pipelines.stages.examples.settings import ExampleSet, ExampleSettings
from pipelines.train.settings import ENDLESS, BatchSplit, PeakRate, TrainingSettings

_NUM_STEPS = 1000
_OF_PHASES = ("short_global_batch_size", "short_micro_batch_size")


class PretrainingSettings(TrainingSettings):
    """The encoder's size and how long, how wide and how fast it is pretrained."""

    encoder: str | None = Field(
        default=None,
        min_length=1,
        description="Go on from this encoder: a folder, models:/name@alias or a fingerprint in the "
        "store; its tokenizer is taken over and its size is its own. Empty: random weights.",
    )
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] | None = Field(
        default="mini",
        description="Layers x width: tiny 2x128, mini 4x256, small 4x512, medium 8x512, "
        "base 12x768, large 24x1024. When continuing from an encoder: its own size, empty if that "
        "has no name.",
    )
    initialization: Literal["published", "informed", "frequencies"] = Field(
        default="published",
        description="Weights to begin with. published: all random; informed: token embeddings "
        "begin as word vectors of the examples, the first layer by reading each token's neighbours "
        "and the vocabulary at its frequencies, which spares a small encoder thousands of steps; "
        "frequencies: the vocabulary alone, as when pretraining continues from an encoder that has "
        "no vocabulary head.",
    )
    num_steps: int = Field(
        default=_NUM_STEPS,
        ge=1,
        le=10**9,
        description=f"Optimizer steps; null: the default, {_NUM_STEPS:,}, as goes with "
        "budget_minutes.",
    )
    budget_minutes: float | None = Field(
        default=None,
        gt=0,
        le=10**6,
        description="In place of num_steps: as many steps as fit this many minutes, with "
        "evaluations and checkpoints; the time of the first steps decides.",
    )
    global_batch_size: int = Field(
        default=64, ge=1, le=10**9, description="Examples of one optimizer step, over all workers."
    )
    micro_batch_size: int = Field(
        default=16,
        ge=1,
        le=10**9,
        description="Examples that one worker computes at once. A step is cut into these, and at "
        "most as many workers share it.",
    )
    learning_rate: PeakRate = Field(
        default=1e-3,
        description="Peak learning rate, reached after the warm-up; auto, the default when "
        "continuing from an encoder: set by its size, 5e-5 for BERT-base and 5e-4 for BERT-tiny.",
    )
    short_steps_fraction: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the steps, at the beginning, that read the short examples of "
        "examples.short_tokens.",
    )
    short_global_batch_size: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="Examples of a step while they are short; empty: global_batch_size.",
    )
    short_micro_batch_size: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="Examples computed at once while they are short; empty: micro_batch_size.",
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

    @field_validator("num_steps", mode="before")
    @classmethod
    def _null_takes_a_presets_steps_back(cls, value: Any) -> Any:
        return _NUM_STEPS if value is None else value

    @model_validator(mode="before")
    @classmethod
    def _an_existing_encoder_has_its_own_rate(cls, values: Any) -> Any:
        """The default is for random weights; it would undo what an existing encoder has learned."""
        if isinstance(values, dict) and values.get("encoder") and "learning_rate" not in values:
            return values | {"learning_rate": "auto"}
        return values

    @model_validator(mode="after")
    def _values_go_together(self) -> Self:
        if self.budget_minutes is not None and self.num_steps != _NUM_STEPS:
            raise ValueError(
                f"num_steps={self.num_steps} and budget_minutes={self.budget_minutes:g} exclude "
                "each other, and one of them may be the preset's; add "
                "--set pretraining.num_steps=null, or --set pretraining.budget_minutes=null"
            )
        if self.encoder is None and self.size is None:
            raise ValueError("an encoder with random weights needs a size; set it, such as to mini")
        if self.encoder is None and self.learning_rate == "auto":
            raise ValueError(
                "learning_rate=auto is for continuing from an encoder; set a number, such as 1e-3"
            )
        if self.encoder is not None and self.initialization == "informed":
            raise ValueError(
                f"initialization={self.initialization} is for random weights, and encoder="
                f"{self.encoder} brings its own; set pretraining.initialization=published"
            )
        return self

    def masking_at(self, step: int, own: MaskingConfig) -> MaskingConfig:
        """How step `step` draws its masks; `own` is what the examples say of them."""
        first = own.fraction if self.mask_fraction is None else self.mask_fraction
        last = first if self.final_mask_fraction is None else self.final_mask_fraction
        way = step / max(1, self.num_steps - 1)
        return replace(own, fraction=first + (last - first) * way)

    def fault_with(self, examples: ExampleSettings) -> str:
        """Why these settings cannot train on such examples, in a sentence; empty where they can."""
        rates = self._given("mask_fraction", "final_mask_fraction")
        if rates and (examples.objective == "clm" or examples.masking == "static"):
            return (
                f"pretraining.{rates[0]} needs masks that training draws itself; leave it out, or "
                "set examples.masking=dynamic and an objective with masks"
            )
        if self.short_steps_fraction and examples.short_tokens is None:
            return (
                f"pretraining.short_steps_fraction={self.short_steps_fraction:g} needs "
                "examples.short_tokens; set it, such as to 128, or leave the other out"
            )
        of_phases = self._given(*_OF_PHASES)
        if of_phases and not self.short_steps_fraction:
            return (
                f"pretraining.{of_phases[0]} needs short_steps_fraction; set it, such as to 0.9, "
                "or leave the other out"
            )
        return ""

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Steps in a row that read the same examples in equal micro-batches."""

    examples: ExampleSet
    first_step: int
    num_steps: int
    cut: BatchSplit


def phases_of(settings: PretrainingSettings) -> tuple[Phase, ...]:
    """The phases that have a step, in their order."""
    num_short = round(settings.num_steps * settings.short_steps_fraction)
    short = Phase(
        examples="short",
        first_step=0,
        num_steps=num_short,
        cut=BatchSplit(
            section="pretraining",
            global_batch_size=settings.short_global_batch_size or settings.global_batch_size,
            micro_batch_size=(settings.short_micro_batch_size or settings.micro_batch_size),
            prefix="short_",
        ),
    )
    full = Phase(
        examples="train",
        first_step=num_short,
        num_steps=settings.num_steps - num_short,
        cut=BatchSplit(
            section="pretraining",
            global_batch_size=settings.global_batch_size,
            micro_batch_size=settings.micro_batch_size,
        ),
    )
    return tuple(phase for phase in (short, full) if phase.num_steps)


def split_of(settings: PretrainingSettings) -> BatchSplit:
    """What the workers share: the split of the phase with the fewest micro-batches."""
    if settings.budget_minutes is not None:  # the number of steps is measured later
        settings = settings.model_copy(update={"num_steps": ENDLESS})
    cuts = [phase.cut for phase in phases_of(settings)]
    # Of two equal ones that of the full length, whose settings are the default of the short steps.
    return min(cuts, key=lambda cut: (cut.num_micro_batches, cut.prefix))
