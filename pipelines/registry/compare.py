"""Whether a version becomes champion: better than the present one, or than its baselines.

A candidate without a champion to beat has to beat what a person would use instead: the constant
guess, and the simpler models that learned from the same items. Better means: by more than a margin
in nearly all resamples of a paired bootstrap over the held-out items.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from mlflow.entities.model_registry import ModelVersion

from bert_core.randomness import integers, random_bits
from pipelines.errors import UserError
from pipelines.recipes.recipe import ComparisonSettings
from pipelines.registry.find import (
    COMPARISON_TAG,
    KIND_TAG,
    PROMOTED_TAG,
    PROOF_TAG,
    entries,
    find_source,
    number_of,
    rolled_back_tag,
    uri_of,
    version_with_alias,
)
from pipelines.registry.prove import Evaluation, VerificationError, evaluated
from pipelines.stages.dataset.items import places_in_train
from pipelines.stages.dataset.stage import family_of, is_by_column, read_items
from pipelines.stages.evaluation import answers_in, build_baselines
from pipelines.store import Artifact, ArtifactStore
from pipelines.store.access import FULL
from pipelines.tasks import Answers, Items, TaskFamily
from pipelines.tasks.scoring import WeightedScore, ratio
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker, is_transient

_REMEDY: Final = (
    "try more labels or epochs, longer pretraining or text of your domain, a published "
    "encoder (--encoder), or use {name} itself, which is cheaper"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """By how much a system is better than another one, and with which confidence."""

    score: float
    other: float
    value: float  # by how much better `score` is; negative where it is worse
    low: float  # of the interval that holds the share `confidence` of the resamples
    high: float
    ahead: float  # the share of resamples in which it is better by more than the margin
    margin: float
    num_items: int

    def holds(self, confidence: float) -> bool:
        """Whether it is better by more than the margin in that share of the resamples."""
        return self.value > self.margin and self.ahead >= confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a comparison showed."""

    name: str
    version: int
    is_better: bool
    reason: str  # one sentence
    against: str = ""  # models:/name/number of the champion, or the baseline
    difference: Difference | None = None
    left_out: int = 0  # items that either was trained on
    champion: int | None = None  # the version that had the alias


def compare_versions(
    tracker: Tracker,
    store: ArtifactStore,
    name: str,
    number: int,
    alias: str,
    settings: ComparisonSettings,
    evaluation: Evaluation | None = None,
) -> Comparison:
    """Compare the verified version `number` of `name` with the one that has `alias`, or baselines.

    The result is kept as tags of the version. `evaluation` are its answers on its held-out data,
    where they are known; what is missing is computed, each version in a process of its own with its
    own code. What cannot be compared is not better, and `reason` says why. Raises UserError where
    there is no such version, ConnectionError and MlflowException where tracker or store does not
    answer.
    """
    client = tracker.client()
    version = find_source(client, name, str(number))
    champion = version_with_alias(client, name, alias)

    def refused(reason: str) -> Comparison:
        return Comparison(
            name=name, version=number, is_better=False, reason=reason, champion=number_of(champion)
        )

    if number_of(champion) == number:  # by an earlier run that was killed, or a person
        reason = version.tags.get(f"{COMPARISON_TAG}.reason", f"it is {alias} already")
        if f"{PROMOTED_TAG}.{alias}.reason" not in version.tags:
            client.set_model_version_tag(
                name, str(number), f"{PROMOTED_TAG}.{alias}.reason", reason
            )
        return refused(f"it is {alias} already")
    if rolled_back_tag(version, alias) in client.get_registered_model(name).tags:
        comparison = refused(
            f"a person rolled this model back; to promote it anyway, run `bertsmith promote {name} "
            f"--version {number}`"
        )
    else:
        try:
            comparison = _compared(version, champion, tracker, store, settings, evaluation)
        except (VerificationError, UserError) as error:
            # A disk or a store that fails says nothing about the version.
            if is_transient(error) or getattr(error.__cause__, "errno", None) in FULL:
                raise
            sentence = " ".join(str(error).split())  # a process's stderr has several lines
            comparison = refused(f"it cannot be compared: {sentence}")
    decision = "better" if comparison.is_better else "not better"
    reason = comparison.reason[:4_000]  # MLflow's SQL store takes 5,000
    for key, value in (("reason", reason), ("decision", decision)):
        client.set_model_version_tag(name, str(number), f"{COMPARISON_TAG}.{key}", value)
    return comparison


