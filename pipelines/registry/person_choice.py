"""What a person chooses by hand: which version is meant, and whether what is on record allows it.

Nothing here loads a model or moves an alias, so a refusal comes at once.
"""

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from pipelines.config.errors import UserError
from pipelines.registry.finding import find_source, version_with_alias, versions_of
from pipelines.registry.history import before_it, moves_of
from pipelines.registry.tags import (
    BETTER,
    COMPARISON_TAG,
    PROOF_TAG,
    VERIFIED_TAG,
    digest_of,
    entries,
    uri_of,
)


def chosen_version(client: MlflowClient, name: str, source: str) -> ModelVersion:
    """The version of `name` that an alias or a number says, where it may be given an alias.

    Raises UserError where there is none, or where it did not prove itself.
    """
    version = find_source(client, name, source)
    check_proved(version)
    return version


def version_before(
    client: MlflowClient, name: str, alias: str
) -> tuple[ModelVersion, ModelVersion]:
    """The version that has `alias`, and the one that it goes back to.

    Raises UserError where no other version had it, or where that one did not prove itself.
    """
    current = version_with_alias(client, name, alias)
    if current is None:
        raise UserError(
            f"no version of {name} has the alias {alias}, so there is nothing to roll back; see "
            "`bertsmith models`"
        )
    found = {int(each.version) for each in versions_of(client, name)}
    before = before_it(
        moves_of(client, name), alias, int(current.version), lambda number: number in found
    )
    if before is None:
        raise UserError(
            f"no version of {name} had the alias {alias} before version {current.version}; name "
            f"one with `bertsmith promote {name} --version N`"
        )
    return current, chosen_version(client, name, str(before))


def check_proved(version: ModelVersion) -> None:
    """Raise UserError for a version that did not repeat its figure, or has no digest to check."""
    if version.tags.get(VERIFIED_TAG) != "true":
        raise UserError(
            f"{version.name} version {version.version} has not repeated its logged accuracy, so it "
            "cannot be promoted; run the recipe again to verify it"
        )
    digest_of(version)


def check_record(client: MlflowClient, version: ModelVersion, alias: str) -> None:
    """Raise UserError where what is on record speaks against giving `alias` to `version`."""
    against = recorded_objection(client, version, alias)
    if against:
        raise UserError(
            f"this version is not better than {alias}; use --force (`force` in the recipe) to "
            f"promote it anyway; on record: {against}"
        )


def recorded_objection(client: MlflowClient, version: ModelVersion, alias: str) -> str:
    """What is on record against taking `alias` from the version that has it; empty: nothing is.

    That is their comparison, whichever of the two was the candidate then; where they were never
    compared, the figures that they proved themselves by.
    """
    holder = version_with_alias(client, version.name, alias)
    if holder is None or holder.version == version.version:
        return ""
    for one, other, speaks_for_it in ((version, holder, True), (holder, version, False)):
        compared = entries(COMPARISON_TAG, one.tags)
        if compared.get("against") == uri_of(other):
            is_better = compared.get("decision", "").startswith(BETTER)
            return (
                "" if is_better == speaks_for_it else f"{uri_of(one)}: {compared.get('reason', '')}"
            )
    return _by_their_figures(version, holder)


def baselines_speak_against(version: ModelVersion) -> str:
    """Why it was not better than its baselines; empty where it was, or was not compared."""
    compared = entries(COMPARISON_TAG, version.tags)
    against = compared.get("against", "")
    if compared.get("decision") != f"not {BETTER}" or not against or against.startswith("models:/"):
        return ""
    return compared.get("reason", "")


def _by_their_figures(version: ModelVersion, holder: ModelVersion) -> str:
    ours, theirs = (entries(PROOF_TAG, each.tags) for each in (version, holder))
    metric = ours.get("metric", "")
    if not metric.startswith("eval/") or theirs.get("metric") != metric:
        return ""  # an imported model proves itself by its response, which is no score
    figures = [float(each["reproduced"]) for each in (ours, theirs)]
    if figures[0] >= figures[1]:
        return ""
    return (
        f"{uri_of(version)} reached {metric} {figures[0]:.4f} on its held-out data and "
        f"{uri_of(holder)} {figures[1]:.4f} on its own; they were never compared"
    )
