"""What the corpus stage can be told: where text comes from, how it is cleaned and divided."""

from typing import Annotated, Literal

from pydantic import Field

from pipelines.settings import Settings


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


TextLayout = Literal["file", "blank_line", "line", "sentences", "headings"]


class PlainText(SourceSettings):
    """Plain text files."""

    kind: Literal["text"] = Field(default="text", description="Kind of the source.")
    paths: tuple[str, ...] = Field(
        default=(), description="Files, globs, folders or URLs; compressed ones are opened."
    )
    layout: TextLayout = Field(
        default="file",
        description=(
            "What a document is: a file, a block between blank lines, a line, a block of one "
            "sentence per line (Google's format), or what follows a ' = Title = ' heading."
        ),
    )
    hard_wrapped: bool = Field(
        default=False,
        description="Lines were broken to fit a page: only a blank line ends a paragraph.",
    )


Source = Annotated[InstalledDocumentation | PlainText, Field(discriminator="kind")]


class CleaningSettings(Settings):
    """What is left out; everything left out is counted under its reason."""

    min_characters: int = Field(default=20, ge=1, description="Shorter documents are dropped.")
    max_characters: int | None = Field(
        default=None, ge=1, description="Longer documents are dropped; none if left out."
    )
    exact_duplicates: bool = Field(
        default=True,
        description="Keep one of the documents that differ in case and white space only.",
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
