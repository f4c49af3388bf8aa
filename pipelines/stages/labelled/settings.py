"""Which labelled texts a classifier is fine-tuned on."""

from typing import Annotated, Literal

from pydantic import Field

from pipelines.core.redaction import Uri
from pipelines.core.settings import Settings


class CorpusSourceLabels(Settings):
    """Tell from which source a document of the corpus comes."""

    kind: Literal["corpus_source"] = "corpus_source"
    max_train_documents: int = Field(
        default=20_000, ge=2, description="At most so many training documents are used."
    )
    max_heldout_documents: int = Field(
        default=2_000, ge=2, description="At most so many held-out documents are used."
    )
    min_words: int = Field(default=8, ge=1, description="Documents with fewer words are left out.")


class LabelledFile(Settings):
    """Labelled texts in a CSV, TSV, JSONL or Parquet file."""

    kind: Literal["labelled_file"] = "labelled_file"
    path: Uri = Field(
        default="",
        description="CSV, TSV, JSONL or Parquet file (may be compressed), or an fsspec URL.",
    )
    text_column: str = Field(
        default="",
        description="Column that holds the text; empty: found by its name, or the longer of two.",
    )
    label_column: str = Field(
        default="",
        description="Column that holds the label; empty: found by its name, or the shorter of two.",
    )
    heldout_fraction: float = Field(
        default=0.2, gt=0, lt=1, description="Share of the texts held out for evaluation."
    )
    seed: int = Field(default=0, ge=0, description="Seed of the split.")


class NoLabels(Settings):
    """Fine-tune nothing: the encoder alone is registered."""

    kind: Literal["none"] = "none"


LabelSource = Annotated[CorpusSourceLabels | LabelledFile | NoLabels, Field(discriminator="kind")]


class LabelledSettings(Settings):
    """The labelled texts of the fine-tuning."""

    source: LabelSource = Field(
        default_factory=CorpusSourceLabels, description="Where the labelled texts come from."
    )
