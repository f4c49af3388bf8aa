"""Where text comes from: which module reads which source and which file."""

from collections.abc import Iterator

from pipelines.io.text import Tally
from pipelines.stages.corpus.settings import HuggingFaceDataset, InstalledDocumentation, Source
from pipelines.stages.corpus.sources.inputs import (
    InputFile,
    RawDocument,
    Span,
    check_unchanged,
    list_files,
)

# Modules are imported when needed: some import large libraries.


def resolve(source: Source) -> tuple[Source, list[InputFile]]:
    """The source, with the commit of a data set, and what it reads, in a fixed order.

    Raises UserError where it names nothing that can be read.
    """
    if isinstance(source, InstalledDocumentation):
        from pipelines.stages.corpus.sources import documentation

        return source, documentation.source_files(source)
    if isinstance(source, HuggingFaceDataset):
        from pipelines.stages.corpus.sources import tables

        return tables.resolve_dataset(source)
    return source, list_files(source)


def read_span(source: Source, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """Documents that begin in `span`, in order; what is mended or dropped goes to `tally`.

    Raises UserError for what cannot be read, and for a local file that has changed since the run
    looked at it.
    """
    if isinstance(source, InstalledDocumentation):
        from pipelines.stages.corpus.sources import documentation

        return documentation.read(span, tally)
    if isinstance(source, HuggingFaceDataset):
        from pipelines.stages.corpus.sources import tables

        return tables.read_dataset(source, span, tally)
    check_unchanged(span.file)
    match span.file.format:
        case "text":
            from pipelines.stages.corpus.sources import text_files

            return text_files.read(source, span, tally)
        case "html" | "pdf":
            from pipelines.stages.corpus.sources import documents

            return documents.read(source, span, tally)
        case _:
            from pipelines.stages.corpus.sources import tables

            return tables.read(source, span, tally)
