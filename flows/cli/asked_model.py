"""Which model a command asks, as a folder with its files."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.cli.registry import named, newest, place_of, refuse_no_registry, tracker_of


def say(sentence: str) -> None:
    """Tell a person something beside the answers, which other programs may read."""
    print(sentence, file=sys.stderr)


def model_address(called: str) -> str:
    """What a person is told of a model: models:/name/version, or its folder."""
    from pipelines.registry.lookups.references import REGISTERED, is_folder

    return called if is_folder(called) else f"{REGISTERED}{called}"


@contextmanager
def asked_model(
    model: str | None, home: Path | None, *kinds: str, fills_gaps: bool = False
) -> Iterator[tuple[Path, str]]:
    """The files of the model that `--model` names, or of the newest champion of `kinds`, for as
    long as they are used; and what it is called, with its version, which is said on standard
    error.

    What a home's own registry answered is not asked again until somebody writes to it: that spares
    a first answer the import of MLflow. Raises UserError where there is none.
    """
    from pipelines.registry.lookups.references import is_folder
    from pipelines.registry.lookups.remembered import remember, state_of

    if model is None or not is_folder(model):  # before torch is imported
        refuse_no_registry(home, needs=kinds[0] if model is None else None)
    reference = named(model, home)
    if reference is not None and is_folder(reference):
        say(f"model: {reference}")
        yield Path(reference), reference
        return
    question = reference or usual_question(kinds, fills_gaps)
    database = place_of(home).own_registry()
    if database is not None and (known := _known(database, question)) is not None:
        say(f"model: {model_address(known[1])}")
        yield known
        return
    state = None if database is None else state_of(database)
    tracker = tracker_of(home)
    from pipelines.registry.opening import located, versioned

    reference = versioned(tracker, reference or newest(tracker, *kinds, fills_gaps=fills_gaps))
    say(f"model: {model_address(reference)}")
    with located(tracker, reference) as folder:
        if database is not None:
            remember(database, [(question, reference, folder.parents[1])], state)
        yield folder, reference


def usual_question(kinds: tuple[str, ...], fills_gaps: bool) -> str:
    """What a command without `--model` asks the registry, in words."""
    return f"newest {' '.join(kinds)}{' for gaps' if fills_gaps else ''}"


def _known(database: Path, question: str) -> tuple[Path, str] | None:
    """What was remembered, after its bytes were checked; None where nothing is, or no more."""
    from pipelines.registry.lookups.folders import explained
    from pipelines.registry.lookups.remembered import remembered
    from pipelines.registry.serving.integrity import sealed_files

    known = remembered(database, question)
    if known is None or not known.package.is_dir():
        return None
    with explained(known.package):
        sealed_files(known.package, known.digest)
    return known.package / "artifacts" / "model", known.called
