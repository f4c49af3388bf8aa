"""What the registry holds, and finding a model in it by name and alias."""

from dataclasses import dataclass
from datetime import UTC, datetime

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from pipelines.core.errors import UserError
from pipelines.core.tracking.paging import pages
from pipelines.core.tracking.tracker import FINGERPRINT_TAG, Tracker, final
from pipelines.registry.promotion import find_source
from pipelines.registry.tags import KIND_TAG, VERIFIED_TAG
from pipelines.registry.verification import metric_of

_CHAMPION, _CANDIDATE = "champion", "candidate"  # as recipes name them, if they say nothing


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
    # Versions found by a search come without their aliases; the models have them all.
    aliases: dict[tuple[str, int], list[str]] = {}
    for model in pages(lambda token: client.search_registered_models(page_token=token)):
        for alias, number in model.aliases.items():
            aliases.setdefault((model.name, int(number)), []).append(alias)
    listed = []
    for version in pages(lambda token: client.search_model_versions(page_token=token)):
        number = int(version.version)
        kind = version.tags.get(KIND_TAG, "")
        metric = metric_of(kind)
        listed.append(
            ListedModel(
                name=version.name,
                version=number,
                aliases=tuple(sorted(aliases.get((version.name, number), []))),
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


def find_model(client: MlflowClient, reference: str) -> ModelVersion:
    """The version that `name@alias`, `name/version` or a bare `name` names.

    A bare name is its champion, else the one other alias that it has besides the candidate's,
    else its candidate. Raises UserError where there is none, MlflowException where the tracker
    does not answer.
    """
    name, separator, source = reference.partition("@" if "@" in reference else "/")
    return find_source(client, name, source if separator else _usual_source(client, name))


def _usual_source(client: MlflowClient, name: str) -> str:
    """The alias that a name alone stands for; UserError where that would be a guess."""
    models = {
        model.name: model
        for model in pages(lambda token: client.search_registered_models(page_token=token))
    }
    if name not in models:
        where = f"known models: {', '.join(models)}" if models else "the registry is empty"
        raise UserError(
            f"a model must be a folder or a name in the registry, found neither for {name!r} "
            f"({where}); see `bertsmith models`"
        )
    aliases = models[name].aliases
    if _CHAMPION in aliases:
        return _CHAMPION
    others = sorted(set(aliases) - {_CANDIDATE})
    if len(others) == 1:
        return others[0]
    if not others and _CANDIDATE in aliases:
        return _CANDIDATE
    found = pages(lambda token: client.search_model_versions(page_token=token))
    numbers = sorted(int(version.version) for version in found if version.name == name)
    raise UserError(
        f"{name} must have the alias {_CHAMPION}, or one other alone, to be named without a "
        f"version, found the aliases {', '.join(sorted(aliases)) or 'none'} and the versions "
        f"{', '.join(map(str, numbers)) or 'none'}; write {name}@alias or {name}/version"
    )


def _metric_of(client: MlflowClient, run_id: str, metric: str) -> float | None:
    metrics = client.get_run(run_id).data.metrics if run_id else {}
    return metrics.get(final(metric))  # its own name is the training curve's
