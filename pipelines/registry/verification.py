"""Proof of a registered model: loaded in a process of its own, it repeats its accuracy."""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mlflow import MlflowClient

from pipelines.artifacts import Artifact
from pipelines.registry.comparison.evaluation import (
    CannotCompareError,
    Evaluation,
    VerificationError,
    evaluated,
)
from pipelines.registry.finding import (
    OF_ENCODERS,
    OWED_TAG,
    PROMOTION,
    PROOF_TAG,
    VERIFIED_TAG,
    digest_of,
    entries,
    task_of_kind,
)
from pipelines.registry.registration import RegisteredModel
from pipelines.tasks import family, family_names
from pipelines.tracking.tracker import COMPUTED_ON_TAG, Tracker
from pipelines.training.imported_models import IMPORTED, PROBE

_AT_ONCE = 2  # models, each loaded in a process
_TOLERANCE = 0.001  # between two machines; an answer that hangs by a rounding may always differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A registered model to prove, and the held-out data for it."""

    model: RegisteredModel
    # The examples of an encoder, the labelled items of a task, of an imported model itself.
    data: Artifact
    max_examples: int = 0  # of an encoder's final evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a freshly loaded version reached, beside what was logged."""

    model: RegisteredModel
    metric: str
    logged: float
    reproduced: float
    bound: float  # how far apart the two may be: 0 on the machine that logged the figure
    comparison: str  # `exact`, or within which bound and why
    digest: str  # of the package that was loaded
    evaluation: Evaluation  # its answers to the held-out data

    @property
    def holds(self) -> bool:
        """Whether the version repeated its figure."""
        return abs(self.reproduced - self.logged) <= self.bound


def metric_of(kind: str, metrics: Collection[str]) -> str:
    """Which of its logged figures a model of this kind proves itself by; empty where it is none."""
    if kind == "encoder":
        return next((name for name in OF_ENCODERS if name in metrics), "")
    task = task_of_kind(kind)
    return family(task).score if task in family_names() else ""


def verify(proofs: Sequence[Proof], store_url: str, tracker: Tracker) -> list[Verification]:
    """Load each version by its number, in a process of its own, and compare the accuracies.

    They must be equal where the figure was logged on a machine like this one, and within a stated
    bound on another. A version that repeats its figure is tagged with its proof; one that does
    not keeps its tags and aliases, and after all were tried VerificationError says so. Raises
    ConnectionError where the tracker or the store did not answer.
    """
    client = tracker.client()
    verifications, failures = [], []
    # Most of a process's time goes into imports, which use one core each.
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        found = [
            threads.submit(_verification, proof, store_url, tracker, client) for proof in proofs
        ]
    for proof, future in zip(proofs, found, strict=True):
        try:
            verification = future.result()
        except VerificationError as error:
            failures.append(str(error))
            continue
        except CannotCompareError as error:
            failures.append(f"{proof.model.uri} cannot answer its own held-out data: {error}")
            continue
        _record(verification, client)
        verifications.append(verification)
    if failures:
        raise VerificationError("\n".join(failures))
    return verifications


def _verification(
    proof: Proof, store_url: str, tracker: Tracker, client: MlflowClient
) -> Verification:
    model = proof.model
    is_import = proof.data.kind == IMPORTED
    own = proof.data.statistics.get("score")  # of labelled items
    metric = PROBE if is_import else own or metric_of(model.kind, model.metrics)
    version = client.get_model_version(model.name, str(model.version))
    logged_on = entries(COMPUTED_ON_TAG, version.tags)
    evaluation = evaluated(
        version,
        metric,
        proof.data,
        store_url=store_url,
        tracker=tracker,
        max_examples=proof.max_examples,
        threads=logged_on.get("threads"),
    )
    # What one answer changes of a figure; a response is no share of answers.
    answer_weight = 0.0 if is_import else 1 / evaluation.num_items
    bound, comparison = _comparison(logged_on, evaluation.machine, answer_weight)
    verification = Verification(
        model=model,
        metric=metric,
        logged=model.metrics[metric],
        reproduced=evaluation.value,
        bound=bound,
        comparison=comparison,
        digest=digest_of(version),
        evaluation=evaluation,
    )
    if not verification.holds:
        raise VerificationError(
            f"{model.uri} did not repeat its logged {metric} of {verification.logged!r} "
            f"({comparison}): loaded in a fresh process it reached {verification.reproduced!r}; it "
            "is not promoted"
        )
    return verification


def _comparison(
    logged_on: Mapping[str, str], here: Mapping[str, str], answer_weight: float
) -> tuple[float, str]:
    """By how much the figures may differ, and why."""
    if dict(logged_on) == dict(here):
        return 0.0, "exact"
    bound = max(_TOLERANCE, answer_weight)
    if not logged_on:
        return bound, f"within {bound:.2g}: the machine that logged it is unknown"
    differing = [key for key in here if logged_on.get(key) != here[key]]
    return bound, f"within {bound:.2g}: logged with a different {', '.join(differing)}"


def _record(verification: Verification, client: MlflowClient) -> None:
    """Tag the version with its proof; that it is verified comes last, and says all is there."""
    model = verification.model
    proof = {
        "loaded": model.uri,
        "metric": verification.metric,
        "logged": repr(verification.logged),
        "reproduced": repr(verification.reproduced),
        "comparison": verification.comparison,
        "data": verification.evaluation.data,
        "items": str(verification.evaluation.num_items),
        "digest": verification.digest,
        **verification.evaluation.machine,
    }
    tags = {f"{PROOF_TAG}.{key}": value for key, value in proof.items()}
    for key, value in (tags | {OWED_TAG: PROMOTION, VERIFIED_TAG: "true"}).items():
        client.set_model_version_tag(model.name, str(model.version), key, value)
