"""Stage: labelled texts, split into train and held-out, as one artifact."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.artifacts import Artifact, Built, Draft
from pipelines.core.errors import UserError
from pipelines.core.stage import StageContext
from pipelines.core.versions import versions_of
from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.corpus.shards import Split, read_documents
from pipelines.stages.labelled import LABELLED
from pipelines.stages.labelled.division import Parts, check_parts, divide
from pipelines.stages.labelled.files import LabelledText, name_of_file, read_labelled_file
from pipelines.stages.labelled.settings import CorpusSourceLabels, LabelledFile, LabelledSettings

SPLITS: tuple[Split, Split] = ("train", "heldout")


class LabelledTexts(NamedTuple):
    """One split: N texts and, for each, the index of its label."""

    texts: list[str]
    labels: list[int]


def build_labelled(
    settings: LabelledSettings, corpus: Artifact | None, context: StageContext
) -> Artifact:
    """The labelled texts that `settings` name, each in one of two splits.

    Statistics: the label names, how many texts each has in each split, and the accuracy of always
    answering the commonest training label. Raises UserError where there is nothing to learn.
    """
    source = settings.source
    if isinstance(source, CorpusSourceLabels):
        if corpus is None:
            raise UserError("labels that are the corpus's sources need a corpus, found none")
        inputs: dict[str, Artifact | str] = {"corpus": corpus}
        parts_of = partial(_parts_of_corpus, source, corpus)
    elif isinstance(source, LabelledFile):
        inputs = {**name_of_file(source.path)}
        parts_of = partial(_parts_of_file, source)
        # The same bytes at another place are the same labelled texts.
        source = source.model_copy(update={"path": ""})
    else:
        raise UserError("labelled texts must come from somewhere, found a source of kind 'none'")
    return context.store.get_or_build(
        LABELLED.kind,
        version=LABELLED.version,
        settings=source,
        # Parquet files name the library that wrote them; white space is Unicode's.
        inputs={**inputs, "libraries": versions_of("pyarrow", "unicode")},
        build=partial(_write, parts_of),
    )


def read_split(labelled: Artifact, split: str) -> LabelledTexts:
    """The texts and label indices of `train` or `heldout`, in the artifact's order."""
    table = pq.read_table(labelled.local(f"{split}.parquet"))
    return LabelledTexts(table["text"].to_pylist(), table["label"].to_pylist())


def names_of(labels: Iterable[int], labelled: Artifact) -> list[str]:
    """The names of label indices."""
    names = labelled.statistics["labels"]
    return [names[label] for label in labels]


def _write(parts_of: Callable[[Tally], Parts], draft: Draft) -> Built:
    tally = Tally()
    parts = parts_of(tally)
    labels = check_parts(parts)
    train, heldout = parts
    index = {label: position for position, label in enumerate(labels)}
    for split, items in zip(SPLITS, parts, strict=True):
        table = pa.table(
            {
                "text": pa.array([item.text for item in items], pa.string()),
                "label": pa.array([index[item.label] for item in items], pa.int32()),
            }
        )
        with draft.file(f"{split}.parquet") as target:
            pq.write_table(table, target.path)
            target.figures["texts"] = len(items)
    counts = {
        split: Counter(item.label for item in items)
        for split, items in zip(SPLITS, parts, strict=True)
    }
    commonest = min(labels, key=lambda label: (-counts["train"][label], label))
    statistics = {
        "labels": labels,
        "texts": {"train": len(train), "heldout": len(heldout)},
        "texts_by_label": {split: dict(sorted(count.items())) for split, count in counts.items()},
        "majority_label": commonest,
        **tally.to_json(),
        "baseline/accuracy": counts["heldout"][commonest] / len(heldout),
    }
    return Built([f"{split}.parquet" for split in SPLITS], statistics)


def _parts_of_corpus(settings: CorpusSourceLabels, corpus: Artifact, tally: Tally) -> Parts:
    """The corpus's own division: no held-out document was ever learned from."""
    parts = Parts([], [])
    limits = (settings.max_train_documents, settings.max_heldout_documents)
    for split, limit, part in zip(SPLITS, limits, parts, strict=True):
        # Ids are content hashes: the smallest are an even, reproducible sample.
        chosen = heapq.nsmallest(limit, _documents(corpus, split, settings.min_words, tally))
        part.extend(LabelledText(text, source) for _, source, text in chosen)
    return parts


def _documents(
    corpus: Artifact, split: Split, min_words: int, tally: Tally
) -> Iterator[tuple[str, str, str]]:
    """Id, source and text of the documents that are long enough."""
    for document in read_documents(corpus, split):
        if len(document.text.split()) < min_words:
            tally.dropped["too few words"] += 1
        else:
            yield document.id, document.source, document.text


def _parts_of_file(settings: LabelledFile, tally: Tally) -> Parts:
    return divide(read_labelled_file(settings, tally), settings.heldout_fraction, settings.seed)
