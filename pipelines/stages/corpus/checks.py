"""Checks of the sources that a recipe names, before a run begins.

They are cheap: names, sizes and the heads of some files, well within a second for local files. The
stage itself finds what only shows when everything is read.
"""

import io
from typing import Final, NamedTuple

from pipelines.io.files import reached, read_head, require_answer
from pipelines.io.records import BadRow, delimited_rows, dialect_of, json_record
from pipelines.io.text import check_is_text
from pipelines.stages.corpus.cleaning import check_codes
from pipelines.stages.corpus.division import too_few_documents
from pipelines.stages.corpus.settings import (
    FEWEST_DOCUMENTS,
    Columnar,
    CorpusSettings,
    DelimitedText,
    Files,
    FileSource,
    Html,
    HuggingFaceDataset,
    InstalledDocumentation,
    JsonLines,
    Markdown,
    MediaWiki,
    Pdf,
    PlainText,
    Source,
)
from pipelines.stages.corpus.sources.by_name import divided
from pipelines.stages.corpus.sources.inputs import expand_all, label_of

_FILES_LOOKED_INTO: Final = 64


class Look(NamedTuple):
    """What was found of a source: the number of its documents, and their labels."""

    documents: int | None  # None: enough, or unknown before all is read
    labels: frozenset[str] | None  # None: the records say


def check_inputs(settings: CorpusSettings) -> frozenset[str]:
    """Raise UserError where the sources cannot be read, or cannot make a corpus.

    Returns the labels that documents will get; none where only the records say.
    """
    check_codes(settings.cleaning.languages)
    sources = [each for source in settings.sources for each in _divided(source)]
    looks = [_look(source, settings.cleaning.min_characters) for source in sources]
    counts = [look.documents for look in looks]
    known = [count for count in counts if count is not None]
    if len(known) == len(counts) and sum(known) < FEWEST_DOCUMENTS:
        raise too_few_documents(sum(known))
    labels = [look.labels for look in looks]
    if None in labels:
        return frozenset()
    return frozenset().union(*(each for each in labels if each is not None))


def _divided(source: Source) -> list[Source]:
    if not isinstance(source, Files):
        return [source]
    for path in source.paths:
        require_answer(path)
    with reached(*source.paths):
        return divided(source)


def _look(source: Source, min_characters: int) -> Look:
    if isinstance(source, InstalledDocumentation):
        from pipelines.stages.corpus.sources.documentation import installed

        for package in source.packages:
            installed(package)
        return Look(None, frozenset([source.name] if source.name else source.packages))
    if isinstance(source, HuggingFaceDataset):
        from pipelines.io.hugging_face import commit_of
        from pipelines.stages.corpus.sources.records import label_of_dataset

        commit_of(source.dataset, source.revision)
        return Look(None, None if source.label_field else frozenset([label_of_dataset(source)]))
    assert not isinstance(source, Files), "files are divided by their formats first"
    if isinstance(source, Html | Pdf):
        from pipelines.stages.corpus.sources.documents import require_library

        require_library(source.kind)
    for path in source.paths:
        require_answer(path)
    with reached(*source.paths):
        paths = expand_all(source.paths)
        documents = _count(source, paths, min_characters)
    if getattr(source, "label_field", None) is not None:
        return Look(documents, None)
    return Look(documents, frozenset([source.name] if source.name else map(label_of, paths)))


def _count(source: FileSource, paths: list[str], min_characters: int) -> int | None:
    """Documents in the files, from their heads; None where these show enough or too little."""
    if isinstance(source, Pdf):  # of which only all of a file says whether it holds text
        return len(paths) if source.layout == "file" else None
    looked_into = paths[:_FILES_LOOKED_INTO]
    if isinstance(source, Columnar):
        from pipelines.stages.corpus.sources.records import count_rows

        counts = [count_rows(source, path) for path in looked_into]
    elif isinstance(source, PlainText):
        from pipelines.stages.corpus.sources.text_files import count_documents

        counts = count_documents(source, looked_into, min_characters)
    else:
        counts = [_count_in_head(source, path) for path in looked_into]
    known = [count for count in counts if count is not None]
    if len(known) < len(paths) or sum(known) >= FEWEST_DOCUMENTS:
        return None
    return sum(known)


def _count_in_head(source: FileSource, path: str) -> int | None:
    from pipelines.stages.corpus.sources.layouts import HEAD_BYTES
    from pipelines.stages.corpus.sources.records import require_fields

    head, is_whole = read_head(path, HEAD_BYTES)
    check_is_text(head, path)
    if isinstance(source, Markdown | Html):
        return int(bool(head.strip()))
    if isinstance(source, MediaWiki):
        return None
    if isinstance(source, DelimitedText):
        dialect = dialect_of(path, source.delimiter, source.quoted, is_strict=False)
        rows = list(delimited_rows(io.BytesIO(head), dialect))
        first = rows[0] if rows else None
        if isinstance(first, BadRow):
            raise first.refusal(path)
        require_fields(source, path, [] if first is None else first.cells)
        return sum(not isinstance(row, BadRow) for row in rows[1:]) if is_whole else None
    assert isinstance(source, JsonLines)
    lines = [line for line in head.split(b"\n") if line.strip()]
    records = [json_record(line, 0) for line in (lines if is_whole else lines[:-1])]
    found = [record for record in records if isinstance(record, dict)]
    if found and not any(source.text_field in record for record in found):
        require_fields(source, path, sorted({key for record in found for key in record}))
    return len(found) if is_whole else None
