"""Recipes: everything a run is made from, as one typed, frozen model.

Each flow takes the recipe of its own stage, which holds the sections of the stages before it:
`CorpusRecipe` < `VocabularyRecipe` < `ExamplesRecipe` < `PretrainingRecipe` < `FinetuningRecipe`
< `EndToEndRecipe`. A wider recipe narrows to any of them.
"""

from collections.abc import Iterable
from typing import Self, TypeVar

import yaml
from pydantic import Field, model_validator

from bert_core.config import SIZES
from pipelines.config.runtime import RuntimeSettings
from pipelines.config.settings import Settings
from pipelines.recipes.registration import RegistrationSettings
from pipelines.stages.corpus.settings import CorpusSettings
from pipelines.stages.dataset.settings import DatasetSettings
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.vocabulary.settings import VocabularySettings

RecipeType = TypeVar("RecipeType", bound="CorpusRecipe")

_BEFORE_AN_ENCODER = frozenset({"corpus", "vocabulary", "examples", "pretraining"})


class CorpusRecipe(Settings):
    """From sources to documents, split into train and held-out."""

    name: str = Field(
        default="default",
        min_length=1,
        max_length=60,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$",
        description="What this recipe is called; it names runs and shows in the tracker.",
    )
    runtime: RuntimeSettings = Field(
        default_factory=RuntimeSettings,
        description="Where results are kept and how many workers compute; changes no byte.",
    )
    corpus: CorpusSettings = Field(
        default_factory=CorpusSettings, description="The text to train on."
    )

    @property
    def given(self) -> frozenset[str]:
        """Names of stages that are skipped, because what they would make exists."""
        return frozenset()

    def narrowed(self, recipe_type: type[RecipeType]) -> RecipeType:
        """The same settings as the recipe of an earlier stage."""
        is_whole = "pretraining" in recipe_type.model_fields  # it resolves what follows from that
        recipe = self if is_whole else self.resolved()
        fields = {key: getattr(recipe, key) for key in recipe_type.model_fields}
        return recipe_type.model_validate(fields)

    def resolved(self) -> Self:
        """The same with every setting that follows from another section, as its stage takes it.

        Do not save it: a change of the one setting would no longer change the other.
        """
        return self

    def to_yaml(self) -> str:
        """The effective recipe, every value spelled out."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


class VocabularyRecipe(CorpusRecipe):
    """From a corpus to the WordPiece vocabulary learned from its training part."""

    vocabulary: VocabularySettings = Field(
        default_factory=VocabularySettings, description="The WordPiece vocabulary."
    )

    @property
    def tokenizer_encoder(self) -> str | None:
        """The encoder whose tokenizer is taken over; None where a vocabulary is learned."""
        return self.vocabulary.encoder

    @model_validator(mode="after")
    def _words_are_added_to_something(self) -> Self:
        fault = self.vocabulary.fault_with(self.tokenizer_encoder)
        if fault:
            raise ValueError(fault)
        return self


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

    @property
    def tokenizer_encoder(self) -> str | None:
        """Pretraining from an encoder takes its tokenizer, unless the vocabulary names another."""
        own = self.vocabulary.encoder
        return own if own or self.vocabulary.tokenizer else self.pretraining.encoder

    def resolved(self) -> Self:
        vocabulary = self.vocabulary.model_copy(update={"encoder": self.tokenizer_encoder})
        return self.model_copy(update={"vocabulary": vocabulary})

    @model_validator(mode="after")
    def _pretraining_goes_with_its_examples(self) -> Self:
        fault = self.pretraining.fault_with(self.examples)
        if fault:
            raise ValueError(fault)
        return self


class FinetuningRecipe(PretrainingRecipe):
    """From a pretrained encoder and labelled items to a model of their task."""

    dataset: DatasetSettings = Field(
        default_factory=DatasetSettings,
        description="The labelled items to fine-tune on, and the family of their task.",
    )
    finetuning: FinetuningSettings = Field(
        default_factory=FinetuningSettings, description="How the model of the task is trained."
    )

    @property
    def given(self) -> frozenset[str]:
        """Stages that are skipped: an existing encoder takes their place."""
        return _BEFORE_AN_ENCODER if self.finetuning.encoder is not None else frozenset()

    @model_validator(mode="after")
    def _labels_do_not_come_from_a_corpus_that_is_not_built(self) -> Self:
        if self.given and self.dataset.source.kind == "corpus_source":
            raise ValueError(
                "finetuning.encoder takes the place of a corpus, and labels that are the corpus's "
                "sources need one; name labelled texts with dataset.source, or leave out "
                "finetuning.encoder"
            )
        return self

    @model_validator(mode="after")
    def _texts_fit_the_encoder(self) -> Self:
        """The encoder has as many positions as it was pretrained on."""
        asked, readable = self.finetuning.max_tokens, self.examples.max_tokens
        if not self.given and asked is not None and asked > readable:
            raise ValueError(
                f"finetuning.max_tokens must be at most the {readable} tokens of "
                f"examples.max_tokens, which the encoder is pretrained on, got {asked}; lower it "
                "or raise examples.max_tokens"
            )
        return self

    @model_validator(mode="after")
    def _frozen_layers_are_there(self) -> Self:
        size = self.pretraining.size
        frozen = max((self.finetuning.freeze_layers, *self.finetuning.search.freeze_layers))
        if not self.given and size is not None and frozen > SIZES[size][0]:
            raise ValueError(
                f"finetuning.freeze_layers must be at most the {SIZES[size][0]} layers of an "
                f"encoder of size {size}, got {frozen}; lower it"
            )
        return self


class EndToEndRecipe(FinetuningRecipe):
    """From raw text to registered models that proved themselves."""

    registration: RegistrationSettings = Field(
        default_factory=RegistrationSettings, description="Names and aliases in the registry."
    )


_RECIPES = (
    CorpusRecipe, VocabularyRecipe, ExamplesRecipe, PretrainingRecipe, FinetuningRecipe,
    EndToEndRecipe,
)  # fmt: skip


def narrowest_recipe(sections: Iterable[str]) -> type[CorpusRecipe]:
    """The recipe with the fewest sections that has all of `sections`.

    Raises StopIteration where none has them.
    """
    wanted = set(sections)
    return next(recipe for recipe in _RECIPES if wanted <= recipe.model_fields.keys())
