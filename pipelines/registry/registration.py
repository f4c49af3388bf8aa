"""Putting models into MLflow's registry, with everything that says what they are."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from pipelines.artifacts import Artifact
from pipelines.core.tracking import FINGERPRINT_TAG, Tracker
from pipelines.core.versions import code_version
from pipelines.registry.packaging import save_model_package
from pipelines.training.results import numbers

KIND_TAG = "bertsmith.kind"
VERIFIED_TAG = "bertsmith.verified"

_DESCRIPTIONS = {
    "encoder": "BERT encoder pretrained from raw text; texts in, embeddings out.",
    "classifier": "Text classifier fine-tuned from a BERT encoder; texts in, labels out.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A model to register: its artifact, what it was made from, and under which name."""

    kind: str  # "encoder" or "classifier"
    name: str
    alias: str
    artifact: Artifact
    lineage: Mapping[str, Artifact]  # by stage: corpus, vocabulary, examples, …
    recipe_yaml: str


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
    reused: bool  # True where this artifact was registered before

    @property
    def uri(self) -> str:
        """How MLflow addresses this very version."""
        return f"models:/{self.name}/{self.version}"


def register(submission: Submission, tracker: Tracker) -> RegisteredModel:
    """Register the model and give the version its alias; an artifact is registered once.

    The version carries signature, input example, metrics and lineage tags: the fingerprints of
    everything it was made from, the code version and the flow run; the recipe lies with its run.
    """
    client = tracker.client()
    artifact, name = submission.artifact, submission.name
    metrics = numbers(artifact.statistics)
    version = find_version(client, name, artifact.fingerprint)
    reused = version is not None
    if version is None:
        version = _create_version(submission, metrics, tracker, client)
    is_verified = version.tags.get(VERIFIED_TAG) == "true"
    if not is_verified:
        client.set_registered_model_alias(name, submission.alias, str(version.version))
    return RegisteredModel(
        kind=submission.kind,
        name=name,
        version=int(version.version),
        run_id=version.run_id or "",
        fingerprint=artifact.fingerprint,
        metrics=metrics,
        is_verified=is_verified,
        reused=reused,
    )


def find_version(client: MlflowClient, name: str, fingerprint: str) -> ModelVersion | None:
    """The newest version of `name` that was made from the artifact `fingerprint`."""
    found = client.search_model_versions(
        f"name = '{name}' and tags.`{FINGERPRINT_TAG}` = '{fingerprint}'"
    )
    return max(found, key=lambda version: int(version.version), default=None)


def _create_version(
    submission: Submission, metrics: Mapping[str, float], tracker: Tracker, client: MlflowClient
) -> ModelVersion:
    artifact, kind = submission.artifact, submission.kind
    tags = _tags(submission, tracker)
    run_id = tracker.find_run(artifact.fingerprint)
    if run_id is None:  # trained with another tracker
        run_id = tracker.open_run(
            f"{kind}-{artifact.fingerprint[:8]}", artifact.fingerprint, {}, {}
        )
        tracker.finish(run_id, metrics)
    tracker.set_tags(run_id, tags)
    tracker.log_text(run_id, submission.recipe_yaml, "recipe.yaml")
    logged = client.create_logged_model(
        tracker.experiment_id(), name=kind, source_run_id=run_id, tags=tags, model_type=kind
    )
    with tempfile.TemporaryDirectory(prefix="bertsmith-model-") as scratch:
        package = Path(scratch) / "package"
        save_model_package(package, kind, artifact, metadata=tags)
        client.log_model_artifacts(logged.model_id, str(package))
    client.finalize_logged_model(logged.model_id, "READY")
    client.log_batch(
        run_id,
        [
            Metric(key, value, logged.creation_timestamp, 0, model_id=logged.model_id)
            for key, value in metrics.items()
        ],
    )
    _ensure_name(client, submission.name, _DESCRIPTIONS[kind])
    return client.create_model_version(
        submission.name,
        source=f"models:/{logged.model_id}",
        run_id=run_id,
        tags=tags,
        description=_DESCRIPTIONS[kind],
        model_id=logged.model_id,
    )


def _tags(submission: Submission, tracker: Tracker) -> dict[str, str]:
    lineage = {f"bertsmith.{key}": value.fingerprint for key, value in submission.lineage.items()}
    return {
        **tracker.tags,
        **lineage,
        FINGERPRINT_TAG: submission.artifact.fingerprint,
        KIND_TAG: submission.kind,
        "bertsmith.code_version": code_version(),
    }


def _ensure_name(client: MlflowClient, name: str, description: str) -> None:
    try:
        client.create_registered_model(name, description=description)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
