"""From what a recipe calls an encoder to its artifact, and what follows from its size."""

from pathlib import Path
from typing import Any, NamedTuple

from bert_core.config import SIZES
from bert_core.files.json_files import read_json
from bert_core.hugging_face import model_folder
from pipelines.artifacts import Artifact
from pipelines.core.stage import StageContext
from pipelines.core.tracking.tracker import Tracker
from pipelines.registry.lookups.references import REGISTERED
from pipelines.registry.opening import located
from pipelines.training.rates import Shape, Use, automatic_rate_said
from pipelines.training.starting import find_model_artifact, is_ours, starting_encoder, take_in

_UNKNOWN = "learning_rate=auto follows the size of {}"


class _Sizes(NamedTuple):
    num_layers: int
    hidden_size: int


def settled_encoder(reference: str, tracker: Tracker, context: StageContext) -> Artifact:
    """The encoder that `reference` names: models:/name@alias, a folder, or a fingerprint.

    A registered one is taken into the store as it is now: when its alias moves, the same recipe
    names another one. Raises UserError where there is none.
    """
    if not reference.startswith(REGISTERED):
        return starting_encoder(reference, context)
    with located(tracker, reference) as folder:
        return take_in(folder, context, source=reference)


def automatic_rates_said(recipe: Any, context: StageContext) -> list[str]:
    """What `auto` comes to in each section of `recipe` that has it, without starting a run.

    That of an encoder in the registry is known once a run has looked it up.
    """
    said = []
    uses: tuple[Use, ...] = ("pretraining", "finetuning")
    for use in uses:
        settings = getattr(recipe, use, None)
        if settings is None or settings.learning_rate != "auto":
            continue
        reference = settings.encoder or recipe.pretraining.encoder
        shape = _shape_of(reference, recipe.pretraining.size, context)
        rest = automatic_rate_said(use, shape) if shape else _UNKNOWN.format(reference)
        said.append(f"{use}: {rest}")
    return said


def _shape_of(reference: str | None, size: str | None, context: StageContext) -> Shape | None:
    """That of an encoder in a folder or in the store, or of one with random weights."""
    if reference is None:
        return None if size is None else _Sizes(*SIZES[size][:2])
    artifact = find_model_artifact(reference, context)
    folder = artifact.local_folder() if artifact else Path(reference)
    if not folder.is_dir():
        return None
    is_own = is_ours(folder)
    config = read_json(model_folder(folder) / "config.json")
    if is_own:
        return _Sizes(config["encoder"]["num_layers"], config["encoder"]["hidden_size"])
    return _Sizes(config.get("num_hidden_layers", 12), config.get("hidden_size", 768))
