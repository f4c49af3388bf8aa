"""What a recipe names as its labelled items, inspected before a run begins."""

from typing import Final

from fsspec.core import url_to_fs

from pipelines.config.errors import UserError
from pipelines.io.files import compression_of, reached, require_answer
from pipelines.io.records import opened
from pipelines.stages.dataset.hugging_face import num_bytes_of, resolved
from pipelines.stages.dataset.items import LeftOut, read_labelled, read_parts, with_labels
from pipelines.stages.dataset.records import format_of
from pipelines.stages.dataset.settings import (
    CorpusSourceLabels,
    DatasetSettings,
    LabelledDataset,
    LabelledFile,
)
from pipelines.tasks import TaskFamily, family

_BYTES_INSPECTED: Final = 4 * 2**20  # read in half a second
_ROWS_INSPECTED: Final = 1000  # of a large dataset
_EXPANSION: Final = 8  # most that text grows by, about, when it is decompressed
_READ_WHOLE: Final = ("squad",)  # formats without lines


def check_inputs(
    settings: DatasetSettings, corpus_labels: frozenset[str] = frozenset()
) -> TaskFamily:
    """The family; UserError where the labelled items cannot be read, or give nothing to learn.

    Of large files the head is looked at. `corpus_labels` are those that the corpus's documents
    will get, where that is known.
    """
    source = settings.source
    if isinstance(source, CorpusSourceLabels) and len(corpus_labels) == 1:
        raise UserError(
            "a classifier of the corpus's sources needs at least two of them to tell apart, found "
            f"{min(corpus_labels)!r} alone; give labelled texts (--labels), or set "
            "dataset.source to {kind: none}"
        )
    task = family(settings.family)
    if isinstance(source, LabelledDataset):
        _check_dataset(source, task)
    elif isinstance(source, LabelledFile):
        _check_files(source, task)
    return task


def _check_files(source: LabelledFile, task: TaskFamily) -> None:
    paths = [source.path, *filter(None, [source.heldout_path])]
    for path in paths:
        format_of(path, task.form)
        require_answer(path)
    with reached(*paths):
        large = [path for path in paths if _is_large(path)]
        for path in large:
            head = None if format_of(path, task.form) in _READ_WHOLE else _BYTES_INSPECTED
            read_labelled(path, task, source, LeftOut(), limit=head)
        if large:
            return
        parts = read_parts(source, task, LeftOut())
    with_labels(parts, task)


def _check_dataset(source: LabelledDataset, task: TaskFamily) -> None:
    source = resolved(source)
    size = num_bytes_of(source)
    if size is None or size > _BYTES_INSPECTED:
        read_parts(source, task, LeftOut(), limit=_ROWS_INSPECTED)
    else:
        with_labels(read_parts(source, task, LeftOut()), task)


def _is_large(path: str) -> bool:
    """Whether only its head is looked at; raises UserError where it cannot be opened."""
    with opened(path):
        pass
    filesystem, plain = url_to_fs(path)
    size = filesystem.info(plain)["size"] or 0
    limit = _BYTES_INSPECTED // (_EXPANSION if compression_of(path) else 1)
    return bool(size > limit)
