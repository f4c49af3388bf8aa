"""Where text comes from: which module reads which source, and what is checked before a run."""

from collections.abc import Iterator
from typing import Final

from pipelines.io.files import reached, require_answer
from pipelines.io.text import Tally
from pipelines.stages.corpus.cleaning import check_codes
from pipelines.stages.corpus.selection import too_few_documents
from pipelines.stages.corpus.settings import (
    FEWEST_DOCUMENTS,
    CorpusSettings,
    HuggingFaceDataset,
    InstalledDocumentation,
    Source,
    TextFiles,
)
from pipelines.stages.corpus.sources.inputs import (
    InputFile,
    RawDocument,
    Span,
    check_unchanged,
    expand_all,
    format_of,
    label_of,
    list_files,
)

_TABLES_LOOKED_INTO: Final = 64
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


def check_inputs(settings: CorpusSettings) -> frozenset[str]:
    """Raise UserError where the sources cannot be read, or are too few files for a corpus.

    Returns the labels that documents will get; none where only the rows say.
    """
    check_codes(settings.cleaning.languages)
    labels: set[str] = set()
    num_documents = 0  # at least
    for source in settings.sources:
        if isinstance(source, InstalledDocumentation):
            from pipelines.stages.corpus.sources.documentation import installed

            for package in source.packages:
                installed(package)
            labels.update([source.name] if source.name else source.packages)
            num_documents += FEWEST_DOCUMENTS
        elif isinstance(source, HuggingFaceDataset):
            from pipelines.io.hugging_face import commit_of
            from pipelines.stages.corpus.sources.tables import label_of_dataset

            commit_of(source.dataset, source.revision)
            labels.add(label_of_dataset(source))
            num_documents += FEWEST_DOCUMENTS
        else:
            paths = _checked_files(source)
            labels.update([source.name] if source.name else map(label_of, paths))
            forms = {format_of(path, source) for path in paths}
            is_file = source.layout == "file" and forms <= {"text", "html", "pdf"}
            num_documents += len(paths) if is_file else FEWEST_DOCUMENTS
    if num_documents < FEWEST_DOCUMENTS:
        raise too_few_documents(num_documents)
    if any(getattr(source, "label_field", None) is not None for source in settings.sources):
        return frozenset()
    return frozenset(labels)


def _checked_files(source: TextFiles) -> list[str]:
    """The files of the source; raises UserError where one of them cannot be read as it is named."""
    for path in source.paths:
        require_answer(path)
    with reached(*source.paths):
        paths = expand_all(source.paths)
        tables: list[str] = []
        for path in paths:
            match format_of(path, source):
                case "text":
                    pass
                case "html" | "pdf" as form:
                    from pipelines.stages.corpus.sources.documents import require_library

                    require_library(form)
                case _:
                    tables.append(path)
        for path in tables[:_TABLES_LOOKED_INTO]:
            from pipelines.stages.corpus.sources.tables import check_columns

            check_columns(source, path)
    return paths
