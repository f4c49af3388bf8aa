"""What simpler models answer on the held-out items, as an artifact of its own."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from pipelines.artifacts import Artifact, ArtifactStore, Built, Draft
from pipelines.config.versions import versions_of
from pipelines.stage import StageContext
from pipelines.stages.labelled.stage import family_of, read_items
from pipelines.tasks import Answers, Items
from pipelines.training.imported_models import find_model_artifact

BASELINES: Final = "baselines"
_VERSION = 1
_ANSWERS_FILE = "answers.json"
_PREFIX = "baseline/"


def build_baselines(finetuned: Artifact, labelled: Artifact, store: ArtifactStore) -> Artifact:
    """The answers of the family's baselines; statistics `baseline/<name>/<figure>`.

    They are learned once for all models of the same items, or where the family reads the encoder,
    once for those that began with the same one.
    """
    encoder = _encoder_of(finetuned, labelled, store)
    inputs = (
        {"labelled": labelled} if encoder is None else {"labelled": labelled, "encoder": encoder}
    )
    return store.get_or_build(
        BASELINES,
        version=_VERSION,
        settings={"libraries": versions_of("scikit-learn")},
        inputs=inputs,
        build=partial(_write, labelled=labelled, encoder=encoder),
    )


def answers_in(baselines: Artifact) -> dict[str, list[Any]]:
    """The values of each baseline's answers, by its name."""
    answers: dict[str, list[Any]] = json.loads(baselines.local(_ANSWERS_FILE).read_text("utf-8"))
    return answers


def figures_on(items: Items, finetuned: Artifact, store: ArtifactStore) -> dict[str, float]:
    """As the statistics, of other items; none where the store has not what the model learned."""
    labelled = store.find("labelled", finetuned.manifest.inputs.get("labelled", ""))
    if labelled is None:
        return {}
    answers = _learned(items, labelled, _encoder_of(finetuned, labelled, store))
    return _figures(answers, items, labelled)


def beside(statistics: Mapping[str, Any], metric: str) -> dict[str, float]:
    """What there is to compare a figure with, by name: trivial and learned baselines."""
    found = {}
    if f"{_PREFIX}{metric}" in statistics:
        found[statistics.get("guess", "without looking")] = statistics[f"{_PREFIX}{metric}"]
    for key, value in statistics.items():
        name, _, figure = key.removeprefix(_PREFIX).partition("/")
        if key.startswith(_PREFIX) and figure == metric:
            found[name] = value
    return found


def _encoder_of(finetuned: Artifact, labelled: Artifact, store: ArtifactStore) -> Artifact | None:
    """What fine-tuning began with, for a family that reads it and as long as the store has it."""
    if not family_of(labelled).baselines_read_encoder:
        return None
    fingerprint = finetuned.manifest.inputs.get("encoder", "")
    return find_model_artifact(fingerprint, StageContext(store=store))


def _write(draft: Draft, labelled: Artifact, encoder: Artifact | None) -> Built:
    heldout = read_items(labelled, "heldout")
    answers = _learned(heldout, labelled, encoder)
    with draft.file(_ANSWERS_FILE) as target:
        target.path.write_text(json.dumps(answers, ensure_ascii=False), encoding="utf-8")
    return Built([_ANSWERS_FILE], _figures(answers, heldout, labelled))


def _learned(items: Items, labelled: Artifact, encoder: Artifact | None) -> dict[str, list[Any]]:
    folder = encoder.local_folder() if encoder is not None else None
    found = family_of(labelled).baselines(read_items(labelled, "train"), items, folder)
    return {name: list(values) for name, values in found.items()}


def _figures(
    answers: Mapping[str, list[Any]], items: Items, labelled: Artifact
) -> dict[str, float]:
    family = family_of(labelled)
    return {
        f"{_PREFIX}{name}/{metric.removeprefix('eval/')}": value
        for name, values in answers.items()
        for metric, value in family.figures(Answers(values, 0), items).items()
    }
