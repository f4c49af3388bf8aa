"""Two sets of answers as what a bootstrap takes: scores of the items that both may be judged by."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from mlflow.entities.model_registry import ModelVersion

from bert_core.model.catalogue import described
from pipelines.artifacts import Artifact, ArtifactStore
from pipelines.registry.comparison.bootstrap import Difference, paired_bootstrap
from pipelines.registry.comparison.candidates import Candidate
from pipelines.registry.comparison.evaluation import CannotCompareError, Evaluation
from pipelines.registry.settings import ComparisonSettings
from pipelines.stages.labelled.stage import family_of, read_items
from pipelines.tasks import Answers, Items
from pipelines.tasks.scoring.weighted import WeightedScore, ratio

_LOSS = "loss of masked tokens"


@dataclass(frozen=True, slots=True)
class JudgedItems:
    """The held-out items of a candidate that it is compared on, and how they are scored."""

    metric: str  # a person's word for an encoder's loss
    lower_is_better: bool
    margin: float
    items: Items  # none of an encoder's
    kept: Sequence[int]  # which of the answers count
    data: Artifact
    left_out: int = 0  # that the other version was trained on

    def score(self, answers: Sequence[object]) -> WeightedScore:
        """The score of `answers`, one for each held-out item, as a function of weights."""
        counted = [answers[index] for index in self.kept]
        if self.lower_is_better:
            losses = np.array(counted, np.float64)
            return ratio(losses[:, 0], losses[:, 1])
        return family_of(self.data).scores(Answers(counted, 0), self.items)[self.metric]

    def difference(
        self, ours: WeightedScore, other: WeightedScore, settings: ComparisonSettings
    ) -> Difference:
        """By how much the first is better, on these items."""
        return paired_bootstrap(
            ours, other, len(self.kept), settings,
            margin=self.margin, lower_is_better=self.lower_is_better,
        )  # fmt: skip


def judged_items(
    candidate: Candidate,
    evaluation: Evaluation | None,
    settings: ComparisonSettings,
    other: ModelVersion | None = None,
    store: ArtifactStore | None = None,
) -> JudgedItems:
    """All held-out items of the candidate, but those that `other` was trained on.

    How many an encoder has its `evaluation` says; those of a task are known without one.
    Raises CannotCompareError where none is left.
    """
    if candidate.is_encoder:
        assert evaluation is not None
        return JudgedItems(
            metric=_LOSS,
            lower_is_better=True,
            margin=settings.loss_margin,
            items=Items([]),
            kept=range(evaluation.num_items),
            data=candidate.data,
        )
    family, heldout = family_of(candidate.data), read_items(candidate.data, "heldout")
    known: set[str] = set()
    trained_on = other.tags.get("bertsmith.labelled", "") if other is not None else ""
    if store is not None and trained_on not in ("", candidate.data.fingerprint):
        labelled = store.find("labelled", trained_on)
        if labelled is None:
            raise CannotCompareError(
                "the store no longer holds what the champion was trained on, which may be the "
                "candidate's held-out items"
            )
        known = {family.group(item) for item in read_items(labelled, "train").rows}
    kept = [n for n, item in enumerate(heldout.rows) if family.group(item) not in known]
    if not kept:
        raise CannotCompareError("the champion was trained on all held-out items of the candidate")
    return JudgedItems(
        metric=candidate.metric,
        lower_is_better=False,
        margin=settings.margin,
        items=Items([heldout.rows[n] for n in kept], heldout.labels),
        kept=kept,
        data=candidate.data,
        left_out=len(heldout.rows) - len(kept),
    )


class Answerer(Protocol):
    """What decides which question a model answers: known of an artifact, and of a loaded model."""

    @property
    def head(self) -> str: ...

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def vocabulary(self) -> str: ...


def refuse_incomparable(candidate: Answerer, other: Answerer, *, is_encoder: bool) -> None:
    """Raise CannotCompareError where the two models do not answer the same question."""
    if candidate.head != other.head:
        raise CannotCompareError(
            f"the one is {described(candidate.head)}, the other {described(other.head)}"
        )
    if is_encoder and candidate.vocabulary != other.vocabulary:
        raise CannotCompareError(
            "they have different vocabularies, whose tokens are not the same question"
        )
    if set(candidate.labels) != set(other.labels):
        odd = sorted(set(candidate.labels) ^ set(other.labels))
        raise CannotCompareError(
            f"they have different labels: {', '.join(odd[:5])} stand in one of them alone"
        )
