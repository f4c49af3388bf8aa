"""Proof of a registered model: loaded in a process of its own, it repeats its accuracy."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from pipelines.artifacts import Artifact
from pipelines.core.redaction import redacted
from pipelines.core.tracking.tracker import COMPUTED_ON_TAG, Tracker, server_address
from pipelines.registry import serving
from pipelines.registry.registration import RegisteredModel
from pipelines.registry.serving.proof import TRY_AGAIN
from pipelines.registry.tags import OWED_TAG, PROMOTION, PROOF_TAG, VERIFIED_TAG, entries
from pipelines.tasks import family, family_names
from pipelines.training.starting import IMPORTED, PROBE

_OF_ENCODERS = "eval/mlm_accuracy"
_TOLERANCE = 0.001  # between two machines; an answer that hangs by a rounding may always differ


class VerificationError(RuntimeError):
    """A registered model did not repeat the accuracy it was registered with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A registered model to prove, and the held-out data for it."""

    model: RegisteredModel
    # The examples of an encoder, the labelled items of a task, of an imported model itself.
    data: Artifact
    max_examples: int = 0  # of an encoder's final evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a freshly loaded version reached, beside what was logged."""

    model: RegisteredModel
    metric: str
    logged: float
    reproduced: float
    bound: float  # how far apart the two may be: 0 on the machine that logged the figure
    comparison: str  # `exact`, or within which bound and why
    data: str  # fingerprint
    machine: Mapping[str, str]  # that reproduced it

    @property
    def holds(self) -> bool:
        """Whether the version repeated its figure."""
        return abs(self.reproduced - self.logged) <= self.bound


def metric_of(kind: str) -> str:
    """The figure that a registered model of this kind is judged by; empty for an unknown kind."""
    if kind == "encoder":
        return _OF_ENCODERS
    kind = "classification" if kind == "classifier" else kind  # as it was called before
    return family(kind).score if kind in family_names() else ""


def verify(proofs: Sequence[Proof], store_url: str, tracker: Tracker) -> list[Verification]:
    """Load each version by its number, in a process of its own, and compare the accuracies.

    They must be equal where the figure was logged on a machine like this one, and within a stated
    bound on another. A version that repeats its figure is tagged with its proof; one that does
    not keeps its tags and aliases, and after all were tried VerificationError says so. Raises
    ConnectionError where the tracker or the store did not answer.
    """
    client = tracker.client()
    verifications, failures = [], []
    for proof in proofs:
        try:
            verification = _verification(proof, store_url, tracker, client)
        except VerificationError as error:
            failures.append(str(error))
            continue
        _record(verification, client)
        verifications.append(verification)
    if failures:
        raise VerificationError("\n".join(failures))
    return verifications


def _verification(
    proof: Proof, store_url: str, tracker: Tracker, client: MlflowClient
) -> Verification:
    model = proof.model
    metric = PROBE if proof.data.kind == IMPORTED else metric_of(model.kind)
    tags = client.get_model_version(model.name, str(model.version)).tags
    logged_on = entries(COMPUTED_ON_TAG, tags)
    answer = _in_own_process(
        {
            "tracking_uri": server_address(tracker.uri),
            "store_url": store_url,
            "kind": model.kind,
            "uri": model.uri,
            "metric": metric,
            "data_kind": proof.data.kind,
            "fingerprint": proof.data.fingerprint,
            "max_examples": proof.max_examples,
            "threads": logged_on.get("threads"),
        }
    )
    bound, comparison = _comparison(logged_on, answer["machine"], answer["examples"])
    verification = Verification(
        model=model,
        metric=metric,
        logged=model.metrics[metric],
        reproduced=answer["value"],
        bound=bound,
        comparison=comparison,
        data=proof.data.fingerprint,
        machine=answer["machine"],
    )
    if not verification.holds:
        raise VerificationError(
            f"{model.uri} must repeat its logged {metric} of {verification.logged!r} "
            f"({comparison}), but loaded in a process of its own it reached "
            f"{verification.reproduced!r}; it is not promoted"
        )
    return verification


def _comparison(
    logged_on: Mapping[str, str], here: Mapping[str, str], num_examples: int
) -> tuple[float, str]:
    """How far the figures may be apart, and in words why."""
    if dict(logged_on) == dict(here):
        return 0.0, "exact"
    bound = max(_TOLERANCE, 1 / num_examples)
    if not logged_on:
        return bound, f"within {bound:.2g}: it is not known on which machine it was logged"
    differing = [key for key in here if logged_on.get(key) != here[key]]
    return bound, f"within {bound:.2g}: logged with another {', '.join(differing)}"


def _record(verification: Verification, client: MlflowClient) -> None:
    """Tag the version with its proof; that it is verified comes last, and says all is there."""
    model = verification.model
    proof = {
        "loaded": model.uri,
        "metric": verification.metric,
        "logged": repr(verification.logged),
        "reproduced": repr(verification.reproduced),
        "comparison": verification.comparison,
        "data": verification.data,
        **verification.machine,
    }
    tags = {f"{PROOF_TAG}.{key}": value for key, value in proof.items()}
    for key, value in (tags | {OWED_TAG: PROMOTION, VERIFIED_TAG: "true"}).items():
        client.set_model_version_tag(model.name, str(model.version), key, value)


def _in_own_process(request: Mapping[str, Any]) -> dict[str, Any]:
    script = Path(serving.__file__).parent / "proof.py"
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
    if completed.returncode != 0:
        raise VerificationError(f"{request['uri']} could not be loaded and run:\n{said}")
    answer: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    if answer["unmet"]:
        raise VerificationError(
            f"{request['uri']} must be verified with the libraries that it declares, found "
            f"{', '.join(answer['unmet'])}; install these versions, or delete the version from "
            "the registry so that the next run packs the model anew"
        )
    return answer
