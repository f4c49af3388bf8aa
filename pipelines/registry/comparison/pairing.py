"""Whether two versions can be compared, and on which items: their answers as scores.

What tags and artifacts say already needs no model to be loaded.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from mlflow.entities.model_registry import ModelVersion

from bert_core.model.catalogue import described
from bert_core.training.state import CONFIG_FILE
from pipelines.artifacts import Artifact, ArtifactStore
from pipelines.recipes.registration import ComparisonSettings
from pipelines.registry.comparison.bootstrap import Difference, paired_bootstrap
from pipelines.registry.comparison.evaluation import (
    Candidate,
    CannotCompareError,
    Evaluation,
    answers_of,
    kind_of,
)
from pipelines.registry.finding import REQUIREMENTS_TAG, digest_of, uri_of
from pipelines.registry.serving.proof import unmet_requirements
from pipelines.stages.dataset.stage import family_of, read_items
from pipelines.tasks import Answers, Items, TaskFamily
from pipelines.tasks.scoring.weighted import WeightedScore, ratio
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker

_LOSS = "loss of masked tokens"
_VOCABULARY = "vocab.txt"


@dataclass(frozen=True, slots=True)
class ComparedItems:
    """The held-out items of a candidate that it is compared on, and how they are scored."""

    metric: str  # a person's word for an encoder's loss
    lower_is_better: bool
    margin: float
    items: Items  # none of an encoder's
    kept: Sequence[int]  # which of the answers count
    data: Artifact
    left_out: int = 0  # that either version was trained on

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


def compared_items(
    candidate: Candidate,
    evaluation: Evaluation | None,
    settings: ComparisonSettings,
    other: ModelVersion | None = None,
    store: ArtifactStore | None = None,
) -> ComparedItems:
    """All held-out items of the candidate, but those that `other` was trained on.

    How many an encoder has its `evaluation` says; those of a task are known without one.
    Raises CannotCompareError where none is left.
    """
    if candidate.is_encoder:
        assert evaluation is not None
        return ComparedItems(
            metric=_LOSS,
            lower_is_better=True,
            margin=settings.loss_margin,
            items=Items([]),
            kept=range(evaluation.num_items),
            data=candidate.data,
        )
    family, heldout = family_of(candidate.data), read_items(candidate.data, "heldout")
    # One's own parts may share items.
    known = (
        _trained_on(candidate.data, family)
        if candidate.data.statistics.get("heldout_also_in_train")
        else set()
    )
    trained_on = other.tags.get("bertsmith.dataset", "") if other is not None else ""
    if store is not None and trained_on not in ("", candidate.data.fingerprint):
        dataset = store.find("dataset", trained_on)
        if dataset is None:
            raise CannotCompareError(
                "the store no longer holds what the champion was trained on, which may be the "
                "candidate's held-out items"
            )
        known |= _trained_on(dataset, family)
    kept = [n for n, item in enumerate(heldout.rows) if family.group(item) not in known]
    if not kept:
        raise CannotCompareError(
            "all held-out items of the candidate are among what it or the champion was trained on"
        )
    return ComparedItems(
        metric=candidate.metric,
        lower_is_better=False,
        margin=settings.margin,
        items=Items([heldout.rows[n] for n in kept], heldout.labels),
        kept=kept,
        data=candidate.data,
        left_out=len(heldout.rows) - len(kept),
    )


def _trained_on(dataset: Artifact, family: TaskFamily) -> set[str]:
    return {family.group(item) for item in read_items(dataset, "train").rows}


def difference_from(
    other: ModelVersion, candidate: Candidate, evaluation: Evaluation | None,
    tracker: Tracker, store: ArtifactStore, settings: ComparisonSettings,
) -> tuple[ComparedItems, Difference]:  # fmt: skip
    """By how much the candidate is better than `other` on its own held-out items, and on which.

    `evaluation` are the candidate's answers where they are known; what is missing is computed, each
    version in a process of its own. Raises CannotCompareError, and what `answers_of` raises.
    """
    check_comparable_on_record(candidate, other, store, settings)
    ours = evaluation or answers_of(candidate.version, candidate, store, tracker)
    items = compared_items(candidate, ours, settings, other, store)
    theirs = answers_of(other, candidate, store, tracker)
    check_comparable(ours, theirs, is_encoder=candidate.is_encoder)
    scores = items.score(ours.answers), items.score(theirs.answers)
    return items, items.difference(*scores, settings)


class _Recorded(NamedTuple):
    """What decides which question a model answers, as its artifact has it."""

    head: str
    labels: tuple[str, ...]  # empty where the model has no classes
    vocabulary: str  # SHA-256


def check_comparable(
    candidate: Evaluation | _Recorded, other: Evaluation | _Recorded, *, is_encoder: bool
) -> None:
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
            f"they have different labels: {', '.join(odd[:5])} are in only one of them"
        )


def check_comparable_on_record(
    candidate: Candidate, other: ModelVersion, store: ArtifactStore, settings: ComparisonSettings
) -> None:
    """Raise CannotCompareError where tags and artifacts already show that the two do not compare.

    The rest, as where the store no longer holds an artifact, is checked when both models are
    loaded. Raises UserError for a version without its digest.
    """
    kind = kind_of(other)
    if kind != candidate.kind:
        raise CannotCompareError(f"{uri_of(other)} is of the kind {kind}, not {candidate.kind}")
    for version in (candidate.version, other):
        digest_of(version)
        declared = version.tags.get(REQUIREMENTS_TAG)
        unmet = unmet_requirements(declared.split(", ")) if declared else []
        if unmet:
            raise CannotCompareError(
                f"{uri_of(version)} declares other libraries than are installed: {', '.join(unmet)}"
            )
    artifact = store.find(candidate.artifact.kind, other.tags.get(FINGERPRINT_TAG, ""))
    if artifact is not None:
        check_comparable(
            _recorded(candidate.artifact), _recorded(artifact), is_encoder=candidate.is_encoder
        )
    if not candidate.is_encoder:
        compared_items(candidate, None, settings, other, store)


def _recorded(artifact: Artifact) -> _Recorded:
    config = json.loads(artifact.local(CONFIG_FILE).read_text(encoding="utf-8"))
    return _Recorded(
        head=config["head"],
        labels=tuple(config["settings"].get("labels") or ()),
        vocabulary=artifact.manifest.files[_VOCABULARY].sha256,
    )
