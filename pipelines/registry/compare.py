"""Whether a version becomes champion: better than the present one, or than its baselines.

A candidate without a champion to beat has to beat what a person would use instead: the constant
guess, and the simpler models that learned from the same items. Better means: by more than a margin
in nearly all resamples of a paired bootstrap over the held-out items.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from bert_core.randomness import integers, random_bits
from pipelines.errors import UserError
from pipelines.recipes.recipe import ComparisonSettings
from pipelines.registry.find import (
    COMPARISON_TAG,
    KIND_TAG,
    PROOF_TAG,
    entries,
    find_source,
    rolled_back_tag,
    uri_of,
    version_with_alias,
)
from pipelines.registry.prove import Evaluation, VerificationError, evaluated
from pipelines.registry.register import with_comparison
from pipelines.stages.dataset.stage import family_of, read_items
from pipelines.stages.evaluation import answers_in, build_baselines
from pipelines.store import Artifact, ArtifactStore
from pipelines.tasks import Answers, Items, TaskFamily
from pipelines.tasks.scoring import WeightedScore, ratio
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker

Score = Callable[[Sequence[object]], WeightedScore]  # of the answers to all held-out items

_CORRELATIONS: Final = ("eval/pearson", "eval/spearman", "eval/matthews")  # 0 for a constant answer
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

    The result is recorded with the version. `evaluation` are its answers on its held-out data,
    where they are known; what is missing is computed, each version in a process of its own with its
    own code. What cannot be compared is not better, and `reason` says why. Raises UserError where
    there is no such version, ConnectionError and MlflowException where tracker or store does not
    answer.
    """
    client = tracker.client()
    version = find_source(client, name, str(number))
    champion = version_with_alias(client, name, alias)

    def refused(reason: str) -> Comparison:
        return Comparison(name=name, version=number, is_better=False, reason=reason)

    if champion is not None and int(champion.version) == number:  # a run was killed after that
        comparison = refused(f"it is {alias} already")
    elif rolled_back_tag(version, alias) in client.get_registered_model(name).tags:
        comparison = refused(
            f"a person rolled this model back; `bertsmith promote {name} --version {number}`"
        )
    else:
        try:
            comparison = _compared(version, champion, tracker, store, settings, evaluation)
        except (VerificationError, UserError) as error:
            sentence = " ".join(str(error).split())  # a process's stderr has several lines
            comparison = refused(f"it cannot be compared: {sentence}")
    _record(client, version, comparison)
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
    is_encoder, metric, margin = kind == "encoder", proof["metric"], settings.margin
    data_kind, model_kind = ("examples", "encoder") if is_encoder else ("dataset", "finetuned")
    data = _made_from(store, data_kind, version.tags.get(f"bertsmith.{data_kind}", ""))
    artifact = _made_from(store, model_kind, version.tags.get(FINGERPRINT_TAG, ""))

    def answers_of(version: ModelVersion) -> Evaluation:
        return evaluated(
            version, metric, data,
            store_url=store.url, tracker=tracker, max_examples=int(proof["items"]),
        )  # fmt: skip

    ours = evaluation or answers_of(version)
    num_items, left_out, score = len(ours.answers), 0, _loss
    if is_encoder:
        guess, metric, margin = "token-frequency", "loss of masked tokens", settings.loss_margin
    else:
        counted = counted_items(data, metric, champion, store)
        guess, num_items, left_out = counted.family.guess, len(counted.kept), counted.left_out
        score = counted.score
    others: dict[str, WeightedScore] = {}
    learned: dict[str, WeightedScore] = {}
    if champion is not None:
        others[uri_of(champion)] = score(answers_of(champion).answers)
    elif is_encoder:
        others[f"the {guess} baseline"] = _constant(_token_frequencies(artifact))
    else:
        made = answers_in(build_baselines(data, store))
        learned = {name: score(answers) for name, answers in made.items()}
        others = {f"the {guess} baseline": _constant(_guess(data, counted)), **learned}
    differences = {
        name: paired_bootstrap(
            score(ours.answers), other, num_items, settings,
            margin=margin, lower_is_better=is_encoder,
        )
        for name, other in others.items()
    }  # fmt: skip
    # Of several baselines the one that is beaten by least decides.
    against = min(differences, key=lambda name: (differences[name].ahead, differences[name].value))
    difference = differences[against]
    is_better = difference.holds(settings.confidence)
    reason = in_words(against, metric, difference, settings, is_better, left_out)
    if against in learned and not is_better:
        reason = f"{reason}; {_REMEDY.format(name=against)}"
    return Comparison(
        name=version.name, version=int(version.version), is_better=is_better, reason=reason,
        against=against, difference=difference, left_out=left_out,
    )  # fmt: skip


