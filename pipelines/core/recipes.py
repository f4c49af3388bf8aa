"""Recipes: everything a run is made from, as one typed, frozen model.

Each flow takes the recipe of its own stage, which holds the sections of the stages before it:
`CorpusRecipe` < `VocabularyRecipe` < `ExamplesRecipe` < `PretrainingRecipe` < `FinetuningRecipe`
< `EndToEndRecipe`. A wider recipe narrows to any of them.
"""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import Field, ValidationError

from pipelines.core.errors import UserError
from pipelines.core.place import PlaceSettings
from pipelines.core.settings import Settings
from pipelines.registry.settings import RegistrationSettings
from pipelines.stages.corpus.settings import CorpusSettings
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.labelled.settings import TaskSettings
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.vocabulary.settings import VocabularySettings

RecipeType = TypeVar("RecipeType", bound="CorpusRecipe")


class CorpusRecipe(Settings):
    """From sources to documents, split into train and held-out."""

    name: str = Field(
        default="default",
        min_length=1,
        max_length=60,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$",
        description="What this recipe is called; it names runs and shows in the tracker.",
    )
    place: PlaceSettings = Field(
        default_factory=PlaceSettings,
        description="Where results are kept and how many workers compute; changes no byte.",
    )
    corpus: CorpusSettings = Field(
        default_factory=CorpusSettings, description="The text to learn from."
    )

    def narrowed(self, recipe_type: type[RecipeType]) -> RecipeType:
        """The same settings as the recipe of an earlier stage."""
        fields = {key: getattr(self, key) for key in recipe_type.model_fields}
        return recipe_type.model_validate(fields)

    def to_yaml(self) -> str:
        """The effective recipe, every value spelled out."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


class VocabularyRecipe(CorpusRecipe):
    """From a corpus to the WordPiece vocabulary learned from its training part."""

    vocabulary: VocabularySettings = Field(
        default_factory=VocabularySettings, description="The WordPiece vocabulary."
    )


class ExamplesRecipe(VocabularyRecipe):
    """From documents to training examples in Arrow shards."""

    examples: ExampleSettings = Field(
        default_factory=ExampleSettings, description="Training examples and their masks."
    )


class PretrainingRecipe(ExamplesRecipe):
    """From examples to a pretrained encoder."""

    pretraining: PretrainingSettings = Field(
        default_factory=PretrainingSettings, description="The encoder and its pretraining."
    )


class FinetuningRecipe(PretrainingRecipe):
    """From a pretrained encoder and labelled texts to a classifier."""

    task: TaskSettings = Field(
        default_factory=TaskSettings, description="The labelled texts to fine-tune on."
    )
    finetuning: FinetuningSettings = Field(
        default_factory=FinetuningSettings, description="How the classifier is trained."
    )


class EndToEndRecipe(FinetuningRecipe):
    """From raw text to registered models that proved themselves."""

    registration: RegistrationSettings = Field(
        default_factory=RegistrationSettings, description="Names and aliases in the registry."
    )


def preset_names() -> list[str]:
    """Names of the recipes that come with Bertsmith."""
    folder = files("pipelines.core") / "presets"
    return sorted(Path(item.name).stem for item in folder.iterdir() if item.name.endswith(".yaml"))


def read_recipe(
    recipe_type: type[RecipeType], source: str, overrides: Sequence[str] = ()
) -> RecipeType:
    """The recipe that a preset name or a YAML file holds, with `dotted.path=value` overrides.

    A wider recipe may be given where a narrower one is asked for. Raises UserError, one sentence a
    fault, for an unknown preset, a missing file, an unknown key or a value out of bounds.
    """
    values = _read_source(source)
    for override in overrides:
        _apply_override(values, override)
    try:
        return EndToEndRecipe.model_validate(values).narrowed(recipe_type)
    except ValidationError as error:
        raise UserError(explain(error, f"recipe {source!r}")) from None


def explain(error: ValidationError, subject: str) -> str:
    """What a validation error says, as one sentence a fault."""
    faults = []
    for fault in error.errors():
        path = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            faults.append(f"{subject} has no setting {path!r}; see `bertsmith recipes show`")
        else:
            message = fault["msg"].removeprefix("Value error, ")
            faults.append(f"{subject}: {path}: {message}, got {_shortened(fault['input'])}")
    return "\n".join(faults)


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _read_source(source: str) -> dict[str, Any]:
    if source in preset_names():
        text = (files("pipelines.core") / "presets" / f"{source}.yaml").read_text()
    elif Path(source).is_file():
        text = Path(source).read_text()
    else:
        raise UserError(
            f"a recipe must be a YAML file or one of the presets {', '.join(preset_names())}, "
            f"found neither a preset nor a file named {source!r}"
        )
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        raise UserError(f"the recipe {source!r} must be valid YAML: {where}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(
            f"the recipe {source!r} must hold sections such as `corpus:`, "
            f"found {_shortened(values)}"
        )
    return values


def _apply_override(values: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        raise UserError(
            "an override must read section.setting=value, as in examples.mask_fraction=0.2, "
            f"got {override!r}"
        )
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"the value of the override {override!r} must be valid YAML") from None
    section = values
    for key in keys[:-1]:
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            raise UserError(
                f"the override {override!r} goes below {key!r}, which is a single value; "
                "give the whole value instead"
            )
    section[keys[-1]] = value