def _compared(
    version: ModelVersion,
    champion: ModelVersion | None,
    tracker: Tracker,
    store: ArtifactStore,
    settings: ComparisonSettings,
    evaluation: Evaluation | None,
) -> Comparison:
    kind, proof = version.tags[KIND_TAG], entries(PROOF_TAG, version.tags)
    if champion is not None and champion.tags.get(KIND_TAG) != kind:
        raise VerificationError(f"{uri_of(champion)} is of another kind")
    is_encoder, metric = kind == "encoder", proof["metric"]
    data_kind, model_kind = ("examples", "encoder") if is_encoder else ("dataset", "finetuned")
    data = _in_store(store, data_kind, version.tags.get(f"bertsmith.{data_kind}", ""))
    artifact = _in_store(store, model_kind, version.tags.get(FINGERPRINT_TAG, ""))

    def answers_of(version: ModelVersion) -> Evaluation:
        return evaluated(
            version, metric, data,
            store_url=store.url, tracker=tracker, max_examples=int(proof["items"]),
        )  # fmt: skip

    candidate = evaluation or answers_of(version)
    ours = candidate.answers
    counted = range(len(ours)) if is_encoder else counted_places(data, champion, store)
    baseline = metric.replace("eval/", "baseline/")
    score: Callable[[Sequence[object]], WeightedScore]
    learned: dict[str, WeightedScore] = {}
    if is_encoder:
        score = _loss
        margin, shown, guess = settings.loss_margin, "loss of masked tokens", "token-frequency"
        guessed = artifact.statistics[baseline.replace("accuracy", "loss")]
    else:
        family, heldout = family_of(data), read_items(data, "heldout")
        items = Items([heldout.rows[place] for place in counted], heldout.labels)
        score = partial(_score_of_task, family, metric, items, counted)
        margin, shown, guess = settings.margin, metric.removeprefix("eval/"), family.guess
        figures = family.described(read_items(data, "train"), items)
        guessed = figures.get(baseline, 0.0)  # a constant has no correlation, and finds no entity
    losses = ""
    if champion is not None:
        theirs = answers_of(champion)
        others = {uri_of(champion): score(theirs.answers)}
        losses = _losses_in_words(candidate, theirs, counted)
    else:
        if not is_encoder:
            made = answers_in(build_baselines(data, store))
            learned = {name: score(answers) for name, answers in made.items()}
        others = {f"the {guess} baseline": lambda weights: float(guessed), **learned}
    differences = {
        name: paired_bootstrap(
            score(ours), other, len(counted), settings, margin=margin, lower_is_better=is_encoder
        )
        for name, other in others.items()
    }
    # Of several baselines the one that is beaten by least decides.
    against = min(differences, key=lambda name: (differences[name].ahead, differences[name].value))
    difference, left_out = differences[against], len(ours) - len(counted)
    is_better = difference.holds(settings.confidence)
    reason = in_words(against, shown.replace("_", " "), difference, settings, left_out) + losses
    if against in learned and not is_better:
        reason = f"{reason}; {_REMEDY.format(name=against)}"
    return Comparison(
        name=version.name, version=int(version.version), is_better=is_better, reason=reason,
        against=against, difference=difference, left_out=left_out, champion=number_of(champion),
    )  # fmt: skip


def _losses_in_words(ours: Evaluation, theirs: Evaluation, counted: Sequence[int]) -> str:
    """The log losses of the counted items, which decide nothing; empty where they have none."""
    if ours.losses is None or theirs.losses is None:
        return ""
    our_loss, their_loss = (
        np.mean([losses[place] for place in counted]) for losses in (ours.losses, theirs.losses)
    )
    return f"; log loss {our_loss:.3f} against {their_loss:.3f} (less is better)"


