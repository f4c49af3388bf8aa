"""Who had an alias, from when, and why: kept with the registered name, one tag a move."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final, Literal

import yaml
from mlflow import MlflowClient

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


def moves_of(client: MlflowClient, name: str) -> list[Move]:
    """Every recorded move of an alias of `name`, oldest first; MlflowException where there is none
    of this name."""
    tags = client.get_registered_model(name).tags
    return [
        _move(value) for key, value in sorted(tags.items()) if key.startswith(f"{HISTORY_TAG}.")
    ]


def record(client: MlflowClient, name: str, move: Move) -> None:
    """Add a move to the history of `name`."""
    moment = datetime.fromisoformat(move.at).astimezone(UTC)
    key = f"{HISTORY_TAG}.{moment:%Y%m%dT%H%M%S.%f}.{move.version}"
    values = asdict(move) | {"reason": move.reason[:_MOST_CHARACTERS]}
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=math.inf)
    client.set_registered_model_tag(name, key, text.rstrip())


def _move(value: str) -> Move:
    """What a tag says: lines that a person reads on MLflow's page; older ones are JSON."""
    return Move(**(json.loads(value) if value.startswith("{") else yaml.safe_load(value)))


def now() -> str:
    """This moment as moves have it."""
    return datetime.now(UTC).isoformat()


def before_it(
    moves: Sequence[Move], alias: str, current: int | None, is_there: Callable[[int], bool]
) -> int | None:
    """The version that had `alias` before `current`, of those that are still there.

    A rollback takes back what was done: after it the champion before is the one before that. An
    alias that somebody moved without a record goes back to the last one that is recorded.
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
    """Whether a person went back from the model `fingerprint`, and nobody gave it `alias` since.

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
