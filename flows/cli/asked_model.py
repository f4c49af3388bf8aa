"""Which model a command asks, as a folder with its files."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.cli.registry import named, newest, require_registry, tracker_of


def say(sentence: str) -> None:
    """Tell a person something beside the answers, which other programs may read."""
    print(sentence, file=sys.stderr)


def model_address(called: str) -> str:
    """How messages name a model: models:/name/version, or its folder."""
    from pipelines.registry.tags import REGISTERED, is_folder

    return called if is_folder(called) else f"{REGISTERED}{called}"


@contextmanager
def asked_model(
    model: str | None, home: Path | None, *kinds: str, fills_gaps: bool = False
) -> Iterator[tuple[Path, str]]:
    """The files of the model that `--model` names, or of the newest champion of `kinds`, for as
    long as they are used; and what it is called, with its version, which is said on standard
    error.

    Raises UserError where there is none.
    """
    from pipelines.registry.tags import is_folder

    if model is None or not is_folder(model):  # before torch is imported
        require_registry(home, needs=kinds if model is None else ())
    reference = named(model, home)
    if reference is not None and is_folder(reference):
        say(f"model: {reference}")
        yield Path(reference), reference
        return
    tracker = tracker_of(home)
    from pipelines.registry.opening import located, versioned

    reference = versioned(tracker, reference or newest(tracker, *kinds, fills_gaps=fills_gaps))
    say(f"model: {model_address(reference)}")
    with located(tracker, reference) as folder:
        yield folder, reference
