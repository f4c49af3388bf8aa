"""Whether a version becomes champion: better than the present one, or than its baselines."""

from dataclasses import dataclass, replace
from functools import partial

from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Artifact, ArtifactStore
from pipelines.config.errors import UserError
from pipelines.recipes.registration import ComparisonSettings
from pipelines.registry.comparison.bootstrap import Difference
from pipelines.registry.comparison.evaluation import (
    Candidate,
    CannotCompareError,
    Evaluation,
    VerificationError,
    answers_of,
    candidate_of,
    check_weights,
    twin_of,
)
from pipelines.registry.comparison.pairing import ComparedItems, compared_items, difference_from
from pipelines.registry.finding import find_source, uri_of, version_with_alias
from pipelines.registry.person_choice import is_taken_back, moves_of
from pipelines.stages.dataset.stage import family_of, read_items
from pipelines.stages.evaluation.stage import answers_in, build_baselines
from pipelines.tasks import Reading
from pipelines.tasks.scoring.weighted import WeightedScore
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker

_CORRELATIONS = ("eval/pearson", "eval/spearman", "eval/matthews")  # 0 for any constant answer
_REMEDY = (
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
    against: str = ""  # models:/name/number of the champion, or what it was held against
    champion: int | None = None  # the version that had the alias when this was compared
    metric: str = ""
    difference: Difference | None = None
    data: str = ""  # fingerprint of the held-out data
    left_out: int = 0  # items that either was trained on
    awaits_approval: bool = False  # better, but not yet approved by a person


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

    `evaluation` are its answers on its held-out data, where they are known; what is missing is
    computed, each version in a process of its own with its own code. What cannot be compared is
    not better, and `reason` says why. Raises UserError where there is no such version,
    ConnectionError and MlflowException where tracker or store does not answer.
    """
    client = tracker.client()
    version = find_source(client, name, str(number))
    champion = version_with_alias(client, name, alias)
    champion_number = int(champion.version) if champion is not None else None
    refused = partial(
        Comparison, name=name, version=number, is_better=False, champion=champion_number
    )
    if champion_number == number:
        return refused(reason=f"it is {alias} already")
    if is_taken_back(moves_of(client, name), alias, version.tags.get(FINGERPRINT_TAG, "")):
        return refused(
            reason="a person rolled this model back: only a person can make it "
            f"{alias} again (bertsmith promote {name} --version {number})"
        )
    against = uri_of(champion) if champion is not None else "baselines"
    try:
        candidate = candidate_of(version, store)
        if evaluation is None:
            evaluation = answers_of(version, candidate, store, tracker)
        check_weights(candidate, evaluation)
        if champion is None:
            return _against_baselines(candidate, evaluation, store, settings)
        items, difference = difference_from(
            champion, candidate, evaluation, tracker, store, settings
        )
        return _comparison(candidate, against, champion_number, items, difference, settings)
    except CannotCompareError as error:
        return refused(reason=f"it cannot be compared with {against}: {error}", against=against)
    except (VerificationError, UserError) as error:
        said = " ".join(str(error).split())  # the process's stderr has several lines
        return refused(reason=f"it was not compared with {against}: {said}", against=against)


def _against_baselines(
    candidate: Candidate,
    evaluation: Evaluation,
    store: ArtifactStore,
    settings: ComparisonSettings,
) -> Comparison:
    """Compare with every baseline; the reason names the one that is beaten by least.

    Where that is a simpler model, which learned from the same items, the reason says what to do.
    """
    items = compared_items(candidate, evaluation, settings)
    ours = items.score(evaluation.answers)
    constant = _constant_baseline(candidate, items)
    guess = "the token-frequency baseline"
    learned: dict[str, WeightedScore] = {}
    if not candidate.is_encoder:
        guess = f"the {family_of(candidate.data).guess} baseline"
        made = build_baselines(candidate.artifact, candidate.data, store)
        learned = {name: items.score(answers) for name, answers in answers_in(made).items()}
    baselines: dict[str, WeightedScore] = {guess: lambda weights: constant, **learned}
    twin = twin_of(candidate.artifact, store)
    if twin is not None:
        answers = _answers_of_artifact(twin, candidate.data)
        baselines["the same budget from random weights"] = items.score(answers)
    differences = {
        name: items.difference(ours, score, settings) for name, score in baselines.items()
    }
    name = min(differences, key=lambda each: (differences[each].ahead, differences[each].value))
    comparison = _comparison(candidate, name, None, items, differences[name], settings)
    if comparison.is_better or name not in learned:
        return comparison
    return replace(comparison, reason=f"{comparison.reason}; {_REMEDY.format(name=name)}")


def _constant_baseline(candidate: Candidate, items: ComparedItems) -> float:
    """The figure of the majority-class baseline on `items`; of an encoder, of token frequencies.

    Raises CannotCompareError where none was computed for this figure.
    """
    if candidate.is_encoder:
        statistics = candidate.artifact.statistics
        names = ("baseline/mlm_loss", "baseline/clm_loss")
        name = next((each for each in names if each in statistics), names[0])
    else:
        train = read_items(candidate.data, "train")
        statistics = family_of(candidate.data).described(train, items.items)
        name = candidate.metric.replace("eval/", "baseline/")
        if name not in statistics and candidate.metric in _CORRELATIONS:
            return 0.0
    if name not in statistics:
        raise CannotCompareError(f"{name} was not computed for its held-out data")
    return float(statistics[name])


def _answers_of_artifact(model_artifact: Artifact, dataset: Artifact) -> list[object]:
    """The answers of a model in the store, which is no version, to the held-out items."""
    folder = model_artifact.local_folder()
    model, tokenizer = load_model(folder), WordPieceTokenizer.from_directory(folder)
    reading = Reading(model.config.max_position_embeddings)
    heldout = read_items(dataset, "heldout")
    return family_of(dataset).answers(model, tokenizer, heldout, reading).values


def _comparison(
    candidate: Candidate,
    against: str,
    champion: int | None,
    items: ComparedItems,
    difference: Difference,
    settings: ComparisonSettings,
) -> Comparison:
    is_better = difference.holds(settings.confidence)
    return Comparison(
        name=candidate.version.name,
        version=int(candidate.version.version),
        is_better=is_better,
        reason=in_words(against, items.metric, difference, settings, is_better, items.left_out),
        against=against,
        champion=champion,
        metric=items.metric,
        difference=difference,
        data=candidate.data.fingerprint,
        left_out=items.left_out,
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
