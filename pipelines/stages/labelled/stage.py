"""Stage: labelled texts, split into train and held-out, as one artifact."""

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bert_core.randomness import random_bits, uniform
from pipelines.artifacts import Artifact, Built, Draft
from pipelines.core.errors import UserError
from pipelines.core.stage import StageContext
from pipelines.stages.corpus.shards import Split, read_documents
from pipelines.stages.labelled.files import fingerprint_of_file, read_labelled_file
from pipelines.stages.labelled.settings import CorpusSourceTask, LabelledFileTask, TaskSettings

VERSION = 1
SPLITS: tuple[Split, Split] = ("train", "heldout")


class LabelledText(NamedTuple):
    """A text and what it is labelled with."""

    text: str
    label: str


class LabelledTexts(NamedTuple):
    """One split of a task: N texts and, for each, the index of its label."""

    texts: list[str]
    labels: list[int]


def build_task(settings: TaskSettings, corpus: Artifact | None, context: StageContext) -> Artifact:
    """The labelled texts that `settings` name, each in one of two splits.

    Statistics: the label names, how many texts each has in each split, and the accuracy of always
    answering the commonest training label. Raises UserError where there is nothing to learn.
    """
    labelled = settings.labelled
    if isinstance(labelled, CorpusSourceTask):
        if corpus is None:
            raise UserError("a task of corpus sources needs a corpus, found none")
        inputs: dict[str, Artifact | str] = {"corpus": corpus}
        splits = partial(_splits_of_corpus, labelled, corpus)
    elif isinstance(labelled, LabelledFileTask):
        inputs = {"file": fingerprint_of_file(labelled.path)}
        splits = partial(_splits_of_file, labelled)
        # The same bytes at another place are the same task.
        labelled = labelled.model_copy(update={"path": ""})
    else:
        raise UserError("there is no task to build: the recipe's task is of kind 'none'")
    return context.store.get_or_build(
        "task",
        version=VERSION,
        settings=labelled,
        inputs=inputs,
        build=partial(_write, splits),
    )


def read_split(task: Artifact, split: str) -> LabelledTexts:
    """The texts and label indices of `train` or `heldout`, in the artifact's order."""
    table = pq.read_table(task.local(f"{split}.parquet"))
    return LabelledTexts(table["text"].to_pylist(), table["label"].to_pylist())


def names_of(labels: Iterable[int], task: Artifact) -> list[str]:
    """The names of label indices."""
    names = task.statistics["labels"]
    return [names[label] for label in labels]


def _write(splits: Any, draft: Draft) -> Built:
    train, heldout = (list(part) for part in splits())
    labels = sorted({item.label for item in train})
    _check(labels, train, heldout)
    index = {label: position for position, label in enumerate(labels)}
    for split, items in zip(SPLITS, (train, heldout), strict=True):
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
        for split, items in zip(SPLITS, (train, heldout), strict=True)
    }
    commonest = min(labels, key=lambda label: (-counts["train"][label], label))
    statistics = {
        "labels": labels,
        "texts": {"train": len(train), "heldout": len(heldout)},
        "texts_by_label": {split: dict(sorted(count.items())) for split, count in counts.items()},
        "majority_label": commonest,
        "baseline/accuracy": counts["heldout"][commonest] / len(heldout),
    }
    return Built([f"{split}.parquet" for split in SPLITS], statistics)


def _check(labels: list[str], train: list[LabelledText], heldout: list[LabelledText]) -> None:
    if len(labels) < 2:
        raise UserError(
            f"a classifier needs at least two labels to tell apart, found {labels}; "
            "check the label column"
        )
    if len(labels) > len(train) // 2:
        raise UserError(
            f"a label must come with several texts to learn from, found {len(labels)} labels on "
            f"{len(train)} texts; check which column holds the label"
        )
    unknown = sorted({item.label for item in heldout} - set(labels))
    if unknown:
        raise UserError(
            f"every label must occur in the training part, but {unknown[:5]} are only among the "
            "held-out texts; give these labels more texts or another split seed"
        )
    if not heldout:
        raise UserError(
            f"some texts must be held out to evaluate on, found none of {len(train)}; raise "
            "heldout_fraction or give more texts"
        )


def _splits_of_corpus(
    settings: CorpusSourceTask, corpus: Artifact
) -> Iterator[Iterable[LabelledText]]:
    """The corpus's own split: no held-out document was ever learned from."""
    limits = (settings.max_train_documents, settings.max_heldout_documents)
    for split, limit in zip(SPLITS, limits, strict=True):
        documents = (
            (document.id, document.source, " ".join(document.sentences))
            for document in read_documents(corpus, split)
        )
        # Ids are content hashes: the smallest are an even, reproducible sample.
        chosen = heapq.nsmallest(
            limit,
            (item for item in documents if len(item[2].split()) >= settings.min_words),
        )
        yield [LabelledText(text, source) for _, source, text in chosen]


def _splits_of_file(settings: LabelledFileTask) -> Iterator[Iterable[LabelledText]]:
    """Split by the text itself, so that equal texts never stand on both sides."""
    parts: tuple[list[LabelledText], list[LabelledText]] = ([], [])
    for text, label in read_labelled_file(settings):
        digest = hashlib.sha256(text.encode()).digest()
        draw = uniform(random_bits(settings.seed, "split", int.from_bytes(digest[:8], "little")))
        parts[int(draw < settings.heldout_fraction)].append(LabelledText(text, label))
    yield from parts
