"""Promotions by hand: which version is meant, and whether what is on record allows it.

Nothing here loads a model or moves an alias, so a refusal comes at once.
"""

import getpass
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import yaml
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from pipelines.config.errors import UserError
from pipelines.registry.finding import (
    BETTER,
    COMPARISON_TAG,
    PROOF_TAG,
    REGISTERED,
    VERIFIED_TAG,
    digest_of,
    entries,
    find_source,
    uri_of,
    version_with_alias,
    versions_of,
)

HISTORY_TAG: Final = "bertsmith.history"  # .<time>.<version>: moves in the order of their names
_MOST_CHARACTERS = 4_000  # of a reason; MLflow's SQL store takes 5,000 a tag

How = Literal["comparison", "person", "rollback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An alias that was given to a version."""

    alias: str
    version: int
    before: int | None  # the version that had it
    how: How
    by: str  # who did it: a person's name, or the flow run
    reason: str
    at: str  # UTC, ISO 8601
    fingerprint: str  # of the version's artifact
    before_fingerprint: str  # and of the one before


def person() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "a person"


def moves_of(client: MlflowClient, name: str) -> list[Move]:
    """Every recorded move of an alias of `name`, oldest first; MlflowException where there is none
    of this name."""
    tags = client.get_registered_model(name).tags
    return [
        _move(value) for key, value in sorted(tags.items()) if key.startswith(f"{HISTORY_TAG}.")
    ]


def last_move(client: MlflowClient, name: str, alias: str) -> Move | None:
    """The last recorded move of `alias`."""
    found = [move for move in moves_of(client, name) if move.alias == alias]
    return found[-1] if found else None


def record(client: MlflowClient, name: str, move: Move) -> None:
    """Add a move to the history of `name`, unless nothing moves or it is the last one there."""
    last = last_move(client, name, move.alias)
    is_last = last is not None and (
        (last.version, last.before, last.how) == (move.version, move.before, move.how)
    )
    if is_last or move.before == move.version:
        return
    moment = _moment(move)
    if last is not None:  # the clock of the machine that made it may be ahead
        moment = max(moment, _moment(last) + timedelta(microseconds=1))
    key = f"{HISTORY_TAG}.{moment:%Y%m%dT%H%M%S.%f}.{move.version}"
    values = asdict(move) | {"at": moment.isoformat(), "reason": move.reason[:_MOST_CHARACTERS]}
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=math.inf)
    client.set_registered_model_tag(name, key, text.rstrip())


def _move(value: str) -> Move:
    """What a tag says: lines that a person reads on MLflow's page; older ones are JSON."""
    return Move(**(json.loads(value) if value.startswith("{") else yaml.safe_load(value)))


def now() -> str:
    """This moment as moves have it."""
    return datetime.now(UTC).isoformat()


def _moment(move: Move) -> datetime:
    return datetime.fromisoformat(move.at).astimezone(UTC)


def before_it(
    moves: Sequence[Move], alias: str, current: int | None, is_there: Callable[[int], bool]
) -> int | None:
    """The version that had `alias` before `current`, of those that are still there.

    A rollback takes back what was done: after it the champion before is the one before that. An
    alias that was moved without a record goes back to the last one that is recorded.
    """
    had: list[int] = []
    for move in moves:
        if move.alias != alias:
            continue
        if move.how == "rollback" and move.version in had:
            while had[-1] != move.version:
                had.pop()
            continue
        had.extend(
            version for version in (move.before, move.version)
            if version is not None and had[-1:] != [version]
        )  # fmt: skip
    while had and had[-1] == current:
        had.pop()
    return next((v for v in reversed(had) if v != current and is_there(v)), None)


def is_taken_back(moves: Sequence[Move], alias: str, fingerprint: str) -> bool:
    """Whether a person went back from the model `fingerprint`, and it did not get `alias` since.

    Giving the alias to an older version by hand is going back, too.
    """
    taken_back = False
    for move in moves:
        if move.alias != alias or not fingerprint:
            continue
        is_back = move.how == "rollback" or (
            move.how == "person" and (move.before or 0) > move.version
        )
        if is_back and move.before_fingerprint == fingerprint:
            taken_back = True
        elif move.fingerprint == fingerprint:
            taken_back = False
    return taken_back


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
    if compared.get("decision") != f"not {BETTER}" or not against or against.startswith(REGISTERED):
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
