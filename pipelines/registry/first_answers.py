"""What is going to be asked of a registry, found out while MLflow is loaded."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from pipelines.core.errors import UserError
from pipelines.core.tracking.tracker import Tracker, tracker_errors
from pipelines.registry.lookups.finding import find_model
from pipelines.registry.lookups.newest import newest_of
from pipelines.registry.lookups.remembered import remember, state_of
from pipelines.registry.opening import located


class Wanted(NamedTuple):
    """What a command looks for that was not told a model: see `newest.newest_of`."""

    kinds: tuple[str, ...]
    fills_gaps: bool = False


def find_first_answers(
    tracker: Tracker, database: Path, wanted: Mapping[str, Wanted], names: Iterable[str]
) -> None:
    """Remember what commands will ask: `wanted` by the words they ask it in, and each name.

    A question without an answer is left to whoever asks it.
    """
    state = state_of(database)
    try:
        client = tracker.client()
        called = {words: newest_of(client, *which) for words, which in wanted.items()}
    except tracker_errors():
        return
    failures: tuple[type[Exception], ...] = (UserError, *tracker_errors())
    packages: dict[tuple[str, str], Path] = {}
    answers = []
    for question, reference in [*called.items(), *((name, name) for name in names)]:
        if reference is None:
            continue
        try:
            version = find_model(client, reference)
            which = (version.name, str(version.version))
            if which not in packages:  # a look at every byte of it
                with located(tracker, reference) as folder:
                    packages[which] = folder.parents[1]
        except failures:
            continue
        answers.append((question, "/".join(which), packages[which]))
    remember(database, answers, state)
