"""Stage: labelled items, split into train and held-out, as one artifact."""

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from bert_core.model.rows import CODE_FILE
from pipelines.errors import UserError
from pipelines.stage import StageContext
from pipelines.stages import DATASET
from pipelines.stages.corpus.shards import Split, read_documents
from pipelines.stages.dataset.items import (
    Parts,
    folded,
    inputs_of,
    places_in_train,
    read_parts,
    resolved,
    with_labels,
)
from pipelines.stages.dataset.records import Source
from pipelines.stages.dataset.settings import (
    CorpusSourceLabels,
    DatasetSettings,
    LabelledDataset,
    LabelledFile,
)
from pipelines.store import Artifact, Built, Draft
from pipelines.tasks import Answers, Items, TaskFamily, family_module
from pipelines.tasks import family as family_named
from pipelines.tasks.rows import RowTask, carried_task
from pipelines.versions import versions_of

SPLITS: tuple[Split, Split] = ("train", "heldout")
_GROUPS_FILE = "train_groups.json"


def build_dataset(
    settings: DatasetSettings, corpus: Artifact | None, context: StageContext
) -> Artifact:
    """The labelled items that `settings` name, each in one of two splits.

    Statistics: the labels, how many items each split has, and the family's own, among them the
    scores of its trivial baseline. Raises UserError where there is nothing to learn.
    """
    source, family = settings.source, family_named(settings.family)
    # Parquet files name the library that wrote them; white space and case are Unicode's.
    libraries: tuple[str, ...] = ("pyarrow", "unicode")
    if isinstance(source, CorpusSourceLabels):
        if corpus is None:
            raise UserError("labels that are the corpus's sources need a corpus; name its sources")
        inputs: dict[str, Artifact | str] = {"corpus": corpus}
        where: dict[str, str | None] = {}
    elif isinstance(source, LabelledDataset):
        source = resolved(source)
        libraries = (*libraries, "datasets")
        inputs = {**inputs_of(source, family)}
        where = {"dataset": "", "revision": None}
    else:
        assert isinstance(source, LabelledFile), "without labels there is no dataset to build"
        inputs = {**inputs_of(source, family)}
        where = {"path": "", "heldout_path": "given" if source.heldout_path else ""}
    if isinstance(family, RowTask):
        inputs["task"] = hashlib.sha256(family.model.source.encode()).hexdigest()
    name = family_module(settings.family)
    # The same bytes at another place are the same labelled items.
    reading = source.model_copy(update=where).model_dump(mode="json")
    return context.store.get_or_build(
        DATASET.kind,
        version=DATASET.version,
        settings={"family": name, "source": reading},
        inputs={**inputs, "libraries": versions_of(*libraries)},
        build=partial(_write, family, name, source, corpus),
    )


def read_items(dataset: Artifact, split: Literal["train", "heldout"]) -> Items:
    """The items of a split, in the artifact's order."""
    rows = pq.read_table(dataset.local(f"{split}.parquet")).to_pylist()
    return Items(rows, tuple(dataset.statistics["labels"]))


def read_train_groups(dataset: Artifact) -> list[int] | None:
    """What each training item belongs to, by number; None where no column says it."""
    if _GROUPS_FILE not in dataset.names():
        return None
    groups: list[int] = json.loads(dataset.local(_GROUPS_FILE).read_text())
    return groups


def is_by_column(dataset: Artifact) -> bool:
    """Whether a column said which of its items belong together."""
    return bool(dataset.manifest.settings["source"].get("group_column"))


def family_of(dataset: Artifact) -> TaskFamily:
    """The family that an artifact of labelled items was made for; it may carry a person's own."""
    return carried_task(dataset) or family_named(dataset.statistics["family"])


def figures_of(answers: Answers, dataset: Artifact) -> dict[str, float]:
    """The scores of held-out answers, and those of the trivial baseline."""
    figures = family_of(dataset).figures(answers, read_items(dataset, "heldout"))
    statistics = dataset.statistics
    baselines = {name: statistics[name] for name in statistics if name.startswith("baseline/")}
    return {**figures, **baselines}


def _write(
    family: TaskFamily,
    name: str,
    source: CorpusSourceLabels | Source,
    corpus: Artifact | None,
    draft: Draft,
) -> Built:
    dropped, names = Counter[str](), [f"{split}.parquet" for split in SPLITS]
    if isinstance(source, CorpusSourceLabels):
        assert corpus is not None
        parts = _parts_of_corpus(source, corpus, dropped)
    else:
        parts = read_parts(source, family)
    by_column = not isinstance(source, CorpusSourceLabels) and bool(source.group_column)
    train, heldout = with_labels(parts, family)
    for split, items in zip(SPLITS, (train, heldout), strict=True):
        with draft.file(f"{split}.parquet") as target:
            pq.write_table(pa.Table.from_pylist(list(items.rows), family.schema), target.path)
            target.figures["items"] = len(items.rows)
    statistics = {
        "family": name,
        "score": family.score,
        "labels": list(train.labels),
        "items": {"train": len(train.rows), "heldout": len(heldout.rows)},
        # 0 where the split was made here; one's own parts may share some.
        "heldout_also_in_train": len(places_in_train(*parts.both, family, by_content=by_column)),
        "dropped": dict(dropped),
        "duplicates": sum(
            len(part) - len({folded(repr(item)) for item in part}) for part in parts.both
        ),
        **family.described(train, heldout),
    }
    if parts.train_groups is not None:
        names.append(_GROUPS_FILE)
        draft.write(_GROUPS_FILE, json.dumps(parts.train_groups).encode())
    if isinstance(family, RowTask):
        names.append(CODE_FILE)
        draft.write(CODE_FILE, family.model.source.encode())
    return Built(names, statistics)


def _parts_of_corpus(
    settings: CorpusSourceLabels, corpus: Artifact, dropped: Counter[str]
) -> Parts:
    """The corpus's own division: no held-out document was ever learned from."""
    parts = Parts([], [])
    limits = (settings.max_train_documents, settings.max_heldout_documents)
    for split, limit, part in zip(SPLITS, limits, parts.both, strict=True):
        # Ids are content hashes: the smallest are an even, reproducible sample.
        documents = _documents(corpus, split, settings.min_words, dropped)
        chosen = heapq.nsmallest(limit, documents)
        part.extend(
            {"text": text, "second_text": None, "label": source} for _, source, text in chosen
        )
    return parts


def _documents(
    corpus: Artifact, split: Split, min_words: int, dropped: Counter[str]
) -> Iterator[tuple[str, str, str]]:
    """Id, source and text of the documents that are long enough."""
    for document in read_documents(corpus, split):
        if len(document.text.split()) < min_words:
            dropped["too few words"] += 1
        else:
            yield document.id, document.source, document.text
