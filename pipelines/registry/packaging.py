"""A model as MLflow keeps it: weights, tokenizer, serving code, signature and an example.

The package is one of MLflow's logged models: a complete one is reused, else one is made.
"""

import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import mlflow.pyfunc
import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import LoggedModel
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, Schema, TensorSpec
from mlflow.types.schema import Array

import bert_core
from bert_core.files.tokenizer_files import SAVED_FILES
from bert_core.inference.questions import Question
from bert_core.model.rows import CODE_FILE
from bert_core.training.state import CONFIG_FILE, WEIGHTS_FILE
from pipelines.artifacts import Artifact
from pipelines.registry import serving
from pipelines.registry.card import question_of
from pipelines.registry.finding import (
    CODE_TAG,
    DIGEST_TAG,
    KIND_TAG,
    REGISTERED_AS_TAG,
    REQUIREMENTS_TAG,
)
from pipelines.registry.serving import integrity
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker

_REQUIREMENTS = ("torch", "numpy", "safetensors", "tokenizers", "pandas", "mlflow")
# Saving runs the served code once, with MLflow's mock of `dbutils` in `sys.modules`: of two
# threads that save at once, one would leave the other's mock there for good.
_SAVING = threading.Lock()
# How MLflow calls what a column holds.
_TYPES: Final[Mapping[Any, DataType | Array]] = {
    str: DataType.string, int: DataType.long, float: DataType.double,
    list[str]: Array(DataType.string), list[float]: Array(DataType.double),
}  # fmt: skip


def declared_requirements() -> list[str]:
    """The requirements of a package made here, as pip reads them."""
    return [f"{name}=={_public(version(name))}" for name in _REQUIREMENTS]


def logged_package(
    kind: str,
    name: str,
    artifact: Artifact,
    run_id: str,
    tags: Mapping[str, str],
    tracker: Tracker,
    client: MlflowClient,
) -> LoggedModel:
    """The package in MLflow: a complete one of an earlier run, or a new one.

    An incomplete one may still be being written by another run: it is not touched.
    """
    experiment_id = tracker.experiment_id()
    same = _with_tags(tags, (FINGERPRINT_TAG, KIND_TAG, CODE_TAG, REQUIREMENTS_TAG))
    left = client.search_logged_models([experiment_id], same)
    whole = next((model for model in left if model.status == "READY"), None)
    if whole is not None:
        return whole
    logged = client.create_logged_model(
        experiment_id,
        name=kind,
        source_run_id=run_id,
        tags={**tags, REGISTERED_AS_TAG: name},
        model_type=kind,
    )
    with tempfile.TemporaryDirectory(prefix="bertsmith-model-") as scratch:
        package = Path(scratch) / "package"
        digest = save_model_package(package, kind, artifact, metadata=tags)
        client.log_model_artifacts(logged.model_id, str(package))
        client.set_logged_model_tags(logged.model_id, {DIGEST_TAG: digest})
    return client.finalize_logged_model(logged.model_id, "READY")


def clear_half_made(name: str, fingerprint: str, tracker: Tracker, client: MlflowClient) -> None:
    """Remove incomplete packages of a version that exists now.

    They are left by interrupted runs, or being written by another run, which then uses the version.
    """
    tags = {FINGERPRINT_TAG: fingerprint, REGISTERED_AS_TAG: name}
    for model in client.search_logged_models([tracker.experiment_id()], _with_tags(tags, tags)):
        if model.status != "READY":
            client.delete_logged_model(model.model_id)


def _with_tags(tags: Mapping[str, str], names: Iterable[str]) -> str:
    """The filter by which MLflow finds what carries these tags."""
    return " AND ".join(f"tags.`{name}` = '{tags[name]}'" for name in names)


def save_model_package(
    target: Path, kind: str, artifact: Artifact, metadata: Mapping[str, str]
) -> str:
    """Write the MLflow model of an `encoder`, or of a task's model, into the new folder `target`.

    It carries `bert_core` as its own code, so that loading it needs no Bertsmith installation, and
    the list of what its files hash to, whose digest is returned.
    """
    with tempfile.TemporaryDirectory(prefix="bertsmith-package-") as scratch:
        model = Path(scratch) / "model"
        _copy_model_files(model, artifact)
        question = question_of(kind, artifact)
        with _SAVING:
            mlflow.pyfunc.save_model(
                str(target),
                python_model=str(Path(serving.__file__).parent / "served_model.py"),
                artifacts={"model": str(model)},
                code_paths=[_clean_copy(Path(bert_core.__file__).parent, Path(scratch))],
                signature=signature_of(question),
                input_example=pd.DataFrame(
                    {name: [value] for name, value in question.example.items()}
                ),
                pip_requirements=declared_requirements(),
                metadata=dict(metadata),
            )
    shutil.copyfile(integrity.__file__, target / Path(integrity.__file__).name)
    return integrity.seal(target)


def signature_of(question: Question) -> ModelSignature:
    """What the model is asked and answers, in MLflow's words."""
    asked: list[ColSpec | TensorSpec] = [
        ColSpec(
            _TYPES[str if isinstance(value, str) else list[str]], name,
            required=not question.in_place or name != question.columns[0],
        )
        for name, value in question.example.items()
    ]  # fmt: skip
    asked += [
        ColSpec(_TYPES[list[str] if name == question.in_place else str], name, required=False)
        for name in question.optional
    ]
    answered: list[ColSpec | TensorSpec] = [
        ColSpec(_TYPES[kind], name) for name, kind in question.answers.items()
    ]
    return ModelSignature(Schema(asked), Schema(answered))


def _copy_model_files(folder: Path, artifact: Artifact) -> None:
    folder.mkdir()
    for name in (WEIGHTS_FILE, CONFIG_FILE, *SAVED_FILES, *artifact.names(CODE_FILE)):
        shutil.copyfile(artifact.local(name), folder / name)


def _clean_copy(package: Path, scratch: Path) -> str:
    """The package's sources without caches, so that equal code makes equal packages."""
    target = scratch / package.name
    shutil.copytree(package, target, ignore=shutil.ignore_patterns("__pycache__"))
    return str(target)


def _public(full_version: str) -> str:
    """`2.13.0+cpu` names a build that not every index has; `2.13.0` is what is needed."""
    return full_version.partition("+")[0]
