"""What a version answers on held-out data: loaded in a process of its own, with its own code."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.entities.model_registry import ModelVersion

from pipelines.artifacts import Artifact, ArtifactStore
from pipelines.artifacts.manifest import fingerprint_of
from pipelines.config.errors import redacted
from pipelines.registry import serving
from pipelines.registry.finding import KIND_TAG, PROOF_TAG, digest_of, task_of_kind, uri_of
from pipelines.registry.serving.proof import CHANGED, OTHER, TRY_AGAIN
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker

_SCRIPT = "proof.py"
_ENCODER = "encoder"
_MODEL_FILES = "artifacts/model/"  # in a package


class VerificationError(RuntimeError):
    """A registered model that could not be loaded and run, or that did not repeat its figure."""


class CannotCompareError(Exception):
    """Why two versions cannot be compared, as the end of a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One version on one set of held-out data."""

    data: str  # fingerprint
    value: float  # of the figure that was asked for
    answers: list[Any]  # to each item; of an encoder each sequence's loss and predicted tokens
    machine: Mapping[str, str]  # that computed it
    head: str
    labels: tuple[str, ...]  # empty where the model has no classes
    max_tokens: int  # that the model reads
    files: Mapping[str, str]  # SHA-256 of every file that was loaded, by its path in the package

    @property
    def num_items(self) -> int:
        """How many items were answered."""
        return len(self.answers)

    @property
    def vocabulary(self) -> str:
        """SHA-256 of its vocabulary."""
        return self.files["artifacts/model/vocab.txt"]


def evaluated(
    version: ModelVersion,
    metric: str,
    data: Artifact,
    *,
    store_url: str,
    tracker: Tracker,
    max_examples: int,
    threads: str | None = None,
) -> Evaluation:
    """Load `version` in a process of its own, without network; it answers all of `data`.

    `max_examples` is of an encoder's held-out examples. Raises VerificationError for a version
    whose package is not the registered one, that declares other libraries than there are, or that
    cannot be loaded and run; CannotCompareError where the data asks for what it cannot answer;
    ConnectionError where tracker or store did not answer.
    """
    with tempfile.TemporaryDirectory(prefix="bertsmith-answers-") as scratch:
        answers_file = Path(scratch) / "answers.json"
        answer = _answer_of_process(
            {
                "tracking_uri": tracker.uri,  # with its password: only that process reads its input
                "store_url": store_url,
                "uri": uri_of(version),
                "digest": digest_of(version),
                "metric": metric,
                "data_kind": data.kind,
                "fingerprint": data.fingerprint,
                "max_examples": max_examples,
                "threads": threads,
                "answers_file": str(answers_file),
            }
        )
        answers = json.loads(answers_file.read_text())
    return Evaluation(
        data=data.fingerprint,
        answers=answers,
        **answer | {"labels": tuple(answer["labels"])},
    )


def _answer_of_process(request: Mapping[str, Any]) -> dict[str, Any]:
    script = Path(serving.__file__).parent / _SCRIPT
    root = str(script.parents[3])  # the child takes `pipelines` from where this process has it
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    completed = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": paths},
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    said = redacted("\n".join(completed.stderr.strip().splitlines()[-5:]))
    if completed.returncode == TRY_AGAIN:
        raise ConnectionError(f"{request['uri']} could not be fetched and verified now:\n{said}")
    if completed.returncode == OTHER:
        raise CannotCompareError(said)
    if completed.returncode == CHANGED:
        raise VerificationError(f"{request['uri']} is refused: {said}")
    if completed.returncode != 0:
        raise VerificationError(f"{request['uri']} could not be loaded and run:\n{said}")
    answer: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    unmet = answer.pop("unmet")
    if unmet:
        raise VerificationError(
            f"{request['uri']} declares other libraries than are installed: {', '.join(unmet)}; "
            "install these versions, or delete the version so that the next run packs it again"
        )
    return answer


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
    """Compare what was loaded with the artifact in the store, which the tracker cannot change.

    Raises VerificationError, naming a file, where they differ.
    """
    for name, record in candidate.artifact.manifest.files.items():
        loaded = evaluation.files.get(f"{_MODEL_FILES}{name}")
        if loaded is not None and loaded != record.sha256:
            raise VerificationError(
                f"{candidate.uri} was changed in the registry: its {name} has other bytes than "
                f"that of {candidate.artifact.url}; delete the version and run its recipe again"
            )


def answers_of(
    version: ModelVersion, candidate: Candidate, store: ArtifactStore, tracker: Tracker
) -> Evaluation:
    """What `version` answers on the candidate's held-out data, with its own code.

    Raises VerificationError where it cannot be loaded, ConnectionError where tracker or store does
    not answer.
    """
    return evaluated(
        version,
        candidate.metric,
        candidate.data,
        store_url=store.url,
        tracker=tracker,
        max_examples=candidate.max_examples,
    )
