"""Proof of a registered model: loaded in a process of its own, it repeats its held-out score."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mlflow.entities.model_registry import ModelVersion

from pipelines.errors import redacted
from pipelines.registry import proof_process
from pipelines.registry.find import (
    OF_ENCODERS,
    OWED_TAG,
    PROMOTION,
    PROOF_TAG,
    VERIFIED_TAG,
    digest_of,
    entries,
    uri_of,
)
from pipelines.registry.register import RegisteredModel
from pipelines.store import Artifact
from pipelines.tracking.tracker import COMPUTED_ON_TAG, Tracker
from pipelines.train.imported_models import IMPORTED, PROBE

_AT_ONCE: Final = 2  # models; most of a process's time goes into imports, which use one core
_TOLERANCE: Final = 0.001  # between two machines; an answer that hangs by a rounding may differ


class VerificationError(RuntimeError):
    """A registered model that could not be loaded and run, or that did not repeat its score."""


class CannotCompareError(Exception):
    """Why a version cannot answer another one's held-out data, as the end of a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One version on one set of held-out data."""

    data: str  # fingerprint
    value: float  # of the score that was asked for
    answers: list[Any]  # to each item; of an encoder each sequence's loss and predicted tokens
    machine: Mapping[str, str]  # that computed it

    @property
    def num_items(self) -> int:
        """How many items were answered."""
        return len(self.answers)


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
    bound: float  # how far apart the two may be: 0 on the machine that logged the score
    comparison: str  # `exact`, or within which bound and why
    evaluation: Evaluation  # its answers to the held-out data


def verify(proofs: Sequence[Proof], store_url: str, tracker: Tracker) -> list[Verification]:
    """Load each version by its number, in a process of its own, and compare the scores.

    They must be equal where the score was logged on a machine like this one, and within a stated
    bound on another. A version that repeats its score is tagged with its proof; one that does not
    keeps its tags and aliases, and after all were tried VerificationError says so. Raises
    ConnectionError where the tracker or the store did not answer.
    """
    verifications, failures = [], []
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        futures = [threads.submit(_verification, proof, store_url, tracker) for proof in proofs]
    for proof, future in zip(proofs, futures, strict=True):
        try:
            verification = future.result()
        except VerificationError as error:
            failures.append(str(error))
        except CannotCompareError as error:
            failures.append(f"{proof.model.uri} cannot answer its own held-out data: {error}")
        else:
            _record(verification, tracker)
            verifications.append(verification)
    if failures:
        raise VerificationError("\n".join(failures))
    return verifications


def _verification(proof: Proof, store_url: str, tracker: Tracker) -> Verification:
    model = proof.model
    is_import = proof.data.kind == IMPORTED
    if is_import:
        metric = PROBE
    elif model.kind == "encoder":
        metric = next(name for name in OF_ENCODERS if name in model.metrics)
    else:
        metric = proof.data.statistics["score"]
    version = tracker.client().get_model_version(model.name, str(model.version))
    logged_on = entries(COMPUTED_ON_TAG, version.tags)
    evaluation = evaluated(
        version, metric, proof.data, store_url=store_url, tracker=tracker,
        max_examples=proof.max_examples, threads=logged_on.get("threads"),
    )  # fmt: skip
    # What one answer changes of a score; a response is no share of answers.
    answer_weight = 0.0 if is_import else 1 / evaluation.num_items
    bound, comparison = _bound(logged_on, evaluation.machine, answer_weight)
    logged = model.metrics[metric]
    if not abs(evaluation.value - logged) <= bound:
        raise VerificationError(
            f"{model.uri} did not repeat its logged {metric} of {logged!r} ({comparison}): loaded "
            f"in a fresh process it reached {evaluation.value!r}; it is not promoted"
        )
    return Verification(
        model=model, metric=metric, logged=logged, reproduced=evaluation.value, bound=bound,
        comparison=comparison, evaluation=evaluation,
    )  # fmt: skip


def _bound(
    logged_on: Mapping[str, str], here: Mapping[str, str], answer_weight: float
) -> tuple[float, str]:
    """By how much the scores may differ, and why."""
    if dict(logged_on) == dict(here):
        return 0.0, "exact"
    bound = max(_TOLERANCE, answer_weight)
    if not logged_on:
        return bound, f"within {bound:.2g}: the machine that logged it is unknown"
    differing = [key for key in here if logged_on.get(key) != here[key]]
    return bound, f"within {bound:.2g}: logged with a different {', '.join(differing)}"


def _record(verification: Verification, tracker: Tracker) -> None:
    """Tag the version with its proof; that it is verified comes last, and says all is there."""
    model, client = verification.model, tracker.client()
    proof = {
        "loaded": model.uri,
        "metric": verification.metric,
        "logged": repr(verification.logged),
        "reproduced": repr(verification.reproduced),
        "comparison": verification.comparison,
        "data": verification.evaluation.data,
        "items": str(verification.evaluation.num_items),
        **verification.evaluation.machine,
    }
    tags = {f"{PROOF_TAG}.{key}": value for key, value in proof.items()}
    for key, value in (tags | {OWED_TAG: PROMOTION, VERIFIED_TAG: "true"}).items():
        client.set_model_version_tag(model.name, str(model.version), key, value)


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
    whose package is not the registered one, that declares other libraries than there are, or that
    cannot be loaded and run; CannotCompareError where the data asks for what it cannot answer;
    ConnectionError where tracker or store did not answer.
    """
    with tempfile.TemporaryDirectory(prefix="bertsmith-answers-") as scratch:
        answers_file = Path(scratch) / "answers.json"
        request = {
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
        answer = _answer_of_process(request)
        answers = json.loads(answers_file.read_text())
    return Evaluation(data=data.fingerprint, answers=answers, **answer)


def _answer_of_process(request: Mapping[str, Any]) -> dict[str, Any]:
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
    errors = redacted("\n".join(completed.stderr.strip().splitlines()[-5:]))
    match completed.returncode:
        case 0:
            answer: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
            return answer
        case proof_process.TRY_AGAIN:
            raise ConnectionError(f"{uri} could not be fetched and verified now:\n{errors}")
        case proof_process.OTHER_QUESTION:
            raise CannotCompareError(errors)
        case proof_process.CHANGED:
            raise VerificationError(f"{uri} is refused: {errors}")
    raise VerificationError(f"{uri} could not be loaded and run:\n{errors}")
