"""Moving aliases: from a candidate that proved itself to the version that people use."""

from dataclasses import dataclass

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from pipelines.core.errors import UserError
from pipelines.core.tracking import Tracker
from pipelines.registry.registration import VERIFIED_TAG


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """An alias that moved."""

    name: str
    alias: str
    version: int
    previous_version: int | None  # which version to go back to


def promote(tracker: Tracker, name: str, source: str, alias: str) -> Promotion:
    """Give `alias` to the version of `name` that `source` says: an alias or a version number.

    Raises UserError for a version that did not repeat its logged accuracy.
    """
    client = tracker.client()
    version = find_source(client, name, source)
    if version.tags.get(VERIFIED_TAG) != "true":
        raise UserError(
            f"only a version that repeated its logged accuracy can be promoted; {name} version "
            f"{version.version} has not; run the recipe again to verify it"
        )
    previous = version_with_alias(client, name, alias)
    client.set_registered_model_alias(name, alias, str(version.version))
    return Promotion(
        name=name,
        alias=alias,
        version=int(version.version),
        previous_version=int(previous.version) if previous is not None else None,
    )


def find_source(client: MlflowClient, name: str, source: str) -> ModelVersion:
    """The version that an alias or a version number names; UserError where there is none."""
    try:
        if source.isdigit():
            return client.get_model_version(name, source)
        return client.get_model_version_by_alias(name, source)
    except MlflowException:
        known = [model.name for model in client.search_registered_models()]
        where = f"known models: {', '.join(known)}" if known else "the registry is empty"
        raise UserError(
            f"the registry must hold {name!r} with the alias or version {source!r}, found none "
            f"({where}); see `bertsmith models`"
        ) from None


def version_with_alias(client: MlflowClient, name: str, alias: str) -> ModelVersion | None:
    """The version with `alias`, or None."""
    try:
        return client.get_model_version_by_alias(name, alias)
    except MlflowException:
        return None
