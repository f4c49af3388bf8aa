"""Which labelled items a model is fine-tuned on."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipelines.errors import Uri
from pipelines.io.tables import TableSettings
from pipelines.settings import Settings, Tabs
from pipelines.tasks import FAMILIES, family_module, family_title, is_own


class CorpusSourceLabels(Settings):
    """Tell from which source a document of the corpus comes."""

    kind: Literal["corpus_source"] = Field(
        default="corpus_source", description="Kind of the source."
    )
    max_train_documents: int = Field(
        default=20_000, ge=2, description="At most so many training documents are used."
    )
    max_heldout_documents: int = Field(
        default=2_000, ge=2, description="At most so many held-out documents are used."
    )
    min_words: int = Field(default=8, ge=1, description="Documents with fewer words are left out.")


class LabelledColumns(Settings):
    """Which columns hold what, and what becomes of the items."""

    text_column: str = Field(
        default="",
        description="Column with the text; by default `text`, for tagging the list `words`, for "
        "question answering `question`.",
    )
    second_text_column: str = Field(
        default="",
        description="Column with the second text of a pair; by default `second_text`, which a file "
        "need not have; for question answering `context`.",
    )
    label_column: str = Field(
        default="",
        description="Column with the label; by default `label`, for multi-label `labels`, for "
        "tagging the list `tags` (of texts with character offsets: `spans`, `entities` or "
        "`label`), for question answering `answers` as SQuAD has them.",
    )
    choice_columns: tuple[str, ...] = Field(
        default=(),
        description="Columns with one choice each; by default the list `choices`.",
    )
    group_column: str = Field(
        default="",
        description="Column that says what belongs together and is never divided, such as an "
        "author; by default equal texts belong together, and for question answering what has one "
        "`title`, or else one context.",
    )
    label_separator: str = Field(
        default=",",
        min_length=1,
        description="What separates the labels of multi-label where they are text, not a list.",
    )
    offsets: Literal["characters", "utf16"] | None = Field(
        default=None,
        description="What the places of spans count (tagging): characters, or UTF-16 units as "
        "browsers do, where most emoji are two; empty: characters, and a file "
        "where that may be wrong is refused.",
    )
    heldout_fraction: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="Share of the items held out for evaluation, unless a part for it is named.",
    )
    seed: int = Field(default=0, ge=0, description="Seed of the split.")

    @property
    def parts(self) -> tuple[str, str]:
        """What to learn from and what to evaluate on, which may be empty."""
        raise NotImplementedError


class _FilePlace(Settings):
    """Comes before the columns in a form, as do all bases named after them."""

    kind: Literal["labelled_file"] = Field(
        default="labelled_file", description="Kind of the source."
    )
    path: Uri = Field(
        default="",
        description="CSV, TSV, JSONL or Parquet file (may be compressed), or an fsspec URL; "
        "for tagging also CoNLL's columns, for question answering SQuAD's JSON.",
    )
    heldout_path: Uri = Field(
        default="",
        description="File with the items to evaluate on; empty: a share of `path` is held out.",
    )


class LabelledFile(TableSettings, LabelledColumns, _FilePlace):
    """Labelled data in files: tables, CoNLL's columns, SQuAD's JSON, as the family reads them."""

    @property
    def parts(self) -> tuple[str, str]:
        return self.path, self.heldout_path


class _DatasetPlace(Settings):
    kind: Literal["hugging_face"] = Field(default="hugging_face", description="Kind of the source.")
    dataset: Uri = Field(
        default="",
        description="Name on the hub, or a local folder: as `save_to_disk` writes it, or with data "
        "files in it.",
    )
    configuration: str | None = Field(
        default=None, description="Configuration (subset) to read, such as mrpc of GLUE."
    )
    split: str = Field(default="train", min_length=1, description="Split to train on.")
    heldout_split: str = Field(
        default="",
        description="Split to evaluate on, such as validation; empty: a share of `split` is held "
        "out.",
    )
    revision: str | None = Field(
        default=None, description="Commit or tag on the hub; empty: the newest."
    )


class LabelledDataset(LabelledColumns, _DatasetPlace):
    """Labelled data of a Hugging Face dataset; classes are called by their names."""

    @property
    def parts(self) -> tuple[str, str]:
        return self.split, self.heldout_split


class NoLabels(Settings):
    """Fine-tune nothing: the encoder alone is registered."""

    kind: Literal["none"] = Field(default="none", description="Kind of the source.")


LabelSource = Annotated[
    CorpusSourceLabels | LabelledFile | LabelledDataset | NoLabels,
    Field(discriminator="kind"),
    Tabs(),
]


class DatasetSettings(Settings):
    """The labelled items of the fine-tuning."""

    family: Uri = Field(
        default="classification",
        description="The task: classification, multi-label, regression, multiple-choice, tagging, "
        "question-answering, sentence-embedding, or your own: the path or URL of a .py file.",
    )
    source: LabelSource = Field(
        default_factory=CorpusSourceLabels, description="Where the labelled texts come from."
    )

    @field_validator("family")
    @classmethod
    def _is_there(cls, family: str) -> str:
        if is_own(family):
            return family
        if family_module(family) not in FAMILIES:
            raise ValueError(
                f"must be one of {', '.join(map(family_title, FAMILIES))}, or a .py file"
            )
        return family_title(family)

    @model_validator(mode="after")
    def _family_reads_the_source(self) -> Self:
        if self.source.kind == "corpus_source" and self.family != "classification":
            raise ValueError(
                "labels that are the corpus's sources are learned by classification, not by "
                f"{self.family}; name a labelled file, or set dataset.family=classification"
            )
        return self
