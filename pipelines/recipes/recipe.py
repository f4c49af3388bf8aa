"""The recipe: everything a run is made from, as one typed, frozen model.

The same model is the YAML file, the command line's dotted paths and the Prefect form. It is passed
whole; each stage takes its own section.
"""

from typing import Literal, Self

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

Until = Literal[
    "corpus", "vocabulary", "examples", "pretraining", "finetuning", "evaluation", "registration"
]
"""The stages after which a run may end, in their order."""


class Recipe(Settings):
    """From raw text to registered models that proved themselves."""

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
    vocabulary: VocabularySettings = Field(
        default_factory=VocabularySettings, description="The WordPiece vocabulary."
    )
    examples: ExampleSettings = Field(
        default_factory=ExampleSettings, description="Training examples and their masks."
    )
    pretraining: PretrainingSettings = Field(
        default_factory=PretrainingSettings, description="The encoder and its pretraining."
    )
    dataset: DatasetSettings = Field(
        default_factory=DatasetSettings,
        description="The labelled items to fine-tune on, and the family of their task.",
    )
    finetuning: FinetuningSettings = Field(
        default_factory=FinetuningSettings, description="How the model of the task is trained."
    )
    registration: RegistrationSettings = Field(
        default_factory=RegistrationSettings, description="Names and aliases in the registry."
    )

    @property
    def pretrains(self) -> bool:
        """Whether a run makes its encoder; with finetuning.encoder it takes an existing one."""
        return self.finetuning.encoder is None

    @property
    def has_labels(self) -> bool:
        """Whether there are labelled items to fine-tune on."""
        return self.dataset.source.kind != "none"

    @property
    def tokenizer(self) -> VocabularySettings:
        """The vocabulary to build: pretraining that continues an encoder takes its tokenizer,
        unless the vocabulary names another one."""
        own = self.vocabulary
        if own.encoder or own.tokenizer:
            return own
        return own.model_copy(update={"encoder": self.pretraining.encoder})

    def to_yaml(self) -> str:
        """The effective recipe, every value spelled out, without secrets."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    @model_validator(mode="after")
    def _sections_fit(self) -> Self:
        fault = self.tokenizer.fault_with(self.tokenizer.encoder)
        fault = fault or self.pretraining.fault_with(self.examples)
        if fault:
            raise ValueError(fault)
        if not self.pretrains:
            if self.dataset.source.kind == "corpus_source":
                raise ValueError(
                    "finetuning.encoder takes the place of a corpus, and labels that are the "
                    "corpus's sources need one; name labelled texts with dataset.source, or leave "
                    "out finetuning.encoder"
                )
            return self
        asked, readable = self.finetuning.max_tokens, self.examples.max_tokens
        if asked is not None and asked > readable:
            raise ValueError(
                f"finetuning.max_tokens must be at most the {readable} tokens of "
                f"examples.max_tokens, which the encoder is pretrained on, got {asked}; lower it "
                "or raise examples.max_tokens"
            )
        size = self.pretraining.size
        frozen = max((self.finetuning.freeze_layers, *self.finetuning.search.freeze_layers))
        if size is not None and frozen > SIZES[size][0]:
            raise ValueError(
                f"finetuning.freeze_layers must be at most the {SIZES[size][0]} layers of an "
                f"encoder of size {size}, got {frozen}; lower it"
            )
        return self
