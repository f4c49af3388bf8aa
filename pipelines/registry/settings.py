"""Names and aliases in the model registry."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from pipelines.core.settings import Settings

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"  # MLflow refuses '/' and ':'
_ALIAS = r"^[A-Za-z0-9_-]+$"
_NUMBER = re.compile(r"v?\d+", re.IGNORECASE)


def _not_reserved(alias: str) -> str:
    if alias.lower() == "latest" or _NUMBER.fullmatch(alias):
        raise ValueError(
            "an alias must not be `latest` or a version's number such as 3 or v3, which MLflow "
            "keeps for itself; choose a word such as champion"
        )
    return alias


RegistryName = Annotated[str, Field(pattern=_NAME)]
Alias = Annotated[str, Field(pattern=_ALIAS), AfterValidator(_not_reserved)]


class RegistrationSettings(Settings):
    """Under which names the models are registered and which aliases they get."""

    encoder_name: RegistryName = Field(
        default="bertsmith-encoder", description="Registered name of the encoder."
    )
    classifier_name: RegistryName = Field(
        default="bertsmith-classifier", description="Registered name of the fine-tuned model."
    )
    candidate_alias: Alias = Field(
        default="candidate", description="Alias of a new version, which has yet to prove itself."
    )
    alias: Alias = Field(
        default="champion",
        description="Alias that a version is given when it has reproduced its held-out accuracy.",
    )

    @model_validator(mode="after")
    def _tell_apart(self) -> "RegistrationSettings":
        if self.encoder_name == self.classifier_name:
            raise ValueError(
                "encoder_name and classifier_name must differ, or the versions of two kinds of "
                f"models would stand under one name; both are {self.encoder_name!r}"
            )
        if self.alias == self.candidate_alias:
            raise ValueError(
                "alias and candidate_alias must differ, or a version that has not proved itself "
                f"would be served; both are {self.alias!r}"
            )
        return self
