"""Finding a version in the registry by name and alias, or by name and number."""

from typing import Final

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from pipelines.core.errors import UserError
from pipelines.core.reading.hugging_face import FROM_THE_HUB
from pipelines.core.tracking.paging import pages
from pipelines.registry.lookups.references import REGISTERED
from pipelines.registry.tags import VERIFIED_TAG

# As recipes name them, if they say nothing.
_CHAMPION, _CANDIDATE, _CHALLENGER = "champion", "candidate", "challenger"
# What MLflow answers where there is no such model, version or alias; the rest is trouble.
_MISSING = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND")
GONE_OR_CLOSED: Final = ("RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED")  # others' things may be


def find_model(client: MlflowClient, reference: str) -> ModelVersion:
    """The version that `name@alias`, `name/version` or a bare `name` names; `models:/` may lead.

    A bare name is its champion, else the one other alias that it has besides the candidate's and
    the challenger's, else its candidate, if that proved itself. Raises UserError where there is
    none, MlflowException where the tracker does not answer.
    """
    reference = reference.removeprefix(REGISTERED)
    name, separator, source = reference.partition("@" if "@" in reference else "/")
    if separator:
        return find_source(client, name, source)
    usual = _usual_source(client, name)
    version = find_source(client, name, usual)
    if usual == _CANDIDATE and version.tags.get(VERIFIED_TAG) != "true":
        raise UserError(
            f"{name} must have a champion, or a candidate that repeated its logged accuracy, to be "
            f"named without a version, found version {version.version}, which has not; run its "
            f"recipe again to verify it, or write {name}/{version.version}"
        )
    return version


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
        raise UserError(
            f"the registry must hold {name!r} with the alias or version {source!r}, found none "
            f"({_known_models(client)}); see `bertsmith models`"
        ) from None


def version_with_alias(client: MlflowClient, name: str, alias: str) -> ModelVersion | None:
    """The version with `alias`, or None; raises MlflowException where the tracker is away."""
    try:
        return client.get_model_version_by_alias(name, alias)
    except MlflowException as error:
        if error.error_code not in _MISSING:
            raise
        return None


def _usual_source(client: MlflowClient, name: str) -> str:
    """The alias that a name alone stands for; UserError where that would be a guess."""
    try:
        aliases = client.get_registered_model(name).aliases
    except MlflowException as error:
        if error.error_code not in _MISSING:
            raise
        raise UserError(
            f"a model must be a folder or a name in the registry, found neither for {name!r} "
            f"({_known_models(client)}); see `bertsmith models`; {FROM_THE_HUB}"
        ) from None
    if _CHAMPION in aliases:
        return _CHAMPION
    others = sorted(set(aliases) - {_CANDIDATE, _CHALLENGER})
    if len(others) == 1:
        return others[0]
    if not others and _CANDIDATE in aliases:
        return _CANDIDATE
    numbers = sorted(int(version.version) for version in versions_of(client, name))
    raise UserError(
        f"{name} must have the alias {_CHAMPION}, or one other alone, to be named without a "
        f"version, found the aliases {', '.join(sorted(aliases)) or 'none'} and the versions "
        f"{', '.join(map(str, numbers)) or 'none'}; write {name}@alias or {name}/version"
    )


def versions_of(client: MlflowClient, name: str, more: str = "") -> list[ModelVersion]:
    """Every version of `name`, of those that the filter `more` lets pass."""
    quote = '"' if "'" in name else "'"
    wanted = f"name = {quote}{name}{quote}{f' and {more}' if more else ''}"
    return list(pages(lambda token: client.search_model_versions(wanted, page_token=token)))


def _known_models(client: MlflowClient) -> str:
    found = pages(lambda token: client.search_registered_models(page_token=token))
    known = [model.name for model in found]
    return f"known models: {', '.join(known)}" if known else "the registry is empty"
