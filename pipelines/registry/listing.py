"""What the registry holds, and finding a model in it by name and alias."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import mlflow.artifacts
from mlflow import MlflowClient

from pipelines.core.errors import UserError
from pipelines.core.tracking.tracker import FINGERPRINT_TAG, Tracker, final, server_address
from pipelines.registry.promotion import find_source
from pipelines.registry.tags import KIND_TAG, VERIFIED_TAG
from pipelines.registry.verification import METRICS

_USUAL_ALIASES = ("champion", "candidate")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """One version in the registry, as `bertsmith models` shows it."""

    name: str
    version: int
    aliases: tuple[str, ...]
    kind: str
    metric: str
    value: float | None
    is_verified: bool
    created: datetime
    fingerprint: str
    run_id: str


def list_models(tracker: Tracker) -> list[ListedModel]:
    """Every version in the registry, newest first within its name.

    Raises MlflowException where the tracker does not answer.
    """
    client = tracker.client()
    listed = []
    for model in client.search_registered_models():
        # Versions found by a search come without their aliases; the model has them all.
        aliases: dict[int, list[str]] = {}
        for alias, number in model.aliases.items():
            aliases.setdefault(int(number), []).append(alias)
        for version in client.search_model_versions(f"name = '{model.name}'"):
            kind = version.tags.get(KIND_TAG, "")
            metric = METRICS.get(kind, "")
            listed.append(
                ListedModel(
                    name=model.name,
                    version=int(version.version),
                    aliases=tuple(sorted(aliases.get(int(version.version), []))),
                    kind=kind,
                    metric=metric,
                    value=_metric_of(client, version.run_id or "", metric),
                    is_verified=version.tags.get(VERIFIED_TAG) == "true",
                    created=datetime.fromtimestamp(version.creation_timestamp / 1000, UTC),
                    fingerprint=version.tags.get(FINGERPRINT_TAG, ""),
                    run_id=version.run_id or "",
                )
            )
    return sorted(listed, key=lambda row: (row.name, -row.version))


def locate(tracker: Tracker, reference: str) -> Path:
    """A local folder with the model files that `reference` names.

    `name@alias`, `name/version`, a bare `name` (its champion, else its candidate), or a folder.
    Raises UserError where there is none, MlflowException where the tracker does not answer.
    """
    if Path(reference).is_dir():
        return Path(reference)
    client = tracker.client()
    name, separator, source = reference.partition("@" if "@" in reference else "/")
    if not separator:
        source = _usual_source(client, name)
    version = find_source(client, name, source)
    uri = f"models:/{name}/{version.version}"
    folder = mlflow.artifacts.download_artifacts(uri, tracking_uri=server_address(tracker.uri))
    return Path(folder) / "artifacts" / "model"


def _usual_source(client: MlflowClient, name: str) -> str:
    found = client.search_registered_models(f"name = '{name}'")
    if not found:
        known = [model.name for model in client.search_registered_models()]
        where = f"known models: {', '.join(known)}" if known else "the registry is empty"
        raise UserError(
            f"a model must be a folder or a name in the registry, found neither for {name!r} "
            f"({where}); see `bertsmith models`"
        )
    aliases = found[0].aliases
    return next((alias for alias in (*_USUAL_ALIASES, *sorted(aliases)) if alias in aliases), "1")


def _metric_of(client: MlflowClient, run_id: str, metric: str) -> float | None:
    metrics = client.get_run(run_id).data.metrics if run_id else {}
    return metrics.get(final(metric))  # its own name is the training curve's
