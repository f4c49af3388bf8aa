"""The check of the sources that a recipe names, before a run begins.

It looks at names, columns and what is installed; the stage itself finds what only shows when
everything is read.
"""

from pipelines.io.files import reached, require_answer
from pipelines.stages.corpus.cleaning import check_codes
from pipelines.stages.corpus.division import too_few_documents
from pipelines.stages.corpus.settings import (
    FEWEST_DOCUMENTS,
    CorpusSettings,
    HuggingFaceDataset,
    InstalledDocumentation,
    TextFiles,
)
from pipelines.stages.corpus.sources.inputs import expand_all, format_of, label_of

_TABLES_LOOKED_INTO = 64


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
