"""Two versions compared: scores with an interval, settings and data that differ."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from pipelines.artifacts import ArtifactStore
from pipelines.config.errors import UserError
from pipelines.recipes.registration import ComparisonSettings
from pipelines.registry.comparison.bootstrap import Difference
from pipelines.registry.comparison.evaluation import (
    CannotCompareError,
    VerificationError,
    candidate_of,
)
from pipelines.registry.comparison.pairing import difference_from
from pipelines.registry.finding import CODE_TAG, PROOF_TAG, REQUIREMENTS_TAG, find_model, uri_of
from pipelines.registry.registration import recipe_values
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker

_DATA = ("corpus", "vocabulary", "examples", "dataset", "went_on_from")


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """The differences between two versions."""

    first: str  # models:/name/number
    second: str
    metric: str
    logged: Mapping[str, str]  # by version: the figure that its proof reproduced
    difference: Difference | None  # `score` is the first's; None where they cannot be compared
    why_not: str  # where there is no difference
    left_out: int  # items that either was trained on
    settings: Mapping[str, tuple[Any, Any]]  # by dotted path of the recipe
    data: Mapping[str, tuple[str, str]]  # fingerprints that differ, by kind
    made_with: Mapping[str, tuple[str, str]]  # code and libraries that differ


def versus(
    tracker: Tracker,
    store: ArtifactStore,
    first: str,
    second: str,
) -> Versus:
    """Compare two versions on the held-out data of the first, each with its own code.

    Raises UserError where a version is not there, ConnectionError and MlflowException where store
    or tracker does not answer.
    """
    client = tracker.client()
    pair = find_model(client, first), find_model(client, second)
    if uri_of(pair[0]) == uri_of(pair[1]):
        raise UserError(
            f"both names mean {uri_of(pair[0])}; name two versions, see `bertsmith models`"
        )
    difference, why_not, left_out, metric = _difference(*pair, tracker, store)
    recipes = [_recipe_of(version, tracker) for version in pair]
    keys = dict.fromkeys((*recipes[0], *recipes[1]))
    return Versus(
        first=uri_of(pair[0]),
        second=uri_of(pair[1]),
        metric=metric,
        logged={
            uri_of(version): " ".join(
                version.tags.get(f"{PROOF_TAG}.{tag}", "") for tag in ("metric", "reproduced")
            ).strip()
            for version in pair
        },
        difference=difference,
        why_not=why_not,
        left_out=left_out,
        settings={
            key: (recipes[0].get(key), recipes[1].get(key))
            for key in keys
            if recipes[0].get(key) != recipes[1].get(key)
        },
        data=_different_tags(pair, {kind: f"bertsmith.{kind}" for kind in _DATA}),
        made_with=_different_tags(
            pair, {"code": CODE_TAG, "libraries": REQUIREMENTS_TAG, "model": FINGERPRINT_TAG}
        ),
    )


def _recipe_of(version: ModelVersion, tracker: Tracker) -> dict[str, Any]:
    """The recipe of a version by dotted path; empty where none was kept."""
    with tempfile.TemporaryDirectory(prefix="bertsmith-recipe-") as scratch:
        try:
            path = tracker.client().download_artifacts(version.run_id or "", "recipe.yaml", scratch)
            text = Path(path).read_text(encoding="utf-8")
        except (MlflowException, OSError):
            return {}
    return recipe_values(text)


def _difference(
    first: ModelVersion,
    second: ModelVersion,
    tracker: Tracker,
    store: ArtifactStore,
) -> tuple[Difference | None, str, int, str]:
    try:
        candidate = candidate_of(first, store)
        items, difference = difference_from(
            second, candidate, None, tracker, store, ComparisonSettings()
        )
        return difference, "", items.left_out, items.metric
    except (CannotCompareError, VerificationError, UserError) as error:
        return None, str(error), 0, ""


def _different_tags(
    pair: tuple[ModelVersion, ModelVersion], tags: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    found = {
        name: (pair[0].tags.get(tag, ""), pair[1].tags.get(tag, "")) for name, tag in tags.items()
    }
    return {name: values for name, values in found.items() if values[0] != values[1]}
