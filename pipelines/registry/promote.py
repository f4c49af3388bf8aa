"""Aliases: what a comparison or a person decides, and the one place where an alias moves.

A decision only reads. Moving may be tried again, since a decision names the version before.
"""

import getpass
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from pipelines.errors import UserError
from pipelines.registry.compare import Comparison
from pipelines.registry.find import (
    OWED_TAG,
    PROMOTED_TAG,
    VERIFIED_TAG,
    digest_of,
    find_source,
    if_there,
    rolled_back_tag,
    version_with_alias,
)
from pipelines.registry.opening import located
from pipelines.registry.prove import Verification
from pipelines.registry.register import RegisteredModel
from pipelines.tracking.tracker import Tracker

PREVIOUS: Final = "previous"  # in place of a version: the one that had the alias before
_MOST_CHARACTERS: Final = 4_000  # MLflow's SQL store takes 5,000 a tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """An alias that moves to a version, or has moved."""

    name: str
    alias: str
    version: int
    previous_version: int | None  # that has the alias now
    reason: str = ""
    is_rollback: bool = False


def awaiting_promotion(
    models: Sequence[RegisteredModel], verifications: Sequence[Verification]
) -> list[RegisteredModel]:
    """The models of a run that it compares: newly verified ones, never those it merely reused.

    A version that was verified by a run which ended before its promotion is one, too. Whatever
    else was promoted before stays where a person put it.
    """
    proved = {verification.model.reference for verification in verifications}
    return [model for model in models if model.awaits_promotion or model.reference in proved]


def promotion_by_comparison(tracker: Tracker, comparison: Comparison, alias: str) -> Promotion:
    """`alias` for the version that was better than the one that has it."""
    assert comparison.is_better, comparison.reason
    holder = version_with_alias(tracker.client(), comparison.name, alias)
    return Promotion(
        name=comparison.name, alias=alias, version=comparison.version,
        previous_version=_number(holder), reason=comparison.reason,
    )  # fmt: skip


def promotion_by_choice(
    tracker: Tracker, name: str, source: str, alias: str, reason: str = ""
) -> Promotion:
    """`alias` for the version of `name` that `source` says: an alias, a number, or `previous`.

    Raises UserError where there is none, or where it did not prove itself.
    """
    if source == PREVIOUS:
        return _rollback(tracker, name, alias, reason)
    client = tracker.client()
    version = find_source(client, name, source)
    _check_proved(version)
    return Promotion(
        name=name, alias=alias, version=int(version.version),
        previous_version=_number(version_with_alias(client, name, alias)),
        reason=reason or f"chosen by {_person()}",
    )  # fmt: skip


def _rollback(tracker: Tracker, name: str, alias: str, reason: str) -> Promotion:
    """`alias` back to the version that had it before; no run of a recipe undoes that.

    Raises UserError where no version has or had it, or where the one before was deleted.
    """
    client = tracker.client()
    current = version_with_alias(client, name, alias)
    if current is None:
        raise UserError(
            f"no version of {name} has the alias {alias}, so there is nothing to roll back; see "
            "`bertsmith models`"
        )
    before = current.tags.get(f"{PROMOTED_TAG}.{alias}.previous", "")
    version = if_there(client.get_model_version, name, before) if before else None
    if version is None:
        lost = f"version {before} had it and was deleted" if before else "no version had it"
        raise UserError(
            f"before version {current.version} of {name}, {lost} ({alias}); name a version with "
            f"`bertsmith promote {name} --version N`"
        )
    _check_proved(version)
    return Promotion(
        name=name, alias=alias, version=int(version.version),
        previous_version=int(current.version), is_rollback=True,
        reason=reason or f"{_person()} rolled back version {current.version}",
    )  # fmt: skip


def move_alias(tracker: Tracker, promotion: Promotion) -> Promotion:
    """Do what was decided; a second try completes the first.

    Raises UserError for a version that did not repeat its logged score or whose bytes are not
    those that were registered, MlflowException where the tracker does not answer.
    """
    client, name, number = tracker.client(), promotion.name, str(promotion.version)
    version = client.get_model_version(name, number)
    _check_proved(version)
    with located(tracker, f"{name}/{number}"):  # verifies its files
        pass
    _record(client, promotion, version)
    client.set_registered_model_alias(name, promotion.alias, number)
    if OWED_TAG in version.tags:
        client.delete_model_version_tag(name, number, OWED_TAG)
    return promotion


def _record(client: MlflowClient, promotion: Promotion, version: ModelVersion) -> None:
    """The way back, before the alias moves: a move that broke off can still be rolled back."""
    name, alias, previous = promotion.name, promotion.alias, promotion.previous_version
    if previous == promotion.version:
        return
    reason = promotion.reason[:_MOST_CHARACTERS]
    if promotion.is_rollback:
        left = client.get_model_version(name, str(previous))
        client.set_registered_model_tag(name, rolled_back_tag(left, alias), reason)
        return
    if rolled_back_tag(version, alias) in client.get_registered_model(name).tags:
        client.delete_registered_model_tag(name, rolled_back_tag(version, alias))
    tags = {"reason": reason} | ({"previous": str(previous)} if previous else {})
    for key, value in tags.items():
        client.set_model_version_tag(name, version.version, f"{PROMOTED_TAG}.{alias}.{key}", value)


def _check_proved(version: ModelVersion) -> None:
    if version.tags.get(VERIFIED_TAG) != "true":
        raise UserError(
            f"{version.name} version {version.version} has not repeated its logged accuracy, so it "
            "cannot be promoted; run the recipe again to verify it"
        )
    digest_of(version)


def _number(version: ModelVersion | None) -> int | None:
    return None if version is None else int(version.version)


def _person() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "a person"
