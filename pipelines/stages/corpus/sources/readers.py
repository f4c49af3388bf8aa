"""Which module reads which source."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.corpus.settings import Source
from pipelines.stages.corpus.sources.inputs import InputFile, RawDocument, Span

# Each offers list_inputs(settings) and read(settings, span, tally). They are imported when they are
# needed: some bring large libraries along.
_READERS: Final = {
    "installed_documentation": "documentation",
    "text": "text_files",
    "markdown": "markdown",
    "jsonl": "records",
    "csv": "records",
    "columnar": "columnar",
    "hugging_face": "hugging_face",
    "mediawiki": "mediawiki",
}


def list_inputs(source: Source) -> list[InputFile]:
    """The files that `source` consists of, in a fixed order."""
    files: list[InputFile] = _reader(source).list_inputs(source)
    return files


def read_span(source: Source, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """Documents that begin in `span`, in order; what is mended or dropped goes to `tally`."""
    documents: Iterator[RawDocument] = _reader(source).read(source, span, tally)
    return documents


def _reader(source: Source) -> Any:
    return import_module(f"pipelines.stages.corpus.sources.{_READERS[source.kind]}")
