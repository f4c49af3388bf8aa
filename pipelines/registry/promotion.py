"""Moving aliases: to a version that was better, that a person approved, or back to the one before.

Every move is recorded with the registered name, and the result of a comparison with the version.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from pipelines.config.errors import UserError
from pipelines.recipes.registration import RegistrationSettings
from pipelines.registry.card import with_comparison
from pipelines.registry.comparison.versions import Comparison
from pipelines.registry.finding import (
    BETTER,
    COMPARISON_TAG,
    OWED_TAG,
    PROMOTION,
    find_source,
    version_with_alias,
)
from pipelines.registry.opening import located
from pipelines.registry.person_choice import (
    How,
    Move,
    check_proved,
    chosen_version,
    last_move,
    now,
    person,
    record,
    recorded_objection,
    version_before,
)
from pipelines.registry.registration import RegisteredModel
from pipelines.registry.verification import Verification
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """An alias that moved."""

    name: str
    alias: str
    version: int
    previous_version: int | None  # which version to go back to
    reason: str = ""


def due_for_promotion(
    models: Sequence[RegisteredModel], verifications: Sequence[Verification]
) -> list[RegisteredModel]:
    """The models of a run that it compares: newly verified ones, never those it merely reused.

    A version that was verified by a run which ended before its promotion is due, too. Whatever
    else was promoted before stays where a person put it.
    """
    proved = {verification.model.reference for verification in verifications}
    return [model for model in models if model.awaits_promotion or model.reference in proved]


def promote_if_better(
    tracker: Tracker, comparison: Comparison, names: RegistrationSettings, by: str
) -> Promotion:
    """Give the version the alias that its comparison earned, and record why.

    It is the alias of champions where it is better, else that of challengers; a version that is
    champion already, as where a run was killed after it moved the alias, stays it. Raises UserError
    where the champion changed since it was compared: the next run compares it again.
    """
    client = tracker.client()
    alias = names.alias if comparison.is_better else names.challenger_alias
    champion = version_with_alias(client, comparison.name, names.alias)
    is_champion = _number(champion) == comparison.version
    if is_champion and not comparison.is_better:
        client.delete_model_version_tag(comparison.name, str(comparison.version), OWED_TAG)
        return Promotion(
            name=comparison.name, alias=names.alias, version=comparison.version,
            previous_version=comparison.version, reason=comparison.reason,
        )  # fmt: skip
    if comparison.is_better and not is_champion and _number(champion) != comparison.champion:
        raise _moved_meanwhile(comparison.name, alias, comparison.champion, champion)
    version = find_source(client, comparison.name, str(comparison.version))
    _write_down(client, comparison)
    held = comparison.champion if comparison.is_better else holder_of(tracker, version.name, alias)
    before = _find(client, version.name, held)
    return _move(client, tracker, version, alias, before, "comparison", by, comparison.reason)


def holder_of(tracker: Tracker, name: str, alias: str) -> int:
    """The number of the version that has `alias`; 0 if none has."""
    return _number(version_with_alias(tracker.client(), name, alias)) or 0


def promote(
    tracker: Tracker, name: str, source: str, alias: str, reason: str = "", by: str = "",
    *, overrules: bool = True, holder: int | None = None,
) -> Promotion:  # fmt: skip
    """Give `alias` to the version of `name` that `source` says, as a person decided.

    `source` is an alias or a version number, `holder` the version that had `alias` when the person
    decided (0: none). Raises UserError for a version that did not repeat its logged accuracy, whose
    bytes changed since, or that is not there, where another version has got the alias since, and,
    unless the person `overrules` it, where what is on record speaks against it; MlflowException
    where the tracker does not answer.
    """
    client = tracker.client()
    version = chosen_version(client, name, source)
    if not overrules and (against := recorded_objection(client, version, alias)):
        raise UserError(
            f"this version is not better than {alias}; use --force (`force` in the recipe) to "
            f"promote it anyway; on record: {against}"
        )
    before = _find(client, name, holder_of(tracker, name, alias) if holder is None else holder)
    who = by or person()
    return _move(
        client, tracker, version, alias, before, "person", who, reason or f"chosen by {who}"
    )


def rollback(
    tracker: Tracker, name: str, alias: str, reason: str = "", by: str = "",
    *, holder: int | None = None,
) -> Promotion:  # fmt: skip
    """Give `alias` back to the version that had it before; no run of a recipe undoes that.

    `holder` is the version that had it when the person decided. Raises UserError where no other
    version had it, the one that had it is no longer what was registered, or another version has got
    the alias since, and MlflowException where the tracker does not answer.
    """
    client = tracker.client()
    found = version_with_alias(client, name, alias)
    last = last_move(client, name, alias) if found and holder else None
    if found and last and (last.how, last.before, last.version) == (
        "rollback", holder, _number(found)
    ):  # fmt: skip
        # An earlier try moved it, or another person who saw the same version.
        current, version = find_source(client, name, str(holder)), found
    else:
        current, version = version_before(client, name, alias)
        if holder and _number(current) != holder:
            raise _moved_meanwhile(name, alias, holder, current)
    who = by or person()
    why = reason or f"{who} rolled back version {current.version}"
    return _move(client, tracker, version, alias, current, "rollback", who, why)


def _find(client: MlflowClient, name: str, number: int | None) -> ModelVersion | None:
    return find_source(client, name, str(number)) if number else None


def _number(version: ModelVersion | None) -> int | None:
    return None if version is None else int(version.version)


def _moved_meanwhile(
    name: str, alias: str, expected: int | None, found: ModelVersion | None
) -> UserError:
    return UserError(
        f"{_held(expected)} had the alias {alias} of {name} when this was decided, and "
        f"{_held(_number(found))} has it now; see `bertsmith models` and run again"
    )


def _held(number: int | None) -> str:
    return f"version {number}" if number else "no version"


def _move(
    client: MlflowClient,
    tracker: Tracker,
    version: ModelVersion,
    alias: str,
    before: ModelVersion | None,
    how: How,
    by: str,
    reason: str,
) -> Promotion:
    """Move `alias` from the version `before` to `version`; a second try completes the first."""
    name, number = version.name, int(version.version)
    check_proved(version)
    with located(tracker, f"{name}/{number}"):  # its bytes are those that were proved
        pass
    holder = version_with_alias(client, name, alias)
    if _number(holder) not in (_number(before), number):  # its own number after a first try
        raise _moved_meanwhile(name, alias, _number(before), holder)
    move = _as_move(version, alias, before, how, by, reason)
    # Ended between the two, the next rollback still goes to the version that was good: a rollback
    # is known before it happens, any other move only once it has happened.
    if how == "rollback":
        record(client, name, move)
    client.set_registered_model_alias(name, alias, str(number))
    record(client, name, move)
    if version.tags.get(OWED_TAG) == PROMOTION:
        client.delete_model_version_tag(name, str(number), OWED_TAG)
    return Promotion(
        name=name, alias=alias, version=number, previous_version=move.before, reason=reason
    )


def _as_move(
    version: ModelVersion, alias: str, before: ModelVersion | None, how: How, by: str, reason: str
) -> Move:
    return Move(
        at=now(), alias=alias, version=int(version.version), before=_number(before), how=how, by=by,
        reason=reason, fingerprint=version.tags.get(FINGERPRINT_TAG, ""),
        before_fingerprint=before.tags.get(FINGERPRINT_TAG, "") if before else "",
    )  # fmt: skip


def _decision(comparison: Comparison) -> str:
    if comparison.awaits_approval:
        return f"{BETTER}, awaits approval"
    return BETTER if comparison.is_better else f"not {BETTER}"


def _write_down(client: MlflowClient, comparison: Comparison) -> None:
    """The result of the comparison, as tags of the version and at the end of its description."""
    number = str(comparison.version)
    card = client.get_model_version(comparison.name, number).description or ""
    client.update_model_version(comparison.name, number, with_comparison(card, comparison.reason))
    values = {
        "decision": _decision(comparison),
        "reason": comparison.reason[:4_000],
        "against": comparison.against,
        "metric": comparison.metric,
        "data": comparison.data,
        "at": now(),
    }
    if comparison.difference is not None:
        difference = comparison.difference
        values |= {
            "score": repr(difference.score),
            "other": repr(difference.other),
            "difference": repr(difference.value),
            "interval": f"{difference.low!r} {difference.high!r}",
            "margin": repr(difference.margin),
            "items": str(difference.num_items),
        }
    for key, value in values.items():
        if value:
            client.set_model_version_tag(comparison.name, number, f"{COMPARISON_TAG}.{key}", value)
