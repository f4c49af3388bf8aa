"""Names and aliases in the model registry."""

from pydantic import Field

from pipelines.core.settings import Settings

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"  # MLflow refuses '/' and ':'


class RegistrationSettings(Settings):
    """Under which names the models are registered and which aliases they get."""

    encoder_name: str = Field(
        default="bertsmith-encoder", pattern=_NAME, description="Registered name of the encoder."
    )
    classifier_name: str = Field(
        default="bertsmith-classifier",
        pattern=_NAME,
        description="Registered name of the classifier.",
    )
    candidate_alias: str = Field(
        default="candidate", pattern=_NAME, description="Alias of a version until it proved itself."
    )
    alias: str = Field(
        default="champion",
        pattern=_NAME,
        description="Alias of the version that reproduced its logged held-out accuracy.",
    )
