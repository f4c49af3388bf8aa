"""The steps that a budget came to, kept from the beginning of their training to its end.

Measured again on a cluster that has changed since, a budget would come to another number of steps
and so to another encoder: what an interrupted training has learned would be left behind. While
somebody else trains for the same budget, its steps are what fits there, and no concern of ours.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any, Final

from pipelines.artifacts import Artifact, ArtifactStore, fingerprint_of
from pipelines.artifacts.access import explained
from pipelines.artifacts.attempts.attempt import left_alone
from pipelines.core.stage import Progress, StageContext
from pipelines.stages.pretraining import PRETRAINING
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.step_rate import with_steps_in_budget
from pipelines.stages.pretraining.work import STAGE
from pipelines.training.arithmetic import Arithmetic

_FOLDER: Final = ".budgets"  # no kind of artifact has such a name


@contextmanager
def steps_settled(
    settings: PretrainingSettings,
    arithmetic: Arithmetic,
    inputs: Mapping[str, Artifact],
    context: StageContext,
) -> Iterator[PretrainingSettings]:
    """`settings` with a number of steps, for the block that trains as many.

    Of a budget whose training was interrupted it is that training's number. Raises UserError as
    `with_steps_in_budget` does.
    """
    if settings.budget_minutes is None:
        yield settings
        return
    found = _begun(settings, arithmetic, inputs, context)
    if found is None:
        found = with_steps_in_budget(settings, arithmetic, inputs, context)
    store = context.store
    # One for each number of steps: trainings of several machines do not overwrite each other's.
    record = f"{_folder(store)}/{_fingerprint(settings, arithmetic, inputs)}-{found.num_steps}"
    with explained(store.url):
        store.filesystem.makedirs(_folder(store), exist_ok=True)
        store.filesystem.pipe_file(record, arithmetic.processor.encode())
    yield found
    with explained(store.url), suppress(FileNotFoundError):
        store.filesystem.rm_file(record)


def _begun(
    settings: PretrainingSettings,
    arithmetic: Arithmetic,
    inputs: Mapping[str, Artifact],
    context: StageContext,
) -> PretrainingSettings | None:
    """The settings of a training that this budget began and nobody goes on with; None without."""
    budget = _fingerprint(settings, arithmetic, inputs)
    for num_steps in _recorded(budget, arithmetic.processor, context.store):
        found = settings.model_copy(update={"num_steps": num_steps, "budget_minutes": None})
        if _is_interrupted(_fingerprint(found, arithmetic, inputs), context.store):
            note = f"{STAGE}: going on with the {num_steps:,} steps that this budget came to before"
            context.observe(Progress(stage=STAGE, done=0, total=num_steps, unit="steps", note=note))
            return found
    return None


def _recorded(budget: str, processor: str, store: ArtifactStore) -> list[int]:
    """The numbers of steps of this budget's trainings, first those of such a processor."""
    filesystem = store.filesystem
    try:
        with explained(store.url):
            paths = filesystem.ls(_folder(store), detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found: list[tuple[bool, int]] = []
    for path in paths:
        of_budget, _, num_steps = PurePosixPath(path).name.partition("-")
        if of_budget == budget and num_steps.isdecimal():
            with suppress(FileNotFoundError), explained(store.url):  # it may just have ended
                is_another = filesystem.cat_file(path) != processor.encode()
                found.append((is_another, int(num_steps)))
    return [num_steps for _, num_steps in sorted(found)]


def _folder(store: ArtifactStore) -> str:
    return f"{store.root}/{_FOLDER}"


def _is_interrupted(fingerprint: str, store: ArtifactStore) -> bool:
    """Whether something is left of this training, and its trainer has ended or died."""
    place = store.paths(PRETRAINING.kind, fingerprint)
    with explained(store.url):
        if not store.filesystem.exists(place.work):
            return False
        with left_alone(place, store.lease_seconds) as is_left:
            return is_left


def _fingerprint(
    settings: PretrainingSettings, arithmetic: Arithmetic, inputs: Mapping[str, Artifact]
) -> str:
    """Of the encoder that these settings name."""
    named: dict[str, Any] = arithmetic.named_in(settings.model_dump(mode="json"))
    names = {key: artifact.fingerprint for key, artifact in inputs.items()}
    return fingerprint_of(PRETRAINING.kind, PRETRAINING.version, named, names)
