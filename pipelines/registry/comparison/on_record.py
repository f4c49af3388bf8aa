"""Why two versions cannot be compared, as far as that is on record: no model is loaded for it."""

import json
from typing import NamedTuple

from mlflow.entities.model_registry import ModelVersion

from bert_core.training.state import CONFIG_FILE
from pipelines.artifacts import Artifact, ArtifactStore
from pipelines.core.tracking.tracker import FINGERPRINT_TAG
from pipelines.registry.comparison.candidates import Candidate, kind_of, uri_of
from pipelines.registry.comparison.evaluation import CannotCompareError
from pipelines.registry.comparison.pairing import judged_items, refuse_incomparable
from pipelines.registry.serving.proof import unmet_requirements
from pipelines.registry.settings import ComparisonSettings
from pipelines.registry.tags import REQUIREMENTS_TAG, digest_of

_VOCABULARY = "vocab.txt"


class _Recorded(NamedTuple):
    head: str
    labels: tuple[str, ...]  # empty where the model has no classes
    vocabulary: str  # SHA-256


def refuse_on_record(
    candidate: Candidate, other: ModelVersion, store: ArtifactStore, settings: ComparisonSettings
) -> None:
    """Raise CannotCompareError where tags and artifacts say already that they cannot be compared.

    What they do not say, such as of a version whose artifact the store no longer holds, is found
    when both models are loaded. Raises UserError for a version without its digest.
    """
    kind = kind_of(other)
    if kind != candidate.kind:
        raise CannotCompareError(f"{uri_of(other)} is of the kind {kind}, not {candidate.kind}")
    for version in (candidate.version, other):
        digest_of(version)
        declared = version.tags.get(REQUIREMENTS_TAG)
        unmet = unmet_requirements(declared.split(", ")) if declared else []
        if unmet:
            raise CannotCompareError(
                f"{uri_of(version)} declares other libraries than are installed: {', '.join(unmet)}"
            )
    artifact = store.find(candidate.artifact.kind, other.tags.get(FINGERPRINT_TAG, ""))
    if artifact is not None:
        refuse_incomparable(
            _recorded(candidate.artifact), _recorded(artifact), is_encoder=candidate.is_encoder
        )
    if not candidate.is_encoder:
        judged_items(candidate, None, settings, other, store)


def _recorded(artifact: Artifact) -> _Recorded:
    config = json.loads(artifact.local(CONFIG_FILE).read_text(encoding="utf-8"))
    return _Recorded(
        head=config["head"],
        labels=tuple(config["settings"].get("labels") or ()),
        vocabulary=artifact.manifest.files[_VOCABULARY].sha256,
    )
