"""Whether a version becomes champion: better than the present one, or than its baselines.

A candidate without a champion to beat has to beat what a person would use instead: the constant
guess, and the simpler models that learned from the same items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from pipelines.errors import UserError
from pipelines.recipes.recipe import ComparisonSettings
from pipelines.registry.bootstrap import Difference, paired_bootstrap
from pipelines.registry.card import with_comparison
from pipelines.registry.find import (
    COMPARISON_TAG,
    KIND_TAG,
    OWED_TAG,
    PROOF_TAG,
    find_source,
    rolled_back_tag,
    uri_of,
    version_with_alias,
)
from pipelines.registry.prove import CannotCompareError, Evaluation, VerificationError, evaluated
from pipelines.stages.dataset.stage import family_of, read_items
from pipelines.stages.evaluation import answers_in, build_baselines
from pipelines.store import Artifact, ArtifactStore
from pipelines.tasks import Answers, Items, TaskFamily
from pipelines.tasks.scoring import WeightedScore, ratio
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker

_CORRELATIONS: Final = ("eval/pearson", "eval/spearman", "eval/matthews")  # 0 for a constant answer
_REMEDY: Final = (
    "try more labels or epochs, longer pretraining or text of your domain, a published "
    "encoder (--encoder), or use {name} itself, which is cheaper"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a comparison showed."""

    name: str
    version: int
    is_better: bool
    reason: str  # one sentence
    against: str = ""  # models:/name/number of the champion, or the baseline
    metric: str = ""
    difference: Difference | None = None
    data: str = ""  # fingerprint of the held-out data
    left_out: int = 0  # items that either was trained on


def compare_versions(
    tracker: Tracker,
    store: ArtifactStore,
    name: str,
    number: int,
    alias: str,
    settings: ComparisonSettings,
    evaluation: Evaluation | None = None,
) -> Comparison:
    """Compare version `number` of `name` with the version that has `alias`, or with its baselines.

    The result is recorded with the version. `evaluation` are its answers on its held-out data,
    where they are known; what is missing is computed, each version in a process of its own with its
    own code. What cannot be compared is not better, and `reason` says why. Raises UserError where
    there is no such version, ConnectionError and MlflowException where tracker or store does not
    answer.
    """
    client = tracker.client()
    version = find_source(client, name, str(number))
    champion = version_with_alias(client, name, alias)
    against = "baselines" if champion is None else uri_of(champion)
    refused = partial(Comparison, name=name, version=number, is_better=False, against=against)
    if champion is not None and int(champion.version) == number:  # a run was killed after that
        client.delete_model_version_tag(name, str(number), OWED_TAG)
        return refused(reason=f"it is {alias} already")
    if rolled_back_tag(version, alias) in client.get_registered_model(name).tags:
        reason = f"a person rolled this model back; `bertsmith promote {name} --version {number}`"
        comparison = refused(reason=reason)
    else:
        try:
            comparison = _compared(version, champion, tracker, store, settings, evaluation)
        except CannotCompareError as error:
            comparison = refused(reason=f"it cannot be compared with {against}: {error}")
        except (VerificationError, UserError) as error:
            sentence = " ".join(str(error).split())  # a process's stderr has several lines
            comparison = refused(reason=f"it was not compared with {against}: {sentence}")
    _record(client, version, comparison)
    return comparison


@dataclass(frozen=True, slots=True)
class Candidate:
    """A registered version, its model in the store, and its held-out data."""

    version: ModelVersion
    kind: str
    metric: str  # that it proved itself by
    data: Artifact  # examples of an encoder, labelled items of a task
    artifact: Artifact

    @property
    def is_encoder(self) -> bool:
        """Whether it is a pretrained encoder and no model of a task."""
        return self.kind == "encoder"

    @property
    def max_examples(self) -> int:
        """How many held-out examples of an encoder count: those of its proof."""
        return int(self.version.tags.get(f"{PROOF_TAG}.items", "0"))

    def answers_of(
        self, version: ModelVersion, tracker: Tracker, store: ArtifactStore
    ) -> Evaluation:
        """What `version` answers on this candidate's held-out data, with its own code."""
        return evaluated(
            version, self.metric, self.data,
            store_url=store.url, tracker=tracker, max_examples=self.max_examples,
        )  # fmt: skip


