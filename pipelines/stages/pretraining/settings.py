"""What the pretraining can be told."""

from dataclasses import replace
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from bert_core.masking import MaskingConfig
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.training.settings import PeakRate, TrainingSettings

_NUM_STEPS = 1000
_OF_FULL_STEPS = ("full_learning_rate", "full_warmup_fraction")
_OF_PHASES = ("short_examples_per_step", "short_micro_batch_examples", *_OF_FULL_STEPS)


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
        "base 12x768, large 24x1024. Going on from an encoder: its own, empty where that has no "
        "name.",
    )
    initialization: Literal["published", "informed", "frequencies"] = Field(
        default="published",
        description="Weights to begin with. published: all random; informed: token embeddings "
        "begin as word vectors of the examples, the first layer by reading each token's neighbours "
        "and the vocabulary at its frequencies, which spares a small encoder thousands of steps; "
        "frequencies: the vocabulary alone, as where pretraining goes on from an encoder without a "
        "head for it.",
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
        description="In place of num_steps: as many steps as the training, with its evaluations "
        "and checkpoints, takes so many minutes for; what a step takes is measured first.",
    )
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
    learning_rate: PeakRate = Field(
        default=1e-3,
        description="Peak learning rate, reached after the warm-up; auto, where pretraining goes "
        "on from an encoder: as goes with its size, 5e-5 for BERT-base and 5e-4 for BERT-tiny.",
    )
    short_steps_fraction: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the steps, at the beginning, that read the short examples of "
        "examples.short_tokens.",
    )
    short_examples_per_step: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="Examples of a step while they are short; empty: examples_per_step.",
    )
    short_micro_batch_examples: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="Examples computed at once while they are short; empty: micro_batch_examples.",
    )
    full_learning_rate: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Peak learning rate once the examples are of full length: warm-up and decay "
        "then begin anew; empty: one warm-up and one decay over all steps.",
    )
    full_warmup_fraction: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Share of the full-length steps over which that rate rises; empty: as "
        "warmup_fraction says.",
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

    @model_validator(mode="after")
    def _steps_or_minutes(self) -> Self:
        if self.budget_minutes is not None and self.num_steps != _NUM_STEPS:
            raise ValueError(
                "num_steps must be left at its default where budget_minutes says how long to "
                f"train, got num_steps={self.num_steps} and budget_minutes="
                f"{self.budget_minutes:g}, one of which may be the preset's; add "
                "--set pretraining.num_steps=null, or --set pretraining.budget_minutes=null"
            )
        return self

    @model_validator(mode="after")
    def _a_new_encoder_has_a_size(self) -> Self:
        if self.size is None and self.encoder is None:
            raise ValueError(
                "size must be given for an encoder with random weights, got neither size nor "
                "encoder; set it, for instance to mini"
            )
        return self

    @model_validator(mode="after")
    def _a_new_encoder_has_a_rate(self) -> Self:
        if self.learning_rate == "auto" and self.encoder is None:
            raise ValueError(
                "learning_rate must be a number for an encoder with random weights, got auto, "
                "which is for going on from an encoder; set it, for instance to 1e-3"
            )
        return self

    @model_validator(mode="after")
    def _informed_where_new(self) -> Self:
        if self.encoder is not None and self.initialization == "informed":
            raise ValueError(
                "initialization must be left at published where pretraining goes on from an "
                f"encoder, which brings its weights, got {self.initialization} and encoder="
                f"{self.encoder}; set pretraining.initialization=published"
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
        rates = ("mask_fraction", "final_mask_fraction")
        given = [name for name in rates if getattr(self, name) is not None]
        if given and (examples.objective == "clm" or examples.masking == "static"):
            found = "clm" if examples.objective == "clm" else "examples.masking=static"
            return (
                f"pretraining.{given[0]} must go with dynamic masks, which training draws itself, "
                f"found {found}; leave it out, or set examples.masking=dynamic and an objective "
                "with masks"
            )
        if self.short_steps_fraction and examples.short_tokens is None:
            return (
                "examples.short_tokens must be given where pretraining.short_steps_fraction is, "
                f"found short_steps_fraction={self.short_steps_fraction:g} without it; set it, for "
                "instance to 128, or leave the other out"
            )
        of_phases = [name for name in _OF_PHASES if getattr(self, name) is not None]
        if of_phases and not self.short_steps_fraction:
            return (
                f"pretraining.short_steps_fraction must be given where {of_phases[0]} is, found 0; "
                "set it, for instance to 0.9, or leave the other out"
            )
        return self._fault_with_full_rates()

    def _fault_with_full_rates(self) -> str:
        """Why the schedule of the full-length steps would be none, as `fault_with` says it."""
        given = [name for name in _OF_FULL_STEPS if getattr(self, name) is not None]
        if given and self.short_steps_fraction == 1:
            return (
                f"pretraining.short_steps_fraction must be less than 1 where {given[0]} is given, "
                "which is for steps of full length, found 1; lower it, or leave the other out"
            )
        if given and self.full_learning_rate is None:
            return (
                "pretraining.full_learning_rate must be given where full_warmup_fraction is, found "
                f"full_warmup_fraction={self.full_warmup_fraction:g} without it; set it, for "
                f"instance to {self.learning_rate}, or leave the other out"
            )
        return ""
