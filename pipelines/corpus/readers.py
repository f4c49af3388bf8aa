"""Which module reads which source."""

from collections.abc import Iterator
from types import ModuleType
from typing import Final

from pipelines.corpus import documentation, text_files
from pipelines.corpus.inputs import InputFile, RawDocument, Span
from pipelines.corpus.settings import Source
from pipelines.corpus.tally import Tally

# Each offers list_inputs(settings) and read(settings, span, tally).
_READERS: Final[dict[str, ModuleType]] = {
    "installed_documentation": documentation,
    "text": text_files,
}


def list_inputs(source: Source) -> list[InputFile]:
    """The files that `source` consists of, in a fixed order."""
    files: list[InputFile] = _READERS[source.kind].list_inputs(source)
    return files


def read_span(source: Source, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """Documents that begin in `span`, in order; what is mended or dropped goes to `tally`."""
    documents: Iterator[RawDocument] = _READERS[source.kind].read(source, span, tally)
    return documents