def candidate_of(version: ModelVersion, store: ArtifactStore) -> Candidate:
    """The version with its held-out data.

    Raises CannotCompareError where it is not proved, or the store lacks what it was made from.
    """
    kind, uri = version.tags.get(KIND_TAG, ""), uri_of(version)
    data_kind, model_kind = (
        ("examples", "encoder") if kind == "encoder" else ("dataset", "finetuned")
    )
    metric = version.tags.get(f"{PROOF_TAG}.metric", "")
    if not metric:
        raise CannotCompareError(f"{uri} was never verified")
    data = store.find(data_kind, version.tags.get(f"bertsmith.{data_kind}", ""))
    if data is None:
        raise CannotCompareError(f"the store holds no {data_kind} that {uri} names")
    artifact = store.find(model_kind, version.tags.get(FINGERPRINT_TAG, ""))
    if artifact is None:
        raise CannotCompareError(f"the store no longer holds the model of {uri}")
    return Candidate(version, kind, metric, data, artifact)


@dataclass(frozen=True, slots=True)
class CountedItems:
    """The held-out items of a task that a comparison counts."""

    family: TaskFamily
    metric: str
    items: Items
    kept: Sequence[int]  # their places among all held-out items
    left_out: int  # that either version was trained on

    def score(self, answers: Sequence[object]) -> WeightedScore:
        """The score of `answers`, one for each held-out item, as a function of weights."""
        counted = Answers([answers[place] for place in self.kept], 0)
        return self.family.scores(counted, self.items)[self.metric]


def counted_items(
    candidate: Candidate, champion: ModelVersion | None, store: ArtifactStore
) -> CountedItems:
    """The held-out items of a task's candidate that neither version was trained on.

    Raises CannotCompareError where none is left, or the champion's training items are unknown.
    """
    family, heldout = family_of(candidate.data), read_items(candidate.data, "heldout")
    known: set[str] = set()
    if candidate.data.statistics.get("heldout_also_in_train"):  # parts of one's own
        known |= _trained_on(candidate.data, family)
    trained_on = "" if champion is None else champion.tags.get("bertsmith.dataset", "")
    if trained_on not in ("", candidate.data.fingerprint):
        dataset = store.find("dataset", trained_on)
        if dataset is None:
            raise CannotCompareError(
                "the store no longer holds what the champion was trained on, which may be the "
                "candidate's held-out items"
            )
        known |= _trained_on(dataset, family)
    kept = [place for place, item in enumerate(heldout.rows) if family.group(item) not in known]
    if not kept:
        raise CannotCompareError(
            "all held-out items of the candidate are among what it or the champion was trained on"
        )
    items = Items([heldout.rows[place] for place in kept], heldout.labels)
    return CountedItems(family, candidate.metric, items, kept, len(heldout.rows) - len(kept))


def _trained_on(dataset: Artifact, family: TaskFamily) -> set[str]:
    return {family.group(item) for item in read_items(dataset, "train").rows}


def _compared(
    version: ModelVersion,
    champion: ModelVersion | None,
    tracker: Tracker,
    store: ArtifactStore,
    settings: ComparisonSettings,
    evaluation: Evaluation | None,
) -> Comparison:
    candidate = candidate_of(version, store)
    if champion is not None:
        kind = champion.tags.get(KIND_TAG, "")
        if kind != candidate.kind:
            raise CannotCompareError(f"{uri_of(champion)} is of the kind {kind or 'unknown'}")
    counted = None if candidate.is_encoder else counted_items(candidate, champion, store)
    ours = evaluation or candidate.answers_of(version, tracker, store)
    score = _loss if counted is None else counted.score
    others: Mapping[str, WeightedScore]
    learned: Mapping[str, WeightedScore] = {}
    if champion is not None:
        theirs = candidate.answers_of(champion, tracker, store)
        others = {uri_of(champion): score(theirs.answers)}
    elif counted is None:
        others = {"the token-frequency baseline": _constant(_token_frequencies(candidate))}
    else:
        made = build_baselines(candidate.artifact, candidate.data, store)
        learned = {name: score(answers) for name, answers in answers_in(made).items()}
        guess = _constant(_guess(candidate, counted))
        others = {f"the {counted.family.guess} baseline": guess, **learned}
    differences = {
        name: paired_bootstrap(
            score(ours.answers), other,
            ours.num_items if counted is None else len(counted.kept), settings,
            margin=settings.loss_margin if counted is None else settings.margin,
            lower_is_better=counted is None,
        )
        for name, other in others.items()
    }  # fmt: skip
    # Of several baselines the one that is beaten by least decides.
    against = min(differences, key=lambda name: (differences[name].ahead, differences[name].value))
    difference = differences[against]
    is_better = difference.holds(settings.confidence)
    metric = "loss of masked tokens" if counted is None else candidate.metric
    left_out = 0 if counted is None else counted.left_out
    reason = in_words(against, metric, difference, settings, is_better, left_out)
    if against in learned and not is_better:
        reason = f"{reason}; {_REMEDY.format(name=against)}"
    return Comparison(
        name=version.name, version=int(version.version), is_better=is_better, reason=reason,
        against=against, metric=metric, difference=difference, data=candidate.data.fingerprint,
        left_out=left_out,
    )  # fmt: skip


