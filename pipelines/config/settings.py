"""The base of every settings model."""

from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class Tabs:
    """Annotates a discriminated union: each of its models is a tab of the Prefect form.

    Prefect draws tabs with fields for `anyOf` and an empty box for pydantic's `oneOf`. Validation
    stays the same.
    """

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema: dict[str, Any] = handler(core_schema)
        schema["anyOf"] = schema.pop("oneOf")
        del schema["discriminator"]
        return schema


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

    def values(self, *, only_what_was_set: bool = False) -> dict[str, Any]:
        """All values with the secrets of addresses: to make another model from, not to save.

        What is saved or shown is `model_dump(mode="json")`, which has no secrets; a recipe that is
        read back from that has lost its passwords and signatures.
        """
        return self.model_dump(exclude_unset=only_what_was_set)
