"""Options that commands share, and the registry, store and model that they name."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.environment import home_folder, set_defaults
from pipelines.errors import UserError, redacted
from pipelines.registry.find import ANY_TASK, is_folder, newest_of
from pipelines.settings import expanded

if TYPE_CHECKING:
    from pydantic import BaseModel

    from pipelines.settings import RuntimeSettings
    from pipelines.stage import Progress, StageContext
    from pipelines.tracking.tracker import Tracker


def in_full(path: str | None) -> str | None:
    """A path with a leading `~` put in full: no shell does it within quotes and behind a `=`."""
    return str(expanded(Path(path))) if path and path.partition("/")[0] == "~" else path


Home = Annotated[
    Path | None,
    typer.Option(help="Folder of store, registry and logs. [default: $BERTSMITH_HOME, .bertsmith]"),
]
Store = Annotated[
    str | None,
    typer.Option(
        help="Where artifacts are kept: a folder or a URL (s3://…). [default: a folder of the home]"
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change one value of the recipe, as in pretraining.mask_fraction=0.2; repeatable.",
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        metavar="FAMILY",
        help="The task: classification, multi-label, regression, multiple-choice, tagging, "
        "question-answering, sentence-embedding, or the .py file of a task of your own.",
        show_default=False,
    ),
]
TextColumn = Annotated[
    str | None, typer.Option(help="Column of --labels that holds the text. [default: text]")
]
SecondTextColumn = Annotated[
    str | None, typer.Option(help="Column of --labels with the second text of a pair.")
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Column of --labels that holds the label. [default: label]")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
Model = Annotated[
    str | None,
    typer.Option(
        help="name, name@alias, name/version, a fingerprint of the store or a folder, ours or a "
        "published BERT. [default: the newest champion of its kind]",
        show_default=False,
        callback=in_full,
    ),
]


def say(sentence: str) -> None:
    """Print on standard error: standard output is for answers, which programs may read."""
    print(sentence, file=sys.stderr)


@contextmanager
def explained(subject: str, settings_type: "type[BaseModel] | None" = None) -> Iterator[None]:
    """Settings made inside that are not valid raise UserError, one sentence for each fault."""
    from pydantic import ValidationError

    from pipelines.recipes.files import explain

    try:
        yield
    except ValidationError as error:
        raise UserError(explain(error, subject, settings_type)) from None


def runtime_of(home: Path | None, store: str | None = None) -> "RuntimeSettings":
    """The runtime settings of this home. Raises UserError if `store` is not valid."""
    set_defaults(home_folder(home))
    from pipelines.settings import RuntimeSettings

    with explained("the runtime settings", RuntimeSettings):
        return RuntimeSettings(store=store or "")


def context_of(home: Path | None, store: str | None = None) -> "StageContext":
    """The context of a command that uses the store and no tracker."""
    from pipelines.stage import StageContext
    from pipelines.store import ArtifactStore

    return StageContext(store=ArtifactStore(runtime_of(home, store).store_url()))


def tracker_of(home: Path | None) -> "Tracker":
    """The tracker of this home; raises UserError, in seconds, if it does not answer.

    Also if its database is of another version of MLflow. No database is created.
    """
    from pipelines.stage import check_tracker, has_registry, open_tracker

    runtime = runtime_of(home)
    check_tracker(runtime)
    tracker = open_tracker(runtime)
    if has_registry(runtime):
        with tracker.answering():
            tracker.client().search_experiments(max_results=1)
    return tracker


def registry_of(home: Path | None) -> "Tracker":
    """The tracker of this home; raises UserError if it has no registry."""
    from pipelines.stage import has_registry

    tracker = tracker_of(home)
    if not has_registry(runtime_of(home)):
        raise UserError(
            f"there is no registry at {tracker.shown_uri}; `bertsmith run` makes one, or name "
            "another home with --home"
        )
    return tracker


def say_note(progress: "Progress") -> None:
    """Print the note of a stage's progress, where it has one."""
    if progress.note:
        say(progress.note)


def named(model: str, home: Path | None, store: str | None = None) -> str:
    """`--model` as the registry's look-ups take it: a registered name, or a folder of ours.

    A fingerprint becomes the folder of its artifact; a published BERT is imported into the store
    first. Raises UserError for an empty name, an unknown fingerprint, and a folder without a model.
    """
    if not model.strip():
        raise UserError("--model is empty; name a model or a folder")
    from pipelines.registry.package import local_model

    return local_model(model, replace(context_of(home, store), observe=say_note))


def newest_at(home: Path | None, kind: str) -> str:
    """models:/name/version of the newest champion of this kind, or else verified version.

    Raises UserError if no version is verified, or if the tracker does not answer.
    """
    from pipelines.stage import check_tracker, has_registry, open_tracker

    runtime = runtime_of(home)
    check_tracker(runtime)
    newest = None
    if has_registry(runtime):  # else MLflow need not be imported
        tracker = open_tracker(runtime)
        with tracker.answering():
            newest = newest_of(tracker, kind)
    if newest is None:
        where = redacted(runtime.named_tracker()) or f"of {runtime.home_folder()}"
        raise UserError(
            f"the registry {where} has no verified "
            f"{kind if kind == 'encoder' else f'model of {kind}'}; run `bertsmith run` first, or "
            "name a model with --model"
        )
    return newest


def asked_confidence(min_confidence: float, min_precision: float) -> tuple[float, float]:
    """How sure an answer must be; raises UserError where both options say it, or no share."""
    if min_confidence and min_precision:
        raise UserError("give either --min-confidence or --min-precision")
    for option, share in (("confidence", min_confidence), ("precision", min_precision)):
        if not 0 <= share < 1:
            raise UserError(f"--min-{option} is a share from 0 to below 1, such as 0.95 for 95%")
    return min_confidence, min_precision


@contextmanager
def asked_model(
    model: str | None, home: Path | None, kind: str = ANY_TASK
) -> Iterator[tuple[Path, str]]:
    """The folder and the address of `--model`, or of the newest champion of `kind`.

    The address, models:/name/version or a folder, is printed on standard error. Raises UserError if
    there is no such model.
    """
    # What is missing is reported before torch is imported.
    if model is None:
        reference = newest_at(home, kind)
    else:
        if not is_folder(model):
            tracker_of(home)
        reference = named(model, home)
        if is_folder(reference):
            say(f"model: {reference}")
            yield Path(reference), reference
            return
    tracker = registry_of(home)
    from pipelines.registry.package import located, versioned

    reference = versioned(tracker, reference)
    say(f"model: {reference}")
    with located(tracker, reference) as folder:
        yield folder, reference
