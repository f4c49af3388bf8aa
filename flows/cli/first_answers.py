"""A first answer need not wait for MLflow where the command before it had it loaded."""

from collections.abc import Iterable
from pathlib import Path

from flows.cli.asked_model import usual_question
from flows.cli.commands.asking import ASKED
from flows.cli.registry import place_of, tracker_of
from pipelines.registry import first_answers
from pipelines.registry.first_answers import Wanted

_WANTED = (
    *(Wanted(asked.kinds) for asked in ASKED),
    Wanted(("encoder",)),
    Wanted(("encoder",), fills_gaps=True),
)


def find_first_answers(home: Path | None, names: Iterable[str]) -> None:
    """Ask a home's own registry what commands will ask of it, with and without these names."""
    database = place_of(home).own_registry()
    if database is not None:
        wanted = {usual_question(*each): each for each in _WANTED}
        first_answers.find_first_answers(tracker_of(home), database, wanted, names)
