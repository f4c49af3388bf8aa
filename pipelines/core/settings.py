"""The base of every settings model."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Frozen settings that refuse unknown keys; every field has a default and a description.

    The same model is a stage's settings, a section of the recipe's YAML, the command line's
    dotted paths and the Prefect form.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        # What the Prefect form calls a section: "Pretraining", not "PretrainingSettings".
        model_title_generator=lambda model: model.__name__.removesuffix("Settings"),
    )
