"""The recipe: everything a run is made from, as one typed, frozen model.

The same model is the YAML file, the command line's dotted paths and the Prefect form. It is passed
whole; each stage takes its own section.
"""

import re
from typing import Annotated, Literal, Self

import yaml
from pydantic import AfterValidator, Field, model_validator

from bert_core.config import SIZES
from pipelines.settings import RuntimeSettings, Settings
from pipelines.stages.corpus.settings import CorpusSettings
from pipelines.stages.dataset.settings import DatasetSettings
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.vocabulary.settings import VocabularySettings

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
        description="Where results are kept and how many workers compute. Data have the same bytes "
        "anywhere; the last bits of weights depend on the device and the number of workers.",
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
    def named_encoders(self) -> dict[str, str]:
        """The existing encoders that a run starts from, by the section that names each."""
        sections = {
            "pretraining": self.pretraining.encoder if self.pretrains else None,
            "vocabulary": self.vocabulary.encoder if self.pretrains else None,
            "finetuning": self.finetuning.encoder,
        }
        return {section: name for section, name in sections.items() if name is not None}

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
        fault = self.pretraining.fault_with(self.examples)
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
        frozen = self.finetuning.freeze_layers
        if size is not None and frozen > SIZES[size][0]:
            raise ValueError(
                f"finetuning.freeze_layers must be at most the {SIZES[size][0]} layers of an "
                f"encoder of size {size}, got {frozen}; lower it"
            )
        return self
