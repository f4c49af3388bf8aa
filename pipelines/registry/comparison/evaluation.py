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

from pipelines.artifacts import Artifact
from pipelines.config.redaction import redacted
from pipelines.registry import serving
from pipelines.registry.serving.proof import CHANGED, OTHER, TRY_AGAIN
from pipelines.registry.tags import digest_of, uri_of
from pipelines.tracking.tracker import Tracker

_SCRIPT = "proof.py"


class VerificationError(RuntimeError):
    """A registered model that could not be loaded and run, or that did not repeat its figure."""


class CannotCompareError(Exception):
    """Why two versions cannot be compared, as the end of a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One version on one set of held-out data."""

    uri: str  # models:/name/number
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
    max_examples: int = 0,
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
                "tracking_uri": tracker.uri,  # password and all: nobody else reads standard input
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
        uri=uri_of(version),
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
