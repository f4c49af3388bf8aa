"""Aliases: what a comparison or a person decides, and the one place where an alias moves.

A decision only reads. Moving may be tried again, since a decision names the version before; where
another version has the alias meanwhile, nothing moves.
"""

from dataclasses import dataclass
from typing import Final

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from pipelines.errors import UserError
from pipelines.registry.find import (
    KIND_TAG,
    PROMOTED_TAG,
    VERIFIED_TAG,
    find_source,
    if_there,
    number_of,
    reference_to,
    rolled_back_tag,
    uri_of,
    version_with_alias,
)
from pipelines.registry.package import located
from pipelines.tracking.tracker import Tracker

BY_A_PERSON: Final = "chosen by a person"  # the reason where none is given
PREVIOUS: Final = "previous"  # in place of a version: the one that had the alias before
_MOST_CHARACTERS: Final = 4_000  # MLflow's SQL store takes 5,000 a tag


class OvertakenError(UserError):
    """An alias that moved after it was decided to move it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """An alias that moves to a version, or has moved."""

    name: str
    alias: str
    version: int
    previous_version: int | None  # that had the alias when this was decided
    reason: str = ""
    is_rollback: bool = False
    is_of_run: bool = False  # by a comparison with the version before; a person's rollback stops it


def decide_promotion(
    tracker: Tracker, name: str, source: str, alias: str, reason: str = ""
) -> Promotion:
    """`alias` for the version of `name` that `source` says: an alias, a number, or `previous`.

    Raises UserError where there is none, where it did not prove itself, and, unless it is a way
    back, where the version that has the alias is of another kind: its users would get another kind
    of answer.
    """
    client = tracker.client()
    holder = version_with_alias(client, name, alias)
    if source == PREVIOUS:
        version = _previous(client, name, alias, holder)
    else:
        version = find_source(client, name, source)
    if version.tags.get(VERIFIED_TAG) != "true":
        raise UserError(
            f"{reference_to(version)} has not repeated its logged score, so it cannot be promoted; "
            "run the recipe again to verify it"
        )
    kind, ours = ("" if each is None else each.tags.get(KIND_TAG, "") for each in (holder, version))
    if source != PREVIOUS and kind and kind != ours:
        raise UserError(
            f"{reference_to(version)} is of the kind {ours}, and {name}@{alias} of the kind "
            f"{kind}: its users would get another kind of answer; register the model under another "
            f"name, name another alias, or take the alias back first (bertsmith rollback {name})"
        )
    return Promotion(
        name=name,
        alias=alias,
        version=int(version.version),
        previous_version=number_of(holder),
        reason=reason or BY_A_PERSON,
        is_rollback=source == PREVIOUS,
    )


def _previous(
    client: MlflowClient, name: str, alias: str, holder: ModelVersion | None
) -> ModelVersion:
    """The version that had the alias before."""
    if if_there(client.get_registered_model, name) is None:
        raise UserError(f"the registry has no model {name!r}; see `bertsmith models`")
    before = "" if holder is None else holder.tags.get(f"{PROMOTED_TAG}.{alias}.previous", "")
    version = if_there(client.get_model_version, name, before) if before else None
    if version is None:
        raise UserError(
            f"no version of {name} was {alias} before, or it was deleted; name one with "
            f"`bertsmith promote {name} --version N`"
        )
    return version


def move_alias(tracker: Tracker, promotion: Promotion) -> Promotion:
    """Do what was decided; a second try completes the first.

    Raises OvertakenError where another version got the alias since, or a person rolled back what a
    run promotes, UserError for a version whose bytes are not those that were registered,
    MlflowException where the tracker does not answer.
    """
    client, name, alias = tracker.client(), promotion.name, promotion.alias
    version = client.get_model_version(name, str(promotion.version))
    with located(tracker, uri_of(version)):  # verifies its files
        pass
    with tracker.taking_turns():
        holder = number_of(version_with_alias(client, name, alias))
        if holder not in (promotion.previous_version, promotion.version):
            raise OvertakenError(
                f"{name}@{alias} is {_called(holder)} now, and was "
                f"{_called(promotion.previous_version)} when this was decided; look at "
                f"`bertsmith models {name}`, then ask again"
            )
        undone = rolled_back_tag(version, alias)
        if undone in client.get_registered_model(name).tags and not promotion.is_rollback:
            if promotion.is_of_run:  # a second try of what a person undid after the first
                raise OvertakenError(f"a person rolled {uri_of(version)} back; it is not promoted")
            client.delete_registered_model_tag(name, undone)
        tags = client.get_model_version(name, str(promotion.version)).tags
        is_done = holder == promotion.version and f"{PROMOTED_TAG}.{alias}.reason" in tags
        if not (is_done and promotion.is_of_run):  # a person may have been faster, with a reason
            _move(client, promotion)
    return promotion


def _called(number: int | None) -> str:
    return "no version" if number is None else f"version {number}"


def _move(client: MlflowClient, promotion: Promotion) -> None:
    name, alias = promotion.name, promotion.alias
    number, previous = str(promotion.version), promotion.previous_version
    tag, reason = f"{PROMOTED_TAG}.{alias}", promotion.reason[:_MOST_CHARACTERS]
    moves = previous != promotion.version
    # The way back comes before the move: one that breaks off can still be rolled back.
    if moves and promotion.is_rollback:
        left = client.get_model_version(name, str(previous))
        client.set_registered_model_tag(name, rolled_back_tag(left, alias), reason)
        client.set_model_version_tag(
            name, number, f"{tag}.reason", f"version {previous} was rolled back: {reason}"
        )
    elif moves and previous:
        client.set_model_version_tag(name, number, f"{tag}.previous", str(previous))
    client.set_registered_model_alias(name, alias, number)
    is_given = not promotion.is_of_run and reason != BY_A_PERSON
    if (moves or is_given) and not promotion.is_rollback:
        client.set_model_version_tag(name, number, f"{tag}.reason", reason)
