"""Proof of a registered model: loaded by alias in a fresh process, it repeats its accuracy."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.artifacts import Artifact
from pipelines.core.tracking import Tracker
from pipelines.registry import serving
from pipelines.registry.registration import VERIFIED_TAG, RegisteredModel

METRICS = {"encoder": "eval/mlm_accuracy", "classifier": "eval/accuracy"}


class VerificationError(RuntimeError):
    """A registered model did not repeat the accuracy it was registered with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A registered model to prove: by which alias it is loaded, and the held-out data for it."""

    model: RegisteredModel
    alias: str
    data: Artifact  # the examples of an encoder, the task of a classifier
    max_examples: int = 0  # of an encoder's final evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a freshly loaded model reached, beside what was logged."""

    model: RegisteredModel
    metric: str
    logged: float
    reproduced: float


def verify(proofs: Sequence[Proof], store_url: str, tracker: Tracker) -> list[Verification]:
    """Load each model by its alias in one fresh process and compare the accuracies, exactly.

    Raises VerificationError where one differs at all; a version that repeats its accuracy is
    tagged as verified.
    """
    reproduced = _in_fresh_process(proofs, store_url, tracker.uri)
    client, results = tracker.client(), []
    for proof, value in zip(proofs, reproduced, strict=True):
        model, metric = proof.model, METRICS[proof.model.kind]
        logged = model.metrics[metric]
        if value != logged:
            raise VerificationError(
                f"{model.uri} must repeat its logged {metric} of {logged!r}, but loaded in a fresh "
                f"process it reached {value!r}; it stays {proof.alias} and is not promoted"
            )
        client.set_model_version_tag(model.name, str(model.version), VERIFIED_TAG, "true")
        results.append(Verification(model=model, metric=metric, logged=logged, reproduced=value))
    return results


def _in_fresh_process(proofs: Sequence[Proof], store_url: str, tracking_uri: str) -> list[float]:
    request = {
        "tracking_uri": tracking_uri,
        "store_url": store_url,
        "models": [
            {
                "kind": proof.model.kind,
                "uri": f"models:/{proof.model.name}@{proof.alias}",
                "fingerprint": proof.data.fingerprint,
                "max_examples": proof.max_examples,
            }
            for proof in proofs
        ],
    }
    script = Path(serving.__file__).parent / "proof.py"
    completed = subprocess.run(
        [sys.executable, str(script)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode != 0:
        last_lines = "\n".join(completed.stderr.strip().splitlines()[-5:])
        raise VerificationError(f"a registered model could not be loaded and run:\n{last_lines}")
    return list(json.loads(completed.stdout.splitlines()[-1]))
