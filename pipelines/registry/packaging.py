"""A model as MLflow keeps it: weights, tokenizer, serving code, signature and an example."""

import shutil
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import mlflow.pyfunc
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, Schema
from mlflow.types.schema import Array

import bert_core
from bert_core.training.state import CONFIG_FILE, WEIGHTS_FILE
from pipelines.artifacts import Artifact
from pipelines.registry import serving

_TOKENIZER_FILES = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
_REQUIREMENTS = ("torch", "numpy", "safetensors", "tokenizers", "pandas", "mlflow")
_EXAMPLE = {"text": ["Returns the sum of the elements along the given axis."]}

_INPUTS = Schema([ColSpec(DataType.string, "text")])
_OUTPUTS = {
    "encoder": Schema([ColSpec(Array(DataType.double), "embedding")]),
    "classifier": Schema(
        [ColSpec(DataType.string, "label"), ColSpec(DataType.double, "probability")]
    ),
}


def declared_requirements() -> list[str]:
    """What a package made here says it needs, as pip reads it."""
    return [f"{name}=={_public(version(name))}" for name in _REQUIREMENTS]


def save_model_package(
    target: Path, kind: str, artifact: Artifact, metadata: Mapping[str, str]
) -> None:
    """Write the MLflow model of an `encoder` or `classifier` artifact into the new folder `target`.

    It carries `bert_core` as its own code, so that loading it needs no Bertsmith installation.
    """
    with tempfile.TemporaryDirectory(prefix="bertsmith-package-") as scratch:
        model = Path(scratch) / "model"
        _copy_model_files(model, artifact)
        mlflow.pyfunc.save_model(
            str(target),
            python_model=str(Path(serving.__file__).parent / f"{kind}_model.py"),
            artifacts={"model": str(model)},
            code_paths=[_clean_copy(Path(bert_core.__file__).parent, Path(scratch))],
            signature=ModelSignature(inputs=_INPUTS, outputs=_OUTPUTS[kind]),
            input_example=_EXAMPLE,
            pip_requirements=declared_requirements(),
            metadata=dict(metadata),
        )


def _copy_model_files(folder: Path, artifact: Artifact) -> None:
    folder.mkdir()
    for name in (WEIGHTS_FILE, CONFIG_FILE, *_TOKENIZER_FILES):
        shutil.copyfile(artifact.local(name), folder / name)


def _clean_copy(package: Path, scratch: Path) -> str:
    """The package's sources without caches, so that equal code makes equal packages."""
    target = scratch / package.name
    shutil.copytree(package, target, ignore=shutil.ignore_patterns("__pycache__"))
    return str(target)


def _public(full_version: str) -> str:
    """`2.13.0+cpu` names a build that not every index has; `2.13.0` is what is needed."""
    return full_version.partition("+")[0]
