"""A model as MLflow keeps it: weights, tokenizer, serving code, signature and an example."""

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
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
from bert_core.inference.tables import Question
from bert_core.model.rows import CODE_FILE
from bert_core.tokenizer_files import SAVED_FILES
from bert_core.training.state import CONFIG_FILE, WEIGHTS_FILE
from pipelines.registry import seal
from pipelines.registry.card import question_of
from pipelines.registry.find import DIGEST_TAG
from pipelines.store import Artifact
from pipelines.tracking.tracker import Tracker, time_for_files

_REQUIREMENTS = ("torch", "numpy", "safetensors", "tokenizers", "pandas", "mlflow")
# How MLflow calls what a column holds.
_TYPES: Final[Mapping[Any, DataType | Array]] = {
    str: DataType.string, int: DataType.long, float: DataType.double,
    list[str]: Array(DataType.string), list[float]: Array(DataType.double),
}  # fmt: skip


def declared_requirements() -> list[str]:
    """The requirements of a package made here, as pip reads them."""
    return [f"{name}=={_public(version(name))}" for name in _REQUIREMENTS]


def log_package(
    kind: str,
    artifact: Artifact,
    run_id: str,
    tags: Mapping[str, str],
    tracker: Tracker,
    client: MlflowClient,
) -> LoggedModel:
    """A new package in MLflow; one that could not be stored whole is deleted again."""
    logged = client.create_logged_model(
        tracker.experiment_id(), name=kind, source_run_id=run_id, tags=dict(tags), model_type=kind
    )
    try:
        with tempfile.TemporaryDirectory(prefix="bertsmith-model-") as scratch:
            package = Path(scratch) / "package"
            digest = save_model_package(package, kind, artifact, metadata=tags)
            with time_for_files():
                client.log_model_artifacts(logged.model_id, str(package))
        client.set_logged_model_tags(logged.model_id, {DIGEST_TAG: digest})
        return client.finalize_logged_model(logged.model_id, "READY")
    except Exception:
        with suppress(Exception):  # the first error is the one to tell
            client.delete_logged_model(logged.model_id)
        raise


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
        mlflow.pyfunc.save_model(
            str(target),
            python_model=str(Path(seal.__file__).with_name("served_model.py")),
            artifacts={"model": str(model)},
            code_paths=[_clean_copy(Path(bert_core.__file__).parent, Path(scratch))],
            signature=signature_of(question),
            input_example=pd.DataFrame({name: [cell] for name, cell in question.example.items()}),
            pip_requirements=declared_requirements(),
            metadata=dict(metadata),
        )
    shutil.copyfile(seal.__file__, target / Path(seal.__file__).name)
    return seal.seal(target)


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
