"""Names and aliases in the model registry, and what a person says of a promotion."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from pipelines.config.runtime import RuntimeSettings
from pipelines.config.settings import Settings

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"  # MLflow refuses '/' and ':'
_ALIAS = r"^[A-Za-z0-9_-]+$"
_NUMBER = re.compile(r"v?\d+", re.IGNORECASE)


def _not_reserved(alias: str) -> str:
    if alias.lower() == "latest" or _NUMBER.fullmatch(alias):
        raise ValueError(
            "MLflow keeps `latest` and numbers such as 3 or v3 for itself; choose another alias, "
            "such as champion"
        )
    return alias


RegistryName = Annotated[str, Field(pattern=_NAME)]
Alias = Annotated[str, Field(pattern=_ALIAS), AfterValidator(_not_reserved)]


class ComparisonSettings(Settings):
    """How much better than the champion, or than its baselines, a version has to be."""

    margin: float = Field(
        default=0.002,
        ge=0,
        lt=1,
        description="By how much a candidate's score must be better, as a share: 0.002 is a fifth "
        "of a percentage point of accuracy.",
    )
    loss_margin: float = Field(
        default=0.002,
        ge=0,
        description="By how much an encoder's held-out loss must be lower, in nats a token.",
    )
    confidence: float = Field(
        default=0.95,
        gt=0.5,
        lt=1,
        description="In which share of the resamples it must be better by that.",
    )
    resamples: int = Field(
        default=2000, ge=100, le=10**6, description="Resamples of the held-out items."
    )
    seed: int = Field(default=0, ge=0, description="Which items the resamples hold.")


class RegistrationSettings(Settings):
    """Under which names the models are registered, and what it takes to become champion."""

    encoder_name: RegistryName = Field(
        default="bertsmith-encoder", description="Registered name of the encoder."
    )
    classifier_name: RegistryName = Field(
        default="bertsmith-classifier", description="Registered name of the fine-tuned model."
    )
    candidate_alias: Alias = Field(
        default="candidate", description="Alias of a new version, before it is verified."
    )
    alias: Alias = Field(
        default="champion",
        description="Alias of the version that people use: a version is given it when it has "
        "reproduced its held-out accuracy and is better than the one that has it.",
    )
    comparison: ComparisonSettings = Field(
        default_factory=ComparisonSettings, description="What a new version has to show."
    )

    @model_validator(mode="after")
    def _tell_apart(self) -> "RegistrationSettings":
        if self.encoder_name == self.classifier_name:
            raise ValueError(
                f"encoder_name and classifier_name must differ; both are {self.encoder_name!r}"
            )
        if self.alias == self.candidate_alias:
            raise ValueError(
                f"alias and candidate_alias must differ, or an unproved version could be served; "
                f"both are {self.alias!r}"
            )
        return self


class PromotionRecipe(Settings):
    """Which version of a registered model gets which alias, and why."""

    runtime: RuntimeSettings = Field(
        default_factory=RuntimeSettings, description="Where the registry is."
    )
    name: str = Field(
        default="bertsmith-encoder", min_length=1, description="Registered name of the model."
    )
    source: str = Field(
        default="candidate",
        min_length=1,
        description="The version: an alias it has now, its number, or `previous`: the one that had "
        "the alias before, which no run of a recipe undoes.",
    )
    alias: Alias = Field(default="champion", description="The alias that moves.")
    reason: str = Field(default="", description="Why, for the history.")
