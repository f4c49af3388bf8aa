"""Documents of Hugging Face data sets, streamed by name or read from a local copy."""

from collections.abc import Iterator

from pipelines.core.reading.hugging_face import commit_of, name_of, rows_of
from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.corpus.settings import HuggingFaceDataset
from pipelines.stages.corpus.sources.inputs import InputFile, RawDocument, Span
from pipelines.stages.corpus.sources.records import document_of


def resolve(settings: HuggingFaceDataset) -> tuple[HuggingFaceDataset, list[InputFile], str]:
    """The commit that is read, and the data set as one input.

    It is named by its files' bytes, or by its commit on the hub. Raises UserError where it is
    neither a local folder nor found on the hub.
    """
    settings = resolve_revision(settings)
    digest, num_bytes = name_of(settings.dataset, settings.revision)
    file = InputFile(
        path=settings.dataset,
        label=label_of_dataset(settings),
        num_bytes=num_bytes,
        digest=digest,
        splittable=False,
    )
    return settings, [file], ""


def resolve_revision(settings: HuggingFaceDataset) -> HuggingFaceDataset:
    """The same data set at one commit: what a branch or tag names now, or none for a local copy.

    Raises UserError where it is neither a local folder nor found on the hub.
    """
    revision = commit_of(settings.dataset, settings.revision)
    return settings.model_copy(update={"revision": revision})


def label_of_dataset(settings: HuggingFaceDataset) -> str:
    """What its documents are labelled with, where no field says it."""
    return settings.name or settings.dataset.rstrip("/").rsplit("/", 1)[-1]


def read(settings: HuggingFaceDataset, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """The rows of the split, in their order."""
    found = rows_of(settings.dataset, settings.configuration, settings.split, settings.revision)
    for record in found.rows:
        document = document_of(settings, record, span.file.label, tally)
        if document is not None:
            yield document
