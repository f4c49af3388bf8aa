"""What a recipe names as its labelled texts, looked at before a run begins."""

from typing import Final

from fsspec.core import url_to_fs

from pipelines.core.errors import UserError
from pipelines.core.reading.files import compression_of, reached, require_answer
from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.labelled.division import check_parts, divide
from pipelines.stages.labelled.files import name_of_format, opened, read_labelled_file
from pipelines.stages.labelled.settings import CorpusSourceLabels, LabelledFile, LabelledSettings

_BYTES_LOOKED_AT: Final = 4 * 2**20  # read in half a second
_EXPANSION: Final = 8  # most that text grows by, about, when it is decompressed


def check_inputs(settings: LabelledSettings, corpus_labels: frozenset[str] = frozenset()) -> None:
    """Raise UserError where the labelled texts cannot be read, or give nothing to learn.

    Of a large file the head is looked at. `corpus_labels` are those that the corpus's documents
    will get, where that is known.
    """
    source = settings.source
    if isinstance(source, CorpusSourceLabels) and len(corpus_labels) == 1:
        raise UserError(
            "a classifier of the corpus's sources needs at least two of them to tell apart, found "
            f"{min(corpus_labels)!r} alone; give labelled texts (--labels), or set "
            "labelled.source to {kind: none}"
        )
    if not isinstance(source, LabelledFile):
        return
    name_of_format(source.path)
    require_answer(source.path)
    with reached(source.path):
        with opened(source.path):
            pass
        filesystem, plain = url_to_fs(source.path)
        size = filesystem.info(plain)["size"] or 0
        limit = _BYTES_LOOKED_AT // (_EXPANSION if compression_of(source.path) else 1)
        if size > limit:
            read_labelled_file(source, Tally(), head_bytes=_BYTES_LOOKED_AT)
            return
        items = read_labelled_file(source, Tally())
    check_parts(divide(items, source.heldout_fraction, source.seed))
