"""Settings of the corpus stage: where text comes from, how it is cleaned and divided."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from pipelines.errors import Uri
from pipelines.io.tables import TableSettings
from pipelines.settings import Settings, Tabs

FEWEST_DOCUMENTS: Final = 4  # of a corpus: two to learn from, two to be held out


class SourceSettings(Settings):
    """What every source has."""

    name: str | None = Field(
        default=None,
        description="Label of the documents; left out, each is labelled by its package or file.",
    )
    weight: float = Field(
        default=1.0,
        gt=0,
        le=100,
        description="How often each document enters the corpus; 0.5 keeps every second one.",
    )


class InstalledDocumentation(SourceSettings):
    """The documentation of Python packages installed here: a document per docstring."""

    kind: Literal["installed_documentation"] = Field(
        default="installed_documentation", description="Kind of the source."
    )
    packages: tuple[str, ...] = Field(
        default=(
            "torch", "ray", "scipy", "scikit-learn", "pandas", "mlflow", "SQLAlchemy",
            "matplotlib", "numpy", "networkx", "sympy", "prefect",
        ),
        min_length=1,
        description="Distributions to read, as pip names them; each labels its documents.",
    )  # fmt: skip
    max_source_megabytes: float = Field(
        default=9.0,
        gt=0,
        description="Python source to read per package, so that none dwarfs the others.",
    )


class RowSource(SourceSettings):
    """What every source of rows with columns has."""

    text_field: str = Field(default="text", description="Column that holds the text.")
    label_field: str | None = Field(
        default=None, description="Column whose value labels the document."
    )


class TextFiles(RowSource, TableSettings):
    """Files of text, each read as its name ends: see `docs/data.md`."""

    kind: Literal["text"] = Field(default="text", description="Kind of the source.")
    paths: tuple[Uri, ...] = Field(
        default=(),
        description="Files, globs, folders or URLs (such as s3://). .csv, .tsv, .jsonl, .ndjson "
        "and .parquet are tables, .html, .htm, .xhtml and .pdf documents, all others plain "
        "text; .gz, .bz2, .xz and .zst are opened.",
    )
    layout: Literal["file", "blank_line", "line", "sentences", "headings", "page"] = Field(
        default="file",
        description="What a document is. In plain text: a file, a block between blank lines "
        "(blank_line), a line, a block of one sentence per line (sentences, Google's format), or "
        "what follows a ' = Title = ' heading (headings). In PDF: a file, or a page if this is "
        "page. In HTML always a file, and in tables a row.",
    )
    hard_wrapped: bool = Field(
        default=False,
        description="Lines of plain text were broken to fit a page, as in Project Gutenberg's "
        "books: only a blank line ends a paragraph. If false, every line break ends one.",
    )

    @model_validator(mode="after")
    def _lines_are_whole(self) -> Self:
        if self.hard_wrapped and self.layout in ("line", "sentences"):
            raise ValueError(
                f"hard_wrapped joins lines, and with layout={self.layout} each line stands for "
                "itself; leave one of them out"
            )
        return self


class HuggingFaceDataset(RowSource):
    """A Hugging Face dataset, streamed by its name or read from a local copy."""

    kind: Literal["hugging_face"] = Field(default="hugging_face", description="Kind of the source.")
    dataset: Uri = Field(default="", description="Name on the hub, or a local folder.")
    configuration: str | None = Field(default=None, description="Configuration (subset) to read.")
    split: str = Field(default="train", description="Split to read.")
    revision: str | None = Field(default=None, description="Commit or tag; the newest if left out.")


Source = Annotated[
    InstalledDocumentation | TextFiles | HuggingFaceDataset, Field(discriminator="kind"), Tabs()
]


class CleaningSettings(Settings):
    """What is left out; everything left out is counted under its reason."""

    min_characters: int = Field(default=20, ge=1, description="Shorter documents are dropped.")
    exact_duplicates: bool = Field(
        default=True,
        description="Keep one of the documents that differ in case and white space only.",
    )
    near_duplicates: bool = Field(
        default=False,
        description="Keep one of the documents that share most of their runs of five words.",
    )
    near_duplicate_similarity: float = Field(
        default=0.8,
        ge=0.5,
        le=1,
        description="Share of common runs (Jaccard) from which two documents are near duplicates; "
        "estimated from 64 hashes, with a standard deviation of 0.05.",
    )


class CorpusSettings(Settings):
    """The corpus: its sources, its cleaning, and what is held out."""

    sources: tuple[Source, ...] = Field(
        default=(InstalledDocumentation(),),
        min_length=1,
        description="Where the text comes from; several mix into one corpus.",
    )
    cleaning: CleaningSettings = Field(
        default=CleaningSettings(), description="What is left out of the corpus."
    )
    heldout_fraction: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="Share of documents kept apart for evaluation, drawn by their content.",
    )
    shard_megabytes: float | None = Field(
        default=None,
        gt=0,
        description="Text per shard; left out, a 64th of the corpus, from 1 to 64 MB.",
    )
    seed: int = Field(default=0, description="Seed of the division and of the weights' draws.")