def _in_store(store: ArtifactStore, kind: str, fingerprint: str) -> Artifact:
    artifact = store.find(kind, fingerprint)
    if artifact is None:
        raise VerificationError(f"the store does not hold the {kind} {fingerprint}")
    return artifact


def counted_places(
    dataset: Artifact, champion: ModelVersion | None, store: ArtifactStore
) -> list[int]:
    """Places of the held-out items of a candidate's dataset that neither version was trained on.

    Raises VerificationError where none is left, or the champion's training items are unknown.
    """
    family, heldout = family_of(dataset), read_items(dataset, "heldout")
    learned_from = [dataset] if dataset.statistics.get("heldout_also_in_train") else []
    theirs = "" if champion is None else champion.tags.get("bertsmith.dataset", "")
    if theirs not in ("", dataset.fingerprint):  # an import names none
        learned_from.append(_in_store(store, "dataset", theirs))
    known = [item for each in learned_from for item in read_items(each, "train").rows]
    by_content = any(is_by_column(each) for each in (dataset, *learned_from))
    trained_on = {*places_in_train(known, heldout.rows, family, by_content=by_content)}
    counted = [place for place in range(len(heldout.rows)) if place not in trained_on]
    if not counted:
        raise VerificationError("it or the champion was trained on all of its held-out items")
    return counted


def _loss(answers: Sequence[Any]) -> WeightedScore:
    """Of an encoder, whose answers are each sequence's loss and number of predicted tokens."""
    losses = np.array(answers, np.float64)
    return ratio(losses[:, 0], losses[:, 1])


def _score_of_task(
    family: TaskFamily, metric: str, items: Items, counted: Sequence[int], answers: Sequence[Any]
) -> WeightedScore:
    """Of the counted answers to all held-out items, as a function of weights."""
    return family.scores(Answers([answers[place] for place in counted], 0), items)[metric]


def paired_bootstrap(
    score: WeightedScore,
    other: WeightedScore,
    num_items: int,
    settings: ComparisonSettings,
    *,
    margin: float,
    lower_is_better: bool = False,
) -> Difference:
    """Draw items with replacement, as many as there are, and score both systems on them.

    What makes an item hard cancels out. Which items a resample has depends on the seed, its number
    and how many items there are, so the same two systems differ alike on any machine. Efron and
    Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 16; for systems of language
    processing Koehn, "Statistical Significance Tests for Machine Translation Evaluation" (2004).
    """
    sign = -1.0 if lower_is_better else 1.0
    places = np.arange(num_items)
    differences = np.empty(settings.resamples)
    for number in range(settings.resamples):
        bits = random_bits(settings.seed, "paired bootstrap", number, places)
        weights = np.bincount(integers(bits, num_items), minlength=num_items)
        differences[number] = sign * (score(weights) - other(weights))
    whole = np.ones(num_items, np.int64)
    both = score(whole), other(whole)
    tail = (1 - settings.confidence) / 2
    low, high = np.quantile(differences, [tail, 1 - tail])
    return Difference(
        score=both[0],
        other=both[1],
        value=sign * (both[0] - both[1]),
        low=float(low),
        high=float(high),
        ahead=float(np.mean(differences > margin)),
        margin=margin,
        num_items=num_items,
    )


def in_words(
    against: str, name: str, difference: Difference, settings: ComparisonSettings, left_out: int = 0
) -> str:
    """The comparison of a figure in one sentence, with all its numbers."""
    verdict = "better" if difference.holds(settings.confidence) else "not better"
    without = f", without {left_out} that one of them was trained on" if left_out else ""
    return (
        f"{verdict} than {against}: {name} {difference.score:.4f} against {difference.other:.4f}, "
        f"{difference.value:+.4f} in its favour ({settings.confidence:.0%} interval "
        f"{difference.low:+.4f} to {difference.high:+.4f}) on {difference.num_items} held-out items"
        f"{without}; better by more than {difference.margin:g} in {difference.ahead:.1%} of "
        f"{settings.resamples} resamples, {settings.confidence:.0%} required"
    )
