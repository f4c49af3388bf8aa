"""From what a recipe or a command calls a model to its artifact, or its folder."""

from pathlib import Path

from pipelines.artifacts import Artifact
from pipelines.core.errors import UserError
from pipelines.core.stage import StageContext
from pipelines.core.tracking.tracker import Tracker
from pipelines.registry.lookups.finding import REGISTERED
from pipelines.registry.opening import located
from pipelines.training.starting import (
    find_model_artifact,
    is_fingerprint,
    is_ours,
    starting_encoder,
    take_in,
)


def settled_encoder(reference: str, tracker: Tracker, context: StageContext) -> Artifact:
    """The encoder that `reference` names: models:/name@alias, a folder, or a fingerprint.

    A registered one is taken into the store as it is now: when its alias moves, the same recipe
    names another one. Raises UserError where there is none.
    """
    if not reference.startswith(REGISTERED):
        return starting_encoder(reference, context)
    with located(tracker, reference) as folder:
        return take_in(folder, context, source=reference)


def local_model(reference: str, context: StageContext) -> str:
    """`reference` as `opening.located` takes it: a name in the registry, or a folder of ours.

    A fingerprint becomes the folder of its artifact, and a published BERT is taken into the store
    first. Raises UserError for a fingerprint that the store has not, and for a
    folder that holds no model.
    """
    if is_fingerprint(reference):
        found = find_model_artifact(reference, context)
        if found is None:
            raise UserError(
                f"a model must be a fingerprint in the store {context.store.url}, found none with "
                f"{reference}; see `bertsmith store`"
            )
        return str(found.local_folder())
    is_folder = not reference.startswith(REGISTERED) and Path(reference).is_dir()
    if is_folder and not is_ours(Path(reference)):
        return str(take_in(Path(reference), context, source=reference).local_folder())
    return reference
