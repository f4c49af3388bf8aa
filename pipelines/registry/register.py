"""Putting models into MLflow's registry, with their metadata and lineage."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from pipelines.errors import redacted
from pipelines.recipes.files import flattened
from pipelines.registry.card import model_card, question_of
from pipelines.registry.find import (
    CANDIDATE,
    CODE_TAG,
    DIGEST_TAG,
    KIND_TAG,
    OWED_TAG,
    PROMOTION,
    REGISTERED,
    VERIFIED_TAG,
    entries,
    versions_of,
)
from pipelines.registry.package import log_package
from pipelines.store import Artifact
from pipelines.tracking.tracker import COMPUTED_ON_TAG, FINGERPRINT_TAG, Tracker, final
from pipelines.train.imported_models import IMPORTED
from pipelines.train.runs import numbers
from pipelines.versions import code_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A model to register: its artifact, what it was made from, and under which name."""

    kind: str  # "encoder", or the family of its task
    name: str
    alias: str  # of a version until it has proved itself
    artifact: Artifact
    lineage: Mapping[str, Artifact]  # by stage: corpus, vocabulary, examples, …
    recipe_yaml: str
    evaluation: Artifact | None = None  # of a task's model: what its card compares it with


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredModel:
    """A version in the registry."""

    kind: str
    name: str
    version: int
    run_id: str
    fingerprint: str  # of the artifact
    metrics: Mapping[str, float]  # as logged: what the loaded model must reproduce
    is_verified: bool
    awaits_promotion: bool  # True where a run that proved it ended before it was promoted
    reused: bool  # True where this artifact was registered before

    @property
    def reference(self) -> str:
        """This very version, as `located` and the command line take it; no alias can move it."""
        return f"{self.name}/{self.version}"

    @property
    def uri(self) -> str:
        """How MLflow addresses this very version."""
        return f"{REGISTERED}{self.reference}"


def register(submission: Submission, tracker: Tracker) -> RegisteredModel:
    """Register the model; an artifact is registered once, and a new version gets the alias.

    The version carries signature, input example, metrics and lineage tags: the fingerprints of
    everything it was made from, the code version and the flow run; the recipe lies with its run.
    A registration that broke off is taken up where it was. Raises MlflowException or, with one
    sentence, UserError where the tracker does not answer.
    """
    client = tracker.client()
    artifact, name = submission.artifact, submission.name
    metrics = numbers(artifact.statistics)
    version = _version_of(client, name, artifact.fingerprint)
    reused = version is not None
    if version is None:
        version = _create_version(submission, metrics, tracker, client)
    number = str(version.version)
    if version.tags.get(OWED_TAG) == CANDIDATE:
        card = model_card(
            submission.kind, _description(submission), f"{name}/{number}", artifact,
            submission.lineage, submission.evaluation,
        )  # fmt: skip
        client.update_model_version(name, number, card)
        client.set_registered_model_alias(name, submission.alias, number)
        client.delete_model_version_tag(name, number, OWED_TAG)
    is_verified = version.tags.get(VERIFIED_TAG) == "true"
    return RegisteredModel(
        kind=submission.kind,
        name=name,
        version=int(number),
        run_id=version.run_id or "",
        fingerprint=artifact.fingerprint,
        metrics=metrics,
        is_verified=is_verified,
        awaits_promotion=is_verified and version.tags.get(OWED_TAG) == PROMOTION,
        reused=reused,
    )


def _version_of(client: MlflowClient, name: str, fingerprint: str) -> ModelVersion | None:
    """The first version of `name` that was made from the artifact `fingerprint`."""
    versions = versions_of(client, name, f"tags.`{FINGERPRINT_TAG}` = '{fingerprint}'")
    return min(versions, key=lambda version: int(version.version), default=None)


def _create_version(
    submission: Submission, metrics: Mapping[str, float], tracker: Tracker, client: MlflowClient
) -> ModelVersion:
    run_id = _run_of(submission, metrics, tracker)
    tags = _tags(submission, tracker)
    tracker.set_tags(run_id, tags)
    tracker.log_text(run_id, redacted(submission.recipe_yaml), "recipe.yaml")
    tracker.log_params(run_id, recipe_values(submission.recipe_yaml))
    logged = log_package(submission.kind, submission.artifact, run_id, tags, tracker, client)
    run = client.get_run(run_id)
    # As the run has them already, to the millisecond: a figure is there once.
    moment = run.info.end_time or logged.creation_timestamp
    points = [
        Metric(final(key), value, moment, 0, model_id=logged.model_id)
        for key, value in metrics.items()
    ]
    client.log_batch(run_id, points)
    machine = entries(COMPUTED_ON_TAG, run.data.tags)
    _ensure_name(client, submission.name, _description(submission))
    return client.create_model_version(
        submission.name,
        source=f"{REGISTERED}{logged.model_id}",
        run_id=run_id,
        tags={
            **tags,
            **{f"{COMPUTED_ON_TAG}.{key}": value for key, value in machine.items()},
            DIGEST_TAG: logged.tags[DIGEST_TAG],
            OWED_TAG: CANDIDATE,
        },
        model_id=logged.model_id,
    )


def _description(submission: Submission) -> str:
    kind, question = submission.kind, question_of(submission.kind, submission.artifact)
    of_task = f"model for {kind.replace('_', ' ')}"
    what = "encoder pretrained from raw text" if kind == "encoder" else of_task
    takes, gives = ", ".join(question.columns), ", ".join(question.answers)
    return f"A BERT {what}: takes {takes}, gives {gives}."


def recipe_values(recipe_yaml: str) -> dict[str, Any]:
    """The recipe by dotted path, without `runtime`, which changes nothing of what is made."""
    recipe = yaml.safe_load(recipe_yaml) or {}
    recipe.pop("runtime", None)
    return dict(flattened(recipe))


def _run_of(submission: Submission, metrics: Mapping[str, float], tracker: Tracker) -> str:
    """The run of the model's training; a new one where this tracker has none, as of an import."""
    artifact, fingerprint = submission.artifact, submission.artifact.fingerprint
    run_id = tracker.find_run(fingerprint)
    if run_id is None:
        kind = "import" if artifact.kind == IMPORTED else submission.kind
        run_id = tracker.create_run(f"{kind}-{fingerprint[:8]}", fingerprint, {}, {})
        tracker.finish(run_id, metrics, computed_on=artifact.statistics.get("computed_on"))
    return run_id


def _tags(submission: Submission, tracker: Tracker) -> dict[str, str]:
    lineage = {f"bertsmith.{key}": value.fingerprint for key, value in submission.lineage.items()}
    # The parent of a run is that of its training run; a version has none.
    own = {key: value for key, value in tracker.tags.items() if not key.startswith("mlflow.")}
    return {
        **own,
        **lineage,
        FINGERPRINT_TAG: submission.artifact.fingerprint,
        KIND_TAG: submission.kind,
        CODE_TAG: code_version(),
    }


def _ensure_name(client: MlflowClient, name: str, description: str) -> None:
    try:
        client.create_registered_model(name, description=description)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
