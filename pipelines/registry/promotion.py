"""Moving aliases: from a candidate that proved itself to the version that people use."""

from collections.abc import Sequence
from dataclasses import dataclass

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from pipelines.core.errors import UserError
from pipelines.core.tracking.paging import pages
from pipelines.core.tracking.tracker import Tracker
from pipelines.registry.registration import RegisteredModel
from pipelines.registry.tags import OWED_TAG, PROMOTION, VERIFIED_TAG
from pipelines.registry.verification import Verification

# What MLflow answers where there is no such model, version or alias; the rest is trouble.
_MISSING = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND")


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """An alias that moved."""

    name: str
    alias: str
    version: int
    previous_version: int | None  # which version to go back to


def due_for_promotion(
    models: Sequence[RegisteredModel], verifications: Sequence[Verification]
) -> list[RegisteredModel]:
    """The models of a run that it promotes: newly verified ones, never those it merely reused.

    A version that was verified by a run which ended before its promotion is due, too. Whatever
    else was promoted before stays where a person put it.
    """
    proved = {verification.model.reference for verification in verifications}
    return [model for model in models if model.awaits_promotion or model.reference in proved]


def promote(tracker: Tracker, name: str, source: str, alias: str) -> Promotion:
    """Give `alias` to the version of `name` that `source` says: an alias or a version number.

    Raises UserError for a version that did not repeat its logged accuracy, or that is not there,
    and MlflowException where the tracker does not answer.
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
    if version.tags.get(OWED_TAG) == PROMOTION:
        client.delete_model_version_tag(name, str(version.version), OWED_TAG)
    return Promotion(
        name=name,
        alias=alias,
        version=int(version.version),
        previous_version=int(previous.version) if previous is not None else None,
    )


def find_source(client: MlflowClient, name: str, source: str) -> ModelVersion:
    """The version that an alias or a version number names.

    Raises UserError where there is none, MlflowException where the tracker does not answer.
    """
    try:
        if source.isdigit():
            return client.get_model_version(name, source)
        return client.get_model_version_by_alias(name, source)
    except MlflowException as error:
        if error.error_code not in _MISSING:
            raise
        found = pages(lambda token: client.search_registered_models(page_token=token))
        known = [model.name for model in found]
        where = f"known models: {', '.join(known)}" if known else "the registry is empty"
        raise UserError(
            f"the registry must hold {name!r} with the alias or version {source!r}, found none "
            f"({where}); see `bertsmith models`"
        ) from None


def version_with_alias(client: MlflowClient, name: str, alias: str) -> ModelVersion | None:
    """The version with `alias`, or None; raises MlflowException where the tracker is away."""
    try:
        return client.get_model_version_by_alias(name, alias)
    except MlflowException as error:
        if error.error_code not in _MISSING:
            raise
        return None
