"""Which module reads which source."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final, NamedTuple

from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.corpus.settings import Source
from pipelines.stages.corpus.sources.inputs import InputFile, RawDocument, Span

# Each offers list_inputs(settings) and read(settings, span, tally), and where something of the
# settings shows in the inputs only, resolve(settings) in place of the former. They are imported
# when they are needed: some bring large libraries along.
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
# Libraries whose versions decide the documents of a source. Decompression and XML do not: their
# results are defined. Of `installed_documentation` it is Python's parser and its `cleandoc`.
_LIBRARIES: Final = {
    "installed_documentation": ("python",),
    "markdown": ("markdown-it-py", "python"),  # named entities are Python's
    "hugging_face": ("datasets", "pandas"),
    "mediawiki": ("mwparserfromhell", "python"),
}


class Resolved(NamedTuple):
    """A source with nothing left to find out, its files in a fixed order, and what was found."""

    source: Source
    files: list[InputFile]
    note: str  # a sentence for people; empty where everything was set


def resolve(source: Source) -> Resolved:
    """Look at what `source` names: which files, how they are laid out, which commit.

    Raises UserError where it names nothing that can be read.
    """
    reader = _reader(source)
    if hasattr(reader, "resolve"):
        return Resolved(*reader.resolve(source))
    return Resolved(source, reader.list_inputs(source), "")


def libraries_of(source: Source) -> tuple[str, ...]:
    """Names, as `versions_of` takes them, of what decides the documents of a resolved source."""
    if source.kind == "text" and source.layout == "sentences":
        return ()
    return ("blingfire", *_LIBRARIES.get(source.kind, ()))


def list_inputs(source: Source) -> list[InputFile]:
    """The files that `source` consists of, in a fixed order."""
    return resolve(source).files


def read_span(source: Source, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """Documents that begin in `span`, in order; what is mended or dropped goes to `tally`."""
    documents: Iterator[RawDocument] = _reader(source).read(source, span, tally)
    return documents


def _reader(source: Source) -> Any:
    return import_module(f"pipelines.stages.corpus.sources.{_READERS[source.kind]}")
