"""What the registry holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from mlflow import MlflowClient

from pipelines.artifacts.manifest import is_fingerprint
from pipelines.registry.finding import (
    COMPARISON_TAG,
    GONE_OR_CLOSED,
    KIND_TAG,
    PROOF_TAG,
    VERIFIED_TAG,
    if_there,
    pages,
)
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker, final


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
    comparison: str  # the result of its comparison; empty where it was not compared
    lineage: Mapping[str, str]  # fingerprints of what it was made from, by kind


def list_models(tracker: Tracker) -> list[ListedModel]:
    """Every version in the registry, newest first within its name.

    Raises MlflowException where the tracker does not answer.
    """
    client = tracker.client()
    # Versions found by a search come without their aliases; the models have them all.
    aliases: dict[tuple[str, int], list[str]] = {}
    for model in pages(client.search_registered_models):
        for alias, number in model.aliases.items():
            aliases.setdefault((model.name, int(number)), []).append(alias)
    listed = []
    for version in pages(client.search_model_versions):
        number = int(version.version)
        kind = version.tags.get(KIND_TAG, "")
        metrics = _final_metrics(client, version.run_id or "") if kind else {}
        metric = _metric(kind, metrics, version.tags)
        listed.append(
            ListedModel(
                name=version.name,
                version=number,
                aliases=tuple(sorted(aliases.get((version.name, number), []))),
                kind=kind,
                metric=metric,
                value=metrics.get(metric),
                is_verified=version.tags.get(VERIFIED_TAG) == "true",
                created=datetime.fromtimestamp(version.creation_timestamp / 1000, UTC),
                fingerprint=version.tags.get(FINGERPRINT_TAG, ""),
                run_id=version.run_id or "",
                comparison=version.tags.get(f"{COMPARISON_TAG}.reason", ""),
                lineage={
                    key.removeprefix("bertsmith."): value
                    for key, value in sorted(version.tags.items())
                    if is_fingerprint(value)
                    and value != version.tags.get(FINGERPRINT_TAG)
                    and "." not in key.removeprefix("bertsmith.")  # of proof and comparison
                },
            )
        )
    return sorted(listed, key=lambda row: (row.name, -row.version))


def _metric(kind: str, metrics: Mapping[str, float], tags: Mapping[str, str]) -> str:
    """By which of its figures a version proved itself, or will."""
    proved_by = tags.get(f"{PROOF_TAG}.metric")
    if proved_by is not None:  # an import proves itself by its response, which is no score
        return proved_by if proved_by.startswith("eval/") else ""
    from pipelines.registry.verification import metric_of  # a second for torch, seldom needed

    return metric_of(kind, metrics)


def _final_metrics(client: MlflowClient, run_id: str) -> dict[str, float]:
    """The figures of the finished model, by their own names: those are the training curve's.

    None where the run is gone, since MLflow's garbage collection leaves its versions behind, or
    another team's.
    """
    if not run_id:
        return {}
    run = if_there(client.get_run, run_id, missing=GONE_OR_CLOSED)
    metrics = {} if run is None else run.data.metrics
    prefix = final("")
    return {
        name.removeprefix(prefix): value
        for name, value in metrics.items()
        if name.startswith(prefix)
    }
