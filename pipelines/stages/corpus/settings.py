"""Settings of the corpus stage: where text comes from, how it is cleaned and divided."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from pipelines.config.errors import Uri
from pipelines.config.settings import Settings, Tabs

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


class FileSource(SourceSettings):
    """What every source of files has."""

    paths: tuple[Uri, ...] = Field(
        default=(),
        description=(
            "Files, globs, folders or URLs (such as s3://); .gz, .bz2, .xz and .zst are opened."
        ),
    )


class RecordSource(FileSource):
    """What every source of records with fields has."""

    text_field: str = Field(default="text", description="Field or column that holds the text.")
    label_field: str | None = Field(
        default=None, description="Field or column whose value labels the document."
    )


TextLayout = Literal["auto", "file", "blank_line", "line", "sentences", "headings"]


class PlainText(FileSource):
    """Plain text files."""

    kind: Literal["text"] = Field(default="text", description="Kind of the source.")
    layout: TextLayout = Field(
        default="auto",
        description=(
            "What a document is: a file, a block between blank lines, a line, a block of one "
            "sentence per line (Google's format), or what follows a ' = Title = ' heading; auto: "
            "found out from the heads of the files, and noted in the corpus's statistics."
        ),
    )
    hard_wrapped: bool | None = Field(
        default=None,
        description=(
            "Lines were broken to fit a page: only a blank line ends a paragraph. Left out, it is "
            "found out for each file from its head."
        ),
    )


class Files(FileSource):
    """Files of any of the formats below, each read as its name says."""

    kind: Literal["files"] = Field(default="files", description="Kind of the source.")
    layout: TextLayout = Field(
        default="auto", description="What a document is in the plain text files among them."
    )
    text_field: str | None = Field(
        default=None,
        description="Field or column that holds the text in the tables among them; left out, it "
        "is found by its name.",
    )


class Html(FileSource):
    """HTML files, a document each: their text without menus, scripts and code."""

    kind: Literal["html"] = Field(default="html", description="Kind of the source.")


class Pdf(FileSource):
    """PDF files that hold text: no character of a picture is recognized."""

    kind: Literal["pdf"] = Field(default="pdf", description="Kind of the source.")
    layout: Literal["auto", "file", "page"] = Field(
        default="auto",
        description="What a document is; auto: a page where there are fewer than four files.",
    )


class Markdown(FileSource):
    """Markdown files, a document each: their prose without markup and code."""

    kind: Literal["markdown"] = Field(default="markdown", description="Kind of the source.")


class JsonLines(RecordSource):
    """JSON objects, one a line."""

    kind: Literal["jsonl"] = Field(default="jsonl", description="Kind of the source.")


class DelimitedText(RecordSource):
    """CSV or TSV files with a header line."""

    kind: Literal["csv"] = Field(default="csv", description="Kind of the source.")
    delimiter: str | None = Field(
        default=None,
        min_length=1,
        max_length=1,
        description="Between two fields; left out, a tab in .tsv files and a comma in others.",
    )
    quoted: bool | None = Field(
        default=None,
        description="Whether quotes enclose fields; left out, in .csv files and not in .tsv ones.",
    )


class Columnar(RecordSource):
    """Parquet or Arrow files (such as the files of a local Hugging Face dataset)."""

    kind: Literal["columnar"] = Field(default="columnar", description="Kind of the source.")


class HuggingFaceDataset(RecordSource):
    """A Hugging Face dataset, streamed by its name or read from a local copy."""

    kind: Literal["hugging_face"] = Field(default="hugging_face", description="Kind of the source.")
    dataset: Uri = Field(default="", description="Name on the hub, or a local folder.")
    configuration: str | None = Field(default=None, description="Configuration (subset) to read.")
    split: str = Field(default="train", description="Split to read.")
    revision: str | None = Field(default=None, description="Commit or tag; the newest if left out.")


class MediaWiki(FileSource):
    """MediaWiki XML dumps (`pages-articles`): articles without markup."""

    kind: Literal["mediawiki"] = Field(default="mediawiki", description="Kind of the source.")


Source = Annotated[
    InstalledDocumentation | Files | PlainText | Html | Pdf | Markdown | JsonLines | DelimitedText
    | Columnar | HuggingFaceDataset | MediaWiki,
    Field(discriminator="kind"),
    Tabs(),
]  # fmt: skip


class CleaningSettings(Settings):
    """What is left out; everything left out is counted under its reason."""

    min_characters: int = Field(default=20, ge=1, description="Shorter documents are dropped.")
    max_characters: int | None = Field(
        default=None,
        ge=1,
        description="Longer documents are dropped; none if left out. Of a text file over 4 MiB "
        "each piece counts by itself.",
    )
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
    languages: tuple[str, ...] = Field(
        default=(),
        description="Keep documents in these languages only (ISO 639-1, such as en); all if empty.",
    )
    boilerplate_documents: int | None = Field(
        default=None,
        ge=2,
        description="Remove lines that occur in at least this many documents; none if left out.",
    )

    @model_validator(mode="after")
    def _some_length_is_kept(self) -> Self:
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError(
                f"max_characters={self.max_characters} is less than min_characters="
                f"{self.min_characters}: every document would be dropped"
            )
        return self


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
