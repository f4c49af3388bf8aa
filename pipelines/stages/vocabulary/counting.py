"""Counting the words of a corpus, shard by shard, and over its languages."""

from collections import Counter
from dataclasses import dataclass

from bert_core.vocabulary import Normalization
from pipelines.artifacts import Artifact
from pipelines.artifacts.attempts.workspace import Workspace
from pipelines.core.cluster.mapping import map_tasks
from pipelines.core.stage import Progress, StageContext
from pipelines.stages.vocabulary.word_counts import (
    WordCounts,
    count_words,
    prune,
    read_counts,
    write_counts,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CountingTask:
    normalization: Normalization
    by_source: bool
    corpus: Artifact
    work: Workspace

    def __call__(self, name: str) -> str:
        """Count the words of the corpus shard `name`; returns the file of counts."""
        counts_name = f"{name}.counts"
        if self.work.finished(counts_name) is None:
            counts = count_words(
                self.corpus.local(name), self.normalization, by_source=self.by_source
            )
            with self.work.file(counts_name) as file:
                write_counts(file.path, counts)
        return counts_name


def counted_words(
    normalization: Normalization,
    smoothing: float,
    corpus: Artifact,
    context: StageContext,
    work: Workspace,
) -> tuple[dict[str, int], int]:
    """Word counts of the training part, and how many rare words were forgotten.

    With a `smoothing` below 1 they are smoothed over languages: see `smoothed`.
    """
    names = corpus.names("train-")
    counter = iter(range(1, len(names) + 1))
    files = map_tasks(
        _CountingTask(
            normalization=normalization, by_source=smoothing < 1, corpus=corpus, work=work
        ),
        names,
        num_workers=context.num_workers,
        on_result=lambda index, result: context.observe(
            Progress(stage="vocabulary", done=next(counter), total=len(names) + 1, unit="shards")
        ),
    )
    by_source: WordCounts = {}
    num_forgotten = 0
    for file in files:  # in the order of the shards: what is forgotten is the same in any run
        with work.local(file) as path:
            for source, counts in read_counts(path).items():
                into = by_source.setdefault(source, Counter())
                into.update(counts)
                num_forgotten += prune(into)
    return smoothed(by_source, smoothing), num_forgotten


def smoothed(by_source: WordCounts, exponent: float) -> dict[str, int]:
    """Counts over all sources, each source weighted so that its share p becomes p**exponent.

    Shares are normalized again (Devlin et al., multilingual BERT); the largest source keeps its
    counts and smaller ones gain.
    """
    totals = {source: sum(counts.values()) for source, counts in by_source.items()}
    largest = max(totals.values(), default=1)
    combined: Counter[str] = Counter()
    for source in sorted(by_source):
        factor = (totals[source] / largest) ** (exponent - 1)
        for word, count in by_source[source].items():
            combined[word] += round(count * factor)
    return combined