def _loss(answers: Sequence[object]) -> WeightedScore:
    """Of an encoder, whose answers are each sequence's loss and number of predicted tokens."""
    losses = np.array(answers, np.float64)
    return ratio(losses[:, 0], losses[:, 1])


def _constant(value: float) -> WeightedScore:
    return lambda weights: value


def _token_frequencies(candidate: Candidate) -> float:
    """The loss of an encoder's constant guess."""
    statistics = candidate.artifact.statistics
    for name in ("baseline/mlm_loss", "baseline/clm_loss"):
        if name in statistics:
            return float(statistics[name])
    raise CannotCompareError("no baseline was computed for its held-out data")


def _guess(candidate: Candidate, counted: CountedItems) -> float:
    """The figure of the constant guess on the counted items."""
    train = read_items(candidate.data, "train")
    statistics = counted.family.described(train, counted.items)
    name = candidate.metric.replace("eval/", "baseline/")
    if name in statistics:
        return float(statistics[name])
    if candidate.metric in _CORRELATIONS:
        return 0.0
    raise CannotCompareError(f"{name} was not computed for its held-out data")


def in_words(
    against: str,
    metric: str,
    difference: Difference,
    settings: ComparisonSettings,
    is_better: bool,
    left_out: int = 0,
) -> str:
    """The comparison in one sentence, with all its figures."""
    name = metric.removeprefix("eval/").replace("_", " ")
    rule = (
        f"better by more than {difference.margin:g} in {difference.ahead:.1%} of "
        f"{settings.resamples} resamples, {settings.confidence:.0%} required"
    )
    without = f", without {left_out} that one of them was trained on" if left_out else ""
    whose, value, low, high = difference.advantage("its", "the other's")
    return (
        f"{'' if is_better else 'not '}better than {against}: {name} {difference.score:.4f} "
        f"against {difference.other:.4f}, {value:+.4f} in {whose} favour "
        f"({settings.confidence:.0%} interval {low:+.4f} to {high:+.4f}) on "
        f"{difference.num_items} held-out items{without}; {rule}"
    )


def _record(client: MlflowClient, version: ModelVersion, comparison: Comparison) -> None:
    """The result, as tags of the version and at the end of its description."""
    name, number = version.name, str(version.version)
    card = version.description or ""
    client.update_model_version(name, number, with_comparison(card, comparison.reason))
    values = {
        "decision": "better" if comparison.is_better else "not better",
        "reason": comparison.reason[:4_000],  # MLflow's SQL store takes 5,000
        "against": comparison.against,
        "metric": comparison.metric,
        "data": comparison.data,
    }
    if (difference := comparison.difference) is not None:
        values |= {
            "score": repr(difference.score),
            "other": repr(difference.other),
            "interval": f"{difference.low!r} {difference.high!r}",
            "margin": repr(difference.margin),
            "items": str(difference.num_items),
        }
    for key, value in values.items():
        if value:
            client.set_model_version_tag(name, number, f"{COMPARISON_TAG}.{key}", value)
    if not comparison.is_better and OWED_TAG in version.tags:  # what is better is owed its alias
        client.delete_model_version_tag(name, number, OWED_TAG)
