"""Proof of a registered model: loaded in a process of its own, it repeats its held-out score."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mlflow.entities.model_registry import ModelVersion

from pipelines.errors import redacted
from pipelines.registry import proof_process
from pipelines.registry.find import PROOF_TAG, VERIFIED_TAG, digest_of, entries, uri_of
from pipelines.registry.register import RegisteredModel
from pipelines.stage import IMPORTED
from pipelines.store import Artifact
from pipelines.tracking.tracker import COMPUTED_ON_TAG, Tracker
from pipelines.train.imported import PROBE

_OF_ENCODERS: Final = ("eval/mlm_accuracy", "eval/clm_accuracy")
_TOLERANCE: Final = 0.001  # between two machines; an answer that hangs by a rounding may differ


class VerificationError(RuntimeError):
    """A version that could not be run, does not fit the data, or did not repeat its score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One version on one set of held-out data."""

    value: float  # of the score that was asked for
    answers: list[Any]  # to each item; of an encoder each sequence's loss and predicted tokens
    machine: Mapping[str, str]  # that computed it
    losses: list[float] | None = None  # of each item; none without a probability an item


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A freshly loaded version that repeated its score."""

    model: RegisteredModel
    comparison: str  # `exact`, or within which bound and why
    evaluation: Evaluation  # its answers to the held-out data


def verify(
    model: RegisteredModel,
    data: Artifact,
    store_url: str,
    tracker: Tracker,
    *,
    max_examples: int = 0,
) -> Verification:
    """Load the version by its number in a fresh process, and compare its score with the logged one.

    `data` are the examples of an encoder, of which `max_examples` count, the labelled items of a
    task, an imported model itself. The scores must be equal where they were computed on machines
    alike, else within a stated bound. A version that repeats its score is tagged with its proof;
    for one that does not VerificationError is raised, and its tags and aliases stay. Raises
    ConnectionError where the tracker or the store did not answer.
    """
    if data.kind == IMPORTED:
        metric = PROBE
    elif model.kind == "encoder":
        metric = next(name for name in _OF_ENCODERS if name in model.metrics)
    else:
        metric = data.statistics["score"]
    client, number = tracker.client(), str(model.version)
    version = client.get_model_version(model.name, number)
    logged, logged_on = model.metrics[metric], entries(COMPUTED_ON_TAG, version.tags)
    evaluation = evaluated(
        version, metric, data, store_url=store_url, tracker=tracker,
        max_examples=max_examples, threads=logged_on.get("threads"),
    )  # fmt: skip
    differing = [key for key, value in evaluation.machine.items() if logged_on.get(key) != value]
    bound, comparison = 0.0, "exact"
    if differing:
        # What one answer changes of a score; a response is no share of answers.
        answer_weight = 0.0 if metric == PROBE else 1 / len(evaluation.answers)
        bound = max(_TOLERANCE, answer_weight)
        comparison = f"within {bound:.2g}: logged with a different {', '.join(differing)}"
    if not abs(evaluation.value - logged) <= bound:
        raise VerificationError(
            f"{model.uri} did not repeat its logged {metric} of {logged!r} ({comparison}): loaded "
            f"in a fresh process it reached {evaluation.value!r}; it is not promoted"
        )
    proof = {
        "metric": metric,
        "logged": repr(logged),
        "reproduced": repr(evaluation.value),
        "comparison": comparison,
        "data": data.fingerprint,
        "items": str(len(evaluation.answers)),
        **evaluation.machine,
    }
    for key, value in proof.items():
        client.set_model_version_tag(model.name, number, f"{PROOF_TAG}.{key}", value)
    client.set_model_version_tag(model.name, number, VERIFIED_TAG, "true")  # last: all is there
    return Verification(model=model, comparison=comparison, evaluation=evaluation)


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
    """What `version` answers on all of `data`, loaded in a process of its own with its own code.

    `max_examples` is of an encoder's held-out examples. Raises VerificationError for a version
    whose package is not the registered one, that cannot be loaded and run, or that cannot answer
    what the data asks; ConnectionError where tracker or store did not answer, or where disk or
    memory was full.
    """
    with tempfile.TemporaryDirectory(prefix="bertsmith-answers-") as scratch:
        answer_file = Path(scratch) / "answer.json"
        _run_process(
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
                "answer_file": str(answer_file),
            }
        )
        return Evaluation(**json.loads(answer_file.read_text()))


def _run_process(request: Mapping[str, Any]) -> None:
    script, uri = Path(proof_process.__file__), request["uri"]
    root = str(script.parents[2])  # the child takes `pipelines` from where this process has it
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    completed = subprocess.run(
        [sys.executable, "-P", str(script)],
        env={**os.environ, "PYTHONPATH": paths},
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode == 0:
        return
    lines = redacted(completed.stderr.strip()).splitlines()
    if completed.returncode == proof_process.TRY_AGAIN:
        raise ConnectionError(f"{uri} could not be fetched and verified now: {lines[-1]}")
    if completed.returncode == proof_process.REFUSED:
        raise VerificationError(f"{uri} was not run: {lines[-1]}")
    if completed.returncode < 0:  # of a signal: a lack of memory says nothing about the model
        raise ConnectionError(
            f"the process that ran {uri} was ended by signal {-completed.returncode}, most often "
            "for lack of memory; run again"
        )
    errors = "\n".join(lines[-5:])
    raise VerificationError(f"{uri} could not be loaded and run:\n{errors}")
