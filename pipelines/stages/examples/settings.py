"""What training examples are made of: the objective, the lengths, the masks."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from bert_core.masking import MaskingConfig
from pipelines.settings import Settings

Objective = Literal["mlm_nsp", "mlm", "clm"]
# Which examples: those to learn from, the same text in short pieces, those to evaluate on.
ExampleSet = Literal["train", "short", "heldout"]


class ExampleSettings(Settings):
    """Training examples and their masks."""

    objective: Objective = Field(
        default="mlm_nsp",
        description=(
            "mlm_nsp: BERT's sentence pairs; mlm: full sentences without pairs, as RoBERTa; "
            "clm: windows for a left-to-right model."
        ),
    )
    max_tokens: int = Field(
        default=128, ge=8, le=65_535, description="Most tokens of an example, special ones too."
    )
    short_tokens: int | None = Field(
        default=None,
        ge=8,
        le=65_535,
        description="Write the training text a second time, as examples of at most so many tokens, "
        "for the first phase of a pretraining; empty: only once.",
    )
    short_fraction: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Share of pairs that aim at a random shorter length (mlm_nsp).",
    )
    num_passes: int = Field(
        default=1,
        ge=1,
        le=1000,
        description=(
            "Passes over the corpus, each with fresh pairs and static masks; epochs of training "
            "take turns. With static masks this is the duplication factor."
        ),
    )
    masking: Literal["dynamic", "static"] = Field(
        default="dynamic",
        description="Draw new training masks in every epoch, or once here.",
    )
    mask_fraction: float = Field(
        default=0.15, gt=0, le=1, description="Share of an example's tokens to predict."
    )
    mask_share: float = Field(
        default=0.8, ge=0, le=1, description="Share of these that become [MASK]."
    )
    random_share: float = Field(
        default=0.1, ge=0, le=1, description="Share of these that become a random token."
    )
    whole_words: bool = Field(
        default=False, description="Mask words as a whole, and not token by token."
    )
    max_masked_tokens: int | None = Field(
        default=None, ge=1, description="Most masks of an example; none if left out."
    )
    shard_tokens: int = Field(
        default=8_000_000,
        ge=1000,
        le=500_000_000,
        description="Tokens of a shard, about; all shards of a pass are equally large.",
    )
    seed: int = Field(default=0, description="Seed of pairs and static masks.")

    @model_validator(mode="after")
    def _short_is_short(self) -> Self:
        if self.short_tokens is not None and self.short_tokens >= self.max_tokens:
            raise ValueError(
                f"short_tokens={self.short_tokens} must be less than max_tokens="
                f"{self.max_tokens}; lower it or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _rates_go_together(self) -> Self:
        self.masking_config()  # refuses rates that exceed 1 together
        return self

    def named(self) -> dict[str, Any]:
        """As they name an artifact: one without short examples keeps the name it always had."""
        without = {"short_tokens"} if self.short_tokens is None else set()
        return self.model_dump(mode="json", exclude=without)

    def example_sets(self) -> tuple[ExampleSet, ...]:
        return ("train", "heldout") if self.short_tokens is None else ("train", "short", "heldout")

    def max_tokens_of(self, examples: ExampleSet) -> int:
        if examples == "short" and self.short_tokens is not None:
            return self.short_tokens
        return self.max_tokens

    def has_static_masks(self, split: ExampleSet) -> bool:
        """Whether the shards of `split` carry their masks: held-out ones do, to be one set."""
        return self.objective != "clm" and (self.masking == "static" or split == "heldout")

    def masking_config(self) -> MaskingConfig:
        return MaskingConfig(
            fraction=self.mask_fraction,
            mask_share=self.mask_share,
            random_share=self.random_share,
            whole_words=self.whole_words,
            max_masked_tokens=self.max_masked_tokens,
        )
