"""The steps that a budget came to, kept from the beginning of their training to its end.

Measured again on a cluster that has changed since, a budget would come to another number of steps
and so to another encoder: what an interrupted training has learned would be left behind.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from pipelines.artifacts import Artifact, ArtifactStore, fingerprint_of
from pipelines.artifacts.access import explained
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
    path = f"{context.store.root}/{_FOLDER}/{_fingerprint(settings, arithmetic, inputs)}.json"
    found = _begun(path, settings, arithmetic, inputs, context)
    if found is None:
        found = with_steps_in_budget(settings, arithmetic, inputs, context)
        _keep(path, found.num_steps, context.store)
    yield found
    with explained(context.store.url), suppress(FileNotFoundError):
        context.store.filesystem.rm_file(path)


def _begun(
    path: str,
    settings: PretrainingSettings,
    arithmetic: Arithmetic,
    inputs: Mapping[str, Artifact],
    context: StageContext,
) -> PretrainingSettings | None:
    """The settings of the training that this budget began; None where nothing is left of one."""
    store = context.store
    try:
        with explained(store.url):
            num_steps = int(json.loads(store.filesystem.cat_file(path))["num_steps"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None  # never begun, or a power cut came before the first step
    found = settings.model_copy(update={"num_steps": num_steps, "budget_minutes": None})
    place = store.place(PRETRAINING.kind, _fingerprint(found, arithmetic, inputs))
    if not store.filesystem.exists(place.work):
        return None
    note = f"{STAGE}: going on with the {num_steps:,} steps that this budget came to before"
    context.observe(Progress(stage=STAGE, done=0, total=num_steps, unit="steps", note=note))
    return found


def _keep(path: str, num_steps: int, store: ArtifactStore) -> None:
    with explained(store.url):
        store.filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        store.filesystem.pipe_file(path, json.dumps({"num_steps": num_steps}).encode())


def _fingerprint(
    settings: PretrainingSettings, arithmetic: Arithmetic, inputs: Mapping[str, Artifact]
) -> str:
    """Of the encoder that these settings name."""
    named: dict[str, Any] = arithmetic.named_in(settings.model_dump(mode="json"))
    names = {key: artifact.fingerprint for key, artifact in inputs.items()}
    return fingerprint_of(PRETRAINING.kind, PRETRAINING.version, named, names)
