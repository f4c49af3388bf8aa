"""From what a recipe calls an encoder to its artifact."""

from pipelines.artifacts import Artifact
from pipelines.core.stage import StageContext
from pipelines.core.tracking.tracker import Tracker
from pipelines.registry.lookups.references import REGISTERED
from pipelines.registry.opening import located
from pipelines.training.starting import starting_encoder, take_in


def settled_encoder(reference: str, tracker: Tracker, context: StageContext) -> Artifact:
    """The encoder that `reference` names: models:/name@alias, a folder, or a fingerprint.

    A registered one is taken into the store as it is now: when its alias moves, the same recipe
    names another one. Raises UserError where there is none.
    """
    if not reference.startswith(REGISTERED):
        return starting_encoder(reference, context)
    with located(tracker, reference) as folder:
        return take_in(folder, context, source=reference)
