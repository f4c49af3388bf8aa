"""The package of a model among MLflow's logged models: found whole, or made."""

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import LoggedModel

from pipelines.artifacts import Artifact
from pipelines.core.tracking.tracker import FINGERPRINT_TAG, Tracker
from pipelines.registry.packaging import save_model_package
from pipelines.registry.tags import (
    CODE_TAG,
    DIGEST_TAG,
    KIND_TAG,
    REGISTERED_AS_TAG,
    REQUIREMENTS_TAG,
)


def logged_package(
    kind: str,
    name: str,
    artifact: Artifact,
    run_id: str,
    tags: Mapping[str, str],
    tracker: Tracker,
    client: MlflowClient,
) -> LoggedModel:
    """The package in MLflow: one that an earlier try left whole, or a new one.

    A half-made one may be another run's, which is writing it at this moment: it is not touched.
    """
    experiment_id = tracker.experiment_id()
    same = _with_tags(tags, (FINGERPRINT_TAG, KIND_TAG, CODE_TAG, REQUIREMENTS_TAG))
    left = client.search_logged_models([experiment_id], same)
    whole = next((model for model in left if model.status == "READY"), None)
    if whole is not None:
        return whole
    logged = client.create_logged_model(
        experiment_id,
        name=kind,
        source_run_id=run_id,
        tags={**tags, REGISTERED_AS_TAG: name},
        model_type=kind,
    )
    with tempfile.TemporaryDirectory(prefix="bertsmith-model-") as scratch:
        package = Path(scratch) / "package"
        digest = save_model_package(package, kind, artifact, metadata=tags)
        client.log_model_artifacts(logged.model_id, str(package))
        client.set_logged_model_tags(logged.model_id, {DIGEST_TAG: digest})
    return client.finalize_logged_model(logged.model_id, "READY")


def clear_half_made(name: str, fingerprint: str, tracker: Tracker, client: MlflowClient) -> None:
    """Take away packages for a version that is there now: of tries that broke off, or of another
    run, which learns of it when it has written its own, and finds the version."""
    tags = {FINGERPRINT_TAG: fingerprint, REGISTERED_AS_TAG: name}
    for model in client.search_logged_models([tracker.experiment_id()], _with_tags(tags, tags)):
        if model.status != "READY":
            client.delete_logged_model(model.model_id)


def _with_tags(tags: Mapping[str, str], names: Iterable[str]) -> str:
    """The filter by which MLflow finds what carries these tags."""
    return " AND ".join(f"tags.`{name}` = '{tags[name]}'" for name in names)