def _made_from(store: ArtifactStore, kind: str, fingerprint: str) -> Artifact:
    artifact = store.find(kind, fingerprint)
    if artifact is None:
        raise VerificationError(f"the store does not hold its {kind} {fingerprint}")
    return artifact


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
    dataset: Artifact, metric: str, champion: ModelVersion | None, store: ArtifactStore
) -> CountedItems:
    """The held-out items of a candidate's dataset that neither version was trained on.

    Raises VerificationError where none is left, or the champion's training items are unknown.
    """
    family, heldout = family_of(dataset), read_items(dataset, "heldout")
    learned_from = [dataset] if dataset.statistics.get("heldout_also_in_train") else []
    theirs = "" if champion is None else champion.tags.get("bertsmith.dataset", "")
    if theirs not in ("", dataset.fingerprint):  # an import names none
        learned_from.append(_made_from(store, "dataset", theirs))
    known = {family.group(item) for each in learned_from for item in read_items(each, "train").rows}
    kept = [place for place, item in enumerate(heldout.rows) if family.group(item) not in known]
    if not kept:
        raise VerificationError("it or the champion was trained on all of its held-out items")
    items = Items([heldout.rows[place] for place in kept], heldout.labels)
    return CountedItems(family, metric, items, kept, len(heldout.rows) - len(kept))


def _loss(answers: Sequence[object]) -> WeightedScore:
    """Of an encoder, whose answers are each sequence's loss and number of predicted tokens."""
    losses = np.array(answers, np.float64)
    return ratio(losses[:, 0], losses[:, 1])


def _constant(value: float) -> WeightedScore:
    return lambda weights: value


def _token_frequencies(encoder: Artifact) -> float:
    """The loss of an encoder's constant guess."""
    for name in ("baseline/mlm_loss", "baseline/clm_loss"):
        if name in encoder.statistics:
            return float(encoder.statistics[name])
    raise VerificationError("no baseline was computed for its held-out data")


def _guess(dataset: Artifact, counted: CountedItems) -> float:
    """The figure of the constant guess on the counted items."""
    if counted.metric in _CORRELATIONS:
        return 0.0
    figures = counted.family.described(read_items(dataset, "train"), counted.items)
    return float(figures[counted.metric.replace("eval/", "baseline/")])


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
    against: str,
    metric: str,
    difference: Difference,
    settings: ComparisonSettings,
    is_better: bool,
    left_out: int = 0,
) -> str:
    """The comparison in one sentence, with all its figures."""
    name = metric.removeprefix("eval/").replace("_", " ")
    without = f", without {left_out} that one of them was trained on" if left_out else ""
    return (
        f"{'' if is_better else 'not '}better than {against}: {name} {difference.score:.4f} "
        f"against {difference.other:.4f}, {difference.value:+.4f} in its favour "
        f"({settings.confidence:.0%} interval {difference.low:+.4f} to {difference.high:+.4f}) on "
        f"{difference.num_items} held-out items{without}; better by more than "
        f"{difference.margin:g} in {difference.ahead:.1%} of {settings.resamples} resamples, "
        f"{settings.confidence:.0%} required"
    )


def _record(client: MlflowClient, version: ModelVersion, comparison: Comparison) -> None:
    """The result, at the end of the version's description and as its tags."""
    name, number = version.name, version.version
    card = with_comparison(version.description or "", comparison.reason)
    client.update_model_version(name, number, card)
    tags = {
        "reason": comparison.reason[:4_000],  # MLflow's SQL store takes 5,000
        "decision": "better" if comparison.is_better else "not better",
    }
    for key, value in tags.items():
        client.set_model_version_tag(name, number, f"{COMPARISON_TAG}.{key}", value)
