"""What is known of a version before it is compared: its model, its held-out data, its figure."""

from dataclasses import dataclass

from mlflow.entities.model_registry import ModelVersion

from pipelines.artifacts import Artifact, ArtifactStore
from pipelines.artifacts.manifest import fingerprint_of
from pipelines.registry.comparison.evaluation import (
    CannotCompareError,
    Evaluation,
    VerificationError,
    evaluated,
)
from pipelines.registry.tags import KIND_TAG, PROOF_TAG, task_of_kind, uri_of
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker

_ENCODER = "encoder"
_MODEL_FILES = "artifacts/model/"  # in a package


@dataclass(frozen=True, slots=True)
class Candidate:
    """A registered version and what it is compared on."""

    version: ModelVersion
    kind: str
    metric: str  # that the proof is made of
    data: Artifact  # examples of an encoder, labelled items of a task
    artifact: Artifact  # that was registered

    @property
    def uri(self) -> str:
        """How MLflow addresses it."""
        return uri_of(self.version)

    @property
    def is_encoder(self) -> bool:
        """Whether it is a pretrained encoder and no model of a task."""
        return self.kind == _ENCODER

    @property
    def max_examples(self) -> int:
        """How many held-out examples of an encoder count: those of its proof."""
        return int(self.version.tags.get(f"{PROOF_TAG}.items", "0"))


def kind_of(version: ModelVersion) -> str:
    """`encoder` or the name of a task; raises CannotCompareError where the version has none."""
    kind = task_of_kind(version.tags.get(KIND_TAG, ""))
    if not kind:
        raise CannotCompareError(f"{uri_of(version)} is a model of unknown kind")
    return kind


def candidate_of(version: ModelVersion, store: ArtifactStore) -> Candidate:
    """The version with its held-out data.

    Raises CannotCompareError where the store no longer holds what it was made from.
    """
    kind = kind_of(version)
    is_encoder = kind == _ENCODER
    data_kind = "examples" if is_encoder else "dataset"
    data = store.find(data_kind, version.tags.get(f"bertsmith.{data_kind}", ""))
    if data is None:
        raise CannotCompareError(f"the store holds no {data_kind} that {uri_of(version)} names")
    fingerprint = version.tags.get(FINGERPRINT_TAG, "")
    artifact = store.find(_ENCODER if is_encoder else "finetuned", fingerprint)
    if artifact is None:
        raise CannotCompareError(f"the store no longer holds the model of {uri_of(version)}")
    metric = version.tags.get(f"{PROOF_TAG}.metric", "")
    if not metric:
        raise CannotCompareError(f"{uri_of(version)} was never verified")
    return Candidate(version, kind, metric, data, artifact)


def twin_of(artifact: Artifact, store: ArtifactStore) -> Artifact | None:
    """The model of the same recipe from random weights, where one was trained."""
    manifest = artifact.manifest
    if manifest.settings.get("initialization") != "pretrained":
        return None
    settings = manifest.settings | {"initialization": "random"}
    if "chosen" in artifact.statistics:  # of a search: random weights took the best values
        settings["tried"] = [artifact.statistics["chosen"]]
    twin = fingerprint_of(manifest.kind, manifest.version, settings, manifest.inputs)
    return store.find(manifest.kind, twin)


def check_weights(candidate: Candidate, evaluation: Evaluation) -> None:
    """Hold what was loaded against the artifact in the store, which the tracker cannot change.

    Raises VerificationError, naming a file, where they differ.
    """
    for name, record in candidate.artifact.manifest.files.items():
        loaded = evaluation.files.get(f"{_MODEL_FILES}{name}")
        if loaded is not None and loaded != record.sha256:
            raise VerificationError(
                f"{candidate.uri} must hold the model that {candidate.artifact.url} holds, but its "
                f"{name} has other bytes: it was changed in the registry; delete the version and "
                "run its recipe again"
            )


def answers_of(
    version: ModelVersion, candidate: Candidate, store: ArtifactStore, tracker: Tracker
) -> Evaluation:
    """What `version` answers on the candidate's held-out data, with its own code.

    Raises VerificationError where it cannot be loaded, ConnectionError where nobody answers.
    """
    return evaluated(
        version,
        candidate.metric,
        candidate.data,
        store_url=store.url,
        tracker=tracker,
        max_examples=candidate.max_examples,
    )
